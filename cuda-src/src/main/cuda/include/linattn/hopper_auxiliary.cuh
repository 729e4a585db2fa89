// The auxiliary role: sums of rows, and rows past the end.
#pragma once

#include "linattn/hopper_block.cuh"
#include "linattn/hopper_sums.cuh"

namespace linattn {
namespace hopper {

// Multiplies rows of z where they have landed, by weights of rows `lane` and lane + 32; those past the end become
// zero. Eight lanes to a row of a box.
template <class Plan, int kWarps, int kMostTogether = Plan::kChunk>
__device__ __forceinline__ void multiply_rows(const Block<Plan>& block, int stage_idx, int warp, int lane,
                                              const float (&weights)[2], int num_rows) {
  using Half = typename Plan::Half;
  constexpr int kGroups = Plan::kChunk / 4;
  constexpr int kIterations = (kGroups + kWarps - 1) / kWarps;
  // Loads that don't wait for one another take registers.
  constexpr int kTogether = Plan::kMerged ? 1 : kIterations < kMostTogether ? kIterations : kMostTogether;
  static_assert(kIterations % kTogether == 0, "loads come in whole rounds");
  // Past the last one, a row of this lane again.
  const auto row_of = [&](int iteration) {
    const int row = (warp + iteration * kWarps) * 4 + (lane >> 3);
    return row < Plan::kChunk ? row : warp * 4 + (lane >> 3);
  };
  for (int box = 0; box < Plan::kBeside; ++box) {
    const uint32_t tile = block.value(stage_idx, box);
#pragma unroll 1
    for (int first = 0; first < kIterations; first += kTogether) {
      uint4 units[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        units[i] = load_unit(tile + swizzled(row_of(first + i), lane & 7));
      }
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int row = row_of(first + i);
        const float low = __shfl_sync(kAllLanes, weights[0], row & 31);
        const float high = __shfl_sync(kAllLanes, weights[1], row & 31);
        const float weight = row < 32 ? low : high;
        const uint32_t pairs[4] = {units[i].x, units[i].y, units[i].z, units[i].w};
        uint32_t products[4];
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) {
          products[pair] = row < num_rows
                               ? Half::pack(Half::low(pairs[pair]) * weight, Half::high(pairs[pair]) * weight)
                               : 0u;
        }
        if (warp + (first + i) * kWarps < kGroups) {
          store_unit(tile + swizzled(row, lane & 7), make_uint4(products[0], products[1], products[2], products[3]));
        }
      }
    }
  }
}

template <class Plan>
struct Auxiliary {
  static constexpr int kWarps = Plan::kAuxiliaryWarps;
  using Sums = std::conditional_t<Plan::kWeighsKeys, WeighedSums<Plan>, RowSums<Plan>>;
  static constexpr int kBarrier = 1 + Plan::kBeside;
  // Warps that divide rows of z: those without sums, if they are not too few.
  static constexpr int kFirstDivider = kWarps >= Sums::kSums + 3 ? Sums::kSums : 0;
  static constexpr int kDividers = kWarps - kFirstDivider;

  const Block<Plan>& block;
  int warp;  // 0 to kWarps - 1
  int lane;
  Sums sums;
  RingPosition<Plan::kRowPlaces> rows_at;  // moves on where rows are divided

  __device__ __forceinline__ Auxiliary(const Block<Plan>& shared, int aux_warp, int lane_idx)
      : block(shared), warp(aux_warp), lane(lane_idx), sums(shared, aux_warp, lane_idx) {}

  __device__ __forceinline__ void start() { sums.start(); }
  __device__ __forceinline__ void finish() const { sums.finish(); }

  // Rows past the end of the item belong to another sequence: no value, no key. Where rows are normalised
  // the keys have been cleared already.
  __device__ __forceinline__ void clear_tail(int stage_idx, int num_rows) const {
    const uint4 zero = make_uint4(0, 0, 0, 0);
    for (int i = num_rows * 8 + warp * kWarp + lane; i < Plan::kChunk * 8; i += kWarps * kWarp) {
      const uint32_t unit = swizzled(i >> 3, i & 7);
#pragma unroll
      for (int half = 0; half < Plan::kHalves; ++half) {
#pragma unroll
        for (int box = 0; box < Plan::kBeside; ++box) {
          store_unit(block.value(stage_idx, box) + half * Plan::kLower + unit, zero);
        }
        if constexpr (!Plan::kNormalize) {
#pragma unroll
          for (int box = 0; box < Plan::kBoxes; ++box) {
            store_unit(block.key(stage_idx, box) + half * Plan::kLowerKey + unit, zero);
          }
        }
      }
    }
  }

  // Sums the rows of a chunk that has come and gives it back.
  __device__ __forceinline__ void sum_chunk(const RingPosition<Plan::kStages>& at) {
    barrier_wait(block.key_full(at.index()), at.parity());
    block.wait_for_lengths(at.index(), at.parity());
    if constexpr (Plan::kSums) {
      barrier_wait(block.value_full(at.index()), at.parity());
    }
    sums.add_rows(at.index());
    if constexpr (Plan::kSlots == 0) {  // the next copy lands where it has read
      finish_reads();
    }
    arrive_as_reader<Plan::kHasRows || Plan::kKeepsScales>(block.key_empty(at.index()), lane);
    if constexpr (Plan::kSums && Plan::kSplit) {
      arrive_as_reader<Plan::kHasRows>(block.value_empty(at.index()), lane);
    }
  }

  __device__ __forceinline__ void divide_values(int chunk, const RingPosition<Plan::kStages>& at, int num_rows) {
    barrier_wait(block.rows_full(rows_at.index()), rows_at.parity());
    const float key_scales[2] = {block.z_scale(rows_at.index(), chunk, lane),
                                 block.z_scale(rows_at.index(), chunk, lane + 32)};
    rows_at.advance();
    barrier_wait(block.value_full(at.index()), at.parity());
    constexpr int kMostTogether = kDividers == 3 ? 3 : Plan::kChunk;
    multiply_rows<Plan, kDividers, kMostTogether>(block, at.index(), warp - kFirstDivider, lane, key_scales, num_rows);
  }

  // z of the rows before a chunk, and what else its products wait for.
  __device__ __forceinline__ void prepare(int chunk, const RingPosition<Plan::kStages>& at) {
    if constexpr (!Plan::kSums) {
      const float tokens = block.work.count + static_cast<float>(chunk * Plan::kChunk);
      barrier_wait(block.key_empty(at.index()), at.parity() ^ 1);
      if (block.writes(chunk)) {
        sums.publish(at.index(), power_of_two(-block.key_sum_exponent(tokens + 1.0f)));
      }
    }
    const int num_rows = block.rows(chunk);
    if constexpr (Plan::kScaleParts > 0) {
      if (warp >= kFirstDivider) {
        divide_values(chunk, at, num_rows);
      }
    }
    const bool has_tail = !Plan::kWeighsKeys && num_rows < Plan::kChunk;  // where keys are weighed others clear it
    if (has_tail) {
      barrier_wait(block.key_full(at.index()), at.parity());
      barrier_wait(block.value_full(at.index()), at.parity());
      named_barrier(kBarrier, kWarps * kWarp);  // all have read what was there before
      clear_tail(at.index(), num_rows);
      named_barrier(kBarrier, kWarps * kWarp);
    }
    if (Plan::kAlwaysReady || has_tail) {
      publish_to_async_proxy();
      arrive_once_a_warp(block.barrier(Plan::kReady, at.index()), lane);
    }
  }

  __device__ __forceinline__ void run() {
    start();
    RingPosition<Plan::kStages> at;
    for (int chunk = 0; chunk < block.num_chunks; ++chunk) {
      prepare(chunk, at);
      sum_chunk(at);
      at.advance();
    }
    finish();
  }
};

}  // namespace hopper
}  // namespace linattn
