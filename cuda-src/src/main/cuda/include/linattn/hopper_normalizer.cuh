// Lengths of rows that are normalised.
#pragma once

#include "linattn/hopper_block.cuh"

namespace linattn {
namespace hopper {

// Each warp for 16 rows of q and k. What a warp loads does not wait for one another.
template <class Plan>
struct Normalizer {
  using Half = typename Plan::Half;
  static constexpr int kSteps = (Plan::kHeadDim + 15) / 16;
  static constexpr int kStepsAtOnce = 4;

  const Block<Plan>& block;
  int first_row;
  int lane;

  // Not where squares leave the range of fp32, or elements have lost digits below the range of fp16.
  __device__ __forceinline__ static bool in_range(float squares) {
    constexpr float kLeast = Plan::kConverted && Plan::kScaled ? 0x1p-16f : 0x1p-80f;
    return squares >= kLeast && squares <= 0x1p120f;
  }

  // 1 for a row of zeros, NaN for one out of range: the outputs then show it.
  __device__ __forceinline__ static float usable(float squares) {
    return squares == 0.0f ? 1.0f : in_range(squares) ? squares : not_a_number();
  }

  // Squared lengths: the diagonal of the products of the rows with themselves. Lane 4g + g/2 returns those
  // of rows g and g + 8.
  __device__ __forceinline__ float2 squared_lengths(uint32_t first_box, int box_bytes) const {
    constexpr int kChains = 2;  // of sums, because a product waits for the one before
    float first_frag[kChains][4] = {};
    float second_frag[kChains][4] = {};
    const int row = first_row + (lane & 15);
#pragma unroll
    for (int first_step = 0; first_step < kSteps; first_step += kStepsAtOnce) {
      uint32_t rows[kStepsAtOnce][4];
#pragma unroll
      for (int i = 0; i < kStepsAtOnce && first_step + i < kSteps; ++i) {
        const int step = first_step + i;
        const uint32_t tile = first_box + (step / 4) * box_bytes + swizzled(row, (step % 4) * 2 + (lane >> 4));
        load_matrices(tile, rows[i]);
      }
#pragma unroll
      for (int i = 0; i < kStepsAtOnce && first_step + i < kSteps; ++i) {
        const int chain = (first_step + i) % kChains;
        Half::add_product(first_frag[chain], rows[i], rows[i][0], rows[i][2]);
        Half::add_product(second_frag[chain], rows[i], rows[i][1], rows[i][3]);
      }
    }
    const bool odd = ((lane >> 2) & 1) != 0;
    const float first = odd ? first_frag[0][1] + first_frag[1][1] : first_frag[0][0] + first_frag[1][0];
    const float second = odd ? second_frag[0][3] + second_frag[1][3] : second_frag[0][2] + second_frag[1][2];
    return make_float2(first, second);
  }

  // NaN in the place of a square that is zero though the row is not: it was below the range of its operands or sums.
  __device__ __forceinline__ float checked(float squares, const TensorView& view, int head, int chunk, int row) const {
    if (squares != 0.0f || row >= block.rows(chunk)) {
      return squares;
    }
    constexpr uint32_t kMagnitude = Plan::kElementBytes == 4 ? 0x7fffffffu : 0x7fff7fffu;
    constexpr int kUnits = Plan::kHeadDim * Plan::kElementBytes / kUnitBytes;
    const int64_t token = static_cast<int64_t>(block.work.start) + block.first_token(chunk) + row;
    const auto* const row_gmem =
        reinterpret_cast<const uint4*>(row_address<const typename Plan::Element>(view, block.work.batch, head, token));
    uint32_t bits = 0;
#pragma unroll 1
    for (int i = 0; i < kUnits; ++i) {
      const uint4 unit = row_gmem[i];
      bits |= (unit.x | unit.y | unit.z | unit.w) & kMagnitude;
    }
    return bits == 0 ? 0.0f : not_a_number();
  }

  // Asked by all lanes at once, because that costs less than to ask each: rows of zeros are rare.
  __device__ __forceinline__ void check(float2& query, float2& key, int chunk) const {
    if constexpr (!Plan::kFollows) {  // squares of fp16 are in the range of fp32
      const float least = Plan::kSums ? fminf(key.x, key.y) : fminf(fminf(query.x, query.y), fminf(key.x, key.y));
      if (__any_sync(kAllLanes, least == 0.0f && lane == diagonal_lane())) {
        const int row = first_row + (lane >> 2);
        const ChunkedArguments& args = block.chunked();
        key.x = checked(key.x, args.key, block.work.kv_head, chunk, row);
        key.y = checked(key.y, args.key, block.work.kv_head, chunk, row + 8);
        if constexpr (!Plan::kSums) {
          query.x = checked(query.x, args.query, block.work.head, chunk, row);
          query.y = checked(query.y, args.query, block.work.head, chunk, row + 8);
        }
        __syncwarp();
      }
    }
  }

  // Of this lane's group of four: the one that has squares of its two rows.
  __device__ __forceinline__ int diagonal_lane() const { return (lane & 28) + ((lane >> 3) & 3); }

  // For a backward: 1 / length of this group's rows, whose operands are `scale` times the rows.
  __device__ __forceinline__ void keep(float* head_gmem, int chunk, float2 squares, float scale) const {
    const int row = first_row + (lane >> 2);
    float* const scales_gmem = head_gmem + block.work.start + block.first_token(chunk) + row;
    const int num_rows = block.rows(chunk);
    if (row < num_rows) {
      scales_gmem[0] = in_range(squares.x) ? scale * rsqrtf(squares.x) : 0.0f;
    }
    if (row + 8 < num_rows) {
      scales_gmem[8] = in_range(squares.y) ? scale * rsqrtf(squares.y) : 0.0f;
    }
  }

  // Of rows of q, and of the k that its group shares: the first block of each tells a backward. Sums know k alone.
  __device__ __forceinline__ void keep_lengths(int chunk, float2 query, float2 key) const {
    const ItemWork& work = block.work;
    const ChunkedArguments& args = block.chunked();
    float* const scales_gmem = block.args.row_scales;
    if (scales_gmem == nullptr || work.tile != 0) {
      return;
    }
    if constexpr (Plan::kSums) {
      const int64_t key_head = static_cast<int64_t>(work.batch) * args.kv_heads.value + work.kv_head;
      keep(scales_gmem + key_head * args.tokens, chunk, key, block.scale(kKeyScale));
      return;
    }
    const int64_t query_head = static_cast<int64_t>(work.batch) * args.heads.value + work.head;
    keep(scales_gmem + query_head * args.tokens, chunk, query, block.scale(kQueryScale));
    if (work.head == work.kv_head * args.group.value) {
      const int64_t query_heads = static_cast<int64_t>(args.batches) * args.heads.value;
      const int64_t key_head = static_cast<int64_t>(work.batch) * args.kv_heads.value + work.kv_head;
      keep(scales_gmem + (query_heads + key_head) * args.tokens, chunk, key, block.scale(kKeyScale));
    }
  }

  // |q| of the rows, for the scores, and what a backward is told.
  __device__ __forceinline__ void store_lengths(int stage_idx, int chunk, float2 query, float2 key) const {
    if (lane == diagonal_lane()) {
      if constexpr (!Plan::kSums) {
        const uint32_t lengths = block.lengths(stage_idx) + (first_row + (lane >> 2)) * 4;
        store_float(lengths, sqrtf(usable(query.x)));
        store_float(lengths + 32, sqrtf(usable(query.y)));
      }
      keep_lengths(chunk, query, key);
    }
  }

  // Of 1 / |k| where keys are weighed. NaN of a row so much longer than those measured that fp16 would lose
  // digits of values that it weighs.
  __device__ __forceinline__ float key_weight(float squares, bool within) const {
    if (!within || squares == 0.0f) {
      return 0.0f;
    }
    const float weight = rsqrtf(usable(squares));
    constexpr float kLeast = 0x1p-12f;
    return Plan::kScaled && weight * block.length_scale() < kLeast ? not_a_number() : weight;
  }

  __device__ __forceinline__ void store_key_weight(int stage_idx, int row, float weight) const {
    store_float(block.key_weights(stage_idx) + row * 4, weight);
    float rest = weight * block.length_scale();
#pragma unroll
    for (int part = 0; part < Plan::kWeightParts; ++part) {
      const uint32_t half = Half::pack(rest, 0.0f);
      store_half(block.key_weight_part(stage_idx, part) + row * 2, half);
      rest -= Half::low(half);
    }
  }

  // Squared, of this lane's rows; those of q unless sums are all that is wanted.
  struct Lengths {
    float2 query;
    float2 key;
  };
  __device__ __forceinline__ Lengths squared(int stage_idx, int chunk) const {
    Lengths squares = {};
    squares.key = squared_lengths(block.key(stage_idx, 0), Plan::kKeyBox);
    if constexpr (!Plan::kSums) {
      squares.query = squared_lengths(block.query(stage_idx, 0), Plan::kQueryBox);
    }
    check(squares.query, squares.key, chunk);
    return squares;
  }

  // |q| and 1 / |k| of the rows of a chunk; rows of K and V past the end become zero, before who waits for the lengths reads
  // them.
  __device__ __forceinline__ void find(const RingPosition<Plan::kStages>& at, int chunk) const {
    const int stage_idx = at.index();
    const Lengths squares = squared(stage_idx, chunk);
    const int num_rows = block.rows(chunk);
    if (lane == diagonal_lane()) {
      const int row = first_row + (lane >> 2);
      store_key_weight(stage_idx, row, key_weight(squares.key.x, row < num_rows));
      store_key_weight(stage_idx, row + 8, key_weight(squares.key.y, row + 8 < num_rows));
    }
    store_lengths(stage_idx, chunk, squares.query, squares.key);
    reads_are_used();
    if (num_rows < Plan::kChunk) {
      barrier_wait(block.value_full(stage_idx), at.parity());
      __syncwarp();  // all lanes have read
      const uint4 zero = make_uint4(0, 0, 0, 0);
      for (int i = lane; i < 16 * 8; i += kWarp) {
        const int row = first_row + i / 8;
        const uint32_t unit = swizzled(row, i % 8);
#pragma unroll
        for (int box = 0; box < Plan::kBoxes && row >= num_rows; ++box) {
          store_unit(block.key(stage_idx, box) + unit, zero);
        }
        if (row >= num_rows) {
          store_unit(block.value(stage_idx) + unit, zero);
        }
      }
      publish_to_async_proxy();
    }
  }

  // The same of rows of fp32 from their sums of squares, which a converter's threads have: of rows `lane & 7` and 8 behind,
  // each over a quarter of the columns. Keeps |q|; gives 1 / |k| of this lane's rows there.
  __device__ __forceinline__ float2 lengths(int stage_idx, int chunk, const float (&query)[2],
                                            const float (&key)[2]) const {
    Lengths squares = {};
    squares.key = of_diagonal(key);
    if constexpr (!Plan::kSums) {
      squares.query = of_diagonal(query);
    }
    check(squares.query, squares.key, chunk);
    store_lengths(stage_idx, chunk, squares.query, squares.key);
    const int source = (lane & 7) * 4;
    return make_float2(__shfl_sync(kAllLanes, rsqrtf(usable(squares.key.x)), source),
                       __shfl_sync(kAllLanes, rsqrtf(usable(squares.key.y)), source));
  }

  // Whole sums, of rows lane / 4 and 8 behind.
  __device__ __forceinline__ float2 of_diagonal(const float (&sums)[2]) const {
    float whole[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      whole[i] = sums[i] + __shfl_xor_sync(kAllLanes, sums[i], 8);
      whole[i] += __shfl_xor_sync(kAllLanes, whole[i], 16);
      whole[i] = __shfl_sync(kAllLanes, whole[i], lane >> 2);
    }
    return make_float2(whole[0], whole[1]);
  }
};

// Tiles that land as they are used: the rows wait for nothing but their normalizer.
template <class Plan>
__device__ __forceinline__ void normalize(const Block<Plan>& block, int warp_in_group, int lane) {
  const Normalizer<Plan> normalizer{block, warp_in_group * 16, lane};
  RingPosition<Plan::kStages> at;
  for (int chunk = 0; chunk < block.num_chunks; ++chunk) {
    barrier_wait(block.key_full(at.index()), at.parity());
    if constexpr (Plan::kApart) {
      barrier_wait(block.query_full(at.index()), at.parity());
    }
    normalizer.find(at, chunk);
    barrier_arrive(block.barrier(Plan::kLengthsFull, at.index()));
    at.advance();
  }
}

}  // namespace hopper
}  // namespace linattn
