// The role of the warps beside the producer of a wide gradient of q: d = o . dO, ahead of the scores.
#pragma once

#include "linattn/hopper_block.cuh"

namespace linattn {
namespace hopper {

// 64 columns each.
template <class Plan>
__device__ __forceinline__ constexpr int boxes_of_part(int part) {
  return Plan::kBoxes % 2 == 0 || 2 * part + 1 < Plan::kBoxes ? 2 : 1;
}

// Asks for o of the parts that the block forms, two boxes each, which have one place.
template <class Plan>
__device__ __forceinline__ void load_output_rows(const Block<Plan>& block, int chunk, RingPosition<1>& outputs_at,
                                                 int lane) {
  const ItemWork& work = block.work;
#pragma unroll 1
  for (int part = 0; part < Plan::kDeltaParts; ++part) {
    if (block.multiplies(part)) {
      const uint32_t full = block.barrier(Plan::kOutputRowsFull);
      const int boxes = boxes_of_part<Plan>(part);
      barrier_wait(block.barrier(Plan::kOutputRowsEmpty), outputs_at.parity() ^ 1);
      if (lane == 0) {
        barrier_expect(full, boxes * Plan::kBoxBytes);
#pragma unroll 1
        for (int box = 0; box < boxes; ++box) {
          load_tile(block.output_rows() + box * Plan::kBoxBytes, &block.args.output_rows,
                    {(2 * part + box) * Plan::kBoxColumns, work.start + block.first_token(chunk), block.query_head(),
                     work.batch},
                    full);
        }
      }
      outputs_at.advance();
    }
  }
}

// d of a chunk once dO has landed. A warp has eight rows at a time, four lanes a quarter of the columns of each: few sums
// of lanes, and no two of eight lanes want the same bank.
template <class Plan>
struct Delta {
  using Half = typename Plan::Half;
  static constexpr int kRows = 8;

  const Block<Plan>& block;
  int warp;
  int lane;

  __device__ __forceinline__ Delta(const Block<Plan>& shared, int delta_warp, int lane_idx)
      : block(shared), warp(delta_warp), lane(lane_idx) {}

  __device__ __forceinline__ static float add_product(uint32_t x, uint32_t o, float sum) {
    sum = fmaf(Half::low(x), Half::low(o), sum);
    return fmaf(Half::high(x), Half::high(o), sum);
  }

  // Adds x o of eight columns.
  __device__ __forceinline__ static float add_unit(uint32_t x_address, uint32_t o_address, float sum) {
    const uint4 x = load_unit(x_address);
    const uint4 o = load_unit(o_address);
    sum = add_product(x.x, o.x, sum);
    sum = add_product(x.y, o.y, sum);
    sum = add_product(x.z, o.z, sum);
    return add_product(x.w, o.w, sum);
  }

  // A part of d of all rows of a chunk: to the blocks that need it, eight lanes for each.
  __device__ __forceinline__ void form(int place, uint32_t queries, int part) const {
    const int boxes = boxes_of_part<Plan>(part);
    const bool shares = block.shares_delta();
    const int rank = lane / kRows;
    const bool writes = rank < (shares ? Plan::kDeltaParts : 1);
    uint32_t deltas = block.deltas(place) + (part * Plan::kChunk + lane % kRows) * 4;
    uint32_t full = block.rows_full(place);
    if (shares && writes) {
      deltas = address_in_block(deltas, rank);
      full = address_in_block(full, rank);
    }
#pragma unroll 1
    for (int first_row = warp * kRows; first_row < Plan::kChunk; first_row += Plan::kDeltaWarps * kRows) {
      const uint32_t unit = swizzled(first_row + lane % kRows, lane / kRows);
      float sum = 0.0f;
#pragma unroll 1
      for (int box = 0; box < boxes; ++box) {
        const uint32_t x = queries + (2 * part + box) * Plan::kQueryBox;
        const uint32_t o = block.output_rows() + box * Plan::kBoxBytes;
        sum = add_unit(x + unit, o + unit, sum);
        sum = add_unit(x + (unit ^ 4 * kUnitBytes), o + (unit ^ 4 * kUnitBytes), sum);
      }
      sum += __shfl_xor_sync(kAllLanes, sum, kRows);
      sum += __shfl_xor_sync(kAllLanes, sum, 2 * kRows);
      if (writes) {
        if (shares) {
          store_float_async(deltas + first_row * 4, sum, full);
        } else {
          store_float(deltas + first_row * 4, sum);
        }
      }
    }
  }

  __device__ __forceinline__ void run() const {
    RingPosition<Plan::kStages> at;
    RingPosition<1> outputs_at;
#pragma unroll 1
    for (int chunk = 0; chunk < block.num_chunks; ++chunk) {
      barrier_wait(block.query_full(at.index()), at.parity());
#pragma unroll
      for (int part = 0; part < Plan::kDeltaParts; ++part) {
        if (block.multiplies(part)) {
          barrier_wait(block.barrier(Plan::kOutputRowsFull), outputs_at.parity());
          form(block.row_place(chunk), block.query(at.index(), 0), part);
          reads_are_used();
          arrive_once_a_warp(block.barrier(Plan::kOutputRowsEmpty), lane);
          outputs_at.advance();
        }
      }
      arrive_once_a_warp(block.query_empty(at.index()), lane);
      if (!block.shares_delta()) {
        barrier_arrive(block.rows_full(block.row_place(chunk)));
      }
      at.advance();
    }
  }
};

}  // namespace hopper
}  // namespace linattn
