// The roles that bring tiles: the producer, which starts copies, and the warps of the rows, which convert
// fp32 and normalise.
#pragma once

#include "linattn/hopper_block.cuh"
#include "linattn/hopper_delta.cuh"

namespace linattn {
namespace hopper {

template <class Plan>
struct Weigher;

// In the place of a weigher where the producer does not weigh.
template <class Plan>
struct NoWeigher {
  __device__ __forceinline__ NoWeigher(const Block<Plan>&, int, int) {}
};

// Of a gradient: asks for g, d and lengths of the rows of a chunk, two to a lane of the warp.
template <class Plan>
__device__ __forceinline__ void ask_for_rows(const Block<Plan>& block, int chunk, int lane) {
  if constexpr (Plan::kGradient) {
    const ChunkedArguments& args = block.chunked();
    const int head = Plan::kWeighsRows ? block.key_head(chunk) : block.query_head();
    const int place = chunk % Plan::kRowPlaces;
    const int64_t token = static_cast<int64_t>(block.work.start) + block.first_token(chunk);
    const float* const g_gmem = row_address<const float>(args.normalizer, block.work.batch, head, token);
    const int64_t query_row = (static_cast<int64_t>(block.work.batch) * args.heads + head) * args.tokens + token;
    const float* const delta_gmem = block.args.gradient.delta + query_row;
    const float* query_scale_gmem = nullptr;
    const float* key_scale_gmem = nullptr;
    constexpr int kUnrolled = Plan::kScaleParts > 0 && Plan::kFollows ? 1 : Plan::kChunk / kWarp;  // registers are short
    if constexpr (Plan::kScaleParts > 0) {
      const int64_t key_head =
          static_cast<int64_t>(block.work.batch) * (args.heads / args.group) + block.work.kv_head;
      query_scale_gmem = block.args.gradient.query_scale + query_row;
      key_scale_gmem = block.args.gradient.key_scale + key_head * args.tokens + token;
    }
#pragma unroll kUnrolled
    for (int row = lane; row < Plan::kChunk; row += kWarp) {
      if (row < block.rows(chunk)) {
        copy_word_async(block.normalizers(place) + row * 4, g_gmem + row * args.normalizer.token_stride);
        if constexpr (!Plan::kFormsDelta) {
          copy_word_async(block.deltas(place) + row * 4, delta_gmem + row);
        }
        if constexpr (Plan::kScaleParts > 0) {
          copy_word_async(block.scales(place) + row * 4, (Plan::kWeighsRows ? query_scale_gmem : key_scale_gmem) + row);
        }
        if constexpr (Plan::kScaleParts > 1) {
          copy_word_async(block.scales(place) + (Plan::kChunk + row) * 4, key_scale_gmem + row);
        }
      }
    }
    arrive_with_words(block.rows_full(place));
    if (Plan::kSendsDelta && lane == 0 && block.shares_delta()) {  // the parts of d come from here and there
      barrier_expect(block.rows_full(place), Plan::kDeltaParts * Plan::kChunk * 4);
    }
  }
}

// The copies of a chunk, each once its place is free. Of the threads that wait one starts them.
template <class Plan>
__device__ __forceinline__ void load_chunk(const Block<Plan>& block, int chunk, RingPosition<Plan::kStages> at,
                                           int lane) {
  const bool starts = lane == 0;
  const ItemWork& work = block.work;
  const int token = work.start + block.first_token(chunk);
  barrier_wait(block.query_empty(at.index()), at.parity() ^ 1);
  ask_for_rows(block, chunk, lane);
  if (starts) {
    const bool asks = !Plan::kSums && block.writes(chunk);
    constexpr int kSummedBoxes = Plan::kBoxes + Plan::kBeside;  // of k and v
    barrier_expect(block.query_full(at.index()),
                   ((asks ? (Plan::kDeltaInStage ? 2 : 1) * Plan::kBoxes : 0) + (Plan::kApart ? 0 : kSummedBoxes)) *
                       Plan::kBoxBytes);
    if (asks) {
#pragma unroll
      for (int box = 0; box < Plan::kBoxes; ++box) {
        load_tile(block.query(at.index(), box), &block.args.query,
                  {box * Plan::kBoxColumns, token, block.query_head(), work.batch}, block.query_full(at.index()));
        if constexpr (Plan::kDeltaInStage) {
          load_tile(block.output_rows(at.index(), box), &block.args.output_rows,
                    {box * Plan::kBoxColumns, token, block.query_head(), work.batch}, block.query_full(at.index()));
        }
      }
    }
  }
  if constexpr (Plan::kApart) {
    barrier_wait(block.key_empty(at.index()), at.parity() ^ 1);
    if (starts) {
      barrier_expect(block.key_full(at.index()), Plan::kBoxes * Plan::kBoxBytes);
    }
  }
  if (starts) {
#pragma unroll
    for (int box = 0; box < Plan::kBoxes; ++box) {
      load_tile(block.key(at.index(), box), &block.args.key,
                {box * Plan::kBoxColumns, token, block.key_head(chunk), work.batch}, block.key_full(at.index()));
    }
  }
  if constexpr (Plan::kApart) {
    barrier_wait(block.value_empty(at.index()), at.parity() ^ 1);
    if (starts) {
      barrier_expect(block.value_full(at.index()), Plan::kBeside * Plan::kBoxBytes);
    }
  }
  if (starts) {
#pragma unroll
    for (int box = 0; box < Plan::kBeside; ++box) {
      load_tile(block.value(at.index(), box), &block.args.value,
                {work.first_column + box * Plan::kBoxColumns, token, block.key_head(chunk), work.batch},
                block.value_full(at.index()));
    }
  }
}

// Slots of a chunk: what they hold, and which box of it.
template <class Plan>
__device__ __forceinline__ constexpr bool is_query_slot(int slot) {
  return slot < Plan::kQuerySlots && slot % Plan::kQueryStep == 0;
}

template <class Plan>
__device__ __forceinline__ constexpr bool is_output_slot(int slot) {
  return slot < Plan::kQuerySlots && slot % Plan::kQueryStep == 1;
}

template <class Plan>
__device__ __forceinline__ constexpr bool is_value_slot(int slot) {
  return slot >= Plan::kSlotsPerChunk - Plan::kBeside;
}

template <class Plan>
__device__ __forceinline__ constexpr int box_of_slot(int slot) {
  return slot < Plan::kQuerySlots     ? slot / Plan::kQueryStep
         : is_value_slot<Plan>(slot) ? slot - (Plan::kSlotsPerChunk - Plan::kBeside)
                                     : slot - Plan::kQuerySlots;
}

// 64 columns of fp32 in two boxes of 32.
template <class Plan>
__device__ __forceinline__ void load_slot(int lane, uint32_t upper, uint32_t lower, const TensorMap* map, int column,
                                          int token, int head, int batch, uint32_t full) {
  if (!Plan::kGradient || lane == 0) {  // of the forward only one lane comes here
    barrier_expect(full, Plan::kSlotBytes);
    load_tile(upper, map, {column, token, head, batch}, full);
    load_tile(lower, map, {column + 32, token, head, batch}, full);
  }
}

template <class Plan>
__device__ __forceinline__ void produce(const Block<Plan>& block, int lane) {
  const ItemWork& work = block.work;
  if constexpr (!Plan::kConverted) {
    RingPosition<Plan::kStages> at;
    [[maybe_unused]] RingPosition<1> outputs_at;
    for (int chunk = 0; chunk < block.num_chunks; ++chunk) {
      load_chunk(block, chunk, at, lane);
      if constexpr (Plan::kDeltaBeside) {
        load_output_rows(block, chunk, outputs_at, lane);
      }
      at.advance();
    }
  } else if constexpr (!Plan::kSplit) {
    RingPosition<Plan::kSlots> at;
    RingPosition<Plan::kStages> stage_at;
    RingPosition<Plan::kRowPlaces> rows_at;
    std::conditional_t<Plan::kCompact, Weigher<Plan>, NoWeigher<Plan>> weigher(block, 0, lane);
    for (int chunk = 0; chunk < block.num_chunks; ++chunk) {
      const int token = work.start + block.first_token(chunk);
      ask_for_rows(block, chunk, lane);
#pragma unroll
      for (int slot = 0; slot < Plan::kSlotsPerChunk; ++slot) {
        const bool is_query = slot < Plan::kQuerySlots;
        const bool is_value = is_value_slot<Plan>(slot);
        const TensorMap* map = is_query ? &block.args.query : is_value ? &block.args.value : &block.args.key;
        if constexpr (Plan::kFormsDelta) {
          map = is_output_slot<Plan>(slot) ? &block.args.output_rows : map;
        }
        const int column = (is_value ? work.first_column : 0) + box_of_slot<Plan>(slot) * Plan::kBoxColumns;
        const uint32_t target = block.base + Plan::kSlotsOffset + at.index() * Plan::kSlotBytes;
        barrier_wait(block.barrier(Plan::kSlotEmpty, at.index()), at.parity() ^ 1);
        load_slot<Plan>(lane, target, target + Plan::kBoxBytes, map, column, token,
                        is_query ? block.query_head() : block.key_head(chunk), work.batch,
                        block.barrier(Plan::kSlotFull, at.index()));
        at.advance();
      }
      if constexpr (Plan::kCompact) {
        weigher.weigh(chunk, stage_at, rows_at);
        stage_at.advance();
        rows_at.advance();
      }
    }
  } else {
    RingPosition<Plan::kStages> at;
    RingPosition<1> outputs_at;
    RingPosition<Plan::kRowPlaces> rows_at;
    std::conditional_t<Plan::kCompact, Weigher<Plan>, NoWeigher<Plan>> weigher(block, 0, lane);
    for (int chunk = 0; chunk < block.num_chunks; ++chunk) {
      const int token = work.start + block.first_token(chunk);
      if constexpr (Plan::kGradient) {
        barrier_wait(Plan::kSums ? block.key_empty(at.index()) : block.query_empty(at.index()), at.parity() ^ 1);
        ask_for_rows(block, chunk, lane);
      }
      const uint32_t first_full = block.barrier(Plan::kSlotFull, at.index() * Plan::kSlotsPerChunk);
      if constexpr (!Plan::kSums) {
        barrier_wait(block.query_empty(at.index()), at.parity() ^ 1);
#pragma unroll
        for (int box = 0; box < Plan::kBoxes; ++box) {
          const uint32_t target = block.query(at.index(), box);
          load_slot<Plan>(lane, target, target + Plan::kLower, &block.args.query, box * Plan::kBoxColumns, token,
                          block.query_head(), work.batch, first_full + 8 * box);
          if constexpr (Plan::kSplitsDelta) {
            if (block.multiplies(box)) {
              const uint32_t rows = block.output_rows();
              barrier_wait(block.barrier(Plan::kOutputRowsEmpty), outputs_at.parity() ^ 1);
              load_slot<Plan>(lane, rows, rows + Plan::kBoxBytes, &block.args.output_rows, box * Plan::kBoxColumns,
                              token, block.query_head(), work.batch, block.barrier(Plan::kOutputRowsFull));
              outputs_at.advance();
            }
          }
        }
      }
      barrier_wait(block.key_empty(at.index()), at.parity() ^ 1);
#pragma unroll
      for (int box = 0; box < Plan::kBoxes; ++box) {
        const uint32_t target = block.key(at.index(), box);
        load_slot<Plan>(lane, target, target + Plan::kLowerKey, &block.args.key, box * Plan::kBoxColumns, token,
                        block.key_head(chunk), work.batch, first_full + 8 * (Plan::kQuerySlots + box));
      }
      barrier_wait(block.value_empty(at.index()), at.parity() ^ 1);
#pragma unroll
      for (int box = 0; box < Plan::kBeside; ++box) {
        const uint32_t target = block.value(at.index(), box);
        load_slot<Plan>(lane, target, target + Plan::kLower, &block.args.value,
                        work.first_column + box * Plan::kBoxColumns, token, block.key_head(chunk), work.batch,
                        first_full + 8 * (Plan::kQuerySlots + Plan::kBoxes + box));
      }
      if constexpr (Plan::kCompact) {
        weigher.weigh(chunk, at, rows_at);
        rows_at.advance();
      }
      at.advance();
    }
  }
}

// Lengths of rows, each warp for 16 rows of q and k. What a warp loads does not wait for one another: the products of a
// chunk wait for the division of its keys.
template <class Plan>
struct Normalizer {
  using Half = typename Plan::Half;
  static constexpr int kSteps = (Plan::kHeadDim + 15) / 16;
  static constexpr int kStepsAtOnce = Plan::kConverted ? 1 : 4;  // registers are short beside rows of fp32

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
    return squares == 0.0f ? 1.0f : in_range(squares) ? squares : __int_as_float(0x7fffffff);
  }

  // Squared lengths: the diagonal of the products of the rows with themselves. Lane 4g + g/2 returns those
  // of rows g and g + 8.
  __device__ __forceinline__ float2 squared_lengths(uint32_t first_box, int box_bytes, int lower_distance) const {
    constexpr int kChains = 2;  // of sums, because a product waits for the one before
    float first_frag[kChains][4] = {};
    float second_frag[kChains][4] = {};
    const int row = first_row + (lane & 15);
#pragma unroll
    for (int first_step = 0; first_step < kSteps; first_step += kStepsAtOnce) {
      uint32_t upper[kStepsAtOnce][4];
      uint32_t lower[kStepsAtOnce][4];
#pragma unroll
      for (int i = 0; i < kStepsAtOnce && first_step + i < kSteps; ++i) {
        const int step = first_step + i;
        const uint32_t tile = first_box + (step / 4) * box_bytes + swizzled(row, (step % 4) * 2 + (lane >> 4));
        load_matrices(tile, upper[i]);
        if constexpr (Plan::kSplit) {
          load_matrices(tile + lower_distance, lower[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < kStepsAtOnce && first_step + i < kSteps; ++i) {
        const int chain = (first_step + i) % kChains;
        add_squares(first_frag[chain], second_frag[chain], upper[i], upper[i]);
        if constexpr (Plan::kSplit) {
          add_squares(first_frag[chain], second_frag[chain], upper[i], lower[i]);
          add_squares(first_frag[chain], second_frag[chain], lower[i], upper[i]);
          add_squares(first_frag[chain], second_frag[chain], lower[i], lower[i]);
        }
      }
    }
    const bool odd = ((lane >> 2) & 1) != 0;
    const float first = odd ? first_frag[0][1] + first_frag[1][1] : first_frag[0][0] + first_frag[1][0];
    const float second = odd ? second_frag[0][3] + second_frag[1][3] : second_frag[0][2] + second_frag[1][2];
    return make_float2(first, second);
  }
  __device__ __forceinline__ static void add_squares(float (&first_frag)[4], float (&second_frag)[4],
                                                     const uint32_t (&x)[4], const uint32_t (&y)[4]) {
    Half::add_product(first_frag, x, y[0], y[2]);
    Half::add_product(second_frag, x, y[1], y[3]);
  }

  // NaN in the place of a square that is zero though the row is not: it was below the range of its operands or sums.
  __device__ __forceinline__ float checked(float squares, const TensorView& view, int head, int chunk, int row) const {
    if (squares != 0.0f || row >= block.rows(chunk)) {
      return squares;
    }
    using Bytes = Untyped<Plan::Element::kBytes>;
    constexpr uint32_t kMagnitude = Plan::Element::kBytes == 4 ? 0x7fffffffu : 0x7fff7fffu;
    constexpr int kUnits = Plan::kHeadDim * Plan::Element::kBytes / kUnitBytes;
    const int64_t token = static_cast<int64_t>(block.work.start) + block.first_token(chunk) + row;
    const auto* const row_gmem =
        reinterpret_cast<const uint4*>(row_address<const Bytes>(view, block.work.batch, head, token));
    uint32_t bits = 0;
#pragma unroll 1
    for (int i = 0; i < kUnits; ++i) {
      const uint4 unit = row_gmem[i];
      bits |= (unit.x | unit.y | unit.z | unit.w) & kMagnitude;
    }
    return bits == 0 ? 0.0f : __int_as_float(0x7fffffff);
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

  // Of rows of q, and of the k that its group shares: the first block of each tells a backward.
  __device__ __forceinline__ void keep_lengths(int chunk, float2 query, float2 key) const {
    const ItemWork& work = block.work;
    const ChunkedArguments& args = block.chunked();
    float* const scales_gmem = block.args.row_scales;
    if (scales_gmem == nullptr || work.tile != 0) {
      return;
    }
    const int64_t query_head = static_cast<int64_t>(work.batch) * args.heads + work.head;
    keep(scales_gmem + query_head * args.tokens, chunk, query, block.scale(kQueryScale));
    if (work.head == work.kv_head * args.group) {
      const int64_t query_heads = static_cast<int64_t>(args.batches) * args.heads;
      const int64_t key_head = static_cast<int64_t>(work.batch) * (args.heads / args.group) + work.kv_head;
      keep(scales_gmem + (query_heads + key_head) * args.tokens, chunk, key, block.scale(kKeyScale));
    }
  }

  // |q| of the rows, for the scores, and what a backward is told.
  __device__ __forceinline__ void store_lengths(int stage_idx, int chunk, float2 query, float2 key) const {
    if constexpr (!Plan::kSums) {
      if (lane == diagonal_lane()) {
        const uint32_t lengths = block.lengths(stage_idx) + (first_row + (lane >> 2)) * 4;
        store_float(lengths, sqrtf(usable(query.x)));
        store_float(lengths + 32, sqrtf(usable(query.y)));
        keep_lengths(chunk, query, key);
      }
    }
  }

  // Keeps |q| of the rows of a chunk and divides those of K by |k|; rows of K past the end become zero.
  __device__ __forceinline__ void run(int stage_idx, int chunk) const {
    Units units;
    if constexpr (!Plan::kConverted) {  // under way while their lengths are found
      load_units(stage_idx, 0, units);
    }
    float2 query = {};
    float2 key = squared_lengths(block.key(stage_idx, 0), Plan::kKeyBox, Plan::kLowerKey);
    if constexpr (!Plan::kSums) {
      query = squared_lengths(block.query(stage_idx, 0), Plan::kQueryBox, Plan::kLower);
    }
    check(query, key, chunk);
    if constexpr (Plan::kConverted) {
      store_lengths(stage_idx, chunk, query, key);
      const float first_factor = __shfl_sync(kAllLanes, rsqrtf(usable(key.x)), diagonal_lane());
      const float second_factor = __shfl_sync(kAllLanes, rsqrtf(usable(key.y)), diagonal_lane());
      __syncwarp();  // all lanes have read what some change now
      divide_in_turn(stage_idx, first_factor, second_factor, block.rows(chunk));
    } else {
      divide_together(stage_idx, rsqrtf(usable(key.x)), rsqrtf(usable(key.y)), block.rows(chunk), units);
      store_lengths(stage_idx, chunk, query, key);
    }
  }

  // The four lanes of a group, which have the factors of rows g and g + 8, share their units.
  __device__ __forceinline__ void divide_in_turn(int stage_idx, float first_factor, float second_factor,
                                                 int num_rows) const {
    const int first = first_row + (lane >> 2);
#pragma unroll
    for (int box = 0; box < Plan::kBoxes; ++box) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int unit = 4 * i + (lane & 3);
        const uint32_t address = block.key(stage_idx, box);
        divide_unit(address + swizzled(first, unit), first_factor, first < num_rows);
        divide_unit(address + swizzled(first + 8, unit), second_factor, first + 8 < num_rows);
      }
    }
  }

  // Where eight lanes have a row of a box, so that no two want the same bank: four rows of a box are a part of K. Units of
  // 16 bytes of as many parts as are under way at once.
  static constexpr int kRowParts = 4;
  static constexpr int kParts = kRowParts * Plan::kBoxes;
  static constexpr int kTogether = 8;
  struct Units {
    uint4 of_part[kTogether];
  };
  __device__ __forceinline__ int row_of_part(int part) const { return part % kRowParts * 4 + (lane >> 3); }
  __device__ __forceinline__ uint32_t unit_of_part(int stage_idx, int part) const {
    return block.key(stage_idx, part / kRowParts) + swizzled(first_row + row_of_part(part), lane & 7);
  }
  __device__ __forceinline__ void load_units(int stage_idx, int first, Units& units) const {
#pragma unroll
    for (int i = 0; i < kTogether && first + i < kParts; ++i) {
      units.of_part[i] = load_unit(unit_of_part(stage_idx, first + i));
    }
  }

  // With the factors where squared_lengths() has left the squares, and the first units.
  __device__ __forceinline__ void divide_together(int stage_idx, float first_factor, float second_factor, int num_rows,
                                                  Units& units) const {
    float factors[kRowParts];
#pragma unroll
    for (int i = 0; i < kRowParts; ++i) {
      const int row = row_of_part(i) & 7;
      factors[i] =
          __shfl_sync(kAllLanes, i < kRowParts / 2 ? first_factor : second_factor, 4 * row + (row >> 1));
    }
    __syncwarp();  // all lanes have read what some change now
#pragma unroll
    for (int first = 0; first < kParts; first += kTogether) {
      if (first > 0) {
        load_units(stage_idx, first, units);
      }
      if (num_rows < Plan::kChunk) {
        clear_units(first, num_rows, factors, units);
      }
#pragma unroll
      for (int i = 0; i < kTogether && first + i < kParts; ++i) {
        store_unit(unit_of_part(stage_idx, first + i), divided(units.of_part[i], factors[(first + i) % kRowParts]));
      }
    }
  }

  // Of rows past the end, with their factors.
  __device__ __forceinline__ void clear_units(int first, int num_rows, float (&factors)[kRowParts],
                                              Units& units) const {
#pragma unroll
    for (int i = 0; i < kTogether && first + i < kParts; ++i) {
      if (first_row + row_of_part(first + i) >= num_rows) {
        units.of_part[i] = make_uint4(0, 0, 0, 0);
        factors[(first + i) % kRowParts] = 0.0f;
      }
    }
  }

  // Zeros past the end.
  __device__ __forceinline__ static void divide_unit(uint32_t address, float factor, bool within) {
    if (!within) {
      const uint4 zero = make_uint4(0, 0, 0, 0);
      store_unit(address, zero);
      if constexpr (Plan::kSplit) {
        store_unit(address + Plan::kLowerKey, zero);
      }
      return;
    }
    const uint4 unit = load_unit(address);
    if constexpr (Plan::kSplit) {
      const uint4 rest = load_unit(address + Plan::kLowerKey);
      uint32_t upper[4] = {unit.x, unit.y, unit.z, unit.w};
      uint32_t lower[4] = {rest.x, rest.y, rest.z, rest.w};
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        split<Half>((Half::low(upper[pair]) + Half::low(lower[pair])) * factor,
                    (Half::high(upper[pair]) + Half::high(lower[pair])) * factor, upper[pair], lower[pair]);
      }
      store_unit(address, make_uint4(upper[0], upper[1], upper[2], upper[3]));
      store_unit(address + Plan::kLowerKey, make_uint4(lower[0], lower[1], lower[2], lower[3]));
    } else {
      store_unit(address, divided(unit, factor));
    }
  }

  __device__ __forceinline__ static uint4 divided(const uint4& unit, float factor) {
    return make_uint4(divided(unit.x, factor), divided(unit.y, factor), divided(unit.z, factor),
                      divided(unit.w, factor));
  }
  __device__ __forceinline__ static uint32_t divided(uint32_t pair, float factor) {
    return Half::pack(Half::low(pair) * factor, Half::high(pair) * factor);
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
    normalizer.run(at.index(), chunk);
    publish_to_async_proxy();
    barrier_arrive(block.barrier(Plan::kReady, at.index()));
    at.advance();
  }
}


// The sum of x o over four columns.
__device__ __forceinline__ void add_unit(const uint4& x, const uint4& o, float& sum) {
  sum = fmaf(__uint_as_float(x.x), __uint_as_float(o.x), sum);
  sum = fmaf(__uint_as_float(x.y), __uint_as_float(o.y), sum);
  sum = fmaf(__uint_as_float(x.z), __uint_as_float(o.z), sum);
  sum = fmaf(__uint_as_float(x.w), __uint_as_float(o.w), sum);
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

  // The sums of x o over a thread's columns, of rows 8 apart; x as load() has it, o in two boxes of fp32.
  __device__ __forceinline__ void multiply(uint32_t boxes, const uint4 (&x_frag)[8], float (&sums)[2]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int rows8 = i & 1;
      const uint32_t rows = boxes + i / 2 * Plan::kBoxBytes + rows8 * 1024;
      const uint4 even = load_unit(rows + from_even);
      const uint4 odd = load_unit(rows + from_odd);
      add_unit(x_frag[2 * i], even, sums[rows8]);
      add_unit(x_frag[2 * i + 1], odd, sums[rows8]);
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
};

// Of gradient sums: dz and du, of rows of y and z on their way. A thread has 16 columns of each box, of two rows of
// each chunk.
template <class Plan>
struct ConvertedSums {
  static constexpr int kPlaces = Plan::kBoxes + 1;  // boxes of y, then that of z
  static constexpr int kBarrier = 1 + Plan::kBeside;
  float sums[kPlaces][16] = {};

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

  __device__ __forceinline__ void finish(const Block<Plan>& block, int warp_in_group, int lane) const {
    constexpr int kColumns = kPlaces * Plan::kBoxColumns;
    constexpr int kKeyColumns = Plan::kBoxes * Plan::kBoxColumns;
    const uint32_t all = block.base + Plan::kRowSumsOffset;
#pragma unroll
    for (int place = 0; place < kPlaces; ++place) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const float sum = sum_lanes<8>(sums[place][i]);
        const int column = place * Plan::kBoxColumns + (i >> 3) * 32 + (lane >> 3) * 8 + (i & 7);
        if ((lane & 7) == 0) {
          store_float(all + (warp_in_group * kColumns + column) * 4, sum);
        }
      }
    }
    named_barrier(kBarrier, kWarpgroup);
    const StateAddress<Plan> address(block);
    const int num_values = block.chunked().value_dim - block.work.first_column;
    for (int column = warp_in_group * kWarp + lane; column < kColumns; column += kWarpgroup) {
      float sum = 0.0f;
#pragma unroll
      for (int warp = 0; warp < 4; ++warp) {
        sum += load_float(all + (warp * kColumns + column) * 4);
      }
      const int value = column - kKeyColumns;
      if (value >= 0) {
        if (address.value_sum_out != nullptr && value < num_values) {
          address.value_sum_out[value] = sum;
        }
      } else if (address.key_sum_out != nullptr && column < Plan::kHeadDim &&
                 block.sums_keys(column / Plan::kBoxColumns)) {
        address.key_sum_out[column] = sum;
      }
    }
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
  const int num_rows = block.rows(chunk);
  if (!is_query && num_rows < Plan::kChunk) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (row + ((i >> 1) & 1) * 8 >= num_rows) {
        raw_frag[i] = make_uint4(0, 0, 0, 0);
      }
    }
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
                            (static_cast<int64_t>(work.batch) * args.heads + work.head) * args.tokens + work.start +
                            block.first_token(chunk) + row;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    delta[i] += __shfl_xor_sync(kAllLanes, delta[i], 8);
    delta[i] += __shfl_xor_sync(kAllLanes, delta[i], 16);
    if (lane < 8) {
      store_float(block.deltas(chunk % Plan::kRowPlaces) + (row + 8 * i) * 4, delta[i]);
      if (work.tile == 0 && row + 8 * i < block.rows(chunk)) {
        delta_gmem[8 * i] = delta[i];
      }
    }
    delta[i] = 0.0f;
  }
}

// The part of d that a box of dO, which is in registers, has: to the blocks that need it.
template <class Plan>
__device__ __forceinline__ void send_delta(const Block<Plan>& block, const Converter<Plan>& converter,
                                           const uint4 (&x_frag)[8], int box, int row, int lane, int chunk,
                                           RingPosition<1>& outputs_at) {
  float sums[2] = {0.0f, 0.0f};
  barrier_wait(block.barrier(Plan::kOutputRowsFull), outputs_at.parity());
  converter.multiply(block.output_rows(), x_frag, sums);
  outputs_at.advance();
  const int place = chunk % Plan::kRowPlaces;
  const bool shares = block.shares_delta();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    sums[i] += __shfl_xor_sync(kAllLanes, sums[i], 8);
    sums[i] += __shfl_xor_sync(kAllLanes, sums[i], 16);
    const uint32_t word = block.deltas(place) + (box * Plan::kChunk + row + 8 * i) * 4;
    const uint32_t rank = lane >> 3;  // eight lanes for each block
    if (shares && rank < Plan::kBoxes) {
      store_float_async(address_in_block(word, rank), sums[i], address_in_block(block.rows_full(place), rank));
    } else if (!shares && rank == 0) {
      store_float(word, sums[i]);
    }
  }
  reads_are_used();
  arrive_once_a_warp(block.barrier(Plan::kOutputRowsEmpty), lane);
  if (!shares && box == Plan::kBoxes - 1) {
    barrier_arrive(block.rows_full(place));
  }
}

// kUnscaled: all scales are known to be one.
template <class Plan, bool kUnscaled>
__device__ __forceinline__ void convert_slots(const Block<Plan>& block, int warp_in_group, int lane) {
  const Converter<Plan> converter(warp_in_group, lane);
  const Normalizer<Plan> normalizer{block, warp_in_group * 16, lane};
  const float query_scale = block.scale(kQueryScale);
  const float key_scale = block.scale(kKeyScale);
  const float value_scale = block.scale(kValueScale);
  constexpr int kLastKey = Plan::kSlotsPerChunk - 2;
  constexpr int kUnrolled = Plan::kSplit && Plan::kQueryGradient ? 1 : Plan::kSlotsPerChunk;  // the less code the better
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
  for (int chunk = 0; chunk < block.num_chunks; ++chunk) {
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
      } else if (kScales && is_value) {
        converter.template store_scaled<true>(raw_frag, key_scales, tile, lower);
        ask_for_scales(chunk + 1);
      } else if constexpr (kUnscaled) {
        converter.template store_scaled<false>(raw_frag, {1.0f, 1.0f}, tile, lower);
      } else if (!is_output) {
        converter.store(raw_frag, scale, tile, lower);
      }
      if constexpr (Plan::kSplitsDelta) {
        if (is_query && block.multiplies(box)) {
          send_delta(block, converter, raw_frag, box, warp_in_group * 16 + (lane & 7), lane, chunk, outputs_at);
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
      if constexpr (Plan::kNormalize) {
        if (slot == kLastKey) {
          __syncwarp();
          normalizer.run(at.index(), chunk);
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

template <class Plan>
__device__ __forceinline__ void convert(const Block<Plan>& block, int warp_in_group, int lane) {
  // Asked once where the rows are what the others wait for: at each slot it takes a tenth of the gradient of q.
  if constexpr (Plan::kQueryGradient && Plan::kSplit && Plan::kScaled && !Plan::kScalesRows) {
    if (block.scale(kQueryScale) == 1.0f && block.scale(kKeyScale) == 1.0f && block.scale(kValueScale) == 1.0f) {
      convert_slots<Plan, true>(block, warp_in_group, lane);
      return;
    }
  }
  convert_slots<Plan, false>(block, warp_in_group, lane);
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
