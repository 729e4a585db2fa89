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
  // A warp has a row, as in normalize_rows_gradient: the sum over it must be the same.
  struct Shape {
    static constexpr int kLanes = kWarp;
    static constexpr int kVectors = (kRowVectors + kLanes - 1) / kLanes;
  };
  static_assert(kRowVectors > kWarp / 2, "that of shorter rows is another one");
  static constexpr int kTogether = 2;  // so many under way

  const Block<Plan>& block;
  const NormalizeRowsGradientArguments (&rows)[2];  // of dk and of dq
  int lane;
  int share;

  __device__ __forceinline__ Finisher(const Block<Plan>& shared, const NormalizeRowsGradientArguments (&of_sweep)[2],
                                      int finisher_warp, int lane_idx)
      : block(shared), rows(of_sweep), lane(lane_idx) {
    const int blocks = ceil_div(block.chunked().value_dim, Plan::kTileColumns);
    const int block_of_item = (block.args.gradient.task == kValueGradient ? blocks : 0) + block.work.tile;
    share = block_of_item * Plan::kFinishers + finisher_warp;
  }

  __device__ __forceinline__ void run() const {
    uint32_t* const progress_gmem = block.progress();
    if (progress_gmem == nullptr) {
      return;
    }
    const int item_of_head = block.item_of_head();
    const bool has_queries = is_unmarked(rows[1], item_of_head / rows[1].num_items, item_of_head % rows[1].num_items);
    const int heads = has_queries ? 1 + rows[1].group : 1;  // one of k and those of q
    const int num_chunks = block.written_chunks();
    int written = 0;
    int chunk = 0;
#pragma unroll 1
    while (chunk < num_chunks) {
      const bool is_last = hear(progress_gmem + block.written_place(0)) == static_cast<uint32_t>(num_chunks);
      if (chunk == written) {
        written = wait_for_chunks(progress_gmem, chunk, num_chunks);
        if (chunk == written) {
          break;
        }
      }
#pragma unroll 1
      for (int head = 0; head < heads; ++head) {
        finish(head, (num_chunks - 1 - chunk) * Plan::kChunk);
      }
      ++chunk;
      if (is_last) {
        break;
      }
    }
    if (lane == 0) {
      progress_gmem[2 * rows[0].tiles + share] = static_cast<uint32_t>(chunk);
    }
  }

  // How many chunks of dk are written, more than `chunk` where the block walks on until then.
  __device__ __forceinline__ int wait_for_chunks(const uint32_t* progress_gmem, int chunk, int num_chunks) const {
    while (true) {
      const bool is_over = hear(progress_gmem + block.written_place(0)) == static_cast<uint32_t>(num_chunks);
      const int of_tile = static_cast<int>(hear(progress_gmem + min(lane, rows[0].tiles - 1)));
      int written = num_chunks;
      for (int tile = 0; tile < rows[0].tiles; ++tile) {
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

  // Of the key/value head, or of a query head, the rows of this warp in the chunk that begins with row `first` of the item.
  __device__ __forceinline__ void finish(int head, int first) const {
    const NormalizeRowsGradientArguments& args = rows[head == 0 ? 0 : 1];
    const int head_idx = head == 0 ? block.work.kv_head : block.work.kv_head * rows[1].group + head - 1;
    const int num_rows = min(Plan::kChunk, block.work.tokens - first);
    const int batch = block.work.batch;
    const int64_t token = block.work.start + first;
    const auto* const rows_gmem = row_address<const Element>(args.row, batch, head_idx, token);
    auto* const gradients_gmem = row_address<Element>(args.gradient, batch, head_idx, token);
    const float* const scales_gmem =
        args.scale + (batch * args.heads + head_idx) * static_cast<int64_t>(args.tokens) + token;
    const int step = rows[0].shares;
#pragma unroll 1
    for (int from = share; from < num_rows; from += kTogether * step) {
      RowPart<Shape, Element> parts[kTogether];
      RowPart<Shape, Element> gradients[kTogether];
      float scales[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int row = from + i * step;
        const bool exists = row < num_rows;
        parts[i].load(exists ? rows_gmem + row * args.row.token_stride : nullptr, kRowVectors);
        gradients[i].load(exists ? gradients_gmem + row * args.gradient.token_stride : nullptr, kRowVectors);
        scales[i] = exists ? scales_gmem[row] : 0.0f;
      }
      finish_gradients(parts, scales, gradients);
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int row = from + i * step;
        gradients[i].store(row < num_rows ? gradients_gmem + row * args.gradient.token_stride : nullptr, kRowVectors);
      }
    }
  }
};

}  // namespace hopper
}  // namespace linattn
