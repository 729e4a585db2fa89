// The auxiliary role: sums of rows, and rows past the end.
#pragma once

#include "linattn/hopper_block.cuh"

namespace linattn {
namespace hopper {

// The sum of the rows of one box, z or u: the lane in column group g = lane / 4 and t = lane % 4 has columns 8g + 2t
// and 8g + 2t + 1.
struct RowSum {
  float low = 0.0f;
  float high = 0.0f;
};

template <class Plan>
struct Auxiliary {
  static constexpr int kWarps = Plan::kAuxiliaryWarps;
  // Where sums are wanted, v is one more box.
  static constexpr int kSummed = Plan::kBoxes + (Plan::kSums ? 1 : 0);
  static constexpr int kBoxesOfWarp = (kSummed + kWarps - 1) / kWarps;
  static constexpr int kBarrier = 2;
  using Half = typename Plan::Half;

  const Block<Plan>& block;
  int warp;  // 0 to kWarps - 1
  int lane;
  RowSum sums[kBoxesOfWarp];

  __device__ __forceinline__ Auxiliary(const Block<Plan>& shared, int aux_warp, int lane_idx)
      : block(shared), warp(aux_warp), lane(lane_idx) {}

  __device__ __forceinline__ int column(int box) const {
    return box * Plan::kBoxColumns + 8 * (lane >> 2) + 2 * (lane & 3);
  }

  __device__ __forceinline__ float initial_scale() const {
    return Plan::kNormalize ? 1.0f : block.scale(kKeyScale);
  }

  __device__ __forceinline__ void start() {
    const StateAddress state(block.args.chunked);
    const float* key_sum = state.key_sum_in;
#pragma unroll
    for (int i = 0; i < kBoxesOfWarp; ++i) {
      const int first = column(warp + i * kWarps);
      if (key_sum != nullptr && first < Plan::kHeadDim) {
        sums[i].low = key_sum[first] * initial_scale();
        sums[i].high = key_sum[first + 1] * initial_scale();
      }
    }
  }

  __device__ __forceinline__ void finish() const {
    const StateAddress state(block.args.chunked);
    if (state.key_sum_out == nullptr) {
      return;
    }
#pragma unroll
    for (int i = 0; i < kBoxesOfWarp; ++i) {
      const int box = warp + i * kWarps;
      const bool is_value = Plan::kSums && box == Plan::kBoxes;
      const int first = column(is_value ? 0 : box);
      const int end = is_value ? block.args.chunked.value_dim - block.work.tile * Plan::kBoxColumns : Plan::kHeadDim;
      if (box < kSummed && first < end && (is_value || block.work.tile == 0)) {
        float* sum_gmem = (is_value ? state.value_sum_out : state.key_sum_out) + first;
        const float scale = 1.0f / (is_value ? block.scale(kValueScale) : initial_scale());
        sum_gmem[0] = sums[i].low * scale;
        sum_gmem[1] = sums[i].high * scale;
      }
    }
  }

  // z in three parts of 16 bits, each a row behind the keys.
  __device__ __forceinline__ void publish_sums(int stage_idx, float unit) const {
#pragma unroll
    for (int i = 0; i < kBoxesOfWarp; ++i) {
      const int box = warp + i * kWarps;
      if (box < Plan::kBoxes) {
        float low = sums[i].low * unit;
        float high = sums[i].high * unit;
        const uint32_t rows = block.key(stage_idx, box) + Plan::kBoxBytes + (lane & 3) * 4;
#pragma unroll
        for (int part = 0; part < 3; ++part) {
          const uint32_t pair = Half::pack(low, high);
          store_word(rows + swizzled(part, lane >> 2), pair);
          low -= Half::low(pair);
          high -= Half::high(pair);
        }
      }
    }
  }

  // Adds the rows of a stage: a product with a matrix whose row j is one for the columns of group j.
  __device__ __forceinline__ void add_rows(int stage_idx) {
#pragma unroll
    for (int i = 0; i < kBoxesOfWarp; ++i) {
      const int box = warp + i * kWarps;
      if (box < kSummed) {
        const bool is_value = Plan::kSums && box == Plan::kBoxes;
        const uint32_t tile = is_value ? block.value(stage_idx) : block.key(stage_idx, box);
        if constexpr (Plan::kSplit) {
          add_by_words(tile, is_value ? Plan::kLower : Plan::kLowerKey, sums[i]);
        } else {
          add_by_products(tile, sums[i]);
        }
      }
    }
  }

  __device__ __forceinline__ void add_by_products(uint32_t tile, RowSum& sum) const {
    float partial_frag[4][4] = {};
#pragma unroll 4
    for (int group = 0; group < 8; ++group) {
      const uint32_t ones = (lane >> 2) == group ? Half::kOnes : 0u;
      const uint32_t ones_frag[4] = {ones, 0u, ones, 0u};
#pragma unroll
      for (int rows32 = 0; rows32 < 2; ++rows32) {
        uint32_t keys_frag[4];
        load_matrices_transposed(tile + swizzled(rows32 * 32 + lane, group), keys_frag);
        Half::add_product(partial_frag[2 * rows32], ones_frag, keys_frag[0], keys_frag[1]);
        Half::add_product(partial_frag[2 * rows32 + 1], ones_frag, keys_frag[2], keys_frag[3]);
      }
    }
    sum.low += (partial_frag[0][0] + partial_frag[1][0]) + (partial_frag[2][0] + partial_frag[3][0]);
    sum.high += (partial_frag[0][1] + partial_frag[1][1]) + (partial_frag[2][1] + partial_frag[3][1]);
  }

  // The tensor cores are the limit with three products, so these sums leave them alone.
  __device__ __forceinline__ void add_by_words(uint32_t tile, int lower_distance, RowSum& sum) const {
    float low[4] = {};
    float high[4] = {};
#pragma unroll 1
    for (int first = 0; first < Plan::kChunk; first += 16) {
#pragma unroll
      for (int j = 0; j < 16; ++j) {
        const uint32_t word = tile + first * kRowBytes + swizzled(j, lane >> 2) + (lane & 3) * 4;
        const uint32_t upper = load_word(word);
        const uint32_t lower = load_word(word + lower_distance);
        low[j & 1] += Half::low(upper);
        high[j & 1] += Half::high(upper);
        low[2 + (j & 1)] += Half::low(lower);
        high[2 + (j & 1)] += Half::high(lower);
      }
    }
    sum.low += (low[0] + low[1]) + (low[2] + low[3]);
    sum.high += (high[0] + high[1]) + (high[2] + high[3]);
  }

  // Rows past the end of the item belong to another sequence: no value, no key. Where rows are normalised
  // the keys have been cleared already.
  __device__ __forceinline__ void clear_tail(int stage_idx, int num_rows) const {
    const uint4 zero = make_uint4(0, 0, 0, 0);
    for (int i = num_rows * 8 + warp * kWarp + lane; i < Plan::kChunk * 8; i += kWarps * kWarp) {
      const uint32_t unit = swizzled(i >> 3, i & 7);
#pragma unroll
      for (int half = 0; half < Plan::kHalves; ++half) {
        store_unit(block.value(stage_idx) + half * Plan::kLower + unit, zero);
        if constexpr (!Plan::kNormalize) {
#pragma unroll
          for (int box = 0; box < Plan::kBoxes; ++box) {
            store_unit(block.key(stage_idx, box) + half * Plan::kLowerKey + unit, zero);
          }
        }
      }
    }
  }

  __device__ __forceinline__ void run() {
    start();
    RingPosition<Plan::kStages> at;
    float count = block.work.count;
    for (int chunk = 0; chunk < block.num_chunks; ++chunk) {
      const int num_rows = block.rows(chunk);
      const bool has_tail = num_rows < Plan::kChunk;
      barrier_wait(block.key_empty(at.index), at.parity ^ 1);
      if constexpr (!Plan::kSums) {
        publish_sums(at.index, power_of_two(-block.key_sum_exponent(count + 1.0f)));
      }
      if (has_tail) {
        barrier_wait(block.key_full(at.index), at.parity);
        barrier_wait(block.value_full(at.index), at.parity);
        clear_tail(at.index, num_rows);
        named_barrier(kBarrier, kWarps * kWarp);
      }
      publish_to_async_proxy();
      arrive_once_a_warp(block.barrier(Plan::kReady, at.index), lane);
      barrier_wait(block.key_full(at.index), at.parity);
      if (Plan::kNormalize || has_tail) {
        barrier_wait(block.barrier(Plan::kReady, at.index), at.parity);
      }
      if constexpr (Plan::kSums) {
        barrier_wait(block.value_full(at.index), at.parity);
      }
      add_rows(at.index);
      arrive_once_a_warp(block.key_empty(at.index), lane);
      if constexpr (Plan::kSums && Plan::kSplit) {
        arrive_once_a_warp(block.value_empty(at.index), lane);
      }
      count += Plan::kChunk;
      at.advance();
    }
    finish();
  }
};

}  // namespace hopper
}  // namespace linattn
