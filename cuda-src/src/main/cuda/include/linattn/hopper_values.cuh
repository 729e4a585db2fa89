// V of a chunk where boxes of q and k stream: the warps beside the producer make its operands.
#pragma once

#include "linattn/hopper_block.cuh"

namespace linattn {
namespace hopper {

// 64 x 64 of fp32 in two boxes of 32 columns become the upper halves of 64 columns in the place of the first box, and the
// lower ones in that of the second. A warp has eight rows at a time, four lanes a quarter of the columns of each, and reads
// all of them before it writes.
template <class Plan>
struct StreamedValues {
  static constexpr int kWarps = Plan::kAuxiliaryWarps;
  static constexpr int kRows = 8;
  using Half = typename Plan::Half;

  const Block<Plan>& block;
  int warp;  // 0 to kWarps - 1
  int lane;

  __device__ __forceinline__ StreamedValues(const Block<Plan>& shared, int aux_warp, int lane_idx)
      : block(shared), warp(aux_warp), lane(lane_idx) {}

  // Each row of a chunk times factor_of(row), which all lanes call at once; those past the end become zero.
  template <typename FactorOf>
  __device__ __forceinline__ void convert(int chunk, FactorOf factor_of) {
    const auto at = RingPosition<Plan::kStages>().ahead(chunk);
    const uint32_t tile = block.value(at.index());
    const int num_rows = block.rows(chunk);
    barrier_wait(block.value_landed(at.index()), at.parity());
#pragma unroll 1
    for (int first_row = warp * kRows; first_row < Plan::kChunk; first_row += kWarps * kRows) {
      const int row = first_row + lane % kRows;
      const int unit = lane / kRows;
      const uint32_t even = tile + swizzled(row, 2 * unit);
      const uint32_t odd = tile + swizzled(row, 2 * unit + 1);
      uint4 raw_frag[4] = {load_unit(even), load_unit(odd), load_unit(even + Plan::kLower),
                           load_unit(odd + Plan::kLower)};
      const float factor = factor_of(row);
      if (row >= num_rows) {
        raw_frag[0] = raw_frag[1] = raw_frag[2] = raw_frag[3] = make_uint4(0, 0, 0, 0);
      }
      __syncwarp();
      store(tile + swizzled(row, unit), raw_frag[0], raw_frag[1], factor);
      store(tile + swizzled(row, unit + 4), raw_frag[2], raw_frag[3], factor);
    }
    publish_to_async_proxy();
    barrier_arrive(block.value_full(at.index()));
  }

  // Eight columns.
  __device__ __forceinline__ static void store(uint32_t place, const uint4& first, const uint4& second, float factor) {
    uint4 upper;
    uint4 lower;
    split<Half>(__uint_as_float(first.x) * factor, __uint_as_float(first.y) * factor, upper.x, lower.x);
    split<Half>(__uint_as_float(first.z) * factor, __uint_as_float(first.w) * factor, upper.y, lower.y);
    split<Half>(__uint_as_float(second.x) * factor, __uint_as_float(second.y) * factor, upper.z, lower.z);
    split<Half>(__uint_as_float(second.z) * factor, __uint_as_float(second.w) * factor, upper.w, lower.w);
    store_unit(place, upper);
    store_unit(place + Plan::kLower, lower);
  }
};

}  // namespace hopper
}  // namespace linattn
