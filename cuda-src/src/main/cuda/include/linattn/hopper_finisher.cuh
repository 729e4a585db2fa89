// Rows of dq and dk that become gradients of rows that are not divided, on the way.
#pragma once

#include "linattn/hopper_block.cuh"

namespace linattn {
namespace hopper {

// A warp of the sweep of dk and dv that has nothing else to do. dq is written before; of dk it follows the blocks that
// write it, which tell how far they are, and takes its share of the rows of a chunk while the L2 cache has them. It does
// so as long as its own block walks and not longer, since others may not be on the GPU yet: what is left then, and marked
// items, is left to normalize_rows_gradient.
template <class Plan>
struct Finisher {
  using Element = typename Plan::Element;
  // Few lanes have a row, so that few exchanges sum it: they are slow where shared memory is busy.
  static constexpr int kLanes = Plan::kFinishingLanes;
  static constexpr int kPieces = Plan::kFinishedPieces;
  struct Shape {
    static constexpr int kLanes = Finisher::kLanes;
    static constexpr int kVectors = 1;
  };
  using Part = RowPart<Shape, Element>;
  static constexpr int kRowsAtOnce = kWarp / kLanes;  // of a step
  static constexpr int kPlaces = Plan::kFinishedPlaces;

  // Where a step is in a chunk.
  struct Step {
    int head;  // the key/value head, then query heads
    int from;  // its first row
  };

  const Block<Plan>& block;
  const NormalizeRowsGradientArguments (&rows)[2];  // of dk and of dq
  int lane;
  int share;
  uint32_t places;  // in shared memory, this lane's
  int kv_head;  // of the item, which is in shared memory

  __device__ __forceinline__ Finisher(const Block<Plan>& shared, const NormalizeRowsGradientArguments (&of_sweep)[2],
                                      int finisher_warp, int lane_idx)
      : block(shared),
        rows(of_sweep),
        lane(lane_idx),
        kv_head(shared.work.kv_head) {
    const int blocks = ceil_div(block.chunked().value_dim, Plan::kTileColumns);
    const int block_of_item = (block.args.gradient.task == kValueGradient ? blocks : 0) + block.work.tile;
    share = block_of_item * Plan::kFinishers + finisher_warp;
    asm volatile("" : "+r"(lane), "+r"(share));  // what follows from these is not found before the roles part
    places = block.base + Plan::kFinishedOffset + finisher_warp * kPlaces * Plan::kFinishedBytes + lane * 16;
  }

  __device__ __forceinline__ void run() const {
    if (block.progress() == nullptr) {
      return;
    }
    const int item_of_head = block.item_of_head();
    const bool has_queries = is_unmarked(rows[1], item_of_head / rows[1].num_items, item_of_head % rows[1].num_items);
    const int heads = has_queries ? 1 + rows[1].group : 1;  // one of k and those of q
    int written = 0;
    int chunk = 0;
#pragma unroll 1
    while (chunk < block.written_chunks()) {
      const bool is_last = is_over();
      if (chunk == written) {
        written = wait_for_chunks(chunk);
        if (chunk == written) {
          break;
        }
      }
      const int first = (block.written_chunks() - 1 - chunk) * Plan::kChunk;
      finish_chunk(block.work.start + first, min(Plan::kChunk, block.work.tokens - first), heads);
      ++chunk;
      if (is_last) {
        break;
      }
    }
    if (lane == 0) {
      block.progress()[2 * rows[0].tiles + share] = static_cast<uint32_t>(chunk);
    }
  }

  // Whether the block has walked all chunks.
  __device__ __forceinline__ bool is_over() const {
    return hear(block.progress() + block.written_place(0)) == static_cast<uint32_t>(block.written_chunks());
  }

  // How many chunks of dk are written, more than `chunk` where the block walks on until then.
  __device__ __forceinline__ int wait_for_chunks(int chunk) const {
    while (true) {
      const bool is_last = is_over();
      const int of_tile = static_cast<int>(hear(block.progress() + min(lane, rows[0].tiles - 1)));
      int written = block.written_chunks();
      for (int tile = 0; tile < rows[0].tiles; ++tile) {
        written = min(written, __shfl_sync(kAllLanes, of_tile, tile));
      }
      if (written > chunk || __any_sync(kAllLanes, is_last)) {
        finish_listening();
        __syncwarp();
        return written;
      }
      rest();
    }
  }

  // The rows of this warp in a chunk, of so many heads: the key/value head, then query heads. Rows are on their way to shared
  // memory some steps ahead: registers for them there are not.
  __device__ __forceinline__ void finish_chunk(int first_token, int num_rows, int heads) const {
    Step asked = {0, share};
    Step step = {0, share};
    uint32_t place = places;
#pragma unroll 1
    for (int ahead = 0; step.head < heads; ++ahead) {
      if (asked.head < heads) {
        ask(asked, place, first_token, num_rows);
        advance(asked, num_rows);
      }
      commit_own_copies();
      place += Plan::kFinishedBytes;  // to the one that was asked for first
      place = place == places + kPlaces * Plan::kFinishedBytes ? places : place;
      if (ahead >= kPlaces - 1) {
        wait_for_own_copies<kPlaces - 1>();
        finish(step, place, first_token, num_rows);
        advance(step, num_rows);
      }
    }
  }

  __device__ __forceinline__ void advance(Step& step, int num_rows) const {
    step.from += kRowsAtOnce * rows[0].shares;
    if (step.from >= num_rows) {
      step = {step.head + 1, share};
    }
  }

  // In a place are, of a row of a step, pieces of x, then of dy, and the scale.
  __device__ __forceinline__ static constexpr uint32_t piece(uint32_t place, int index) {
    return place + index * kWarp * 16;
  }
  __device__ __forceinline__ uint32_t scale_word(uint32_t place) const {
    return piece(place, 2 * kPieces) - lane * 12;
  }
  __device__ __forceinline__ int own_row(const Step& step) const {
    return step.from + lane / kLanes * rows[0].shares;
  }
  __device__ __forceinline__ bool has_piece(int i) const {
    return Plan::kFinishedRow % kLanes == 0 || i * kLanes + lane % kLanes < Plan::kFinishedRow;
  }
  // Read anew where it is used: it would fill the registers.
  __device__ __forceinline__ const NormalizeRowsGradientArguments& rows_of(const Step& step) const {
    int of = step.head == 0 ? 0 : 1;
    asm volatile("" : "+r"(of));
    return rows[of];
  }
  __device__ __forceinline__ int head_of(const Step& step) const {
    return step.head == 0 ? kv_head : kv_head * rows[1].group + step.head - 1;
  }

  __device__ __forceinline__ void ask(const Step& step, uint32_t place, int first_token, int num_rows) const {
    const NormalizeRowsGradientArguments& args = rows_of(step);
    const int row = own_row(step);
    if (row < num_rows) {
      const int token = first_token + row;
      const int head = head_of(step);
      constexpr int kPieceElements = 16 / static_cast<int>(sizeof(Element));
      const auto* const row_gmem =
          row_address<const Element>(args.row, block.work.batch, head, token) + lane % kLanes * kPieceElements;
      const auto* const gradient_gmem =
          row_address<const Element>(args.gradient, block.work.batch, head, token) + lane % kLanes * kPieceElements;
#pragma unroll 1
      for (int i = 0; i < kPieces; ++i) {
        if (has_piece(i)) {
          copy_own_async<16>(piece(place, i), row_gmem + i * kLanes * kPieceElements);
          copy_own_async<16>(piece(place, kPieces + i), gradient_gmem + i * kLanes * kPieceElements);
        }
      }
      copy_own_async<4>(scale_word(place),
                        args.scale + (block.work.batch * args.heads + head) * static_cast<int64_t>(args.tokens) + token);
    }
  }

  // Rows are read twice, since there are no registers for them. The product is that of normalize_rows_gradient, whose warp
  // has the row: even pieces are those of its first 16 lanes, odd ones of the others.
  __device__ __forceinline__ void finish(const Step& step, uint32_t place, int first_token, int num_rows) const {
    const NormalizeRowsGradientArguments& args = rows_of(step);
    float products[2] = {0.0f, 0.0f};
#pragma unroll 1  // registers do not suffice for more
    for (int i = 0; i < kPieces; i += 2) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        products[odd] = load(place, i + odd, 0).add_product(load(place, i + odd, kPieces), products[odd]);
      }
    }
    const RowFinish finish_of(load_float(scale_word(place)), sum_lanes<kLanes>(products[0] + products[1]));
    const int row = own_row(step);
    auto* const pieces_gmem = reinterpret_cast<uint4*>(
        row_address<Element>(args.gradient, block.work.batch, head_of(step), first_token + row));
#pragma unroll 1  // registers do not suffice for more
    for (int i = 0; i < kPieces; i += 2) {
#pragma unroll
      for (int odd = 0; odd < 2; ++odd) {
        Part gradient = load(place, i + odd, kPieces);
        load(place, i + odd, 0).replace(gradient, finish_of);
        if (row < num_rows && i + odd < kPieces && has_piece(i + odd)) {
          pieces_gmem[(i + odd) * kLanes + lane % kLanes] = gradient.vectors[0];
        }
      }
    }
  }

  __device__ __forceinline__ Part load(uint32_t place, int i, int first) const {
    Part part;
    part.vectors[0] = i < kPieces && has_piece(i) ? load_unit(piece(place, first + i)) : make_uint4(0, 0, 0, 0);
    return part;
  }
};

}  // namespace hopper
}  // namespace linattn
