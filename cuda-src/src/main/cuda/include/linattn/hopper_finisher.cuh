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
  static constexpr int kRowVectors = Plan::kHeadDim * Plan::kElementBytes / 16;
  // Pieces of a row of each of its lanes.
  struct Shape {
    static constexpr int kLanes = kRowVectors > 16 ? 32 : 16;
    static constexpr int kVectors = (kRowVectors + kLanes - 1) / kLanes;
  };
  static constexpr int kRowsAtOnce = kWarp / Shape::kLanes;
  static constexpr int kTogether = 2;  // so many under way

  const Block<Plan>& block;
  const NormalizeRowsGradientArguments& keys;
  const NormalizeRowsGradientArguments& queries;
  int lane;
  int share;

  __device__ __forceinline__ Finisher(const Block<Plan>& shared, const NormalizeRowsGradientArguments& rows_of_keys,
                                      const NormalizeRowsGradientArguments& rows_of_queries, int finisher_warp,
                                      int lane_idx)
      : block(shared), keys(rows_of_keys), queries(rows_of_queries), lane(lane_idx) {
    const int blocks = ceil_div(block.chunked().value_dim, Plan::kTileColumns);
    const int block_of_item = (block.args.gradient.task == kValueGradient ? blocks : 0) + block.work.tile;
    share = block_of_item * Plan::kFinishers + finisher_warp;
  }

  // What follows from these is found anew in each chunk and holds no registers in between.
  __device__ __forceinline__ void find_anew() { asm volatile("" : "+r"(lane), "+r"(share)); }

  __device__ __forceinline__ void run() {
    uint32_t* const progress_gmem = block.progress();
    if (progress_gmem == nullptr) {
      return;
    }
    const ItemWork& work = block.work;
    const int item_of_head = block.item_of_head();
    const bool has_queries = is_unmarked(queries, item_of_head / keys.num_items, item_of_head % keys.num_items);
    const int num_chunks = block.written_chunks();
    int written = 0;
    int chunk = 0;
    while (chunk < num_chunks) {
      const uint32_t walked = hear(progress_gmem + block.written_place(0));
      if (chunk == written) {
        written = wait_for_chunks(progress_gmem, chunk, num_chunks);
        if (chunk == written) {
          break;
        }
      }
      const int first = work.start + (num_chunks - 1 - chunk) * Plan::kChunk;
      find_anew();
      if (has_queries) {
        prefetch(first - Plan::kChunk);
      }
      find_anew();
      finish(keys, work.kv_head, first);
      find_anew();
      for (int member = 0; member < queries.group && has_queries; ++member) {
        finish(queries, work.kv_head * queries.group + member, first);
      }
      ++chunk;
      if (walked == static_cast<uint32_t>(num_chunks)) {
        break;
      }
    }
    if (lane == 0) {
      progress_gmem[2 * keys.tiles + share] = static_cast<uint32_t>(chunk);
    }
  }

  // How many chunks of dk are written, more than `chunk` where the block walks on until then.
  __device__ __forceinline__ int wait_for_chunks(const uint32_t* progress_gmem, int chunk, int num_chunks) const {
    while (true) {
      const bool is_over = static_cast<int>(hear(progress_gmem + block.written_place(0))) == num_chunks;
      const int of_tile = static_cast<int>(hear(progress_gmem + min(lane, keys.tiles - 1)));
      int written = num_chunks;
      for (int tile = 0; tile < keys.tiles; ++tile) {
        written = min(written, __shfl_sync(kAllLanes, of_tile, tile));
      }
      if (written > chunk || __any_sync(kAllLanes, is_over)) {
        finish_listening();
        __syncwarp();
        return written;
      }
      rest();
    }
  }

  // The first row of this warp in a chunk, and the end of the chunk.
  __device__ __forceinline__ int first_row(int first) const {
    return first + (share - first % keys.shares + keys.shares) % keys.shares;
  }
  __device__ __forceinline__ int end_of_chunk(int first) const {
    return min(first + Plan::kChunk, block.work.start + block.work.tokens);
  }

  // Asks for the rows of dq of the chunk after: a lane for each line of memory.
  __device__ __forceinline__ void prefetch(int first) const {
    constexpr int kLineBytes = 128;
    constexpr int kLines = (kRowVectors * 16 + kLineBytes - 1) / kLineBytes;
    const int end = first + Plan::kChunk;
#pragma unroll 1
    for (int token = first_row(first) + lane / kLines * keys.shares; token < end && first >= block.work.start;
         token += kWarp / kLines * keys.shares) {
      const auto* const row_gmem = reinterpret_cast<const char*>(
          row_address<Element>(queries.gradient, block.work.batch, block.work.kv_head * queries.group, token));
      prefetch_to_cache(row_gmem + lane % kLines * kLineBytes);
    }
  }

  // The rows of this warp in the chunk from token `first` on.
  __device__ __forceinline__ void finish(const NormalizeRowsGradientArguments& args, int head, int first) const {
    const int shares = keys.shares;
    const int end = end_of_chunk(first);
    const int own = lane / Shape::kLanes * shares;
    const float* const scales_gmem =
        args.scale + (static_cast<int64_t>(block.work.batch) * args.heads + head) * args.tokens;
#pragma unroll 1
    for (int from = first_row(first); from < end; from += kTogether * kRowsAtOnce * shares) {
      RowPart<Shape, Element> rows[kTogether];
      RowPart<Shape, Element> gradients[kTogether];
      float scales[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int token = from + own + i * kRowsAtOnce * shares;
        const bool exists = token < end;
        rows[i].load(exists ? row_address<const Element>(args.row, block.work.batch, head, token) : nullptr,
                     kRowVectors);
        gradients[i].load(exists ? row_address<Element>(args.gradient, block.work.batch, head, token) : nullptr,
                          kRowVectors);
        scales[i] = exists ? scales_gmem[token] : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int token = from + own + i * kRowsAtOnce * shares;
        finish_gradient(rows[i], scales[i], gradients[i]);
        gradients[i].store(
            token < end ? row_address<Element>(args.gradient, block.work.batch, head, token) : nullptr, kRowVectors);
      }
    }
  }
};

}  // namespace hopper
}  // namespace linattn
