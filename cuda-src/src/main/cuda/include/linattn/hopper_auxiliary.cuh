// The auxiliary role: sums of rows, and rows past the end.
#pragma once

#include "linattn/hopper_block.cuh"

namespace linattn {
namespace hopper {

// What a lane has of a sum of rows, z or u: two neighbouring columns of a warp's, of the rows of its group. The
// lanes of a group have all columns.
template <int kLanes>
struct RowSum {
  float low = 0.0f;
  float high = 0.0f;

  __device__ __forceinline__ RowSum of_all_rows() const {
    RowSum total = *this;
#pragma unroll
    for (int distance = kLanes; distance < kWarp; distance *= 2) {
      total.low += __shfl_xor_sync(kAllLanes, total.low, distance);
      total.high += __shfl_xor_sync(kAllLanes, total.high, distance);
    }
    return total;
  }
};

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
  // That a warp sums together: so many that there is a warp for each, if possible.
  static constexpr int kColumns = !Plan::kSums && Plan::kHeadDim <= 16 * kWarps ? 16 : 32;
  static constexpr int kLanes = kColumns / 2;
  static constexpr int kRowGroups = kWarp / kLanes;
  static constexpr int kKeySums = (Plan::kHeadDim + kColumns - 1) / kColumns;
  // Where sums are wanted, those of v too.
  static constexpr int kSums = kKeySums + (Plan::kSums ? Plan::kTileColumns / kColumns : 0);
  static constexpr int kSumsOfWarp = (kSums + kWarps - 1) / kWarps;
  static constexpr int kBarrier = 1 + Plan::kBeside;
  // Warps that divide rows of z: those without sums, if they are not too few.
  static constexpr int kFirstDivider = kWarps >= kSums + 3 ? kSums : 0;
  static constexpr int kDividers = kWarps - kFirstDivider;
  using Half = typename Plan::Half;

  const Block<Plan>& block;
  int warp;  // 0 to kWarps - 1
  int lane;
  RowSum<kLanes> sums[kSumsOfWarp];
  RingPosition<Plan::kRowPlaces> rows_at;  // moves on where rows are divided

  __device__ __forceinline__ Auxiliary(const Block<Plan>& shared, int aux_warp, int lane_idx)
      : block(shared), warp(aux_warp), lane(lane_idx) {}

  // Sum i of this warp.
  __device__ __forceinline__ int index(int i) const { return warp + i * kWarps; }
  __device__ __forceinline__ static bool is_value(int sum) { return Plan::kSums && sum >= kKeySums; }
  // One of the lanes of a column: it starts from what was there, and writes.
  __device__ __forceinline__ bool writes() const { return lane < kLanes; }
  // Counted from the first column of k or of v.
  __device__ __forceinline__ static int place(int sum) { return is_value(sum) ? sum - kKeySums : sum; }
  // Of this lane's first column.
  __device__ __forceinline__ int column(int sum) const { return place(sum) * kColumns + lane % kLanes * 2; }
  // Of its box: the 16-byte unit of this lane's columns.
  __device__ __forceinline__ int unit(int sum) const { return column(sum) % Plan::kBoxColumns / 8; }
  __device__ __forceinline__ static int box(int sum) { return place(sum) * kColumns / Plan::kBoxColumns; }

  __device__ __forceinline__ float initial_scale() const {
    return Plan::kNormalize ? 1.0f : block.scale(kKeyScale);
  }

  __device__ __forceinline__ void start() {
    const StateAddress<Plan> state(block);
    const float* key_sum = state.key_sum_in;
#pragma unroll
    for (int i = 0; i < kSumsOfWarp; ++i) {
      const int first = column(index(i));
      if (key_sum != nullptr && writes() && index(i) < kKeySums && first < Plan::kHeadDim) {
        sums[i].low = key_sum[first] * initial_scale();
        sums[i].high = key_sum[first + 1] * initial_scale();
      }
    }
  }

  __device__ __forceinline__ void finish() const {
    const StateAddress<Plan> state(block);
    if (state.key_sum_out == nullptr) {
      return;
    }
#pragma unroll
    for (int i = 0; i < kSumsOfWarp; ++i) {
      const int sum = index(i);
      const RowSum<kLanes> total = sums[i].of_all_rows();
      const int end = is_value(sum) ? block.chunked().value_dim - block.work.first_column : Plan::kHeadDim;
      const int first = column(sum);
      if (writes() && sum < kSums && first < end && (is_value(sum) || block.work.tile == 0)) {
        float* sum_gmem = (is_value(sum) ? state.value_sum_out : state.key_sum_out) + first;
        const float scale = 1.0f / (is_value(sum) ? block.scale(kValueScale) : initial_scale());
        sum_gmem[0] = total.low * scale;
        sum_gmem[1] = total.high * scale;
      }
    }
  }

  // z in three parts of 16 bits, each a row behind the keys.
  __device__ __forceinline__ void publish_sums(int stage_idx, float scale) const {
#pragma unroll
    for (int i = 0; i < kSumsOfWarp; ++i) {
      const int sum = index(i);
      if (sum < kKeySums) {
        const RowSum<kLanes> total = sums[i].of_all_rows();
        float low = total.low * scale;
        float high = total.high * scale;
        const uint32_t rows = block.key(stage_idx, box(sum)) + Plan::kBoxBytes + (lane & 3) * 4;
#pragma unroll
        for (int part = 0; part < 3; ++part) {
          const uint32_t pair = Half::pack(low, high);
          if (writes()) {
            store_word(rows + swizzled(part, unit(sum)), pair);
          }
          low -= Half::low(pair);
          high -= Half::high(pair);
        }
      }
    }
  }

  __device__ __forceinline__ void add_rows(int stage_idx) {
#pragma unroll
    for (int i = 0; i < kSumsOfWarp; ++i) {
      const int sum = index(i);
      if (sum < kSums) {
        const uint32_t tile = is_value(sum) ? block.value(stage_idx, box(sum)) : block.key(stage_idx, box(sum));
        add_rows_of(tile, sum, is_value(sum) ? Plan::kLower : Plan::kLowerKey, sums[i]);
      }
    }
  }

  // Of each 8 rows a group of lanes takes neighbours, so that no two lanes want the same bank.
  __device__ __forceinline__ void add_rows_of(uint32_t tile, int sum_idx, int lower_distance,
                                              RowSum<kLanes>& sum) const {
    constexpr int kRows = 8 / kRowGroups;
    constexpr int kBatch = Plan::kSplit ? 8 : 16;  // of rows of a lane, loaded together
    float low[4] = {};
    float high[4] = {};
    const int first_row = lane / kLanes * kRows;
#pragma unroll(Plan::kSplit ? 1 : 2)
    for (int first = 0; first < Plan::kChunk; first += kBatch * kRowGroups) {
#pragma unroll
      for (int j = 0; j < kBatch; ++j) {
        const int row = first_row + j % kRows;
        const uint32_t word =
            tile + (first + j / kRows * 8) * kRowBytes + swizzled(row, unit(sum_idx)) + (lane & 3) * 4;
        const uint32_t upper = load_word(word);
        low[j & 1] += Half::low(upper);
        high[j & 1] += Half::high(upper);
        if constexpr (Plan::kSplit) {
          const uint32_t lower = load_word(word + lower_distance);
          low[2 + (j & 1)] += Half::low(lower);
          high[2 + (j & 1)] += Half::high(lower);
        }
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
    if (Plan::kNormalize && Plan::kAlwaysReady) {
      barrier_wait(block.barrier(Plan::kReady, at.index()), at.parity());
    }
    if constexpr (Plan::kSums) {
      barrier_wait(block.value_full(at.index()), at.parity());
    }
    add_rows(at.index());
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
        publish_sums(at.index(), power_of_two(-block.key_sum_exponent(tokens + 1.0f)));
      }
    }
    const int num_rows = block.rows(chunk);
    if constexpr (Plan::kScaleParts > 0) {
      if (warp >= kFirstDivider) {
        divide_values(chunk, at, num_rows);
      }
    }
    const bool has_tail = num_rows < Plan::kChunk;
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
