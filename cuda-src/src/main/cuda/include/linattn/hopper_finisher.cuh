// Rows of dq and dk that become gradients of rows that are not divided, on the way.
#pragma once

#include "linattn/hopper_block.cuh"
#include "linattn/row_part.cuh"

namespace linattn {
namespace hopper {

// Warps that have nothing else to do. A launch of the gradients of k and v finds dq written; where its blocks are not all
// on the GPU at once dk of early items is too, while those of later ones walk. A block of dv finishes its share of
// the rows of dq of its item, one of dk those of dk of the item `lag` before. Nobody waits for what is late, or marked:
// normalize_rows_gradient finishes what is left.
template <class Plan>
struct Finisher {
  using Element = typename Plan::Element;
  static constexpr int kWarps = Plan::kFinishers;
  static constexpr int kBarrier = 2 + Plan::kBeside;
  static constexpr int kRowVectors = Plan::kHeadDim * Plan::kElementBytes / 16;
  // Pieces of a row of each of its lanes.
  struct Shape {
    static constexpr int kLanes = kRowVectors > 16 ? 32 : 16;
    static constexpr int kVectors = (kRowVectors + kLanes - 1) / kLanes;
  };
  static_assert(kRowVectors > 8, "shorter rows would waste lanes");
  static constexpr int kRowsAtOnce = kWarps * kWarp / Shape::kLanes;

  const Block<Plan>& block;
  int warp;
  int lane;

  __device__ __forceinline__ Finisher(const Block<Plan>& shared, int finisher_warp, int lane_idx)
      : block(shared), warp(finisher_warp), lane(lane_idx) {}

  __device__ __forceinline__ void run() const {
    const NormalizeRowsGradientArguments& args = block.args.rows;
    if (args.marks == nullptr) {
      return;
    }
    const int item_of_head = static_cast<int>(StateAddress<Plan>::block_number(block)) / args.shares - args.lag;
    if (item_of_head < 0) {
      return;
    }
    const int members = args.heads / (block.chunked().heads / block.chunked().group);
    for (int member = 0; member < members; ++member) {
      finish(item_of_head / args.num_items * members + member, item_of_head % args.num_items);
    }
  }

  // The block's share of an item of a head, counted over all batch rows; from the last row on, as the sweeps walk.
  __device__ __forceinline__ void finish(int head, int item) const {
    const NormalizeRowsGradientArguments& args = block.args.rows;
    const int share = block.work.tile;
    const int start = item * args.item_tokens;
    uint32_t* const marks_gmem = marks_of_item(args, head, item);
    if (!is_finite(marks_gmem)) {
      return;
    }
    const int end = min(args.tokens, start + args.item_tokens);
    const int last = end - 1 - (end - 1 - share + args.shares) % args.shares;
    const int batch = head / args.heads;
    const int head_idx = head % args.heads;
    const float* const scales_gmem = args.scale + static_cast<int64_t>(head) * args.tokens;
    const int own = warp * (kWarp / Shape::kLanes) + lane / Shape::kLanes;
#pragma unroll 1
    for (int from = last; from >= start; from -= kRowsAtOnce * args.shares) {
      const int token = from - own * args.shares;
      const bool exists = token >= start;
      Element* const gradient_gmem = exists ? row_address<Element>(args.gradient, batch, head_idx, token) : nullptr;
      RowPart<Shape, Element> row;
      RowPart<Shape, Element> gradient;
      row.load(exists ? row_address<const Element>(args.row, batch, head_idx, token) : nullptr, kRowVectors);
      gradient.load(gradient_gmem, kRowVectors);
      finish_gradient(row, exists ? scales_gmem[token] : 0.0f, gradient);
      gradient.store(gradient_gmem, kRowVectors);
    }
    named_barrier(kBarrier, kWarps * kWarp);
    if (warp == 0 && lane == 0) {
      marks_gmem[share] = kFinished;
    }
  }

  // Whether all tiles of an item are written, and finite, before long.
  __device__ __forceinline__ bool is_finite(const uint32_t* marks_gmem) const {
    const NormalizeRowsGradientArguments& args = block.args.rows;
    for (int i = 0; i <= block.num_chunks; ++i) {
      bool is_pending = false;
      bool is_marked = false;
      for (int tile = lane; tile < args.turns * args.tiles; tile += kWarp) {
        const uint32_t mark = load_acquire(marks_gmem + tile);
        is_pending = is_pending || mark == kPending;
        is_marked = is_marked || mark == kMarked;
      }
      if (!named_barrier_or(kBarrier, kWarps * kWarp, is_pending)) {
        return !named_barrier_or(kBarrier, kWarps * kWarp, is_marked);
      }
      rest();
    }
    return false;
  }
};

}  // namespace hopper
}  // namespace linattn
