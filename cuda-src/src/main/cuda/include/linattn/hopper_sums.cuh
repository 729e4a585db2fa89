// Sums of rows over tokens: z, the sum of k, and u, that of v.
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

// Whether the block writes what it has summed: where sums are all that is wanted each of its own, else one z.
template <class Plan>
__device__ __forceinline__ bool writes_sums(const Block<Plan>& block) {
  return Plan::kSums || block.work.tile == 0;
}

// z of the items, and where sums are wanted u: each warp has columns, each lane two of them of some rows.
template <class Plan>
struct RowSums {
  static constexpr int kWarps = Plan::kAuxiliaryWarps;
  // That a warp sums together: so many that there is a warp for each, if possible.
  static constexpr int kColumns = !Plan::kSums && Plan::kHeadDim <= 16 * kWarps ? 16 : 32;
  static constexpr int kLanes = kColumns / 2;
  static constexpr int kRowGroups = kWarp / kLanes;
  static constexpr int kKeySums = (Plan::kHeadDim + kColumns - 1) / kColumns;
  // Where sums are wanted, those of v too.
  static constexpr int kSums = kKeySums + (Plan::kSums ? Plan::kTileColumns / kColumns : 0);
  static constexpr int kSumsOfWarp = (kSums + kWarps - 1) / kWarps;
  using Half = typename Plan::Half;

  const Block<Plan>& block;
  int warp;  // 0 to kWarps - 1
  int lane;
  RowSum<kLanes> sums[kSumsOfWarp];
  // Where sums are all that is wanted, and the tiles of an item share those of keys: a bit for each that the block has. Asked
  // once, as it takes a division.
  uint32_t shared_out = 0;

  __device__ __forceinline__ RowSums(const Block<Plan>& shared, int aux_warp, int lane_idx)
      : block(shared), warp(aux_warp), lane(lane_idx) {
    if constexpr (Plan::kSums) {
#pragma unroll
      for (int i = 0; i < kSumsOfWarp; ++i) {
        shared_out |= is_value(index(i)) || block.sums_keys(box(index(i))) ? 1u << i : 0u;
      }
    }
  }

  // Sum i of this warp, and whether the block has it.
  __device__ __forceinline__ int index(int i) const { return warp + i * kWarps; }
  __device__ __forceinline__ bool has(int i) const {
    return index(i) < kSums && (!Plan::kSums || (shared_out >> i & 1) != 0);
  }
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
    float marks = 0.0f;  // NaN once a sum was not finite
#pragma unroll
    for (int i = 0; i < kSumsOfWarp; ++i) {
      const int sum = index(i);
      const RowSum<kLanes> total = sums[i].of_all_rows();
      const int end = is_value(sum) ? block.chunked().value_dim - block.work.first_column : Plan::kHeadDim;
      const int first = column(sum);
      if (writes() && has(i) && first < end && writes_sums(block)) {
        float* sum_gmem = (is_value(sum) ? state.value_sum_out : state.key_sum_out) + first;
        const float scale = 1.0f / (is_value(sum) ? block.scale(kValueScale) : initial_scale());
        sum_gmem[0] = total.low * scale;
        sum_gmem[1] = total.high * scale;
        marks = fmaf((total.low + total.high) * scale, 0.0f, marks);
      }
    }
    mark_unless_finite(block, marks);
  }

  // z in three parts of 16 bits, each a row behind the keys.
  __device__ __forceinline__ void publish(int stage_idx, float scale) const {
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
      if (has(i)) {
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
};

// The same where boxes of k stream: a warp has whole boxes, no two of which follow one another, a lane two columns of each.
// Where blocks share the scores those of this block.
template <class Plan>
struct BoxSums {
  static constexpr int kWarps = Plan::kAuxiliaryWarps;
  static constexpr int kBoxesOfWarp = (Plan::kBoxes + kWarps - 1) / kWarps;
  static constexpr int kStep = 2;
  static_assert(Plan::kBoxes <= kWarps + 1, "a second box for one warp at most");
  using Half = typename Plan::Half;

  const Block<Plan>& block;
  int warp;  // 0 to kWarps - 1
  int lane;
  float2 sums[kBoxesOfWarp] = {};

  __device__ __forceinline__ BoxSums(const Block<Plan>& shared, int aux_warp, int lane_idx)
      : block(shared), warp(aux_warp), lane(lane_idx) {}

  // Box i of this warp, of q and k.
  __device__ __forceinline__ int box(int i) const { return warp + i * kStep; }
  __device__ __forceinline__ bool has(int i) const { return i == 0 || (box(i) >= kWarps && box(i) < Plan::kBoxes); }
  __device__ __forceinline__ bool sums_up(int i) const { return has(i) && block.multiplies_scores(box(i)); }
  __device__ __forceinline__ int column(int i) const {
    return block.box_at(box(i)) * Plan::kBoxColumns + 2 * lane;
  }

  __device__ __forceinline__ void start() {
    const float* const key_sum = StateAddress<Plan>(block).key_sum_in;
#pragma unroll
    for (int i = 0; i < kBoxesOfWarp; ++i) {
      if (key_sum != nullptr && sums_up(i) && column(i) < Plan::kHeadDim) {
        const float scale = block.scale(kKeyScale);
        sums[i] = make_float2(key_sum[column(i)] * scale, key_sum[column(i) + 1] * scale);
      }
    }
  }

  __device__ __forceinline__ void finish() const {
    float* const key_sum = StateAddress<Plan>(block).key_sum_out;
#pragma unroll
    for (int i = 0; i < kBoxesOfWarp; ++i) {
      const bool writes = block.work.tile < (block.shares_scores() ? 2 : 1);
      if (key_sum != nullptr && writes && sums_up(i) && column(i) < Plan::kHeadDim) {
        const float scale = 1.0f / block.scale(kKeyScale);
        key_sum[column(i)] = sums[i].x * scale;
        key_sum[column(i) + 1] = sums[i].y * scale;
      }
    }
  }

  // z of the columns of a box in three parts of 16 bits, each a row behind the keys.
  __device__ __forceinline__ void publish(int i, uint32_t key, float scale) const {
    float low = sums[i].x * scale;
    float high = sums[i].y * scale;
    const uint32_t rows = key + Plan::kBoxBytes + (lane & 3) * 4;
#pragma unroll
    for (int part = 0; part < 3; ++part) {
      const uint32_t pair = Half::pack(low, high);
      store_word(rows + swizzled(part, lane >> 2), pair);
      low -= Half::low(pair);
      high -= Half::high(pair);
    }
  }

  __device__ __forceinline__ void add_rows(int i, uint32_t key) {
    float2 upper_sums[2] = {};  // of every other row
    float2 lower_sums[2] = {};
#pragma unroll 1
    for (int first = 0; first < Plan::kChunk; first += 8) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const uint32_t word = key + first * kRowBytes + swizzled(j, lane >> 2) + (lane & 3) * 4;
        const uint32_t upper = load_word(word);
        const uint32_t lower = load_word(word + Plan::kLowerKey);
        upper_sums[j & 1].x += Half::low(upper);
        upper_sums[j & 1].y += Half::high(upper);
        lower_sums[j & 1].x += Half::low(lower);
        lower_sums[j & 1].y += Half::high(lower);
      }
    }
    sums[i].x += (upper_sums[0].x + upper_sums[1].x) + (lower_sums[0].x + lower_sums[1].x);
    sums[i].y += (upper_sums[0].y + upper_sums[1].y) + (lower_sums[0].y + lower_sums[1].y);
  }
};

// The same of rows that are weighed: products of tensor cores, with 1 / |k| in three parts of 16 bits, which have all digits
// of it, or with ones. They add up a chunk, and the sums of chunks stand in shared memory: each warp has those of 16 columns at
// a time, which no other reads. z and S are in the unit of block.length_scale().
template <class Plan>
struct WeighedSums {
  static constexpr int kWarps = Plan::kAuxiliaryWarps;
  static constexpr int kColumns = 16;
  static constexpr int kKeySums = (Plan::kHeadDim + kColumns - 1) / kColumns;
  static constexpr int kSums = kKeySums + (Plan::kSums ? Plan::kTileColumns / kColumns : 0);
  using Half = typename Plan::Half;

  const Block<Plan>& block;
  int warp;  // 0 to kWarps - 1
  int lane;
  uint32_t shared_out = 0;  // as of RowSums, a bit for each sum
  static_assert(kSums <= 32, "a bit for each");

  __device__ __forceinline__ WeighedSums(const Block<Plan>& shared, int aux_warp, int lane_idx)
      : block(shared), warp(aux_warp), lane(lane_idx) {
    if constexpr (Plan::kSums) {
      for (int sum = warp; sum < kSums; sum += kWarps) {
        shared_out |= is_value(sum) || block.sums_keys(column(sum) / Plan::kBoxColumns) ? 1u << sum : 0u;
      }
    }
  }

  __device__ __forceinline__ bool has(int sum) const { return !Plan::kSums || (shared_out >> sum & 1) != 0; }

  __device__ __forceinline__ static bool is_value(int sum) { return Plan::kSums && sum >= kKeySums; }
  // Of its first column, counted from that of k or of v.
  __device__ __forceinline__ static int column(int sum) { return (is_value(sum) ? sum - kKeySums : sum) * kColumns; }
  __device__ __forceinline__ uint32_t sum_address(int sum) const { return block.sums() + sum * kColumns * 4; }

  __device__ __forceinline__ void start() const {
    const float* const key_sum = StateAddress<Plan>(block).key_sum_in;
    for (int sum = warp; sum < kSums && lane < kColumns; sum += kWarps) {
      const int of_lane = column(sum) + lane;
      const bool given = key_sum != nullptr && !is_value(sum) && of_lane < Plan::kHeadDim;
      store_float(sum_address(sum) + lane * 4, given ? key_sum[of_lane] * block.length_scale() : 0.0f);
    }
    __syncwarp();
  }

  __device__ __forceinline__ void finish() const {
    const StateAddress<Plan> state(block);
    if (state.key_sum_out == nullptr) {
      return;
    }
    float marks = 0.0f;  // NaN once a sum was not finite
    for (int sum = warp; sum < kSums && lane < kColumns; sum += kWarps) {
      const int end = is_value(sum) ? block.chunked().value_dim - block.work.first_column : Plan::kHeadDim;
      const int of_lane = column(sum) + lane;
      if (has(sum) && of_lane < end && writes_sums(block)) {
        const float total = load_float(sum_address(sum) + lane * 4) * (is_value(sum) ? 1.0f : block.inverse_length_scale());
        (is_value(sum) ? state.value_sum_out : state.key_sum_out)[of_lane] = total;
        marks = fmaf(total, 0.0f, marks);
      }
    }
    mark_unless_finite(block, marks);
  }

  // z in three parts of 16 bits, each a row behind the keys; eight lanes for a sum.
  __device__ __forceinline__ void publish(int stage_idx, float scale) const {
    scale *= block.inverse_length_scale();
    for (int sum = warp + (lane >> 3) * kWarps; sum < kKeySums; sum += 4 * kWarps) {
      float2 rest = load_float2(sum_address(sum) + (lane & 7) * 8);
      rest = make_float2(rest.x * scale, rest.y * scale);
      const int unit = column(sum) % Plan::kBoxColumns / 8 + (lane >> 2 & 1);
      const uint32_t rows =
          block.key(stage_idx, column(sum) / Plan::kBoxColumns) + Plan::kBoxBytes + (lane & 3) * 4;
#pragma unroll
      for (int part = 0; part < 3; ++part) {
        const uint32_t pair = Half::pack(rest.x, rest.y);
        store_word(rows + swizzled(part, unit), pair);
        rest.x -= Half::low(pair);
        rest.y -= Half::high(pair);
      }
    }
  }

  __device__ __forceinline__ void add_rows(int stage_idx) const {
    constexpr int kSteps = Plan::kChunk / 16;
    const int part = lane >> 2;
    const bool has_part = part < Plan::kWeightParts;
    const uint32_t parts = block.key_weight_part(stage_idx, has_part ? part : 0) + (lane & 3) * 4;
    uint32_t weights[2 * kSteps];  // of tokens 8 i + 2 (lane & 3) and the next
#pragma unroll
    for (int i = 0; i < 2 * kSteps; ++i) {
      const uint32_t pair = load_word(parts + i * 16);
      weights[i] = has_part ? pair : 0u;
    }
    const uint32_t ones = part == 0 ? Half::kOnes : 0u;
    const int row = (lane & 7) + (lane >> 4) * 8;
#pragma unroll 2
    for (int sum = warp; sum < kSums; sum += kWarps) {
      const int box = column(sum) / Plan::kBoxColumns;
      if (!has(sum)) {
        continue;
      }
      const uint32_t tile = is_value(sum) ? block.value(stage_idx, box) : block.key(stage_idx, box);
      const uint32_t rows = tile + swizzled(row, column(sum) % Plan::kBoxColumns / 8 + (lane >> 3 & 1));
      uint32_t columns_frag[kSteps][4];  // 16 columns of 16 tokens
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        load_matrices_transposed(rows + step * 16 * kRowBytes, columns_frag[step]);
      }
      float totals[2][4] = {};  // of columns g and g + 8, which have parts 2 t and 2 t + 1
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        Half::add_product(totals[step % 2], columns_frag[step], is_value(sum) ? ones : weights[2 * step],
                          is_value(sum) ? ones : weights[2 * step + 1]);
      }
      float first = (totals[0][0] + totals[1][0]) + (totals[0][1] + totals[1][1]);
      float second = (totals[0][2] + totals[1][2]) + (totals[0][3] + totals[1][3]);
      first += __shfl_xor_sync(kAllLanes, first, 1);
      second += __shfl_xor_sync(kAllLanes, second, 1);
      if ((lane & 3) < 2) {
        const uint32_t address = sum_address(sum) + ((lane >> 2) + (lane & 1) * 8) * 4;
        store_float(address, load_float(address) + ((lane & 1) == 0 ? first : second));
      }
    }
    __syncwarp();
  }
};

}  // namespace hopper
}  // namespace linattn
