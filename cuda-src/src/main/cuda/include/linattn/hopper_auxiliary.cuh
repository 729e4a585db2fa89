// The auxiliary role: sums of rows, and rows past the end.
#pragma once

#include "linattn/hopper_block.cuh"
#include "linattn/hopper_sums.cuh"
#include "linattn/hopper_values.cuh"

namespace linattn {
namespace hopper {

template <class Plan>
struct Auxiliary {
  static constexpr int kWarps = Plan::kAuxiliaryWarps;
  using Sums = std::conditional_t<Plan::kWeighsKeys, WeighedSums<Plan>,
                                  std::conditional_t<Plan::kStreams, BoxSums<Plan>, RowSums<Plan>>>;
  static constexpr int kBarrier = 1 + Plan::kBeside;

  const Block<Plan>& block;
  int warp;  // 0 to kWarps - 1
  int lane;
  Sums sums;

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
    arrive_by_lanes<Plan::kHasRows>(block.key_empty(at.index()), lane);
    if constexpr (Plan::kSums && Plan::kSplit) {
      arrive_by_lanes<Plan::kHasRows>(block.value_empty(at.index()), lane);
    }
  }

  // z of the rows before a chunk, and what else its products wait for.
  __device__ __forceinline__ void prepare(int chunk, const RingPosition<Plan::kStages>& at) {
    if constexpr (!Plan::kSums) {
      barrier_wait(block.key_empty(at.index()), at.parity() ^ 1);
      if (block.writes(chunk)) {
        sums.publish(at.index(), sum_scale(chunk));
      }
    }
    const int num_rows = block.rows(chunk);
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
      arrive_by_lanes<Plan::kStateReadsTail>(block.barrier(Plan::kReady, at.index()), lane);
    }
  }

  // By which z of the rows before a chunk is an operand.
  __device__ __forceinline__ float sum_scale(int chunk) const {
    const float tokens = block.work.count + static_cast<float>(chunk * Plan::kChunk);
    return power_of_two(-block.key_sum_exponent(tokens + 1.0f));
  }

  __device__ __forceinline__ void run() {
    start();
    if constexpr (Plan::kStreams) {
      run_stream();
    } else {
      RingPosition<Plan::kStages> at;
      for (int chunk = 0; chunk < block.num_chunks; ++chunk) {
        prepare(chunk, at);
        sum_chunk(at);
        at.advance();
      }
    }
    finish();
  }

  // V; of each box of this warp z of the rows before, then the sum of its own. Others clear rows of k past the end.
  __device__ __forceinline__ void run_stream() {
    RingPosition<Plan::kPairs> first_at;
    StreamedValues<Plan> values(block, warp, lane);
    for (int chunk = 0; chunk < block.num_chunks; ++chunk) {
      values.convert(chunk, [&](int row) {
        const float scale = block.scale(kValueScale);
        if constexpr (Plan::kScalesRows) {
          return block.key_scale(chunk, row) * scale;
        } else {
          return scale;
        }
      });
      const float scale = sum_scale(chunk);
#pragma unroll
      for (int i = 0; i < Sums::kBoxesOfWarp; ++i) {
        if (sums.has(i)) {
          const RingPosition<Plan::kPairs> at = first_at.ahead(sums.box(i));
          const uint32_t key = block.pair_key(at.index());
          barrier_wait(block.pair_empty(at.index()), at.parity() ^ 1);
          const bool sums_up = sums.sums_up(i);
          if (sums_up) {
            sums.publish(i, key, scale);
            publish_to_async_proxy();
          }
          barrier_arrive(block.pair_full(at.index()));
          barrier_wait(block.pair_full(at.index()), at.parity());
          if (sums_up) {
            sums.add_rows(i, key);
            finish_reads();
          }
          barrier_arrive(block.pair_empty(at.index()));
        }
      }
      first_at = first_at.ahead(Plan::kBoxes);
    }
  }
};

}  // namespace hopper
}  // namespace linattn
