// The warps of the rows of fp32 tensors: they make operands of 16 bits, divided where rows are normalised, and d on the way.
#pragma once

#include "linattn/hopper_block.cuh"
#include "linattn/hopper_delta.cuh"
#include "linattn/hopper_normalizer.cuh"
#include "linattn/hopper_producer.cuh"

namespace linattn {
namespace hopper {

// The sum of x o over four columns.
__device__ __forceinline__ void add_unit(const uint4& x, const uint4& o, float& sum) {
  sum = fmaf(__uint_as_float(x.x), __uint_as_float(o.x), sum);
  sum = fmaf(__uint_as_float(x.y), __uint_as_float(o.y), sum);
  sum = fmaf(__uint_as_float(x.z), __uint_as_float(o.z), sum);
  sum = fmaf(__uint_as_float(x.w), __uint_as_float(o.w), sum);
}

// Multiplies four columns by a scale and adds their squares.
__device__ __forceinline__ void scale_unit(uint4& x, float scale, float& squares) {
  x = make_uint4(__float_as_uint(__uint_as_float(x.x) * scale), __float_as_uint(__uint_as_float(x.y) * scale),
                 __float_as_uint(__uint_as_float(x.z) * scale), __float_as_uint(__uint_as_float(x.w) * scale));
  add_unit(x, x, squares);
}

// Makes operands of rows 8 apart and adds their squares.
template <class Plan>
__device__ __forceinline__ void scale_rows(uint4 (&raw_frag)[8], float scale, float (&squares)[2]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    scale_unit(raw_frag[i], Plan::kScaled ? scale : 1.0f, squares[(i >> 1) & 1]);
  }
}

// Rows past the end belong to another sequence. `row` is a thread's first row.
__device__ __forceinline__ void clear_past(uint4 (&raw_frag)[8], int row, int num_rows) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (row + ((i >> 1) & 1) * 8 >= num_rows) {
      raw_frag[i] = make_uint4(0, 0, 0, 0);
    }
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

  // The sums of x o over a thread's columns, of rows 8 apart; x as load() has it, o in a box of fp32 of its first columns, or
  // its last ones.
  __device__ __forceinline__ void multiply(uint32_t box, int half, const uint4 (&x_frag)[8], float (&sums)[2]) const {
#pragma unroll
    for (int rows8 = 0; rows8 < 2; ++rows8) {
      const uint32_t rows = box + rows8 * 1024;
      const uint4 even = load_unit(rows + from_even);
      const uint4 odd = load_unit(rows + from_odd);
      add_unit(x_frag[4 * half + 2 * rows8], even, sums[rows8]);
      add_unit(x_frag[4 * half + 2 * rows8 + 1], odd, sums[rows8]);
    }
  }

  __device__ __forceinline__ void store(const uint4 (&raw_frag)[8], float scale, uint32_t upper,
                                        uint32_t lower) const {
    if (Plan::kScaled && scale != 1.0f) {
      store_scaled<true>(raw_frag, {scale, scale}, upper, lower);
    } else {
      store_scaled<false>(raw_frag, {1.0f, 1.0f}, upper, lower);
    }
  }

  // Factors of a thread's two rows, 8 apart.
  struct RowFactors {
    float first;
    float second;
  };

  template <bool kMultiply>
  __device__ __forceinline__ void store_scaled(const uint4 (&raw_frag)[8], RowFactors factors, uint32_t upper,
                                               uint32_t lower) const {
    using Half = typename Plan::Half;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float scale = !kMultiply ? 1.0f : (i & 1) == 0 ? factors.first : factors.second;
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

  // What this thread has stored of a box of 16 bits, times the factors of its rows.
  __device__ __forceinline__ void multiply_stored(uint32_t box, RowFactors factors) const {
    using Half = typename Plan::Half;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float factor = (i & 1) == 0 ? factors.first : factors.second;
      const uint32_t address = box + (i & 1) * 1024 + (i < 2 ? to_first : to_second);
      const uint4 unit = load_unit(address);
      store_unit(address, make_uint4(multiplied<Half>(unit.x, factor), multiplied<Half>(unit.y, factor),
                                     multiplied<Half>(unit.z, factor), multiplied<Half>(unit.w, factor)));
    }
  }
  template <class Half>
  __device__ __forceinline__ static uint32_t multiplied(uint32_t pair, float factor) {
    return Half::pack(Half::low(pair) * factor, Half::high(pair) * factor);
  }
};

// Of sums: z and u of rows of k and v on their way, or dz and du of those of y and z. A thread has 16 columns of each box,
// of two rows of each chunk.
template <class Plan>
struct ConvertedSums {
  static constexpr int kPlaces = Plan::kBoxes + 1;  // boxes of k, then that of v
  static constexpr int kBarrier = 1 + Plan::kBeside;
  float sums[kPlaces][16] = {};

  // Of rows 8 apart.
  __device__ __forceinline__ void add(int place, const uint4 (&raw_frag)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (((i >> 1) & 1) == 0) {
        const uint4& x = raw_frag[i];
        const uint4& y = raw_frag[i + 2];
        float* const four = sums[place] + (i >> 2) * 8 + (i & 1) * 4;
        four[0] += __uint_as_float(x.x) + __uint_as_float(y.x);
        four[1] += __uint_as_float(x.y) + __uint_as_float(y.y);
        four[2] += __uint_as_float(x.z) + __uint_as_float(y.z);
        four[3] += __uint_as_float(x.w) + __uint_as_float(y.w);
      }
    }
  }

  // Of rows 8 apart, times their factors.
  __device__ __forceinline__ void add(int place, const uint4 (&raw_frag)[8], float first_factor, float second_factor) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float factor = ((i >> 1) & 1) == 0 ? first_factor : second_factor;
      float* const four = sums[place] + (i >> 2) * 8 + (i & 1) * 4;
      four[0] = fmaf(__uint_as_float(raw_frag[i].x), factor, four[0]);
      four[1] = fmaf(__uint_as_float(raw_frag[i].y), factor, four[1]);
      four[2] = fmaf(__uint_as_float(raw_frag[i].z), factor, four[2]);
      four[3] = fmaf(__uint_as_float(raw_frag[i].w), factor, four[3]);
    }
  }

  __device__ __forceinline__ void finish(const Block<Plan>& block, int warp_in_group, int lane) {
    constexpr int kColumns = kPlaces * Plan::kBoxColumns;
    constexpr int kKeyColumns = Plan::kBoxes * Plan::kBoxColumns;
    const uint32_t all = block.base + Plan::kRowSumsOffset;
#pragma unroll
    for (int place = 0; place < kPlaces; ++place) {
      const int first = share_sums<8, 1>(sums[place], lane);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int column = place * Plan::kBoxColumns + ((first + i) >> 3) * 32 + (lane >> 3) * 8 + ((first + i) & 7);
        store_float(all + (warp_in_group * kColumns + column) * 4, sums[place][i]);
      }
    }
    named_barrier(kBarrier, kWarpgroup);
    const StateAddress<Plan> address(block);
    const int num_values = block.chunked().value_dim - block.work.first_column;
    float marks = 0.0f;  // NaN once a sum was not finite
    for (int column = warp_in_group * kWarp + lane; column < kColumns; column += kWarpgroup) {
      float sum = 0.0f;
#pragma unroll
      for (int warp = 0; warp < 4; ++warp) {
        sum += load_float(all + (warp * kColumns + column) * 4);
      }
      const int value = column - kKeyColumns;
      marks = fmaf(sum, 0.0f, marks);
      if (value >= 0) {
        if (address.value_sum_out != nullptr && value < num_values) {
          address.value_sum_out[value] = sum;
        }
      } else if (address.key_sum_out != nullptr && column < Plan::kHeadDim &&
                 block.sums_keys(column / Plan::kBoxColumns)) {
        address.key_sum_out[column] = sum;
      }
    }
    mark_unless_finite(block, marks);
  }
};

// Where rows are weighed: rows of z times their weights; rows of y and z past the end, which belong to another
// sequence, become zero. `row` is a thread's first row.
template <class Plan>
__device__ __forceinline__ void store_weighted(const Block<Plan>& block, const Converter<Plan>& converter,
                                               ConvertedSums<Plan>& sums, uint4 (&raw_frag)[8], float scale, int row,
                                               int box, int chunk,
                                               const RingPosition<Plan::kStages>& at, bool is_query, bool is_value,
                                               uint32_t upper, uint32_t lower) {
  typename Converter<Plan>::RowFactors factors = {scale, scale};
  if (is_value) {
    barrier_wait(block.barrier(Plan::kReady, at.index()), at.parity());
    factors.first *= load_float(block.lengths(at.index()) + row * 4);
    factors.second *= load_float(block.lengths(at.index()) + row * 4 + 32);
  }
  if (!is_query && block.rows(chunk) < Plan::kChunk) {
    clear_past(raw_frag, row, block.rows(chunk));
  }
  if constexpr (Plan::kGradientSums) {
    if (is_value || block.sums_keys(box)) {
      barrier_wait(block.barrier(Plan::kReady, at.index()), at.parity());
      const uint32_t factor = block.factors(at.index()) + (is_value ? Plan::kChunk * 4 : 0) + row * 4;
      sums.add(is_value ? Plan::kBoxes : box, raw_frag, load_float(factor), load_float(factor + 32));
    }
  }
  if (is_value || scale != 1.0f) {
    converter.template store_scaled<true>(raw_frag, factors, upper, lower);
  } else {
    converter.template store_scaled<false>(raw_frag, factors, upper, lower);
  }
}

// Of rows 8 apart: the sums of x o over a thread's columns of a slot.
__device__ __forceinline__ void add_products(const uint4 (&x_frag)[8], const uint4 (&o_frag)[8], float (&sums)[2]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    add_unit(x_frag[i], o_frag[i], sums[(i >> 1) & 1]);
  }
}

// d of rows `row` and row + 8, which four lanes have the columns of; from zero again.
template <class Plan>
__device__ __forceinline__ void store_delta(const Block<Plan>& block, float (&delta)[2], int row, int lane, int chunk) {
  const ItemWork& work = block.work;
  const ChunkedArguments& args = block.chunked();
  float* const delta_gmem = block.args.gradient.delta +
                            (static_cast<int64_t>(work.batch) * args.heads.value + work.head) * args.tokens + work.start +
                            block.first_token(chunk) + row;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    delta[i] += __shfl_xor_sync(kAllLanes, delta[i], 8);
    delta[i] += __shfl_xor_sync(kAllLanes, delta[i], 16);
    if (lane < 8) {
      store_float(block.deltas(block.row_place(chunk)) + (row + 8 * i) * 4, delta[i]);
      if (work.tile == 0 && row + 8 * i < block.rows(chunk)) {
        delta_gmem[8 * i] = delta[i];
      }
    }
    delta[i] = 0.0f;
  }
}

// A part of d of rows `row` and row + 8, which four lanes have the columns of: to the blocks that need it. Whether it is the
// last of a chunk.
template <class Plan>
__device__ __forceinline__ void send_delta(const Block<Plan>& block, float (&sums)[2], int part, bool is_last, int row,
                                           int lane, int chunk) {
  const int place = block.row_place(chunk);
  const bool shares = block.shares_delta();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    sums[i] += __shfl_xor_sync(kAllLanes, sums[i], 8);
    sums[i] += __shfl_xor_sync(kAllLanes, sums[i], 16);
    const uint32_t word = block.deltas(place) + (part * Plan::kChunk + row + 8 * i) * 4;
    const uint32_t rank = lane >> 3;  // eight lanes for each block
    if (shares && rank < Plan::kDeltaBlocks) {
      store_float_async(address_in_block(word, rank), sums[i], address_in_block(block.rows_full(place), rank));
    } else if (!shares && rank == 0) {
      store_float(word, sums[i]);
      if (Plan::kDeltaInHalves) {
        store_float(word + Plan::kChunk * 4, 0.0f);  // it was of all columns
      }
    }
    sums[i] = 0.0f;
  }
  if (!shares && is_last) {
    barrier_arrive(block.rows_full(place));
  }
}

// The part of d that a box of dO, which is in registers, has.
template <class Plan>
__device__ __forceinline__ void form_part_of_delta(const Block<Plan>& block, const Converter<Plan>& converter,
                                                   const uint4 (&x_frag)[8], int box, int row, int lane, int chunk,
                                                   RingPosition<1>& outputs_at) {
  if (block.multiplies(box)) {
    float sums[2] = {0.0f, 0.0f};
    barrier_wait(block.barrier(Plan::kOutputRowsFull), outputs_at.parity());
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      converter.multiply(block.output_rows() + half * Plan::kBoxBytes, half, x_frag, sums);
    }
    outputs_at.advance();
    send_delta(block, sums, box, box == Plan::kBoxes - 1, row, lane, chunk);
    reads_are_used();  // what has been sent is made of them
    arrive_once_a_warp(block.barrier(Plan::kOutputRowsEmpty), lane);
  }
}

// The same of half of the columns of each box, once the last has been added.
template <class Plan>
__device__ __forceinline__ void form_half_of_delta(const Block<Plan>& block, const Converter<Plan>& converter,
                                                   const uint4 (&x_frag)[8], bool is_last, int row, int lane, int chunk,
                                                   RingPosition<1>& outputs_at, float (&sums)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (block.multiplies(half)) {
      barrier_wait(block.barrier(Plan::kOutputRowsFull), outputs_at.parity());
      converter.multiply(block.output_rows(), half, x_frag, sums);
      outputs_at.advance();
      finish_reads();  // nothing is made of the sums yet
      arrive_once_a_warp(block.barrier(Plan::kOutputRowsEmpty), lane);
    }
  }
  if (is_last) {
    send_delta(block, sums, block.shares_delta() ? block.work.tile % Plan::kDeltaBlocks : 0, true, row, lane, chunk);
  }
}

// Rows of q and k of one chunk on their way, where these are normalised.
template <class Plan>
struct UnitRows {
  const Block<Plan>& block;
  const Converter<Plan>& converter;
  const Normalizer<Plan>& normalizer;
  int row;         // this thread's first
  float query[2];  // squares, of this thread's columns
  float key[2];
  typename Converter<Plan>::RowFactors factors;  // what makes operands of k

  __device__ __forceinline__ UnitRows(const Block<Plan>& shared, const Converter<Plan>& converter_of_rows,
                                      const Normalizer<Plan>& normalizer_of_rows, int first_row)
      : block(shared), converter(converter_of_rows), normalizer(normalizer_of_rows), row(first_row) {}

  __device__ __forceinline__ void begin() {
    query[0] = query[1] = key[0] = key[1] = 0.0f;
  }

  __device__ __forceinline__ void clear_keys_past(uint4 (&raw_frag)[8], int chunk) const {
    if (block.rows(chunk) < Plan::kChunk) {
      clear_past(raw_frag, row, block.rows(chunk));
    }
  }

  __device__ __forceinline__ void find_factors(const RingPosition<Plan::kStages>& at, int chunk) {
    const float2 inverse = normalizer.lengths(at.index(), chunk, query, key);
    factors = {inverse.x, inverse.y};
  }

  // Split keys land where their operands come to lie, so that all of a row can be asked for its length before.
  __device__ __forceinline__ void measure_keys(const RingPosition<Plan::kStages>& at, int chunk, float scale) {
    uint4 raw_frag[8];
#pragma unroll 1
    for (int box = 0; box < Plan::kBoxes; ++box) {
      const int slot = at.index() * Plan::kSlotsPerChunk + Plan::kQuerySlots + box;
      barrier_wait(block.barrier(Plan::kSlotFull, slot), at.parity());
      const uint32_t tile = block.key(at.index(), box);
      converter.load(tile, tile + Plan::kLowerKey, raw_frag);
      clear_keys_past(raw_frag, chunk);
      scale_rows<Plan>(raw_frag, scale, key);
    }
    find_factors(at, chunk);
    factors.first *= scale;
    factors.second *= scale;
  }

  // The others are operands when their length is known.
  __device__ __forceinline__ void divide_keys(const RingPosition<Plan::kStages>& at, int chunk) {
    find_factors(at, chunk);
#pragma unroll 1
    for (int box = 0; box < Plan::kBoxes; ++box) {
      converter.multiply_stored(block.key(at.index(), box), factors);
    }
  }

  __device__ __forceinline__ void store(uint4 (&raw_frag)[8], float scale, bool is_query, int chunk, uint32_t upper,
                                        uint32_t lower) {
    if (is_query) {
      scale_rows<Plan>(raw_frag, scale, query);
    } else {
      clear_keys_past(raw_frag, chunk);
      if constexpr (Plan::kSplit) {
        converter.template store_scaled<true>(raw_frag, factors, upper, lower);
        return;
      }
      scale_rows<Plan>(raw_frag, scale, key);
    }
    converter.template store_scaled<false>(raw_frag, {1.0f, 1.0f}, upper, lower);
  }
};

// kUnscaled: all scales are known to be one.
template <class Plan, bool kUnscaled>
__device__ __forceinline__ void convert_slots(const Block<Plan>& block, int warp_in_group, int lane) {
  const Converter<Plan> converter(warp_in_group, lane);
  const Normalizer<Plan> normalizer{block, warp_in_group * 16, lane};
  const float query_scale = block.scale(kQueryScale);
  const float key_scale = block.scale(kKeyScale);
  const float value_scale = block.scale(kValueScale);
  constexpr int kLastKey = Plan::kSlotsPerChunk - 2;
  // Of the gradient because less code is faster, of normalised rows because registers are short.
  constexpr bool kRolled = (Plan::kSplit && Plan::kQueryGradient) || (Plan::kNormalize && Plan::kHeadDim > 128);
  constexpr int kUnrolled = kRolled ? 1 : Plan::kSlotsPerChunk;
  uint4 raw_frag[8];
  RingPosition<Plan::kStages> at;
  RingPosition<Plan::kSplit ? 1 : Plan::kSlots> slot_at;
  RingPosition<1> outputs_at;
  float delta[2] = {0.0f, 0.0f};
  // Where rows of z are divided here: 1 / |k| of this thread's rows of the chunk to come, asked for a chunk ahead.
  constexpr bool kScales = Plan::kScalesRows && !Plan::kReverse;
  typename Converter<Plan>::RowFactors key_scales = {1.0f, 1.0f};
  const auto ask_for_scales = [&](int chunk) {
    if constexpr (kScales) {
      const int row = warp_in_group * 16 + (lane & 7);
      key_scales = {block.key_scale(chunk, row) * value_scale, block.key_scale(chunk, row + 8) * value_scale};
    }
  };
  ask_for_scales(0);
  ConvertedSums<Plan> sums;
  UnitRows<Plan> units(block, converter, normalizer, warp_in_group * 16 + (lane & 7));
  for (int chunk = 0; chunk < block.num_chunks; ++chunk) {
    units.begin();
#pragma unroll kUnrolled
    for (int slot = 0; slot < Plan::kSlotsPerChunk; ++slot) {
      const bool is_query = is_query_slot<Plan>(slot);
      const bool is_value = is_value_slot<Plan>(slot);
      const bool is_output = is_output_slot<Plan>(slot);
      const int box = box_of_slot<Plan>(slot);
      const uint32_t tile = is_query   ? block.query(at.index(), box)
                            : is_value ? block.value(at.index())
                                       : block.key(at.index(), box);
      const uint32_t lower = tile + (is_query || is_value ? Plan::kLower : Plan::kLowerKey);
      const float scale = is_query ? query_scale : is_value ? value_scale : key_scale;
      if constexpr (Plan::kNormalize && Plan::kSplit) {
        if (slot == Plan::kQuerySlots) {
          units.measure_keys(at, chunk, key_scale);
        }
      }
      if constexpr (Plan::kSplit) {
        barrier_wait(block.barrier(Plan::kSlotFull, at.index() * Plan::kSlotsPerChunk + slot), at.parity());
        converter.load(tile, lower, raw_frag);
        __syncwarp();
      } else {
        const uint32_t source = block.base + Plan::kSlotsOffset + slot_at.index() * Plan::kSlotBytes;
        if (!is_output && (box == 0 || is_value)) {
          barrier_wait(is_query   ? block.query_empty(at.index())
                       : is_value ? block.value_empty(at.index())
                                  : block.key_empty(at.index()),
                       at.parity() ^ 1);
        }
        barrier_wait(block.barrier(Plan::kSlotFull, slot_at.index()), slot_at.parity());
        if constexpr (Plan::kFormsDelta) {
          if (is_output) {  // the queries of the same columns are still there
            uint4 output_frag[8];
            converter.load(source, source + Plan::kBoxBytes, output_frag);
            add_products(raw_frag, output_frag, delta);
          } else {
            converter.load(source, source + Plan::kBoxBytes, raw_frag);
          }
          if (slot == Plan::kQuerySlots - 1) {
            store_delta(block, delta, warp_in_group * 16 + (lane & 7), lane, chunk);
          }
        } else {
          converter.load(source, source + Plan::kBoxBytes, raw_frag);
        }
      }
      if constexpr (Plan::kWeighsRows) {
        store_weighted(block, converter, sums, raw_frag, scale, warp_in_group * 16 + (lane & 7), box, chunk, at,
                       is_query, is_value, tile, lower);
      } else if constexpr (Plan::kNormalize) {
        if (is_value) {
          converter.store(raw_frag, scale, tile, lower);
        } else {
          units.store(raw_frag, scale, is_query, chunk, tile, lower);
        }
      } else if (kScales && is_value) {
        converter.template store_scaled<true>(raw_frag, key_scales, tile, lower);
        ask_for_scales(chunk + 1);
      } else if constexpr (kUnscaled) {
        converter.template store_scaled<false>(raw_frag, {1.0f, 1.0f}, tile, lower);
      } else if (!is_output) {
        converter.store(raw_frag, scale, tile, lower);
      }
      if constexpr (Plan::kSplitsDelta) {
        if (is_query) {
          form_part_of_delta(block, converter, raw_frag, box, warp_in_group * 16 + (lane & 7), lane, chunk, outputs_at);
        }
      }
      if constexpr (!Plan::kSplit) {
        if (is_output) {  // nothing was stored of it
          finish_reads();
        } else {
          reads_are_used();
        }
        arrive_once_a_warp(block.barrier(Plan::kSlotEmpty, slot_at.index()), lane);
        slot_at.advance();
      }
      if constexpr (Plan::kNormalize && !Plan::kSplit) {
        if (slot == kLastKey) {
          units.divide_keys(at, chunk);
        }
      }
      const bool ends_queries = Plan::kApart && is_query && box == Plan::kBoxes - 1;
      if (ends_queries || slot == kLastKey || is_value) {
        publish_to_async_proxy();
        barrier_arrive(ends_queries ? block.query_full(at.index())
                       : is_value   ? block.value_full(at.index())
                                    : block.key_full(at.index()));
      }
    }
    at.advance();
  }
  if constexpr (Plan::kGradientSums) {
    sums.finish(block, warp_in_group, lane);
  }
}

// The same where sums are all that is wanted, of split rows: a slot is read before the one before it is stored.
template <class Plan>
__device__ __forceinline__ void convert_for_sums(const Block<Plan>& block, int warp_in_group, int lane) {
  const Converter<Plan> converter(warp_in_group, lane);
  const int row = warp_in_group * 16 + (lane & 7);
  const float key_scale = block.scale(kKeyScale);
  const float value_scale = block.scale(kValueScale);
  constexpr int kSlots = Plan::kSlotsPerChunk;
  uint32_t summed = 1u << Plan::kBoxes;  // a bit for each box whose rows are summed, v behind k
  for (int box = 0; box < Plan::kBoxes; ++box) {
    summed |= block.sums_keys(box) ? 1u << box : 0u;
  }
  uint4 raw_frag[2][8];
  ConvertedSums<Plan> sums;
  RingPosition<Plan::kStages> at;
  const auto tile_of_slot = [&](int slot) {
    return slot < Plan::kBoxes ? block.key(at.index(), slot) : block.value(at.index());
  };
  const auto lower_of_slot = [&](int slot) {
    return tile_of_slot(slot) + (slot < Plan::kBoxes ? Plan::kLowerKey : Plan::kLower);
  };
  const auto load = [&](int slot) {
    barrier_wait(block.barrier(Plan::kSlotFull, at.index() * kSlots + slot), at.parity());
    converter.load(tile_of_slot(slot), lower_of_slot(slot), raw_frag[slot % 2]);
  };
  for (int chunk = 0; chunk < block.num_chunks; ++chunk) {
    const int num_rows = block.rows(chunk);
    load(0);
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      uint4(&slot_frag)[8] = raw_frag[slot % 2];
      const bool is_value = slot == Plan::kBoxes;
      if (slot + 1 < kSlots) {
        load(slot + 1);
      }
      __syncwarp();  // all lanes have read the slot
      if (num_rows < Plan::kChunk) {
        clear_past(slot_frag, row, num_rows);
      }
      const float scale = is_value ? value_scale : key_scale;
      typename Converter<Plan>::RowFactors factors = {scale, scale};
      if ((summed >> slot & 1) != 0) {
        if constexpr (Plan::kGradientSums) {
          barrier_wait(block.barrier(Plan::kReady, at.index()), at.parity());
          const uint32_t of_rows = block.factors(at.index()) + (is_value ? Plan::kChunk * 4 : 0) + row * 4;
          sums.add(slot, slot_frag, load_float(of_rows), load_float(of_rows + 32));
        } else {
          sums.add(slot, slot_frag);
        }
      }
      if (Plan::kGradientSums && is_value) {
        factors.first *= load_float(block.lengths(at.index()) + row * 4);
        factors.second *= load_float(block.lengths(at.index()) + row * 4 + 32);
      }
      if ((Plan::kGradientSums && is_value) || (Plan::kScaled && scale != 1.0f)) {
        converter.template store_scaled<true>(slot_frag, factors, tile_of_slot(slot), lower_of_slot(slot));
      } else {
        converter.template store_scaled<false>(slot_frag, factors, tile_of_slot(slot), lower_of_slot(slot));
      }
      if (is_value || slot == Plan::kBoxes - 1) {
        publish_to_async_proxy();
        barrier_arrive(is_value ? block.value_full(at.index()) : block.key_full(at.index()));
      }
    }
    at.advance();
  }
  sums.finish(block, warp_in_group, lane);
}

// The same of pairs of boxes that stream. Rows of k past the end become zero.
template <class Plan, bool kUnscaled>
__device__ __forceinline__ void convert_stream(const Block<Plan>& block, int warp_in_group, int lane) {
  const Converter<Plan> converter(warp_in_group, lane);
  const int row = warp_in_group * 16 + (lane & 7);
  const float query_scale = block.scale(kQueryScale);
  const float key_scale = block.scale(kKeyScale);
  RingPosition<Plan::kPairs> pair_at;
  RingPosition<1> outputs_at;
  [[maybe_unused]] float delta[2] = {0.0f, 0.0f};
  const auto store_box = [&](const uint4 (&raw_frag)[8], uint32_t upper, uint32_t lower, float scale) {
    __syncwarp();  // all lanes have read it
    if constexpr (kUnscaled) {
      converter.template store_scaled<false>(raw_frag, {1.0f, 1.0f}, upper, lower);
    } else {
      converter.store(raw_frag, scale, upper, lower);
    }
  };
  for (int chunk = 0; chunk < block.num_chunks; ++chunk) {
    const int num_rows = block.rows(chunk);
#pragma unroll 1
    for (int place = 0; place < Plan::kBoxes; ++place) {
      const uint32_t query = block.pair_query(pair_at.index());
      const uint32_t key = block.pair_key(pair_at.index());
      uint4 raw_frag[8];
      barrier_wait(block.pair_landed(pair_at.index()), pair_at.parity());
      converter.load(query, query + Plan::kLower, raw_frag);
      store_box(raw_frag, query, query + Plan::kLower, query_scale);
      if constexpr (Plan::kDeltaInHalves) {
        form_half_of_delta(block, converter, raw_frag, place == Plan::kBoxes - 1, row, lane, chunk, outputs_at, delta);
      } else if constexpr (Plan::kSplitsDelta) {
        form_part_of_delta(block, converter, raw_frag, place, row, lane, chunk, outputs_at);
      }
      converter.load(key, key + Plan::kLowerKey, raw_frag);
      if (num_rows < Plan::kChunk) {
        clear_past(raw_frag, row, num_rows);
      }
      store_box(raw_frag, key, key + Plan::kLowerKey, key_scale);
      publish_to_async_proxy();
      barrier_arrive(block.pair_full(pair_at.index()));
      pair_at.advance();
    }
  }
}

template <class Plan, bool kUnscaled>
__device__ __forceinline__ void convert_rows(const Block<Plan>& block, int warp_in_group, int lane) {
  if constexpr (Plan::kStreams) {
    convert_stream<Plan, kUnscaled>(block, warp_in_group, lane);
  } else if constexpr (Plan::kConvertsForSums) {
    convert_for_sums(block, warp_in_group, lane);
  } else {
    convert_slots<Plan, kUnscaled>(block, warp_in_group, lane);
  }
}

template <class Plan>
__device__ __forceinline__ void convert(const Block<Plan>& block, int warp_in_group, int lane) {
  // Asked once where the rows are what the others wait for: at each slot it takes a tenth of the gradient of q.
  if constexpr (Plan::kQueryGradient && Plan::kSplit && Plan::kScaled && !Plan::kScalesRows) {
    if (block.scale(kQueryScale) == 1.0f && block.scale(kKeyScale) == 1.0f && block.scale(kValueScale) == 1.0f) {
      convert_rows<Plan, true>(block, warp_in_group, lane);
      return;
    }
  }
  convert_rows<Plan, false>(block, warp_in_group, lane);
}

// Rows with fewer warps than a box has groups of 16 rows: they take the groups of a tensor in turn, each tensor from
// another warp on, so that a chunk is the same work for all.
template <class Plan>
struct RowsInTurns {
  const Block<Plan>& block;
  int warp;
  int lane;
  Converter<Plan> converter;
  RingPosition<Plan::kSplit ? 1 : Plan::kSlots> slot_at;  // the first of a chunk, where slots are not in the stage

  __device__ __forceinline__ RowsInTurns(const Block<Plan>& shared, int converter_warp, int lane_idx)
      : block(shared), warp(converter_warp), lane(lane_idx), converter(0, lane_idx) {}

  // Tensor 0 has the queries, 1 the keys, 2 the values.
  template <int kTensor>
  __device__ __forceinline__ void convert_boxes(int chunk, const RingPosition<Plan::kStages>& at, float scale) const {
    constexpr bool is_query = kTensor == 0;
    constexpr bool is_value = kTensor == 2;
    constexpr int kGroups = 4 * (is_value ? Plan::kBeside : Plan::kBoxes);
    constexpr int kFirstSlot = is_query ? 0 : is_value ? Plan::kQuerySlots + Plan::kBoxes : Plan::kQuerySlots;
    uint4 raw_frag[8];
    if constexpr (is_query) {  // where threads wrote outputs before; or the whole stage
      barrier_wait(block.query_empty(at.index()), at.parity() ^ 1);
    }
    for (int group = (warp + kTensor) % Plan::kConverters; group < kGroups; group += Plan::kConverters) {
      const int box = group / 4;
      const int first_row = group % 4 * 16;
      const uint32_t tile = (is_query   ? block.query(at.index(), box)
                             : is_value ? block.value(at.index(), box)
                                        : block.key(at.index(), box)) +
                            first_row * kRowBytes;
      const uint32_t lower = tile + (is_query || is_value ? Plan::kLower : Plan::kLowerKey);
      if constexpr (Plan::kSplit) {
        barrier_wait(block.barrier(Plan::kSlotFull, at.index() * Plan::kSlotsPerChunk + kFirstSlot + box), at.parity());
        converter.load(tile, lower, raw_frag);
        __syncwarp();
      } else {
        const RingPosition<Plan::kSlots> slot = slot_at.ahead(kFirstSlot + box);
        const uint32_t source =
            block.base + Plan::kSlotsOffset + slot.index() * Plan::kSlotBytes + first_row * kRowBytes;
        barrier_wait(block.barrier(Plan::kSlotFull, slot.index()), slot.parity());
        converter.load(source, source + Plan::kBoxBytes, raw_frag);
        finish_reads();
        arrive_once_a_warp(block.barrier(Plan::kSlotEmpty, slot.index()), lane);
      }
      ConvertedSums<Plan> none;
      store_weighted(block, converter, none, raw_frag, scale, first_row + (lane & 7), box, chunk, at, is_query,
                     is_value, tile, lower);
    }
    if constexpr (!is_query || Plan::kApart) {  // else queries are there with the keys
      publish_to_async_proxy();
      barrier_arrive(is_query   ? block.query_full(at.index())
                     : is_value ? block.value_full(at.index())
                                : block.key_full(at.index()));
    }
  }
};

template <class Plan>
__device__ __forceinline__ void convert_in_turns(const Block<Plan>& block, int warp, int lane) {
  RowsInTurns<Plan> rows(block, warp, lane);
  const float query_scale = block.scale(kQueryScale);
  const float key_scale = block.scale(kKeyScale);
  const float value_scale = block.scale(kValueScale);
  RingPosition<Plan::kStages> at;
  for (int chunk = 0; chunk < block.num_chunks; ++chunk) {
    rows.template convert_boxes<0>(chunk, at, query_scale);
    rows.template convert_boxes<1>(chunk, at, key_scale);
    rows.template convert_boxes<2>(chunk, at, value_scale);
    at.advance();
    if constexpr (!Plan::kSplit) {
      rows.slot_at = rows.slot_at.ahead(Plan::kSlotsPerChunk);
    }
  }
}

}  // namespace hopper
}  // namespace linattn
