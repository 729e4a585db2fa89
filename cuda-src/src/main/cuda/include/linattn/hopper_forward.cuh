// The causal forward on sm_90a: one block walks the chunks of an item and keeps 64 value columns of its
// state in the accumulators of one warpgroup. Its warps have roles:
//
//   producer   warp 0            starts the copies of q, k, v into the ring
//   auxiliary  warps 1 to 3      z, rows past the end
//   score      warps 4 to 7      W = T o (a + b Q K^T), g, 1/g
//   state      warps 8 to 11     O^T = S^T Q^T + V^T W^T, S^T += V^T K, o = O / g
//   rows       warps 12 to 15    fp32 tensors: makes 16-bit tiles of what has landed; where rows are
//                                normalised: |q|, and divides the rows of k by |k|
//
// The products are transposed, so that the accumulators of S^T are the registers from which the next
// product takes them, and only W passes through shared memory. The blocks of one item and head, one for
// each 64 value columns, form a cluster: side by side they find q and k in the L2 cache.
#pragma once

#include "linattn/chunk_items.cuh"
#include "linattn/chunked_arguments.h"
#include "linattn/hopper.cuh"
#include "linattn/hopper_plan.cuh"
#include "linattn/reduce.cuh"

namespace linattn {
namespace hopper {

struct HopperArguments {
  TensorMap query;
  TensorMap key;
  TensorMap value;
  TensorMap out;
  ChunkedArguments chunked;
};

// The block's item.
struct ItemWork {
  int tile;
  int start;
  int tokens;
  int batch;
  int head;
  int kv_head;
  float a;
  float b;
  float count;  // before its first token

  __device__ __forceinline__ explicit ItemWork(const ValueTile<kValueColumns>& block)
      : tile(block.block.tile_idx),
        start(block.item.start),
        tokens(block.item.tokens),
        batch(block.head.batch_idx),
        head(block.head.head_idx),
        kv_head(block.head.kv_head_idx),
        a(block.head.a),
        b(block.head.b),
        count(static_cast<float>(block.item.count)) {}
};

// Operands of fp16 are multiplied by powers of two that keep them in its range. They follow the largest
// elements of the item's first chunk. Where S grows faster than that shows in an output that is not finite.
// One word each in shared memory.
enum Scale {
  kQueryScale,    // of the elements of q, k, v
  kKeyScale,
  kValueScale,
  kScoreScale,    // q.k of the tensors = this * q.k of the operands
  kOutputScale,   // v of the tensors = this * v of the operands
  kWeightBound,   // of |a + b q.k|
  kStateBound,    // of |b| |S| for each token in it, in units of a weight
  kPlainTokens,   // up to this count S is its own operand
  kNumScales
};

// An element of which only the size matters.
template <int kBytes>
struct alignas(kBytes) Untyped {
  unsigned char bytes[kBytes];
};

constexpr float kMaxHalf = 32768.0f;  // half of the range of fp16

__device__ __forceinline__ int exponent_of(float positive) {
  return static_cast<int>(__float_as_uint(positive) >> 23) - 127;
}

__device__ __forceinline__ float power_of_two(int exponent) {
  return __uint_as_float(static_cast<uint32_t>(min(max(exponent, -126), 127) + 127) << 23);
}

// A unit and what follows from it.
struct Unit {
  float value;
  float inverse;
  float slope;  // b times the unit, in front of q.k of the operands and of S
};

// What the roles share.
template <class Plan>
struct Block {
  const HopperArguments& args;
  const ItemWork& work;
  uint32_t base;  // of the shared memory, aligned
  int num_chunks;

  __device__ __forceinline__ uint32_t scale_address(Scale scale) const {
    return base + Plan::kScalesOffset + scale * 4;
  }
  // 1 where operands need no scaling.
  __device__ __forceinline__ float scale(Scale scale) const {
    return Plan::kScaled ? load_float(scale_address(scale)) : 1.0f;
  }

  __device__ __forceinline__ uint32_t barrier(int first, int index = 0) const {
    return base + Plan::kBarriersOffset + 8 * (first + index);
  }
  __device__ __forceinline__ uint32_t stage(int index) const {
    return base + Plan::kStagesOffset + index * Plan::kStageBytes;
  }
  __device__ __forceinline__ uint32_t key(int stage_idx, int box) const {
    return stage(stage_idx) + Plan::kKeyOffset + box * Plan::kKeyBox;
  }
  __device__ __forceinline__ uint32_t query(int stage_idx, int box) const {
    return stage(stage_idx) + Plan::kQueryOffset + box * Plan::kQueryBox;
  }
  __device__ __forceinline__ uint32_t value(int stage_idx) const { return stage(stage_idx) + Plan::kValueOffset; }
  __device__ __forceinline__ uint32_t weights(int buffer) const {
    return base + Plan::kWeightsOffset + buffer * Plan::kWeightBytes;
  }
  // Factors of the columns of O^T: of the product, then of u.
  __device__ __forceinline__ uint32_t columns(int buffer) const {
    return base + Plan::kColumnsOffset + buffer * 2 * Plan::kChunk * 4;
  }
  // |q| of the rows of a stage, where rows are normalised.
  __device__ __forceinline__ uint32_t lengths(int stage_idx) const {
    return base + Plan::kLengthsOffset + stage_idx * Plan::kChunk * 4;
  }
  __device__ __forceinline__ int rows(int chunk) const {
    return min(Plan::kChunk, work.tokens - chunk * Plan::kChunk);
  }

  // With fp32 tensors, Q and K are converted before V.
  __device__ __forceinline__ uint32_t key_full(int stage_idx) const { return barrier(Plan::kKeyFull, stage_idx); }
  __device__ __forceinline__ uint32_t query_full(int stage_idx) const {
    return barrier(Plan::kApart ? Plan::kQueryFull : Plan::kKeyFull, stage_idx);
  }
  __device__ __forceinline__ uint32_t value_full(int stage_idx) const {
    return barrier(Plan::kApart || Plan::kConverted ? Plan::kValueFull : Plan::kKeyFull, stage_idx);
  }
  __device__ __forceinline__ uint32_t key_empty(int stage_idx) const { return barrier(Plan::kKeyEmpty, stage_idx); }
  __device__ __forceinline__ uint32_t query_empty(int stage_idx) const {
    return barrier(Plan::kApart ? Plan::kQueryEmpty : Plan::kKeyEmpty, stage_idx);
  }
  __device__ __forceinline__ uint32_t value_empty(int stage_idx) const {
    return barrier(Plan::kApart ? Plan::kValueEmpty : Plan::kKeyEmpty, stage_idx);
  }

  // The unit of O: W and b S are multiplied by it, and g with them. It is 1/b, so that S is its own operand;
  // without b the product of S is thrown away.
  __device__ __forceinline__ Unit first_unit() const {
    const float slope = work.b * scale(kScoreScale);
    return slope == 0.0f ? Unit{1.0f, 1.0f, 0.0f} : Unit{1.0f / slope, slope, 1.0f};
  }
  // The sum of k v over n tokens is at most n times the roots of their mean squares: up to this count fp16
  // holds S of fp16 tensors as it is.
  __device__ __forceinline__ float plain_tokens() const { return Plan::kFollows ? scale(kPlainTokens) : 0.0f; }
  // Beyond, the unit shrinks with the count after the chunk, `tokens`.
  __device__ __forceinline__ void follow(float tokens, float plain, Unit& unit) const {
    if (Plan::kFollows && tokens > plain) {
      const float bound = fmaxf(scale(kWeightBound), scale(kStateBound) * tokens);
      const int exponent = exponent_of(kMaxHalf) - 1 - exponent_of(bound);
      const float value = power_of_two(exponent);
      unit = Unit{value, power_of_two(-exponent), work.b * value};
    }
  }
  // The unit of z: the mean of rows is no larger than the largest.
  __device__ __forceinline__ static int key_sum_exponent(float tokens) {
    return Plan::kScaled ? exponent_of(tokens) + 1 : 0;
  }
};

__device__ __forceinline__ void arrive_once_a_warp(uint32_t barrier, int lane) {
  __syncwarp();
  if (lane == 0) {
    barrier_arrive(barrier);
  }
}

// Splits x into an upper half and what it leaves.
template <class Half>
__device__ __forceinline__ void split(float low, float high, uint32_t& upper, uint32_t& lower) {
  upper = Half::pack(low, high);
  lower = Half::pack(low - Half::low(upper), high - Half::high(upper));
}

// --- Producer ---------------------------------------------------------------------------------------

template <class Plan>
__device__ __forceinline__ void load_chunk(const Block<Plan>& block, int chunk, RingPosition<Plan::kStages> at) {
  const ItemWork& work = block.work;
  const int token = work.start + chunk * Plan::kChunk;
  barrier_wait(block.query_empty(at.index), at.parity ^ 1);
  barrier_expect(block.query_full(at.index), (Plan::kApart ? Plan::kBoxes : Plan::kSlotsPerChunk) * Plan::kBoxBytes);
#pragma unroll
  for (int box = 0; box < Plan::kBoxes && !Plan::kSums; ++box) {
    load_tile(block.query(at.index, box), &block.args.query,
              {box * Plan::kBoxColumns, token, work.head, work.batch}, block.query_full(at.index));
  }
  if constexpr (Plan::kApart) {
    barrier_wait(block.key_empty(at.index), at.parity ^ 1);
    barrier_expect(block.key_full(at.index), Plan::kBoxes * Plan::kBoxBytes);
  }
#pragma unroll
  for (int box = 0; box < Plan::kBoxes; ++box) {
    load_tile(block.key(at.index, box), &block.args.key,
              {box * Plan::kBoxColumns, token, work.kv_head, work.batch}, block.key_full(at.index));
  }
  if constexpr (Plan::kApart) {
    barrier_wait(block.value_empty(at.index), at.parity ^ 1);
    barrier_expect(block.value_full(at.index), Plan::kBoxBytes);
  }
  load_tile(block.value(at.index), &block.args.value,
            {work.tile * Plan::kBoxColumns, token, work.kv_head, work.batch}, block.value_full(at.index));
}

// 64 columns of fp32 in two boxes of 32.
template <class Plan>
__device__ __forceinline__ void load_slot(uint32_t upper, uint32_t lower, const TensorMap* map, int column,
                                          int token, int head, int batch, uint32_t full) {
  barrier_expect(full, Plan::kSlotBytes);
  load_tile(upper, map, {column, token, head, batch}, full);
  load_tile(lower, map, {column + 32, token, head, batch}, full);
}

template <class Plan>
__device__ __forceinline__ void produce(const Block<Plan>& block) {
  const ItemWork& work = block.work;
  if constexpr (!Plan::kConverted) {
    RingPosition<Plan::kStages> at;
    for (int chunk = 0; chunk < block.num_chunks; ++chunk) {
      load_chunk(block, chunk, at);
      at.advance();
    }
  } else if constexpr (!Plan::kSplit) {
    RingPosition<Plan::kSlots> at;
    for (int chunk = 0; chunk < block.num_chunks; ++chunk) {
      const int token = work.start + chunk * Plan::kChunk;
#pragma unroll
      for (int slot = 0; slot < Plan::kSlotsPerChunk; ++slot) {
        const bool is_key = slot < Plan::kBoxes;
        const bool is_value = slot == Plan::kSlotsPerChunk - 1;
        const TensorMap* map = is_key ? &block.args.key : is_value ? &block.args.value : &block.args.query;
        const int column = (is_key ? slot : is_value ? work.tile : slot - Plan::kBoxes) * Plan::kBoxColumns;
        const uint32_t target = block.base + Plan::kSlotsOffset + at.index * Plan::kSlotBytes;
        barrier_wait(block.barrier(Plan::kSlotEmpty, at.index), at.parity ^ 1);
        load_slot<Plan>(target, target + Plan::kBoxBytes, map, column, token,
                        is_key || is_value ? work.kv_head : work.head, work.batch,
                        block.barrier(Plan::kSlotFull, at.index));
        at.advance();
      }
    }
  } else {
    RingPosition<Plan::kStages> at;
    for (int chunk = 0; chunk < block.num_chunks; ++chunk) {
      const int token = work.start + chunk * Plan::kChunk;
      const uint32_t first_full = block.barrier(Plan::kSlotFull, at.index * Plan::kSlotsPerChunk);
      if constexpr (!Plan::kSums) {
        barrier_wait(block.query_empty(at.index), at.parity ^ 1);
#pragma unroll
        for (int box = 0; box < Plan::kBoxes; ++box) {
          const uint32_t target = block.query(at.index, box);
          load_slot<Plan>(target, target + Plan::kLower, &block.args.query, box * Plan::kBoxColumns, token,
                          work.head, work.batch, first_full + 8 * box);
        }
      }
      barrier_wait(block.key_empty(at.index), at.parity ^ 1);
#pragma unroll
      for (int box = 0; box < Plan::kBoxes; ++box) {
        const uint32_t target = block.key(at.index, box);
        load_slot<Plan>(target, target + Plan::kLowerKey, &block.args.key, box * Plan::kBoxColumns, token,
                        work.kv_head, work.batch, first_full + 8 * (Plan::kSlotsPerChunk - 1 - Plan::kBoxes + box));
      }
      barrier_wait(block.value_empty(at.index), at.parity ^ 1);
      const uint32_t target = block.value(at.index);
      load_slot<Plan>(target, target + Plan::kLower, &block.args.value, work.tile * Plan::kBoxColumns, token,
                      work.kv_head, work.batch, first_full + 8 * (Plan::kSlotsPerChunk - 1));
      at.advance();
    }
  }
}

// --- Rows -------------------------------------------------------------------------------------------

// Lengths of rows, each warp for 16 rows of q and k.
template <class Plan>
struct Normalizer {
  using Half = typename Plan::Half;
  static constexpr int kSteps = (Plan::kHeadDim + 15) / 16;
  static constexpr int kChains = 2;  // of sums, because a product waits for the one before

  const Block<Plan>& block;
  int first_row;
  int lane;

  // 1 for a row of zeros. NaN where squares leave the range of fp32, or elements have lost digits below
  // the range of fp16: the outputs then show it.
  __device__ __forceinline__ static float usable(float squares) {
    constexpr float kLeast = Plan::kConverted && Plan::kScaled ? 0x1p-16f : 0x1p-80f;
    const bool in_range = squares >= kLeast && squares <= 0x1p120f;
    return squares == 0.0f ? 1.0f : in_range ? squares : __int_as_float(0x7fffffff);
  }

  // Squared lengths: the diagonal of the products of the rows with themselves. Lane 4g + g/2 returns those
  // of rows g and g + 8.
  __device__ __forceinline__ float2 squared_lengths(uint32_t first_box, int box_bytes, int lower_distance) const {
    float first_frag[kChains][4] = {};
    float second_frag[kChains][4] = {};
    const int row = first_row + (lane & 15);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int chain = step % kChains;
      const uint32_t tile = first_box + (step / 4) * box_bytes + swizzled(row, (step % 4) * 2 + (lane >> 4));
      uint32_t upper[4];
      load_matrices(tile, upper);
      Half::add_product(first_frag[chain], upper, upper[0], upper[2]);
      Half::add_product(second_frag[chain], upper, upper[1], upper[3]);
      if constexpr (Plan::kSplit) {
        uint32_t lower[4];
        load_matrices(tile + lower_distance, lower);
        Half::add_product(first_frag[chain], upper, lower[0], lower[2]);
        Half::add_product(second_frag[chain], upper, lower[1], lower[3]);
        Half::add_product(first_frag[chain], lower, upper[0], upper[2]);
        Half::add_product(second_frag[chain], lower, upper[1], upper[3]);
        Half::add_product(first_frag[chain], lower, lower[0], lower[2]);
        Half::add_product(second_frag[chain], lower, lower[1], lower[3]);
      }
    }
    const bool odd = ((lane >> 2) & 1) != 0;
    const float first = odd ? first_frag[0][1] + first_frag[1][1] : first_frag[0][0] + first_frag[1][0];
    const float second = odd ? second_frag[0][3] + second_frag[1][3] : second_frag[0][2] + second_frag[1][2];
    return make_float2(usable(first), usable(second));
  }

  // Multiplies 8 elements of a row of K.
  __device__ __forceinline__ static void scale_unit(uint32_t address, float factor) {
    const uint4 unit = load_unit(address);
    uint32_t upper[4] = {unit.x, unit.y, unit.z, unit.w};
    uint32_t lower[4] = {};
    if constexpr (Plan::kSplit) {
      const uint4 rest = load_unit(address + Plan::kLowerKey);
      lower[0] = rest.x, lower[1] = rest.y, lower[2] = rest.z, lower[3] = rest.w;
    }
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      if constexpr (Plan::kSplit) {
        split<Half>((Half::low(upper[pair]) + Half::low(lower[pair])) * factor,
                    (Half::high(upper[pair]) + Half::high(lower[pair])) * factor, upper[pair], lower[pair]);
      } else {
        upper[pair] = Half::pack(Half::low(upper[pair]) * factor, Half::high(upper[pair]) * factor);
      }
    }
    store_unit(address, make_uint4(upper[0], upper[1], upper[2], upper[3]));
    if constexpr (Plan::kSplit) {
      store_unit(address + Plan::kLowerKey, make_uint4(lower[0], lower[1], lower[2], lower[3]));
    }
  }

  // Keeps |q| of the rows and divides those of K by |k|; rows of K past the end become zero.
  __device__ __forceinline__ void run(int stage_idx, int num_rows) const {
    const int group = lane >> 2;
    const int diagonal_lane = (lane & 28) + ((lane >> 3) & 3);  // of this lane's group
    const float2 key = squared_lengths(block.key(stage_idx, 0), Plan::kKeyBox, Plan::kLowerKey);
    if constexpr (!Plan::kSums) {
      const float2 query = squared_lengths(block.query(stage_idx, 0), Plan::kQueryBox, Plan::kLower);
      if (lane == diagonal_lane) {
        store_float(block.lengths(stage_idx) + (first_row + group) * 4, sqrtf(query.x));
        store_float(block.lengths(stage_idx) + (first_row + group + 8) * 4, sqrtf(query.y));
      }
    }
    const float first_factor = __shfl_sync(kAllLanes, rsqrtf(key.x), diagonal_lane);
    const float second_factor = __shfl_sync(kAllLanes, rsqrtf(key.y), diagonal_lane);
    // The four lanes of a group now have the factors of rows g and g + 8, and share their units.
    const int first = first_row + group;
#pragma unroll
    for (int box = 0; box < Plan::kBoxes; ++box) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int unit = 4 * i + (lane & 3);
        const uint32_t address = block.key(stage_idx, box);
        scale_or_clear(address + swizzled(first, unit), first_factor, first < num_rows);
        scale_or_clear(address + swizzled(first + 8, unit), second_factor, first + 8 < num_rows);
      }
    }
  }

  __device__ __forceinline__ static void scale_or_clear(uint32_t address, float factor, bool within) {
    if (within) {
      scale_unit(address, factor);
      return;
    }
    const uint4 zero = make_uint4(0, 0, 0, 0);
    store_unit(address, zero);
    if constexpr (Plan::kSplit) {
      store_unit(address + Plan::kLowerKey, zero);
    }
  }
};

// Tiles that land as they are used: the rows wait for nothing but their normalizer.
template <class Plan>
__device__ __forceinline__ void normalize(const Block<Plan>& block, int warp_in_group, int lane) {
  const Normalizer<Plan> normalizer{block, warp_in_group * 16, lane};
  RingPosition<Plan::kStages> at;
  for (int chunk = 0; chunk < block.num_chunks; ++chunk) {
    barrier_wait(block.key_full(at.index), at.parity);
    if constexpr (Plan::kApart) {
      barrier_wait(block.query_full(at.index), at.parity);
    }
    normalizer.run(at.index, block.rows(chunk));
    publish_to_async_proxy();
    barrier_arrive(block.barrier(Plan::kReady, at.index));
    at.advance();
  }
}


// One slot of fp32, two boxes of 32 columns, becomes a box of 64 columns of 16 bits; with three products
// the lower halves become a second one, in the place of the fp32 boxes themselves. A warp converts 16 rows
// and reads all of them before it writes.
template <class Plan>
struct Converter {
  int lane;
  uint32_t from_even;  // of a lane's two units of a box of fp32
  uint32_t from_odd;
  uint32_t to_first;  // its unit of the columns of the first and of the second box
  uint32_t to_second;

  __device__ __forceinline__ explicit Converter(int warp_in_group, int lane_idx) : lane(lane_idx) {
    const int row = warp_in_group * 16 + (lane & 7);
    const int unit = lane >> 3;
    from_even = swizzled(row, 2 * unit);
    from_odd = swizzled(row, 2 * unit + 1);
    to_first = swizzled(row, unit);
    to_second = swizzled(row, unit + 4);
  }

  __device__ __forceinline__ void load(uint32_t first, uint32_t second, uint4 (&raw_frag)[8]) const {
#pragma unroll
    for (int rows8 = 0; rows8 < 2; ++rows8) {
      raw_frag[2 * rows8] = load_unit(first + rows8 * 1024 + from_even);
      raw_frag[2 * rows8 + 1] = load_unit(first + rows8 * 1024 + from_odd);
      raw_frag[4 + 2 * rows8] = load_unit(second + rows8 * 1024 + from_even);
      raw_frag[4 + 2 * rows8 + 1] = load_unit(second + rows8 * 1024 + from_odd);
    }
  }

  __device__ __forceinline__ void store(const uint4 (&raw_frag)[8], float scale, uint32_t upper,
                                        uint32_t lower) const {
    if (Plan::kScaled && scale != 1.0f) {
      store_scaled<true>(raw_frag, scale, upper, lower);
    } else {
      store_scaled<false>(raw_frag, scale, upper, lower);
    }
  }

  template <bool kMultiply>
  __device__ __forceinline__ void store_scaled(const uint4 (&raw_frag)[8], float factor, uint32_t upper,
                                               uint32_t lower) const {
    using Half = typename Plan::Half;
    const float scale = kMultiply ? factor : 1.0f;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 x = raw_frag[2 * i];
      const uint4 y = raw_frag[2 * i + 1];
      const uint32_t offset = (i & 1) * 1024 + (i < 2 ? to_first : to_second);
      const float values[8] = {__uint_as_float(x.x) * scale, __uint_as_float(x.y) * scale,
                               __uint_as_float(x.z) * scale, __uint_as_float(x.w) * scale,
                               __uint_as_float(y.x) * scale, __uint_as_float(y.y) * scale,
                               __uint_as_float(y.z) * scale, __uint_as_float(y.w) * scale};
      uint32_t up[4];
      uint32_t low[4];
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        if constexpr (Plan::kSplit) {
          split<Half>(values[2 * pair], values[2 * pair + 1], up[pair], low[pair]);
        } else {
          up[pair] = Half::pack(values[2 * pair], values[2 * pair + 1]);
        }
      }
      store_unit(upper + offset, make_uint4(up[0], up[1], up[2], up[3]));
      if constexpr (Plan::kSplit) {
        store_unit(lower + offset, make_uint4(low[0], low[1], low[2], low[3]));
      }
    }
  }
};

template <class Plan>
__device__ __forceinline__ void convert(const Block<Plan>& block, int warp_in_group, int lane) {
  const Converter<Plan> converter(warp_in_group, lane);
  const Normalizer<Plan> normalizer{block, warp_in_group * 16, lane};
  const float query_scale = block.scale(kQueryScale);
  const float key_scale = block.scale(kKeyScale);
  const float value_scale = block.scale(kValueScale);
  constexpr int kLastKey = Plan::kSlotsPerChunk - 2;  // of the keys, and of the queries
  uint4 raw_frag[8];
  RingPosition<Plan::kStages> at;
  if constexpr (!Plan::kSplit) {
    RingPosition<Plan::kSlots> slot_at;
    for (int chunk = 0; chunk < block.num_chunks; ++chunk) {
      barrier_wait(block.key_empty(at.index), at.parity ^ 1);
#pragma unroll
      for (int slot = 0; slot < Plan::kSlotsPerChunk; ++slot) {
        const bool is_key = slot < Plan::kBoxes;
        const bool is_value = slot == Plan::kSlotsPerChunk - 1;
        const uint32_t source = block.base + Plan::kSlotsOffset + slot_at.index * Plan::kSlotBytes;
        const uint32_t target = is_key     ? block.key(at.index, slot)
                                : is_value ? block.value(at.index)
                                           : block.query(at.index, slot - Plan::kBoxes);
        barrier_wait(block.barrier(Plan::kSlotFull, slot_at.index), slot_at.parity);
        converter.load(source, source + Plan::kBoxBytes, raw_frag);
        converter.store(raw_frag, is_key ? key_scale : is_value ? value_scale : query_scale, target, target);
        arrive_once_a_warp(block.barrier(Plan::kSlotEmpty, slot_at.index), lane);
        slot_at.advance();
        if (slot == kLastKey && Plan::kNormalize) {
          __syncwarp();
          normalizer.run(at.index, block.rows(chunk));
        }
        if (slot == kLastKey || is_value) {
          publish_to_async_proxy();
          barrier_arrive(is_value ? block.value_full(at.index) : block.key_full(at.index));
        }
      }
      at.advance();
    }
  } else {
    for (int chunk = 0; chunk < block.num_chunks; ++chunk) {
#pragma unroll
      for (int slot = 0; slot < Plan::kSlotsPerChunk; ++slot) {
        const bool is_query = slot < Plan::kBoxes && !Plan::kSums;
        const bool is_value = slot == Plan::kSlotsPerChunk - 1;
        const uint32_t tile = is_query   ? block.query(at.index, slot)
                              : is_value ? block.value(at.index)
                                         : block.key(at.index, slot % Plan::kBoxes);
        const uint32_t lower = tile + (is_query || is_value ? Plan::kLower : Plan::kLowerKey);
        barrier_wait(block.barrier(Plan::kSlotFull, at.index * Plan::kSlotsPerChunk + slot), at.parity);
        converter.load(tile, lower, raw_frag);
        __syncwarp();
        converter.store(raw_frag, is_query ? query_scale : is_value ? value_scale : key_scale, tile, lower);
        if (slot == kLastKey && Plan::kNormalize) {
          __syncwarp();
          normalizer.run(at.index, block.rows(chunk));
        }
        if (slot == Plan::kBoxes - 1 || slot == kLastKey || is_value) {
          publish_to_async_proxy();
          barrier_arrive(is_query   ? block.query_full(at.index)
                         : is_value ? block.value_full(at.index)
                                    : block.key_full(at.index));
        }
      }
      at.advance();
    }
  }
}

// --- Auxiliary --------------------------------------------------------------------------------------

// z of the columns of one box: the lane in column group g = lane / 4 and t = lane % 4 has columns 8g + 2t
// and 8g + 2t + 1.
struct KeySum {
  float low = 0.0f;
  float high = 0.0f;
};

// Where the block's columns of the states are; null where there is none. Computed where it is used, so
// that the addresses hold no registers in between.
struct StateAddress {
  const float* state_in;
  const float* key_sum_in;
  const float* value_sum_in;
  float* state_out;
  float* key_sum_out;
  float* value_sum_out;

  __device__ __forceinline__ explicit StateAddress(const ChunkedArguments& args) {
    const ValueTile<kValueColumns> block(args, block_number());
    const bool reads = args.state_in != nullptr;
    state_in = reads ? args.state_in + block.state_offset(args) : nullptr;
    key_sum_in = reads ? args.key_sum_in + block.key_sum_offset(args) : nullptr;
    value_sum_in = reads ? args.value_sum_in + block.value_sum_offset(args) : nullptr;
    const bool writes = args.state_out != nullptr && block.head.writes_state(args);
    state_out = writes ? args.state_out + block.state_offset(args) : nullptr;
    key_sum_out = writes ? args.key_sum_out + block.key_sum_offset(args) : nullptr;
    value_sum_out = writes ? args.value_sum_out + block.value_sum_offset(args) : nullptr;
  }

  // Anew each time, unlike blockIdx.
  __device__ __forceinline__ static int64_t block_number() {
    uint32_t number;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(number));
    return number;
  }
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
  KeySum sums[kBoxesOfWarp];

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

  __device__ __forceinline__ void add_by_products(uint32_t tile, KeySum& sum) const {
    float partial_frag[4][4] = {};
#pragma unroll 4
    for (int group = 0; group < 8; ++group) {
      const uint32_t ones = (lane >> 2) == group ? Half::kOnes : 0u;
#pragma unroll
      for (int rows32 = 0; rows32 < 2; ++rows32) {
        uint32_t keys_frag[4];
        load_matrices_transposed(tile + swizzled(rows32 * 32 + lane, group), keys_frag);
        Half::add_rows(partial_frag[2 * rows32], ones, keys_frag[0], keys_frag[1]);
        Half::add_rows(partial_frag[2 * rows32 + 1], ones, keys_frag[2], keys_frag[3]);
      }
    }
    sum.low += (partial_frag[0][0] + partial_frag[1][0]) + (partial_frag[2][0] + partial_frag[3][0]);
    sum.high += (partial_frag[0][1] + partial_frag[1][1]) + (partial_frag[2][1] + partial_frag[3][1]);
  }

  // The tensor cores are the limit with three products, so these sums leave them alone.
  __device__ __forceinline__ void add_by_words(uint32_t tile, int lower_distance, KeySum& sum) const {
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

// --- Score ------------------------------------------------------------------------------------------

// W of a chunk, g and the factors of the outputs. Returns NaN if a g was not finite, else 0.
template <class Plan>
__device__ __forceinline__ float score(const Block<Plan>& block, int warp_in_group, int lane) {
  using Half = typename Plan::Half;
  using Products = typename Plan::Products;
  const ItemWork& work = block.work;
  const int t = lane & 3;
  const int row = warp_in_group * 16 + (lane >> 2);
  const uint32_t matrix_row =
      swizzled(0, 0) + static_cast<uint32_t>((warp_in_group * 16 + (lane & 15)) * kRowBytes);
  const int matrix_swizzle = lane & 7;
  const int matrix_unit = lane >> 4;
  const bool writes_g = t == 0 && work.tile == 0;
  const TensorView& normalizer = block.args.chunked.normalizer;
  float* g_gmem = row_address<float>(normalizer, work.batch, work.head, work.start + row);
  float scores_frag[Plan::Products::kScoreRegisters];
  RingPosition<Plan::kStages> at;
  RingPosition<Plan::kWeightBuffers> weights_at;
  float count = work.count;
  const float plain_tokens = block.plain_tokens();
  Unit unit = block.first_unit();
  float marks = 0.0f;
  for (int chunk = 0; chunk < block.num_chunks; ++chunk) {
    barrier_wait(block.query_full(at.index), at.parity);
    if constexpr (Plan::kApart) {
      barrier_wait(block.key_full(at.index), at.parity);
    }
    barrier_wait(block.barrier(Plan::kReady, at.index), at.parity);
    pin(scores_frag);
    products_fence();
    const uint64_t query = operand(block.query(at.index, 0));
    const uint64_t key = operand(block.key(at.index, 0));
#pragma unroll
    for (int step = 0; step < (Plan::kHeadDim + 15) / 16; ++step) {
      const int query_step = step / 4 * Plan::kQueryBox + step % 4 * 32;
      const uint64_t key_at = further(key, step / 4 * Plan::kKeyBox + step % 4 * 32);
      Products::scores(scores_frag, further(query, query_step), key_at, step > 0);
      if constexpr (Plan::kSplit) {
        Products::scores_of_lower_query(scores_frag, further(query, query_step + Plan::kLower), key_at, 1);
      }
    }
    products_commit();
    // Everything is in the unit of O; with normalised rows times |q| as well. Formed under the products.
    block.follow(count + Plan::kChunk, plain_tokens, unit);
    const float slope = unit.slope;
    const float key_sum_scale = slope * power_of_two(block.key_sum_exponent(count + 1.0f));
    float first_length = 1.0f;
    float second_length = 1.0f;
    if constexpr (Plan::kNormalize) {
      const float query_scale = block.scale(kScoreScale);
      first_length = load_float(block.lengths(at.index) + row * 4) * query_scale;
      second_length = load_float(block.lengths(at.index) + row * 4 + 32) * query_scale;
    }
    const float first_offset = work.a * unit.value * first_length;
    const float second_offset = work.a * unit.value * second_length;
    const float first_before = first_offset * count;
    const float second_before = second_offset * count;
    products_wait<0>();
    pin(scores_frag);
    if (lane == 0) {
      barrier_arrive(block.key_empty(at.index));
      if constexpr (Plan::kApart) {
        barrier_arrive(block.query_empty(at.index));
      }
    }
    if constexpr (Plan::kSplit) {  // upper query times lower key stands behind the columns of z
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        scores_frag[i] += scores_frag[36 + i];
      }
    }
    float first_g = (scores_frag[32] + scores_frag[33]) * key_sum_scale;
    float second_g = (scores_frag[34] + scores_frag[35]) * key_sum_scale;
    uint32_t upper_frag[16];
    uint32_t lower_frag[Plan::kSplit ? 16 : 1];
#pragma unroll
    for (int block8 = 0; block8 < 8; ++block8) {
      if (block8 < 2 * warp_in_group + 2) {
        const int column = 8 * block8 + 2 * t;
        float w0 = fmaf(slope, scores_frag[4 * block8], first_offset);
        float w1 = fmaf(slope, scores_frag[4 * block8 + 1], first_offset);
        float w2 = fmaf(slope, scores_frag[4 * block8 + 2], second_offset);
        float w3 = fmaf(slope, scores_frag[4 * block8 + 3], second_offset);
        if (block8 >= 2 * warp_in_group) {
          w0 = column <= row ? w0 : 0.0f;
          w1 = column + 1 <= row ? w1 : 0.0f;
          w2 = column <= row + 8 ? w2 : 0.0f;
          w3 = column + 1 <= row + 8 ? w3 : 0.0f;
        }
        first_g += w0 + w1;
        second_g += w2 + w3;
        if constexpr (Plan::kSplit) {
          split<Half>(w0, w1, upper_frag[2 * block8], lower_frag[2 * block8]);
          split<Half>(w2, w3, upper_frag[2 * block8 + 1], lower_frag[2 * block8 + 1]);
        } else {
          upper_frag[2 * block8] = Half::pack(w0, w1);
          upper_frag[2 * block8 + 1] = Half::pack(w2, w3);
        }
      } else {
        upper_frag[2 * block8] = upper_frag[2 * block8 + 1] = 0;
        if constexpr (Plan::kSplit) {
          lower_frag[2 * block8] = lower_frag[2 * block8 + 1] = 0;
        }
      }
    }
    barrier_wait(block.barrier(Plan::kWeightsEmpty, weights_at.index), weights_at.parity ^ 1);
    const uint32_t weights = block.weights(weights_at.index) + matrix_row;
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      const uint32_t matrices = weights + (((2 * pair + matrix_unit) ^ matrix_swizzle) * kUnitBytes);
      store_matrices(matrices, &upper_frag[4 * pair]);
      if constexpr (Plan::kSplit) {
        store_matrices(matrices + Plan::kLowerKey, &lower_frag[4 * pair]);
      }
    }
    first_g = sum_lanes<4>(first_g) + first_before;  // while the weights are on their way
    second_g = sum_lanes<4>(second_g) + second_before;
    const int num_rows = block.rows(chunk);
    if (t == 0) {
      // Rows past the end divide nothing: their outputs are zero and mark nothing.
      const float outputs = block.scale(kOutputScale);
      const float first_factor = row < num_rows ? reciprocal(first_g) * outputs : 0.0f;
      const float second_factor = row + 8 < num_rows ? reciprocal(second_g) * outputs : 0.0f;
      const uint32_t columns = block.columns(weights_at.index) + row * 4;
      store_float(columns, first_factor);
      store_float(columns + 32, second_factor);
      if constexpr (Plan::kNormalize) {
        store_float(columns + 256, first_factor * first_offset);
        store_float(columns + 256 + 32, second_factor * second_offset);
      }
      marks = fmaf(row < num_rows ? first_g : 0.0f, 0.0f, marks);
      marks = fmaf(row + 8 < num_rows ? second_g : 0.0f, 0.0f, marks);
    }
    publish_to_async_proxy();
    __syncwarp();
    if (t == 0) {
      barrier_arrive(block.barrier(Plan::kWeightsFull, weights_at.index));
    }
    if (writes_g) {
      if (row < num_rows) {
        g_gmem[0] = first_g * unit.inverse * reciprocal(first_length);
      }
      if (row + 8 < num_rows) {
        g_gmem[8 * normalizer.token_stride] = second_g * unit.inverse * reciprocal(second_length);
      }
    }
    g_gmem += Plan::kChunk * normalizer.token_stride;
    count += Plan::kChunk;
    at.advance();
    weights_at.advance();
  }
  return marks;
}

// --- State ------------------------------------------------------------------------------------------

template <class Plan>
struct State {
  static constexpr int kSteps = (Plan::kHeadDim + 15) / 16;
  static constexpr int kColumns8 = Plan::kHeadDim / 8;
  static constexpr int kParts = Plan::kParts;
  static constexpr int kPartRegisters = Plan::kPartRegisters;
  static constexpr int kBarrier = 1;
  // Operands are made of the whole state at once, because converting between products makes the compiler wait
  // after each of them; of half of it where registers are short.
  static constexpr int kQueryParts = Plan::kHeadDim > 192 && !Plan::kSplit ? 2 : 1;
  static constexpr int kAllPairs = Plan::kHeadDim / 4;
  static constexpr int kPairs = (kQueryParts == 1 ? Plan::kHeadDim : Plan::kPartColumns) / 4;
  using Half = typename Plan::Half;
  using Products = typename Plan::Products;

  const Block<Plan>& block;
  int warp;
  int lane;
  bool leads;
  float state_frag[kParts][kPartRegisters];  // S^T: rows are value columns, columns are key columns
  float first_sum = 0.0f;                    // u of this thread's two rows
  float second_sum = 0.0f;
  float marks = 0.0f;         // NaN once an output was not finite
  uint32_t marked_pairs = 0;  // the same of outputs of 16 bits

  __device__ __forceinline__ State(const Block<Plan>& shared, int warp_in_group, int lane_idx)
      : block(shared), warp(warp_in_group), lane(lane_idx), leads(warp_in_group == 0 && lane_idx == 0) {}

  static constexpr int kPart8 = Plan::kPartColumns / 8;

  // Of the eight key columns j.
  __device__ __forceinline__ static float& element(float (&frag)[kParts][kPartRegisters], int j, int i) {
    return frag[j / kPart8][4 * (j % kPart8) + i];
  }

  __device__ __forceinline__ static void pin_parts(float (&frag)[kParts][kPartRegisters]) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      pin(frag[part]);
    }
  }

  // Pair i of elements, as the product with the queries takes them.
  __device__ __forceinline__ float2 pair(int i) const {
    const int j = i / 2;
    const int first = 4 * (j % kPart8) + 2 * (i % 2);
    return make_float2(state_frag[j / kPart8][first], state_frag[j / kPart8][first + 1]);
  }

  // sum^T += V^T K for 16 tokens.
  __device__ __forceinline__ static void add_value_key(float (&frag)[kParts][kPartRegisters], uint64_t value,
                                                       uint64_t key, int accumulate) {
    Products::value_key(frag[0], value, key, accumulate);
    if constexpr (kParts > 1) {
      constexpr int kRest = Plan::kPartColumns / Plan::kBoxColumns * Plan::kKeyBox;
      Products::value_key_rest(frag[1], value, further(key, kRest), accumulate);
    }
  }

  // Within the block's columns.
  __device__ __forceinline__ int value_column() const { return warp * 16 + (lane >> 2); }

  __device__ __forceinline__ int num_columns() const {
    return min(Plan::kBoxColumns, block.args.chunked.value_dim - block.work.tile * Plan::kBoxColumns);
  }

  __device__ __forceinline__ float state_scale() const {
    return (Plan::kNormalize ? 1.0f : block.scale(kKeyScale)) * block.scale(kValueScale);
  }

  __device__ __forceinline__ void start() {
    const StateAddress address(block.args.chunked);
    const int column = value_column();
    const bool first = column < num_columns();
    const bool second = column + 8 < num_columns();
    const int64_t stride = block.args.chunked.value_dim;
    const float scale = state_scale();
    if (address.state_in != nullptr) {
      const float* entry_gmem = address.state_in + 2 * (lane & 3) * stride + column;
#pragma unroll
      for (int j = 0; j < kColumns8; ++j) {
        element(state_frag, j, 0) = first ? entry_gmem[0] * scale : 0.0f;
        element(state_frag, j, 1) = first ? entry_gmem[stride] * scale : 0.0f;
        element(state_frag, j, 2) = second ? entry_gmem[8] * scale : 0.0f;
        element(state_frag, j, 3) = second ? entry_gmem[stride + 8] * scale : 0.0f;
        entry_gmem = after(entry_gmem, 8 * stride);
      }
      const float value_scale = block.scale(kValueScale);
      first_sum = first ? address.value_sum_in[column] * value_scale : 0.0f;
      second_sum = second ? address.value_sum_in[column + 8] * value_scale : 0.0f;
    } else {
#pragma unroll
      for (int i = 0; i < kParts * kPartRegisters; ++i) {
        state_frag[i / kPartRegisters][i % kPartRegisters] = 0.0f;
      }
    }
  }

  __device__ __forceinline__ void finish() {
    const StateAddress address(block.args.chunked);
    if (address.state_out == nullptr) {
      return;
    }
    const int column = value_column();
    const bool first = column < num_columns();
    const bool second = column + 8 < num_columns();
    const int64_t stride = block.args.chunked.value_dim;
    const float scale = 1.0f / state_scale();
    float* entry_gmem = address.state_out + 2 * (lane & 3) * stride + column;
#pragma unroll
    for (int j = 0; j < kColumns8; ++j) {
      if (first) {
        entry_gmem[0] = element(state_frag, j, 0) * scale;
        entry_gmem[stride] = element(state_frag, j, 1) * scale;
      }
      if (second) {
        entry_gmem[8] = element(state_frag, j, 2) * scale;
        entry_gmem[stride + 8] = element(state_frag, j, 3) * scale;
      }
      entry_gmem = after(entry_gmem, 8 * stride);
    }
    if ((lane & 3) == 0 && !Plan::kSums) {
      const float value_scale = 1.0f / block.scale(kValueScale);
      if (first) {
        address.value_sum_out[column] = first_sum * value_scale;
      }
      if (second) {
        address.value_sum_out[column + 8] = second_sum * value_scale;
      }
    }
  }

  // One address at a time: many together cost registers, of which the state leaves few.
  template <typename T>
  __device__ __forceinline__ static T* after(T* pointer, int64_t distance) {
    pointer += distance;
    asm volatile("" : "+l"(pointer)::"memory");
    return pointer;
  }

  __device__ __forceinline__ void run() {
    start();
    if constexpr (Plan::kSums) {
      run_sums();
    } else if constexpr (Plan::kSplit) {
      run_three_products();
    } else {
      run_one_product();
    }
    finish();
    if (leads) {
      wait_for_stores();
    }
  }

  // S alone.
  __device__ __forceinline__ void run_sums() {
    RingPosition<Plan::kStages> at;
    for (int chunk = 0; chunk < block.num_chunks; ++chunk) {
      barrier_wait(block.key_full(at.index), at.parity);
      if constexpr (Plan::kConverted) {
        barrier_wait(block.value_full(at.index), at.parity);
      }
      barrier_wait(block.barrier(Plan::kReady, at.index), at.parity);
      const uint64_t value = operand(block.value(at.index));
      const uint64_t key = operand(block.key(at.index, 0), Plan::kKeyBox);
      if constexpr (Plan::kSplit) {
        float chunk_frag[kParts][kPartRegisters] = {};
        pin_parts(chunk_frag);
        products_fence();
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          const uint64_t upper_value = further(value, step * 2048);
          const uint64_t upper_key = further(key, step * 2048);
          add_value_key(chunk_frag, upper_value, upper_key, step > 0);
          add_value_key(chunk_frag, further(upper_value, Plan::kLower), upper_key, 1);
          add_value_key(chunk_frag, upper_value, further(upper_key, Plan::kLowerKey), 1);
        }
        products_commit();
        products_wait<0>();
        pin_parts(chunk_frag);
        add_to_state(chunk_frag);
      } else {
        pin_parts(state_frag);
        products_fence();
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          add_value_key(state_frag, further(value, step * 2048), further(key, step * 2048), 1);
        }
        products_commit();
        products_wait<0>();
        pin_parts(state_frag);
      }
      if (lane == 0) {
        barrier_arrive(block.key_empty(at.index));
        if constexpr (Plan::kSplit) {
          barrier_arrive(block.value_empty(at.index));
        }
      }
      at.advance();
    }
  }

  __device__ __forceinline__ void add_to_state(const float (&chunk_frag)[kParts][kPartRegisters]) {
#pragma unroll
    for (int i = 0; i < kParts * kPartRegisters; ++i) {
      state_frag[i / kPartRegisters][i % kPartRegisters] += chunk_frag[i / kPartRegisters][i % kPartRegisters];
    }
  }

  __device__ __forceinline__ void run_one_product() {
    float outputs_frag[36];
    const bool uses_state = block.work.b != 0.0f;
    float count = block.work.count + Plan::kChunk;  // after the chunk
    const float plain_tokens = block.plain_tokens();
    Unit unit = block.first_unit();
    block.follow(count, plain_tokens, unit);
    RingPosition<Plan::kStages> at;
    RingPosition<Plan::kWeightBuffers> weights_at;
    RingPosition<Plan::kOutputBuffers> outputs_at;
    for (int chunk = 0; chunk < block.num_chunks; ++chunk) {
      const float scale = unit.slope;
      outputs_frag[32] = outputs_frag[33] = outputs_frag[34] = outputs_frag[35] = 0.0f;
      if constexpr (kQueryParts == 1) {
        uint32_t half_frag[kPairs];
        make_operands(scale, 0, half_frag);
        barrier_wait(block.query_full(at.index), at.parity);
        add_state_query(outputs_frag, half_frag, at.index, 0);
      } else {
        barrier_wait(block.query_full(at.index), at.parity);
#pragma unroll
        for (int part = 0; part < kQueryParts; ++part) {
          uint32_t half_frag[kPairs];
          make_operands(scale, part, half_frag);
          add_state_query(outputs_frag, half_frag, at.index, part);
          if (part + 1 < kQueryParts) {
            products_commit();
            products_wait<0>();
            pin(half_frag);
            pin(outputs_frag);
          }
        }
      }
      products_commit();
      barrier_wait(block.barrier(Plan::kWeightsFull, weights_at.index), weights_at.parity);
      if constexpr (Plan::kConverted || Plan::kApart) {
        barrier_wait(block.value_full(at.index), at.parity);
      }
      if constexpr (Plan::kApart) {  // the weights come later than the product of S
        products_wait<0>();
        if (lane == 0) {
          barrier_arrive(block.query_empty(at.index));
        }
      }
      pin(outputs_frag);
      products_fence();
      const uint64_t weights = operand(block.weights(weights_at.index));
      const uint64_t value = operand(block.value(at.index));
      const uint64_t key = operand(block.key(at.index, 0), Plan::kKeyBox);
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        Products::value_weights(outputs_frag, further(value, step * 2048), further(weights, step * 32),
                                step > 0 || uses_state);
      }
      products_commit();
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        add_value_key(state_frag, further(value, step * 2048), further(key, step * 2048), 1);
      }
      products_commit();
      const float constant = block.work.a * unit.value;
      count += Plan::kChunk;
      block.follow(count, plain_tokens, unit);
      if constexpr (Plan::kOutputBuffers == 1) {
        reuse_output_buffer();
      }
      products_wait<1>();
      pin(outputs_frag);
      write_outputs(outputs_frag, constant, chunk, weights_at.index, outputs_at.index);
      products_wait<0>();
      pin_parts(state_frag);
      if (lane == 0) {
        barrier_arrive(block.key_empty(at.index));
        if constexpr (Plan::kApart) {
          barrier_arrive(block.value_empty(at.index));
        }
      }
      at.advance();
      weights_at.advance();
      outputs_at.advance();
    }
  }

  // S is added chunk by chunk in fp32: the products of a chunk start from zero, because an accumulator of
  // the tensor cores truncates what it adds.
  __device__ __forceinline__ void run_three_products() {
    float outputs_frag[36];
    uint32_t upper_frag[kPairs];
    uint32_t lower_frag[kPairs];
    const float constant = block.work.a * block.first_unit().value;
    split_state(upper_frag, lower_frag);
    const bool uses_state = block.work.b != 0.0f;
    RingPosition<Plan::kStages> at;
    RingPosition<Plan::kWeightBuffers> weights_at;
    for (int chunk = 0; chunk < block.num_chunks; ++chunk) {
      outputs_frag[32] = outputs_frag[33] = outputs_frag[34] = outputs_frag[35] = 0.0f;
      barrier_wait(block.query_full(at.index), at.parity);
      barrier_wait(block.key_full(at.index), at.parity);
      barrier_wait(block.value_full(at.index), at.parity);
      pin(upper_frag);
      pin(lower_frag);
      pin(outputs_frag);
      products_fence();
      const uint64_t query = operand(block.query(at.index, 0));
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const uint64_t upper_query = further(query, step / 4 * Plan::kQueryBox + step % 4 * 32);
        Products::state_query(outputs_frag, upper_frag[4 * step], upper_frag[4 * step + 1],
                              upper_frag[4 * step + 2], upper_frag[4 * step + 3], upper_query, step > 0);
        Products::state_query(outputs_frag, lower_frag[4 * step], lower_frag[4 * step + 1],
                              lower_frag[4 * step + 2], lower_frag[4 * step + 3], upper_query, 1);
        Products::state_query(outputs_frag, upper_frag[4 * step], upper_frag[4 * step + 1],
                              upper_frag[4 * step + 2], upper_frag[4 * step + 3], further(upper_query, Plan::kLower), 1);
      }
      products_commit();
      products_wait<0>();
      pin(upper_frag);
      pin(lower_frag);
      pin(outputs_frag);
      if (lane == 0) {
        barrier_arrive(block.query_empty(at.index));
      }
      barrier_wait(block.barrier(Plan::kReady, at.index), at.parity);
      float chunk_frag[kParts][kPartRegisters] = {};
      pin_parts(chunk_frag);
      products_fence();
      const uint64_t value = operand(block.value(at.index));
      const uint64_t key = operand(block.key(at.index, 0), Plan::kKeyBox);
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const uint64_t upper_value = further(value, step * 2048);
        const uint64_t upper_key = further(key, step * 2048);
        add_value_key(chunk_frag, upper_value, upper_key, step > 0);
        add_value_key(chunk_frag, further(upper_value, Plan::kLower), upper_key, 1);
        add_value_key(chunk_frag, upper_value, further(upper_key, Plan::kLowerKey), 1);
      }
      products_commit();
      barrier_wait(block.barrier(Plan::kWeightsFull, weights_at.index), weights_at.parity);
      pin(outputs_frag);
      products_fence();
      const uint64_t weights = operand(block.weights(weights_at.index));
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        const uint64_t upper_value = further(value, step * 2048);
        const uint64_t upper_weights = further(weights, step * 32);
        Products::value_weights(outputs_frag, upper_value, upper_weights, step > 0 || uses_state);
        Products::value_weights(outputs_frag, further(upper_value, Plan::kLower), upper_weights, 1);
        Products::value_lower_weights(outputs_frag, upper_value, further(upper_weights, Plan::kLowerKey), 1);
      }
      products_commit();
      products_wait<1>();
      pin_parts(chunk_frag);
      add_to_state(chunk_frag);
      if (lane == 0) {
        barrier_arrive(block.key_empty(at.index));
      }
      split_state(upper_frag, lower_frag);
      pin(upper_frag);
      pin(lower_frag);
      reuse_output_buffer();
      products_wait<0>();
      pin(outputs_frag);
      if (lane == 0) {
        barrier_arrive(block.value_empty(at.index));
      }
      write_outputs(outputs_frag, constant, chunk, weights_at.index, 0);
      at.advance();
      weights_at.advance();
    }
  }

  __device__ __forceinline__ void split_state(uint32_t (&upper_frag)[kPairs], uint32_t (&lower_frag)[kPairs]) const {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const float2 x = pair(i);
      split<Half>(x.x, x.y, upper_frag[i], lower_frag[i]);
    }
  }

  __device__ __forceinline__ void make_operands(float scale, int part, uint32_t (&half_frag)[kPairs]) const {
    if (!Plan::kFollows || scale == 1.0f || scale == 0.0f) {
#pragma unroll
      for (int i = 0; i < kPairs && part * kPairs + i < kAllPairs; ++i) {
        const float2 x = pair(part * kPairs + i);
        half_frag[i] = Half::pack(x.x, x.y);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kPairs && part * kPairs + i < kAllPairs; ++i) {
        const float2 x = pair(part * kPairs + i);
        half_frag[i] = Half::pack(x.x * scale, x.y * scale);
      }
    }
  }

  // O^T (+)= S^T Q^T over the key columns of a part; the first product of part 0 starts O^T.
  __device__ __forceinline__ void add_state_query(float (&outputs_frag)[36], uint32_t (&half_frag)[kPairs],
                                                  int stage_idx, int part) {
    pin(half_frag);
    pin(outputs_frag);
    pin_parts(state_frag);
    products_fence();
    const uint64_t query = operand(block.query(stage_idx, 0));
#pragma unroll
    for (int i = 0; i < kPairs / 4 && part * (kPairs / 4) + i < kSteps; ++i) {
      const int step = part * (kPairs / 4) + i;
      Products::state_query(outputs_frag, half_frag[4 * i], half_frag[4 * i + 1], half_frag[4 * i + 2],
                            half_frag[4 * i + 3],
                            further(query, step / 4 * Plan::kQueryBox + step % 4 * 32), step > 0);
    }
  }

  // With one buffer: until the copy of the chunk before has read it.
  __device__ __forceinline__ void reuse_output_buffer() const {
    if (leads) {
      wait_for_stores_to_read<0>();
    }
    named_barrier(kBarrier, kWarpgroup);
  }

  // o = (O + a u) / g, by way of shared memory to global memory; u of the chunk stands in column 64.
  __device__ __forceinline__ void write_outputs(float (&outputs_frag)[36], float constant, int chunk,
                                                int weights_idx, int outputs_idx) {
    const float first_added = __shfl_sync(kAllLanes, outputs_frag[32], lane & 28);
    const float second_added = __shfl_sync(kAllLanes, outputs_frag[34], lane & 28);
    const uint32_t columns = block.columns(weights_idx) + (lane & 3) * 8;
    if constexpr (Plan::kNormalize) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float2 factor = load_float2(columns + j * 32);
        const float2 of_sum = load_float2(columns + j * 32 + 256);
        outputs_frag[4 * j] = fmaf(outputs_frag[4 * j], factor.x, first_sum * of_sum.x);
        outputs_frag[4 * j + 1] = fmaf(outputs_frag[4 * j + 1], factor.y, first_sum * of_sum.y);
        outputs_frag[4 * j + 2] = fmaf(outputs_frag[4 * j + 2], factor.x, second_sum * of_sum.x);
        outputs_frag[4 * j + 3] = fmaf(outputs_frag[4 * j + 3], factor.y, second_sum * of_sum.y);
      }
    } else {
      const float first_constant = constant * first_sum;
      const float second_constant = constant * second_sum;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float2 factor = load_float2(columns + j * 32);
        outputs_frag[4 * j] = (outputs_frag[4 * j] + first_constant) * factor.x;
        outputs_frag[4 * j + 1] = (outputs_frag[4 * j + 1] + first_constant) * factor.y;
        outputs_frag[4 * j + 2] = (outputs_frag[4 * j + 2] + second_constant) * factor.x;
        outputs_frag[4 * j + 3] = (outputs_frag[4 * j + 3] + second_constant) * factor.y;
      }
    }
    first_sum += first_added;
    second_sum += second_added;
    arrive_once_a_warp(block.barrier(Plan::kWeightsEmpty, weights_idx), lane);
    const uint32_t tile = block.base + Plan::kOutputsOffset + outputs_idx * Plan::kOutputBytes;
    if constexpr (Plan::Element::kBytes == 2) {
      stage_halves(outputs_frag, tile);
    } else {
      stage_floats(outputs_frag, tile);
    }
    publish_to_async_proxy();
    if constexpr (Plan::kOutputBuffers > 1) {  // the copy of two chunks before has read its buffer
      if (leads) {
        wait_for_stores_to_read<Plan::kOutputBuffers - 2>();
      }
    }
    named_barrier(kBarrier, kWarpgroup);
    store_outputs(tile, chunk);
  }

  __device__ __forceinline__ void stage_halves(const float (&outputs_frag)[36], uint32_t tile) {
    const int token = (lane & 7) + ((lane >> 4) & 1) * 8;
    const uint32_t matrix = tile + swizzled(token, warp * 2 + ((lane >> 3) & 1));
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      uint32_t halves[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        halves[i] = Half::pack(outputs_frag[8 * pair + 2 * i], outputs_frag[8 * pair + 2 * i + 1]);
        marked_pairs = Half::mark(halves[i], marked_pairs);
      }
      store_matrices_transposed(matrix + pair * 16 * kRowBytes, halves);
    }
  }

  __device__ __forceinline__ void stage_floats(const float (&outputs_frag)[36], uint32_t tile) {
    const int t = lane & 3;
    const int unit = (warp & 1) * 4 + (lane >> 4);
    const uint32_t box = tile + (warp >> 1) * Plan::kBoxBytes + ((lane >> 2) & 3) * 4;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t word = box + swizzled(2 * t + (i & 1), unit + 2 * (i >> 1));
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        store_float(word + j * 8 * kRowBytes, outputs_frag[4 * j + i]);
        marks = fmaf(outputs_frag[4 * j + i], 0.0f, marks);
      }
    }
  }

  __device__ __forceinline__ void store_outputs(uint32_t tile, int chunk) const {
    const ItemWork& work = block.work;
    const int num_rows = block.rows(chunk);
    const int token = work.start + chunk * Plan::kChunk;
    const int column = work.tile * Plan::kBoxColumns;
    if (num_rows == Plan::kChunk) {
      if (leads) {
        store_tile(&block.args.out, {column, token, work.head, work.batch}, tile);
        if constexpr (Plan::Element::kBytes == 4) {
          store_tile(&block.args.out, {column + 32, token, work.head, work.batch}, tile + Plan::kBoxBytes);
        }
        commit_stores();
      }
      return;
    }
    // The rows behind may belong to another item.
    using Bytes = Untyped<Plan::Element::kBytes>;
    constexpr int kUnitElements = kUnitBytes / Plan::Element::kBytes;
    constexpr int kUnits = Plan::kBoxColumns / kUnitElements;
    for (int i = warp * kWarp + lane; i < num_rows * kUnits; i += kWarpgroup) {
      const int row = i / kUnits;
      const int unit = i % kUnits;
      if (unit * kUnitElements < num_columns()) {
        const uint4 data = load_unit(tile + (unit >> 3) * Plan::kBoxBytes + swizzled(row, unit & 7));
        Bytes* out_gmem = row_address<Bytes>(block.args.chunked.out, work.batch, work.head, token + row);
        *reinterpret_cast<uint4*>(out_gmem + column + unit * kUnitElements) = data;
      }
    }
  }
};

// --- The block --------------------------------------------------------------------------------------

// Rows of z and W that are not written again: zero, but for the row of ones that adds up v.
template <class Plan>
__device__ __forceinline__ void clear_extra_rows(const Block<Plan>& block) {
  constexpr int kWords = Plan::kExtraBytes / 4;
  for (int i = threadIdx.x; i < Plan::kStages * Plan::kBoxes * kWords; i += Plan::kThreads) {
    const int box = i / kWords;
    store_word(block.key(box / Plan::kBoxes, box % Plan::kBoxes) + Plan::kBoxBytes + (i % kWords) * 4, 0u);
  }
  for (int i = threadIdx.x; i < Plan::kWeightBuffers * kWords; i += Plan::kThreads) {
    store_word(block.weights(i / kWords) + Plan::kBoxBytes + (i % kWords) * 4,
               i % kWords < kRowBytes / 4 ? Plan::Half::kOnes : 0u);
  }
}

template <class Plan>
__device__ __forceinline__ void init_barriers(const Block<Plan>& block) {
  // Who writes shared memory arrives with every thread: racecheck does not follow one lane for its warp.
  constexpr int kFillers = Plan::kConverted ? kWarpgroup : 1;
  constexpr int kStageReaders = Plan::kAuxiliaryWarps + (Plan::kSums ? 4 : 8);
  constexpr bool normalizers = !Plan::kConverted && Plan::kNormalize;
  for (int i = 0; i < Plan::kNumSlotBarriers; ++i) {
    barrier_init(block.barrier(Plan::kSlotFull, i), 1);
    if (!Plan::kSplit) {
      barrier_init(block.barrier(Plan::kSlotEmpty, i), 4);
    }
  }
  for (int i = 0; i < Plan::kStages; ++i) {
    barrier_init(block.barrier(Plan::kKeyFull, i), kFillers);
    barrier_init(block.barrier(Plan::kQueryFull, i), kFillers);
    barrier_init(block.barrier(Plan::kValueFull, i), kFillers);
    barrier_init(block.barrier(Plan::kKeyEmpty, i), kStageReaders);
    barrier_init(block.barrier(Plan::kQueryEmpty, i), 8);
    barrier_init(block.barrier(Plan::kValueEmpty, i), Plan::kSums ? kStageReaders : 4);
    barrier_init(block.barrier(Plan::kReady, i), Plan::kAuxiliaryWarps + (normalizers ? kWarpgroup : 0));
  }
  for (int i = 0; i < Plan::kWeightBuffers; ++i) {
    barrier_init(block.barrier(Plan::kWeightsFull, i), kWarpgroup / 4);
    barrier_init(block.barrier(Plan::kWeightsEmpty, i), 4);
  }
  barrier_init_fence();
}

// The largest element, and the largest sum of squares of a column, of some rows: as bits, in shared memory.
struct Extent {
  unsigned largest;
  unsigned squares;
};

// One thread for each column, so that the sums do not depend on the order of threads.
template <class Plan>
__device__ __forceinline__ void measure_column(const TensorView& view, int batch, int head, int token, int column,
                                               int num_rows, Extent* extent_smem) {
  using Bytes = Untyped<Plan::Element::kBytes>;
  const Bytes* element_gmem = row_address<Bytes>(view, batch, head, token) + column;
  float largest = 0.0f;
  float squares = 0.0f;
#pragma unroll 16
  for (int row = 0; row < num_rows; ++row) {
    const void* address = element_gmem + row * view.token_stride;
    float x;
    if constexpr (Plan::kConverted) {
      x = *static_cast<const float*>(address);
    } else {
      x = Plan::Half::low(*static_cast<const unsigned short*>(address));
    }
    largest = fmaxf(largest, fabsf(x));
    squares = fmaf(x, x, squares);
  }
  atomicMax(&extent_smem->largest, __float_as_uint(largest));
  atomicMax(&extent_smem->squares, __float_as_uint(squares));
}

// What the scales follow: the first chunk of the item.
template <class Plan>
__device__ __forceinline__ void measure_first_chunk(const Block<Plan>& block, Extent* extents_smem) {
  const ItemWork& work = block.work;
  const ChunkedArguments& args = block.args.chunked;
  const int num_rows = min(Plan::kChunk, work.tokens);
  const int first_value = work.tile * Plan::kBoxColumns;
  const int num_values = min(Plan::kBoxColumns, args.value_dim - first_value);
  // Sums see no queries.
  constexpr int kFirst = Plan::kSums ? Plan::kHeadDim : 0;
  for (int i = kFirst + threadIdx.x; i < 2 * Plan::kHeadDim + num_values; i += Plan::kThreads) {
    const int column = i % Plan::kHeadDim;
    if (i < Plan::kHeadDim) {
      measure_column<Plan>(args.query, work.batch, work.head, work.start, column, num_rows, extents_smem);
    } else if (i < 2 * Plan::kHeadDim) {
      measure_column<Plan>(args.key, work.batch, work.kv_head, work.start, column, num_rows, extents_smem + 1);
    } else {
      measure_column<Plan>(args.value, work.batch, work.kv_head, work.start,
                           first_value + i - 2 * Plan::kHeadDim, num_rows, extents_smem + 2);
    }
  }
}

// 2^e of a positive number in [2^e, 2^(e+1)); 1 where it is zero or not a size to go by.
__device__ __forceinline__ float size_of(float x) {
  return x > 0x1p-60f && x < 0x1p60f ? power_of_two(exponent_of(x)) : 1.0f;
}

template <class Plan>
__device__ __forceinline__ void make_scales(const Block<Plan>& block, Extent* extents_smem) {
  // Elements of fp32 tensors are brought to below 2 kTop, unless they are of an ordinary size.
  constexpr float kTop = 2.0f;
  constexpr float kLeastOrdinary = 0x1p-4f;
  constexpr float kMostOrdinary = 0x1p4f;
  constexpr float kMargin = 1.5f;  // for columns that grow behind the first chunk
  if (threadIdx.x < 3) {
    extents_smem[threadIdx.x] = Extent{0, 0};
  }
  __syncthreads();
  measure_first_chunk(block, extents_smem);
  __syncthreads();
  if (threadIdx.x != 0) {
    return;
  }
  const ItemWork& work = block.work;
  const float num_rows = static_cast<float>(max(1, min(Plan::kChunk, work.tokens)));
  float scale[3];
  float bound[3];  // of elements
  float root[3];   // of the mean square of a column
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    const float size = size_of(__uint_as_float(extents_smem[i].largest));
    const bool ordinary = size >= kLeastOrdinary && size <= kMostOrdinary;
    scale[i] = Plan::kConverted && !ordinary ? kTop / size : 1.0f;
    bound[i] = 2.0f * size;
    root[i] = fminf(sqrtf(__uint_as_float(extents_smem[i].squares) / num_rows), bound[i]);
  }
  const float key_scale = scale[1];
  if constexpr (Plan::kNormalize) {  // what follows sees unit rows
    bound[1] = 1.0f;
    root[1] = 1.0f;
    scale[1] = 1.0f;
  }
  const float a = fabsf(work.a) * (Plan::kNormalize ? Plan::kHeadDim * bound[0] : 1.0f);
  const float b = fabsf(work.b);
  const float weight_bound = a + b * Plan::kHeadDim * bound[0] * bound[1];
  const float state_bound = b * kMargin * root[1] * root[2];
  const float tokens = work.count + static_cast<float>(work.tokens);
  if constexpr (Plan::kConverted) {
    // In the unit 1/b: W / b grows as q shrinks against a, and S with the tokens of the item.
    const float weight = weight_bound / b * (scale[0] * scale[1]);
    if (b > 0.0f && weight > kMaxHalf) {
      scale[0] *= power_of_two(-1 - exponent_of(weight / kMaxHalf));
    }
    const float state = kMargin * root[1] * root[2] * scale[1] * scale[2] * tokens;
    if (state > kMaxHalf) {
      scale[2] *= power_of_two(-1 - exponent_of(state / kMaxHalf));
    }
  }
  store_float(block.scale_address(kQueryScale), scale[0]);
  store_float(block.scale_address(kKeyScale), key_scale);
  store_float(block.scale_address(kValueScale), scale[2]);
  store_float(block.scale_address(kScoreScale), 1.0f / (scale[0] * scale[1]));
  store_float(block.scale_address(kOutputScale), 1.0f / scale[2]);
  store_float(block.scale_address(kWeightBound), weight_bound);
  store_float(block.scale_address(kStateBound), state_bound);
  store_float(block.scale_address(kPlainTokens),
              weight_bound <= kMaxHalf * b ? fminf(kMaxHalf * b / state_bound, 0x1p100f) : -1.0f);
}

template <class Plan>
__device__ __forceinline__ void forward(const HopperArguments& args) {
  extern __shared__ unsigned char shared[];
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarp, 0);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const uint32_t start = shared_address(shared);
  const uint32_t base = (start + Plan::kAlignment - 1) & ~static_cast<uint32_t>(Plan::kAlignment - 1);
  const ItemWork work(ValueTile<kValueColumns>(args.chunked, blockIdx.x));
  const Block<Plan> block{args, work, base, (work.tokens + Plan::kChunk - 1) / Plan::kChunk};
  if (threadIdx.x == 0) {
    init_barriers(block);
  }
  clear_extra_rows(block);
  publish_to_async_proxy();
  if constexpr (Plan::kScaled) {
    make_scales(block, reinterpret_cast<Extent*>(shared + (base - start) + Plan::kExtentsOffset));
  }
  __syncthreads();
  cluster_sync();
  float marks = 0.0f;
  const int warpgroup = warp / 4;
  if (warpgroup == 0) {
    Plan::Spec::Registers::auxiliary();
    if (warp == 0) {
      if (lane == 0) {
        produce(block);
      }
    } else {
      Auxiliary<Plan>(block, warp - 1, lane).run();
    }
  } else if (warpgroup == Plan::kStateGroup) {
    Plan::Spec::Registers::state();
    State<Plan> state(block, warp & 3, lane);
    state.run();
    marks = state.marks + Plan::Half::low(state.marked_pairs) + Plan::Half::high(state.marked_pairs);
  } else if (warpgroup > Plan::kStateGroup) {
    if constexpr (Plan::kConverted) {
      Plan::Spec::Registers::rows();
      convert(block, warp & 3, lane);
    } else if constexpr (Plan::kNormalize) {
      Plan::Spec::Registers::rows();
      normalize(block, warp & 3, lane);
    }
  } else if constexpr (!Plan::kSums) {
    Plan::Spec::Registers::score();
    marks = score(block, warp & 3, lane);
  }
  const int marked = __syncthreads_or(marks != 0.0f);  // NaN is not 0
  if (!Plan::kSums && threadIdx.x == 0 && args.chunked.marks != nullptr) {
    args.chunked.marks[blockIdx.x] = marked;
  }
  cluster_sync();
}

}  // namespace hopper
}  // namespace linattn
