// The roles of the sums of items for the gradients after them that other sums do not have: gradient_arguments.h has the
// vocabulary. dS is summed as S is, of rows of q and of dO times b / g; dz and du are sums of rows in fp32, which are
// formed where the rows are at hand: by these warps of 16-bit tensors, where fp32 is converted of others.
#pragma once

#include "linattn/hopper_block.cuh"
#include "linattn/hopper_reverse.cuh"

namespace linattn {
namespace hopper {

// A lane has two rows of every chunk, and what it multiplies them by; a warp has units of 8 columns of all rows.
template <class Plan>
struct SumWeigher : Weigher<Plan> {
  using Base = Weigher<Plan>;
  using Base::block;
  using Base::kWarps;
  using Base::lane;
  using Base::warp;
  using Half = typename Plan::Half;
  static constexpr int kUnitColumns = 8;
  static constexpr int kUnitsOfBox = Plan::kBoxColumns / kUnitColumns;
  static constexpr int kValueUnits = Plan::kBeside * kUnitsOfBox;
  static constexpr int kKeyUnits = Plan::kBoxes * kUnitsOfBox;
  static constexpr int kValueUnitsOfWarp = (kValueUnits + kWarps - 1) / kWarps;
  static constexpr int kKeyUnitsOfWarp = (kKeyUnits + kWarps - 1) / kWarps;

  // Of the rows lane and lane + 32.
  using RowPair = float[2];

  float value_sums[kValueUnitsOfWarp][kUnitColumns] = {};
  float key_sums[kKeyUnitsOfWarp][kUnitColumns] = {};
  uint32_t summed_keys = 0;  // a bit for each of the warp's units of y that the block sums

  __device__ __forceinline__ SumWeigher(const Block<Plan>& shared, int aux_warp, int lane_idx)
      : Base(shared, aux_warp, lane_idx) {
    for (int j = 0; j < kKeyUnitsOfWarp; ++j) {
      const int unit = key_unit(j);
      summed_keys |= unit < kKeyUnits && block.sums_keys(unit / kUnitsOfBox) ? 1u << j : 0u;
    }
  }

  __device__ __forceinline__ void run() {
    RingPosition<Plan::kStages> at;
    RingPosition<Plan::kRowPlaces> rows_at;
    for (int chunk = 0; chunk < block.num_chunks; ++chunk) {
      weigh(chunk, at, rows_at);
      at.advance();
      rows_at.advance();
    }
    if constexpr (!Plan::kConverted) {
      finish();
    }
  }

  __device__ __forceinline__ void weigh(int chunk, const RingPosition<Plan::kStages>& at,
                                        const RingPosition<Plan::kRowPlaces>& rows_at) {
    if constexpr (Plan::kBeside > 1) {
      asm volatile("" : "+r"(warp));  // addresses of units would hold registers from chunk to chunk
    }
    barrier_wait(block.rows_full(rows_at.index()), rows_at.parity());
    const int num_rows = block.rows(chunk);
    const int member = block.member(chunk);
    const float a = block.constant_of(member);
    const float b = block.slope_of(member);
    RowPair weights;
    RowPair key_factors;
    RowPair value_factors;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool within = row(i) < num_rows;
      const float inverse = within ? reciprocal(load_float(block.normalizers(rows_at.index()) + row(i) * 4)) : 0.0f;
      const float scale = Plan::kScalesRows ? block.z_scale(rows_at.index(), chunk, row(i)) : 1.0f;
      weights[i] = b * inverse * block.trusted(scale, kKeyScale);
      key_factors[i] = within ? -weights[i] * load_float(block.deltas(rows_at.index()) + row(i) * 4) : 0.0f;
      value_factors[i] = a * inverse;
    }
    // Brings the largest row near to kRowTop; the sums are in fp32.
    float unit = 1.0f;
    if constexpr (Plan::kScaled) {
      const int exponent = Base::exponent_of_largest(weights);
      unit = block.scale(kRowTop) * power_of_two(-exponent);
      weights[0] *= unit;
      weights[1] *= unit;
      Base::mark_lost_rows(weights, unit * power_of_two(exponent));
    }
    this->wait_for_place(at);
    if (Plan::kScaled && warp == 0 && lane == 0) {
      store_float(block.unit_address(at.index()), unit);
    }
    if constexpr (Plan::kConverted) {
      if (warp == 0) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          store_float(block.lengths(at.index()) + row(i) * 4, weights[i]);
          store_float(block.factors(at.index()) + row(i) * 4, key_factors[i]);
          store_float(block.factors(at.index()) + (Plan::kChunk + row(i)) * 4, value_factors[i]);
        }
      }
    } else {
      if (num_rows < Plan::kChunk) {
        clear_tail(at.index(), num_rows);
      }
      weigh_values(at.index(), weights, value_factors);
      publish_to_async_proxy();
    }
    __syncwarp();
    if (Plan::kBoxesApart || lane == 0 || (Plan::kConverted && warp == 0)) {
      barrier_arrive(block.barrier(Plan::kReady, at.index()));
    }
    if constexpr (!Plan::kConverted) {
      sum_keys(at.index(), key_factors);
      finish_reads();
    }
    if constexpr (!Plan::kBoxesApart) {
      barrier_arrive(block.key_empty(at.index()));  // every lane has read g and d
    }
  }

  __device__ __forceinline__ int row(int i) const { return lane + kWarp * i; }
  // Of this warp. Those that have one more of z have one less of y.
  __device__ __forceinline__ int value_unit(int i) const { return warp + i * kWarps; }
  __device__ __forceinline__ int key_unit(int i) const { return kWarps - 1 - warp + i * kWarps; }
  // Of the lane's first row; the other is 32 rows further.
  __device__ __forceinline__ uint32_t value_address(int stage_idx, uint32_t unit) const {
    return block.value(stage_idx) + (unit / kUnitsOfBox * Plan::kQueryBox + swizzled(lane, unit % kUnitsOfBox));
  }
  __device__ __forceinline__ uint32_t key_address(int stage_idx, uint32_t unit) const {
    return block.key(stage_idx, 0) + (unit / kUnitsOfBox * Plan::kKeyBox + swizzled(lane, unit % kUnitsOfBox));
  }
  static constexpr int kDistance = kWarp * kRowBytes;

  __device__ __forceinline__ static void add_row(uint4 unit, float factor, float (&sums)[kUnitColumns]) {
    const uint32_t pairs[4] = {unit.x, unit.y, unit.z, unit.w};
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      sums[2 * pair] = fmaf(Half::low(pairs[pair]), factor, sums[2 * pair]);
      sums[2 * pair + 1] = fmaf(Half::high(pairs[pair]), factor, sums[2 * pair + 1]);
    }
  }

  __device__ __forceinline__ static uint4 multiplied(uint4 unit, float weight) {
    uint32_t pairs[4] = {unit.x, unit.y, unit.z, unit.w};
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      pairs[pair] = Half::pack(Half::low(pairs[pair]) * weight, Half::high(pairs[pair]) * weight);
    }
    return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
  }

  // Adds rows of z to du, and multiplies them where they have landed.
  __device__ __forceinline__ void weigh_values(int stage_idx, const RowPair& weights, const RowPair& factors) {
#pragma unroll
    for (int j = 0; j < kValueUnitsOfWarp; ++j) {
      if (value_unit(j) < kValueUnits) {
        const uint32_t address = value_address(stage_idx, value_unit(j));
        const uint4 units[2] = {load_unit(address), load_unit(address + kDistance)};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          store_unit(address + i * kDistance, multiplied(units[i], weights[i]));
          add_row(units[i], factors[i], value_sums[j]);
        }
      }
    }
  }

  // Adds rows of y to dz.
  __device__ __forceinline__ void sum_keys(int stage_idx, const RowPair& factors) {
#pragma unroll
    for (int j = 0; j < kKeyUnitsOfWarp; ++j) {
      if ((summed_keys >> j & 1) != 0) {
        const uint32_t address = key_address(stage_idx, key_unit(j));
        const uint4 units[2] = {load_unit(address), load_unit(address + kDistance)};
        add_row(units[0], factors[0], key_sums[j]);
        add_row(units[1], factors[1], key_sums[j]);
      }
    }
  }

  // Rows past the end belong to another sequence: no value, no key.
  __device__ __forceinline__ void clear_tail(int stage_idx, int num_rows) const {
    const uint4 zero = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (row(i) >= num_rows) {
#pragma unroll
        for (int j = 0; j < kValueUnitsOfWarp; ++j) {
          if (value_unit(j) < kValueUnits) {
            store_unit(value_address(stage_idx, value_unit(j)) + i * kDistance, zero);
          }
        }
#pragma unroll
        for (int j = 0; j < kKeyUnitsOfWarp; ++j) {
          if (key_unit(j) < kKeyUnits) {
            store_unit(key_address(stage_idx, key_unit(j)) + i * kDistance, zero);
          }
        }
      }
    }
  }

  __device__ __forceinline__ void finish() {
    const StateAddress<Plan> address(block);
    const int num_values = min(Plan::kTileColumns, block.chunked().value_dim - block.work.first_column);
    float marks = 0.0f;  // NaN once a sum was not finite
#pragma unroll
    for (int j = 0; j < kValueUnitsOfWarp; ++j) {
      store_sums(address.value_sum_out, value_unit(j), value_sums[j], num_values, marks);
    }
#pragma unroll
    for (int j = 0; j < kKeyUnitsOfWarp; ++j) {
      if ((summed_keys >> j & 1) != 0) {
        store_sums(address.key_sum_out, key_unit(j), key_sums[j], Plan::kHeadDim, marks);
      }
    }
    mark_unless_finite(block, marks);
  }

  __device__ __forceinline__ void store_sums(float* sums_gmem, int unit, float (&sums)[kUnitColumns], int num_columns,
                                             float& marks) const {
    if (sums_gmem == nullptr || unit * kUnitColumns >= num_columns) {
      return;
    }
    constexpr int kLanes = kWarp / kUnitColumns;  // of a column
    const int column = share_sums<kUnitColumns, kLanes>(sums, lane);
    const float sum = sum_lanes<kLanes>(sums[0]);
    if (lane % kLanes == 0) {
      sums_gmem[unit * kUnitColumns + column] = sum;
    }
    marks = fmaf(sum, 0.0f, marks);
  }
};

}  // namespace hopper
}  // namespace linattn
