// Sums of rows over tokens: z, the sum of k, and u, that of v.
#pragma once

#include "linattn/hopper_block.cuh"

namespace linattn {
namespace hopper {

// Sums over all tokens, of z and where sums are wanted of u. Products of tensor cores add up a chunk; a warp has 16 columns
// of k, or of v, at a time.
template <class Plan>
struct ColumnSums {
  static constexpr int kWarps = Plan::kAuxiliaryWarps;
  static constexpr int kColumns = 16;
  static constexpr int kKeySums = (Plan::kHeadDim + kColumns - 1) / kColumns;
  static constexpr int kSums = kKeySums + (Plan::kSums ? Plan::kTileColumns / kColumns : 0);
  using Half = typename Plan::Half;

  const Block<Plan>& block;
  int warp;  // 0 to kWarps - 1
  int lane;

  __device__ __forceinline__ ColumnSums(const Block<Plan>& shared, int aux_warp, int lane_idx)
      : block(shared), warp(aux_warp), lane(lane_idx) {}

  __device__ __forceinline__ static bool is_value(int sum) { return Plan::kSums && sum >= kKeySums; }
  // Of its first column, counted from that of k or of v.
  __device__ __forceinline__ static int column(int sum) { return (is_value(sum) ? sum - kKeySums : sum) * kColumns; }

  __device__ __forceinline__ uint32_t tile(int stage_idx, int sum) const {
    const int box = column(sum) / Plan::kBoxColumns;
    return is_value(sum) ? block.value(stage_idx, box) : block.key(stage_idx, box);
  }
  // What this lane hands to load_matrices_transposed() for 16 tokens of these columns.
  __device__ __forceinline__ uint32_t matrix_row(int sum) const {
    return swizzled((lane & 7) + (lane >> 4) * 8, column(sum) % Plan::kBoxColumns / 8 + (lane >> 3 & 1));
  }

  // Whether the block writes a column of a sum.
  __device__ __forceinline__ bool writes(int sum, int of_lane) const {
    const int end = is_value(sum) ? block.chunked().value_dim - block.work.first_column : Plan::kHeadDim;
    return of_lane < end && (is_value(sum) || block.work.tile == 0);
  }

  // z of two neighbouring columns in three parts of 16 bits, each a row behind the keys.
  __device__ __forceinline__ void store_parts(int stage_idx, int first_column, float2 sums) const {
    const int of_box = first_column % Plan::kBoxColumns;
    const uint32_t rows =
        block.key(stage_idx, first_column / Plan::kBoxColumns) + Plan::kBoxBytes + of_box % 8 / 2 * 4;
#pragma unroll
    for (int part = 0; part < 3; ++part) {
      const uint32_t pair = Half::pack(sums.x, sums.y);
      store_word(rows + swizzled(part, of_box / 8), pair);
      sums.x -= Half::low(pair);
      sums.y -= Half::high(pair);
    }
  }
};

// Of rows as they are. One product has place for the sums of k of all columns of a warp: of its eight columns each is ones for
// 16 columns of k, and zeros for the others; lane 4 g + t has columns g and g + 8 of sums 2 t and 2 t + 1. Where one is not
// finite none is, as g would not be anyway; so those of v are apart, and four lanes have the same.
template <class Plan>
struct RowSums : ColumnSums<Plan> {
  using Base = ColumnSums<Plan>;
  using Base::block;
  using Base::column;
  using Base::kKeySums;
  using Base::kWarps;
  using Base::lane;
  using Base::warp;
  using Half = typename Plan::Half;
  static constexpr int kKeySumsOfWarp = (kKeySums + kWarps - 1) / kWarps;
  static_assert(kKeySumsOfWarp <= 8, "the columns of a product");
  static constexpr int kValueSums = Base::kSums - kKeySums;
  static constexpr int kValueSumsOfWarp = (kValueSums + kWarps - 1) / kWarps;

  float key_sums[4] = {};
  float value_sums[kValueSumsOfWarp > 0 ? kValueSumsOfWarp : 1][2] = {};

  using Base::Base;

  __device__ __forceinline__ int key_sum(int i) const { return warp + i * kWarps; }
  // The last warps, which have the fewest of k, come first.
  __device__ __forceinline__ int value_sum(int i) const { return kKeySums + kWarps - 1 - warp + i * kWarps; }
  // Of element j of key_sums.
  __device__ __forceinline__ int key_sum_of_lane(int j) const { return key_sum(2 * (lane & 3) + j % 2); }
  // Columns j / 2 of a product.
  __device__ __forceinline__ int column_of_lane(int sum, int j) const { return column(sum) + (lane >> 2) + j / 2 * 8; }

  __device__ __forceinline__ float initial_scale() const { return Plan::kNormalize ? 1.0f : block.scale(kKeyScale); }

  __device__ __forceinline__ void start() {
    const float* const key_sum_gmem = StateAddress<Plan>(block).key_sum_in;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int sum = key_sum_of_lane(j);
      const int of_lane = column_of_lane(sum, j);
      if (key_sum_gmem != nullptr && sum < kKeySums && of_lane < Plan::kHeadDim) {
        key_sums[j] = key_sum_gmem[of_lane] * initial_scale();
      }
    }
  }

  __device__ __forceinline__ void finish() const {
    const StateAddress<Plan> state(block);
    if (state.key_sum_out == nullptr) {
      return;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int sum = key_sum_of_lane(j);
      const int of_lane = column_of_lane(sum, j);
      if (sum < kKeySums && this->writes(sum, of_lane)) {
        state.key_sum_out[of_lane] = key_sums[j] * (1.0f / initial_scale());
      }
    }
#pragma unroll
    for (int i = 0; i < 2 * kValueSumsOfWarp; ++i) {
      const int sum = value_sum(i / 2);
      const int of_lane = column_of_lane(sum, i % 2 * 2);
      if ((lane & 3) == 0 && sum < Base::kSums && this->writes(sum, of_lane)) {
        state.value_sum_out[of_lane] = value_sums[i / 2][i % 2] * (1.0f / block.scale(kValueScale));
      }
    }
  }

  // Two lanes with neighbouring columns: one takes the first ones of both, one those eight further.
  __device__ __forceinline__ void publish(int stage_idx, float scale) const {
    const bool odd = (lane >> 2 & 1) != 0;
#pragma unroll
    for (int i = 0; i < 2 && i < kKeySumsOfWarp; ++i) {
      const float own = (odd ? key_sums[i + 2] : key_sums[i]) * scale;
      const float other = __shfl_xor_sync(kAllLanes, (odd ? key_sums[i] : key_sums[i + 2]) * scale, 4);
      const int sum = key_sum_of_lane(i);
      if (sum < kKeySums) {
        this->store_parts(stage_idx, column(sum) + (odd ? 8 : 0) + (lane >> 3) * 2,
                          odd ? make_float2(other, own) : make_float2(own, other));
      }
    }
  }

  __device__ __forceinline__ void add_rows(int stage_idx) {
    float totals[2][4] = {};
#pragma unroll(kKeySumsOfWarp > 2 ? 1 : 2)
    for (int i = 0; i < kKeySumsOfWarp; ++i) {
      if (key_sum(i) < kKeySums) {
        add_products(totals, stage_idx, key_sum(i), (lane >> 2) == i ? Half::kOnes : 0u);
      }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      key_sums[j] += totals[0][j] + totals[1][j];
    }
#pragma unroll
    for (int i = 0; i < kValueSumsOfWarp; ++i) {
      if (value_sum(i) < Base::kSums) {
        float of_values[2][4] = {};
        add_products(of_values, stage_idx, value_sum(i), Half::kOnes);
        value_sums[i][0] += of_values[0][0] + of_values[1][0];
        value_sums[i][1] += of_values[0][2] + of_values[1][2];
      }
    }
  }

  // In two chains, because a product waits for the one before.
  __device__ __forceinline__ void add_products(float (&totals)[2][4], int stage_idx, int sum, uint32_t ones) const {
    const uint32_t rows = this->tile(stage_idx, sum) + this->matrix_row(sum);
    const int lower = Base::is_value(sum) ? Plan::kLower : Plan::kLowerKey;
#pragma unroll
    for (int step = 0; step < Plan::kChunk / 16; ++step) {
#pragma unroll
      for (int half = 0; half < Plan::kHalves; ++half) {
        uint32_t columns_frag[4];  // 16 columns of 16 tokens
        load_matrices_transposed(rows + half * lower + step * 16 * kRowBytes, columns_frag);
        Half::add_product(totals[(step + half) % 2], columns_frag, ones, ones);
      }
    }
  }
};

// Of rows of k that are weighed, with 1 / |k| in three parts of 16 bits, which have all digits of it. The sums of chunks stand in
// shared memory, where no other warp reads them. z and S are in the unit of block.length_scale().
template <class Plan>
struct WeighedSums : ColumnSums<Plan> {
  using Base = ColumnSums<Plan>;
  using Base::block;
  using Base::column;
  using Base::is_value;
  using Base::kColumns;
  using Base::kKeySums;
  using Base::kSums;
  using Base::kWarps;
  using Base::lane;
  using Base::warp;
  using Half = typename Plan::Half;

  using Base::Base;

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
    for (int sum = warp; sum < kSums && lane < kColumns; sum += kWarps) {
      const int of_lane = column(sum) + lane;
      if (this->writes(sum, of_lane)) {
        const float total = load_float(sum_address(sum) + lane * 4);
        (is_value(sum) ? state.value_sum_out : state.key_sum_out)[of_lane] =
            is_value(sum) ? total : total * block.inverse_length_scale();
      }
    }
  }

  // Eight lanes for a sum.
  __device__ __forceinline__ void publish(int stage_idx, float scale) const {
    scale *= block.inverse_length_scale();
    for (int sum = warp + (lane >> 3) * kWarps; sum < kKeySums; sum += 4 * kWarps) {
      const float2 two = load_float2(sum_address(sum) + (lane & 7) * 8);
      this->store_parts(stage_idx, column(sum) + (lane & 7) * 2, make_float2(two.x * scale, two.y * scale));
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
#pragma unroll 2
    for (int sum = warp; sum < kSums; sum += kWarps) {
      const uint32_t rows = this->tile(stage_idx, sum) + this->matrix_row(sum);
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
