// The roles of the gradients of k and v that those of the forward do not have: weights of a column, and weights
// of the rows of z.
#pragma once

#include "linattn/hopper_block.cuh"
#include "linattn/hopper_score.cuh"
#include "linattn/hopper_values.cuh"

namespace linattn {
namespace hopper {

// Weights of the rows of z, and the constants of the columns of W. Every warp forms them all, two to a lane.
// 16-bit rows of z are multiplied where they have landed, and rows past the end cleared, with those of y;
// rows of fp32 tensors get both on their way, those of z here where boxes stream.
template <class Plan>
struct Weigher {
  static constexpr int kWarps = Plan::kAuxiliaryWarps;
  using Half = typename Plan::Half;

  const Block<Plan>& block;
  int warp;
  int lane;
  float weights[2];  // of rows lane and lane + 32 of a chunk

  __device__ __forceinline__ Weigher(const Block<Plan>& shared, int weigher_warp, int lane_idx)
      : block(shared), warp(weigher_warp), lane(lane_idx) {}

  __device__ __forceinline__ void run() {
    RingPosition<Plan::kStages> at;
    RingPosition<Plan::kRowPlaces> rows_at;
    [[maybe_unused]] StreamedValues<Plan> values(block, warp, lane);
    for (int chunk = 0; chunk < block.num_chunks; ++chunk) {
      weigh(chunk, at, rows_at);
      if constexpr (Plan::kStreams) {
        values.convert(chunk, [&](int row) {
          const float weight = __shfl_sync(kAllLanes, row < kWarp ? weights[0] : weights[1], row % kWarp);
          return weight * block.scale(kValueScale);
        });
      }
      at.advance();
      rows_at.advance();
    }
  }

  __device__ __forceinline__ void weigh(int chunk, const RingPosition<Plan::kStages>& at,
                                        const RingPosition<Plan::kRowPlaces>& rows_at) {
    // In the units of the products: W and u of the operands.
    const float constant_scale = block.scale(kWeightScale) / block.scale(kScoreScale);
    const bool is_key = block.args.gradient.task == kKeyGradient;
    barrier_wait(block.rows_full(rows_at.index()), rows_at.parity());
    const int num_rows = block.rows(chunk);
    const int member = block.member(chunk);
    const float b = block.slope_of(member);
    const float beta = b == 0.0f ? 1.0f : b;
    float constants[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool within = lane + 32 * i < num_rows;
      const uint32_t row = (lane + 32 * i) * 4;
      weights[i] = within ? beta * reciprocal(load_float(block.normalizers(rows_at.index()) + row)) : 0.0f;
      const float constant =
          is_key ? (b == 0.0f ? 0.0f : -load_float(block.deltas(rows_at.index()) + row)) : block.constant_of(member) / beta;
      constants[i] = within ? constant * constant_scale : 0.0f;
      if constexpr (Plan::kScalesRows) {  // b / (g |q|) z (a |q| / b + k.q): q is divided, a is not
        const float query_scale = block.z_scale(rows_at.index(), chunk, lane + 32 * i);
        weights[i] *= is_key ? query_scale : block.trusted(query_scale, kKeyScale);
        constants[i] *= is_key ? 1.0f : reciprocal(query_scale);
      }
    }
    if constexpr (Plan::kScaled) {
      const int exponent = exponent_of_largest(weights);
      const float unit = unit_of(exponent, chunk);
      weights[0] *= unit;
      weights[1] *= unit;
      mark_lost_rows(weights, unit * power_of_two(exponent));
      wait_for_place(at);
      if (warp == 0 && lane == 0) {
        store_float(block.unit_address(at.index()), unit);
      }
    } else {
      wait_for_place(at);
    }
    if (warp == 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        store_float(block.factors(at.index()) + (lane + 32 * i) * 4, constants[i]);
        if constexpr ((Plan::kConverted && !Plan::kStreams) || Plan::kWeighsInState) {
          store_float(block.lengths(at.index()) + (lane + 32 * i) * 4, weights[i]);
        }
      }
    }
    if constexpr (!Plan::kConverted) {
      if constexpr (!Plan::kWeighsInState) {
        multiply_rows(at.index(), weights, num_rows);
      }
      if (num_rows < Plan::kChunk) {
        clear_tail(at.index(), num_rows);
      }
      publish_to_async_proxy();
    }
    __syncwarp();
    if (warp == 0 || lane == 0) {
      barrier_arrive(block.barrier(Plan::kReady, at.index()));
    }
    arrive_by_lanes<Plan::kHasRows || Plan::kKeepsScales>(block.key_empty(at.index()), lane);
  }

  // Until all have read what stood there, and the tiles are there if they are to be changed.
  __device__ __forceinline__ void wait_for_place(const RingPosition<Plan::kStages>& at) const {
    if constexpr (Plan::kBoxesApart) {  // the state has begun with what the converters have made of it
      barrier_wait(block.box_empty(at.index(), 0), at.parity() ^ 1);
    } else if constexpr (Plan::kConverted) {
      barrier_wait(block.key_empty(at.index()), at.parity() ^ 1);
    } else {
      barrier_wait(block.key_full(at.index()), at.parity());
      if constexpr (!Plan::kWeighsInState) {
        barrier_wait(block.value_full(at.index()), at.parity());
      }
    }
  }

  // Brings the largest row of a chunk near to kRowTop, and less where so many tokens are behind it that their sum
  // would leave the range of fp16.
  __device__ __forceinline__ float unit_of(int exponent, int chunk) const {
    const float tokens = static_cast<float>((block.work.tokens - block.first_token(chunk)) * block.group());
    const float sum = fmaf(block.scale(kStateBound), tokens, block.scale(kStartBound) * power_of_two(-exponent));
    const int excess = sum > kMaxHalf ? exponent_of(sum / kMaxHalf) + 1 : 0;
    return block.scale(kRowTop) * power_of_two(-exponent - excess);
  }

  // NaN for the weights of a chunk where one is so much smaller than the largest that its row would lose digits: rows of
  // very different lengths.
  __device__ __forceinline__ static void mark_lost_rows(float (&weights)[2], float largest) {
    if constexpr (Plan::kScalesRows) {
      constexpr float kLeast = 0x1p-11f;
      const float limit = kLeast * fabsf(largest);
      const bool is_lost = (weights[0] != 0.0f && fabsf(weights[0]) < limit) ||
                           (weights[1] != 0.0f && fabsf(weights[1]) < limit);
      if (__any_sync(kAllLanes, is_lost)) {
        weights[0] = weights[1] = not_a_number();
      }
    }
  }

  // Of a power of two above all weights of a chunk; 0 where it is zero or not a size to go by.
  __device__ __forceinline__ static int exponent_of_largest(const float (&weights)[2]) {
    const float largest = max_lanes<kWarp>(fmaxf(fabsf(weights[0]), fabsf(weights[1])));
    return largest > 0x1p-120f && largest < 0x1p120f ? exponent_of(largest) + 1 : 0;
  }

  // Multiplies rows of z where they have landed, by weights of rows `lane` and lane + 32; those past the end become
  // zero. Eight lanes to a row.
  __device__ __forceinline__ void multiply_rows(int stage_idx, const float (&weights)[2], int num_rows) const {
    constexpr int kGroups = Plan::kChunk / 4;
    constexpr int kIterations = (kGroups + kWarps - 1) / kWarps;
    // Past the last one, a row of this lane again.
    const auto row_of = [&](int iteration) {
      const int row = (warp + iteration * kWarps) * 4 + (lane >> 3);
      return row < Plan::kChunk ? row : warp * 4 + (lane >> 3);
    };
    const uint32_t tile = block.value(stage_idx);
    uint4 units[kIterations];  // loads don't wait for one another
#pragma unroll
    for (int i = 0; i < kIterations; ++i) {
      units[i] = load_unit(tile + swizzled(row_of(i), lane & 7));
    }
#pragma unroll
    for (int i = 0; i < kIterations; ++i) {
      const int row = row_of(i);
      const float low = __shfl_sync(kAllLanes, weights[0], row & 31);
      const float high = __shfl_sync(kAllLanes, weights[1], row & 31);
      const float weight = row < 32 ? low : high;
      const uint32_t pairs[4] = {units[i].x, units[i].y, units[i].z, units[i].w};
      uint32_t products[4];
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        products[pair] =
            row < num_rows ? Half::pack(Half::low(pairs[pair]) * weight, Half::high(pairs[pair]) * weight) : 0u;
      }
      if (warp + i * kWarps < kGroups) {
        store_unit(tile + swizzled(row, lane & 7), make_uint4(products[0], products[1], products[2], products[3]));
      }
    }
  }

  // Rows of y past the end belong to another sequence: no weight, no sum.
  __device__ __forceinline__ void clear_tail(int stage_idx, int num_rows) const {
    for (int i = num_rows * 8 + warp * kWarp + lane; i < Plan::kChunk * 8; i += kWarps * kWarp) {
#pragma unroll
      for (int box = 0; box < Plan::kBoxes; ++box) {
        store_unit(block.key(stage_idx, box) + swizzled(i >> 3, i & 7), make_uint4(0, 0, 0, 0));
      }
    }
  }
};

// W of the reverse: T^T o (constant of the column + X Y^T). Below the diagonal are the zeros of the start. Where rows
// are divided those of k are x of the gradient of v: what stands in W is |k| times that, and outputs are divided.
template <class Plan>
struct ReverseScore : Scores<Plan> {
  using Base = Scores<Plan>;
  using Base::at;
  using Base::block;
  using Base::lane;
  using Base::warp;
  using Base::weights_at;
  using Half = typename Plan::Half;
  // A constant in parts of 16 bits, each a row behind the weights: the products add up constant times z there.
  static constexpr int kConstantParts = Plan::kSplit || Plan::kScaled ? 3 : 2;

  __device__ __forceinline__ ReverseScore(const Block<Plan>& shared, int warp_in_group, int lane_idx)
      : Base(shared, warp_in_group, lane_idx) {}

  __device__ __forceinline__ void run() {
    Weigher<Plan> weigher(block, warp, lane);
    RingPosition<Plan::kRowPlaces> rows_at;
    for (int chunk = 0; chunk < block.num_chunks; ++chunk) {
      if constexpr (Plan::kMerged) {
        weigher.weigh(chunk, at, rows_at);
      }
      weigh(chunk, rows_at);
      rows_at.advance();
      at.advance();
      weights_at.advance();
    }
  }

  __device__ __forceinline__ void weigh(int chunk, const RingPosition<Plan::kRowPlaces>& rows_at) {
    const int t = lane & 3;
    const int row = this->row();
    float scores_frag[Plan::Products::kScoreRegisters];
    this->start_products(scores_frag);
    float slope = block.scale(kWeightScale);
    if (Plan::kUneven && block.slope_of(block.member(chunk)) == 0.0f) {
      slope = 0.0f;
    }
    this->finish_products(scores_frag);
    const uint32_t factors = block.factors(at.index());
    const uint32_t weights = this->weights_row();
    float lengths[2] = {1.0f, 1.0f};
    if constexpr (Plan::kScalesRows) {
      const bool divides = block.args.gradient.task == kValueGradient;
      barrier_wait(block.rows_full(rows_at.index()), rows_at.parity());
      if (t == 0) {
        const uint32_t columns = block.columns(weights_at.index()) + row * 4;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float scale =
              divides ? block.trusted(block.x_scale(rows_at.index(), chunk, row + 8 * i), kQueryScale) : 1.0f;
          store_float(columns + 32 * i, scale);
          lengths[i] = reciprocal(scale);
        }
      }
      lengths[0] = __shfl_sync(kAllLanes, lengths[0], lane & 28);
      lengths[1] = __shfl_sync(kAllLanes, lengths[1], lane & 28);
    }
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      if (pair >= warp) {
        typename Base::Pair weights_frag;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int block8 = 2 * pair + i;
          const int column = 8 * block8 + 2 * t;
          const float2 constant = constants_of(factors + 8 * t + 32 * block8);
          float w0 = fmaf(slope, scores_frag[4 * block8], constant.x * lengths[0]);
          float w1 = fmaf(slope, scores_frag[4 * block8 + 1], constant.y * lengths[0]);
          float w2 = fmaf(slope, scores_frag[4 * block8 + 2], constant.x * lengths[1]);
          float w3 = fmaf(slope, scores_frag[4 * block8 + 3], constant.y * lengths[1]);
          if (pair == warp) {
            w0 = column >= row ? w0 : 0.0f;
            w1 = column + 1 >= row ? w1 : 0.0f;
            w2 = column >= row + 8 ? w2 : 0.0f;
            w3 = column + 1 >= row + 8 ? w3 : 0.0f;
          }
          weights_frag.set(i, w0, w1, w2, w3);
        }
        this->store(weights, pair, weights_frag);
      }
    }
    if (warp == 3) {  // it has the fewest weights
      const float2 own = load_float2(factors + 8 * lane);
      this->template store_constants<kConstantParts>(weights_at.index(), own);
    }
    this->give_back_keys();
    publish_to_async_proxy();
    __syncwarp();
    if (t == 0) {
      barrier_arrive(block.barrier(Plan::kWeightsFull, weights_at.index()));
    }
    this->give_back_shared();
  }

  // Four lanes read for all.
  __device__ __forceinline__ float2 constants_of(uint32_t address) const {
    const float2 read = lane < 4 ? load_float2(address) : make_float2(0.0f, 0.0f);
    return make_float2(__shfl_sync(kAllLanes, read.x, lane & 3), __shfl_sync(kAllLanes, read.y, lane & 3));
  }
};

}  // namespace hopper
}  // namespace linattn
