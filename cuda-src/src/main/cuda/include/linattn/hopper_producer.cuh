// The producer, which starts copies of tiles into the ring.
#pragma once

#include "linattn/hopper_block.cuh"

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
    const int place = block.row_place(chunk);
    const int64_t token = static_cast<int64_t>(block.work.start) + block.first_token(chunk);
    const float* const g_gmem = row_address<const float>(args.normalizer, block.work.batch, head, token);
    const int64_t query_row = (static_cast<int64_t>(block.work.batch) * args.heads.value + head) * args.tokens + token;
    const float* const delta_gmem = block.args.gradient.delta + query_row;
    const float* query_scale_gmem = nullptr;
    const float* key_scale_gmem = nullptr;
    constexpr bool kShort = Plan::kFollows || Plan::kDeltaBeside;  // of registers
    constexpr int kUnrolled = Plan::kScaleParts > 0 && kShort ? 1 : Plan::kChunk / kWarp;
    if constexpr (Plan::kScaleParts > 0) {
      const int64_t key_head =
          static_cast<int64_t>(block.work.batch) * args.kv_heads.value + block.work.kv_head;
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

// A box of o of which a part of d is formed, once its place is free; or half a box.
template <class Plan>
__device__ __forceinline__ void load_output_box(const Block<Plan>& block, int column, int token,
                                                RingPosition<1>& outputs_at, int lane) {
  const uint32_t rows = block.output_rows();
  const uint32_t full = block.barrier(Plan::kOutputRowsFull);
  barrier_wait(block.barrier(Plan::kOutputRowsEmpty), outputs_at.parity() ^ 1);
  if constexpr (Plan::kDeltaInHalves) {
    if (lane == 0) {
      barrier_expect(full, Plan::kBoxBytes);
      load_tile(rows, &block.args.output_rows, {column, token, block.query_head(), block.work.batch}, full);
    }
  } else {
    load_slot<Plan>(lane, rows, rows + Plan::kBoxBytes, &block.args.output_rows, column, token, block.query_head(),
                    block.work.batch, full);
  }
  outputs_at.advance();
}

// V of a chunk, then its pairs of boxes.
template <class Plan>
__device__ __forceinline__ void produce_stream(const Block<Plan>& block, int lane) {
  const ItemWork& work = block.work;
  RingPosition<Plan::kStages> at;
  RingPosition<Plan::kPairs> pair_at;
  [[maybe_unused]] RingPosition<1> outputs_at;
  for (int chunk = 0; chunk < block.num_chunks; ++chunk) {
    const int token = work.start + block.first_token(chunk);
    const uint32_t value = block.value(at.index());
    barrier_wait(block.value_empty(at.index()), at.parity() ^ 1);
    ask_for_rows(block, chunk, lane);
    load_slot<Plan>(lane, value, value + Plan::kLower, &block.args.value, work.first_column, token,
                    block.key_head(chunk), work.batch, block.value_landed(at.index()));
#pragma unroll 1
    for (int place = 0; place < Plan::kBoxes; ++place) {
      const int box = block.box_at(place);
      const uint32_t key = block.pair_key(pair_at.index());
      const uint32_t query = block.pair_query(pair_at.index());
      const uint32_t landed = block.pair_landed(pair_at.index());
      barrier_wait(block.pair_empty(pair_at.index()), pair_at.parity() ^ 1);
      load_slot<Plan>(lane, query, query + Plan::kLower, &block.args.query, box * Plan::kBoxColumns, token,
                      block.query_head(), work.batch, landed);
      load_slot<Plan>(lane, key, key + Plan::kLowerKey, &block.args.key, box * Plan::kBoxColumns, token,
                      block.key_head(chunk), work.batch, landed);
      if constexpr (Plan::kDeltaInHalves) {
#pragma unroll 1
        for (int half = 0; half < 2; ++half) {
          if (block.multiplies(half)) {
            load_output_box(block, box * Plan::kBoxColumns + half * 32, token, outputs_at, lane);
          }
        }
      } else if constexpr (Plan::kSplitsDelta) {
        if (block.multiplies(box)) {
          load_output_box(block, box * Plan::kBoxColumns, token, outputs_at, lane);
        }
      }
      pair_at.advance();
    }
    at.advance();
  }
}

// Where sums are made of rows on their way.
template <class Plan>
__device__ __forceinline__ void produce_for_sums(const Block<Plan>& block, int lane) {
  const ItemWork& work = block.work;
  RingPosition<Plan::kStages> at;
  for (int chunk = 0; chunk < block.num_chunks; ++chunk) {
    const int token = work.start + block.first_token(chunk);
    const uint32_t first_full = block.barrier(Plan::kSlotFull, at.index() * Plan::kSlotsPerChunk);
    if constexpr (!Plan::kBoxesApart) {
      barrier_wait(block.key_empty(at.index()), at.parity() ^ 1);
    }
    ask_for_rows(block, chunk, lane);  // those that stood there are of a chunk that has been given back
#pragma unroll
    for (int box = 0; box < Plan::kBoxes; ++box) {
      const uint32_t key = block.key(at.index(), box);
      if constexpr (Plan::kBoxesApart) {
        barrier_wait(block.box_empty(at.index(), box), at.parity() ^ 1);
      }
      load_slot<Plan>(lane, key, key + Plan::kLowerKey, &block.args.key, box * Plan::kBoxColumns, token,
                      block.key_head(chunk), work.batch, first_full + 8 * box);
    }
    const uint32_t value = block.value(at.index());
    barrier_wait(block.value_empty(at.index()), at.parity() ^ 1);
    load_slot<Plan>(lane, value, value + Plan::kLower, &block.args.value, work.first_column, token,
                    block.key_head(chunk), work.batch, first_full + 8 * Plan::kBoxes);
    at.advance();
  }
}

template <class Plan>
__device__ __forceinline__ void produce(const Block<Plan>& block, int lane) {
  const ItemWork& work = block.work;
  if constexpr (Plan::kStreams) {
    produce_stream(block, lane);
  } else if constexpr (Plan::kConvertsForSums) {
    produce_for_sums(block, lane);
  } else if constexpr (!Plan::kConverted) {
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
        barrier_wait(block.query_empty(at.index()), at.parity() ^ 1);
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
              load_output_box(block, box * Plan::kBoxColumns, token, outputs_at, lane);
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
      constexpr int kUnrolled = Plan::kCompact && Plan::kScalesRows ? 1 : Plan::kBeside;  // the weigher has the registers
#pragma unroll kUnrolled
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

}  // namespace hopper
}  // namespace linattn
