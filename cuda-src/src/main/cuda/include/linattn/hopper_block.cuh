// What the roles of a block share: its item, the places in shared memory, the unit of its sums.
#pragma once

#include <type_traits>

#include "linattn/chunk_items.cuh"
#include "linattn/chunked_arguments.h"
#include "linattn/dependent_launch.cuh"
#include "linattn/gradient_arguments.h"
#include "linattn/hopper.cuh"
#include "linattn/hopper_plan.cuh"
#include "linattn/hopper_relay.cuh"
#include "linattn/reduce.cuh"

namespace linattn {
namespace hopper {

// A forward.
//
// offset  bytes  member
//      0    128  query
//    128    128  key
//    256    128  value
//    384    128  out
//    512    352  chunked
//    864      8  row_scales  1 / |q| [batch, heads, tokens] and behind it 1 / |k| [batch, kv heads, tokens], 0 of a row
//                            that a backward has to measure with care; of sums 1 / |k| alone; or null: not wanted
struct HopperArguments {
  TensorMap query;
  TensorMap key;
  TensorMap value;
  TensorMap out;
  ChunkedArguments chunked;
  float* row_scales;
};

// One gradient: x, y, z and out of its table.
//
// offset  bytes  member
//      0    128  query
//    128    128  key
//    256    128  value
//    384    128  out
//    512    128  output_rows  o, for the gradient of q
//    640    424  gradient
struct HopperGradient {
  TensorMap query;
  TensorMap key;
  TensorMap value;
  TensorMap out;
  TensorMap output_rows;
  GradientArguments gradient;
};

// The gradients that a launch computes: of q, or of k and v. Those of k and v differ in everything but the
// number of items; where v is not as wide as k each has a launch of its own.
struct HopperGradientArguments {
  HopperGradient tasks[2];
};

// dq, dk and dv by one launch: the tasks of dk and of dv, and what dq wants beside. With o in output_rows of the task of
// dk, marks of dk and dv in their tasks; the partial sums go where those of the task of dv are.
//
// offset  bytes  member
//      0   2176  gradients
//   2176    128  query_gradient  dq
//   2304      8  last_state      S after the last token of each item, [kv heads, slots, Dk, Dv]; unread where none has more
//                                than a chunk, and for the last item where end_state is given
//   2312      8  last_key_sum    z
//   2320      8  first_state     S before each item, [kv heads, slots, Dk, Dv], or null for zeros; of a relay that before the
//                                first token is read and all others are left there
//   2328      8  first_key_sum   z
//   2336      8  query_marks     of dq, as marks are of its own sweep
//   2344      8  first_value_sum u before each item, or null for zeros; of a relay that before the first token alone is read
//   2352      8  end_state       S after the last item, [kv heads, Dk, Dv], where it stands apart from the others; or null
//   2360      8  end_key_sum     z
struct alignas(64) HopperOneSweepArguments {
  HopperGradientArguments gradients;
  TensorMap query_gradient;
  const float* last_state;
  const float* last_key_sum;
  float* first_state;
  float* first_key_sum;
  uint32_t* query_marks;
  const float* first_value_sum;
  const float* end_state;
  const float* end_key_sum;
};

template <class Plan>
__device__ __forceinline__ int chunks_of(int tokens) {
  return (tokens + Plan::kChunk - 1) / Plan::kChunk;
}

// Blocks have the tiles of one task, then of the other.
template <class Plan>
__device__ __forceinline__ uint32_t task_of(const GradientArguments& args, uint32_t number) {
  const uint32_t tiles = ceil_div(args.chunked.value_dim, Plan::kTileColumns);
  return quotient_by_tiles(number, tiles) & (args.tasks - 1);
}

template <class Plan>
__device__ __forceinline__ uint32_t number_in_task(const GradientArguments& args, uint32_t number) {
  const uint32_t tiles = ceil_div(args.chunked.value_dim, Plan::kTileColumns);
  const uint32_t of_tasks = quotient_by_tiles(number, tiles);
  const uint32_t of_task = args.tasks == 1 ? of_tasks : of_tasks / 2;
  return of_task * tiles + number - of_tasks * tiles;
}

// The tile of a block: of a query head, or of a key/value head where the heads of a group are added up.
template <class Plan>
__device__ __forceinline__ ValueTile<Plan::kTileColumns> tile_of(const ChunkedArguments& args, int64_t number) {
  return ValueTile<Plan::kTileColumns>(args, number, Plan::kWeighsRows);
}

// Which of the blocks that take turns this is, and its number among those with the same turn.
template <class Plan>
struct Turn {
  int64_t block;
  int turn;

  __device__ __forceinline__ Turn(const ChunkedArguments& args, uint32_t number) : block(number), turn(0) {
    if constexpr (Plan::kTurns) {
      const uint32_t tiles = ceil_div(args.value_dim, Plan::kTileColumns);
      const uint32_t of_turns = quotient_by_tiles(number, tiles);
      turn = static_cast<int>(of_turns & (args.turns - 1));
      block = (of_turns >> (__ffs(args.turns) - 1)) * tiles + number - of_turns * tiles;
    }
  }

  // The chunks of an item that the block walks: up to the last that it writes.
  __device__ __forceinline__ static int walked_chunks(int num_chunks, int turn, int turns) {
    if (!Plan::kTurns) {
      return num_chunks;
    }
    return num_chunks > turn ? ((num_chunks - 1 - turn) & -turns) + turn + 1 : 0;
  }

  // Whether its state is the item's last one.
  __device__ __forceinline__ bool walks_to_end(int num_chunks, int turns) const {
    return !Plan::kTurns || (num_chunks == 0 ? 0 : (num_chunks - 1) & (turns - 1)) == turn;
  }
};

// The block's item and its tile of value columns. Where the heads of a group are added up `head` is its first.
struct ItemWork {
  int turn;
  int tile;
  int first_column;
  int start;
  int tokens;
  int batch;
  int head;
  int kv_head;
  float a;
  float b;
  float count;  // before its first token

  template <int kColumns>
  __device__ __forceinline__ ItemWork(const ValueTile<kColumns>& block, int turn_of_block)
      : turn(turn_of_block),
        tile(block.block.tile_idx),
        first_column(block.first_column),
        start(block.item.start),
        tokens(block.item.tokens),
        batch(block.head.batch_idx),
        head(block.head.head_idx),
        kv_head(block.head.kv_head_idx),
        a(block.head.a),
        b(block.head.b),
        count(static_cast<float>(block.item.count)) {}

  // Of a gradient: but for that of q, of all query heads of the group.
  template <int kColumns>
  __device__ __forceinline__ ItemWork(const ValueTile<kColumns>& block, const GradientArguments& args,
                                      int turn_of_block)
      : ItemWork(block, turn_of_block) {
    if (args.task != kQueryGradient) {
      head = kv_head * args.chunked.group.value;
    }
  }
};

// Operands of fp16 are multiplied by powers of two that keep them in its range. They follow the largest elements of the
// item's first rows that are not zeros. Where S grows faster than that shows in an output that is not finite.
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
  kWeightScale,   // of the weights of the reverse
  kRowTop,        // of the rows of z of the reverse, where their weights are about one
  kStartBound,    // of S that the reverse starts from, in the unit of such rows
  kLengthScale    // of 1 / |k| where S takes it
};

constexpr float kMaxHalf = 32768.0f;  // half of the range of fp16

__device__ __forceinline__ float not_a_number() { return __int_as_float(0x7fffffff); }

__device__ __forceinline__ int exponent_of(float positive) {
  return static_cast<int>(__float_as_uint(positive) >> 23) - 127;
}

__device__ __forceinline__ float power_of_two(int exponent) {
  return __uint_as_float(static_cast<uint32_t>(min(max(exponent, -126), 127) + 127) << 23);
}

__device__ __forceinline__ float inverse_of_power(float power_of_two) {
  return __uint_as_float((254u << 23) - __float_as_uint(power_of_two));
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
  using Arguments = std::conditional_t<Plan::kGradient, HopperGradient, HopperArguments>;

  const Arguments& args;
  const ItemWork& work;
  uint32_t base;  // of the shared memory, aligned
  int num_chunks;  // that the block walks; of the reverse, once for each head of the group

  __device__ __forceinline__ const ChunkedArguments& chunked() const {
    if constexpr (Plan::kGradient) {
      return args.gradient.chunked;
    } else {
      return args.chunked;
    }
  }

  // Whether the block writes the outputs of a chunk, or only adds it to its state.
  __device__ __forceinline__ bool writes(int chunk) const {
    return !Plan::kTurns || (chunk & (chunked().turns - 1)) == work.turn;
  }

  // Heads of the rows of a chunk: of q and of out, and of k and v. The reverse, and the sums for it, add up a group of
  // query heads.
  __device__ __forceinline__ int group() const {
    return Plan::kWeighsRows && Plan::kUneven ? chunked().group.value : 1;
  }
  // Every role asks in every step, often several times, and each waits for the answer.
  __device__ __forceinline__ int member(int chunk) const {
    return group() == 1 ? 0 : static_cast<int>(chunked().group.remainder(chunk));
  }
  // Its number among the chunks of the item, in the order of the walk.
  __device__ __forceinline__ int item_chunk(int chunk) const {
    if constexpr (Plan::kSparesDivisor) {
      return group() == 1 ? chunk : chunk / group();
    }
    return group() == 1 ? chunk : static_cast<int>(chunked().group.quotient(chunk));
  }
  __device__ __forceinline__ int query_head() const { return Plan::kReverse ? work.kv_head : work.head; }
  __device__ __forceinline__ int key_head(int chunk) const {
    return Plan::kWeighsRows ? work.head + member(chunk) : work.kv_head;
  }
  // b of a head of the group.
  __device__ __forceinline__ float slope_of(int member) const {
    const ChunkedArguments& heads = chunked();
    return heads.b_per_head == nullptr ? heads.b : heads.b_per_head[work.head + member];
  }
  // Of the constants that a gradient adds to a product of rows; d is a product of rows too.
  __device__ __forceinline__ float constant_bound(float product_bound) const {
    if constexpr (Plan::kGradient) {
      if (args.gradient.task == kValueGradient) {
        const float b = slope_of(0);
        const float beta = fabsf(constant_of(0) / (b == 0.0f ? 1.0f : b));
        return Plan::kScalesRows ? beta * product_bound : beta;
      }
      return product_bound;
    }
    return 0.0f;
  }
  __device__ __forceinline__ float constant_of(int member) const {
    const ChunkedArguments& heads = chunked();
    return heads.a_per_head == nullptr ? heads.a : heads.a_per_head[work.head + member];
  }

  // 1 / |q| of row `row` of a chunk, and 1 / |k|; 1 past the end.
  __device__ __forceinline__ float query_scale(int chunk, int row) const {
    const int head = Plan::kWeighsRows ? key_head(chunk) : query_head();
    return row_scale(args.gradient.query_scale, chunked().heads.value, head, chunk, row);
  }
  __device__ __forceinline__ float key_scale(int chunk, int row) const {
    return row_scale(args.gradient.key_scale, chunked().kv_heads.value, work.kv_head, chunk, row);
  }
  __device__ __forceinline__ float row_scale(const float* scales_gmem, int heads, int head, int chunk, int row) const {
    if (chunk >= num_chunks || row >= rows(chunk)) {
      return 1.0f;
    }
    return scales_gmem[(static_cast<int64_t>(work.batch) * heads + head) * chunked().tokens + work.start +
                       first_token(chunk) + row];
  }

  __device__ __forceinline__ uint32_t scale_address(Scale scale) const {
    return base + Plan::kScalesOffset + scale * 4;
  }
  // 1 where operands need no scaling.
  __device__ __forceinline__ float scale(Scale scale) const {
    const bool is_one = !Plan::kScaled || Plan::kOneSweep || (Plan::kFollows && scale < kWeightBound);
    return is_one ? 1.0f : load_float(scale_address(scale));
  }

  // By which 1 / |k| is an operand of 16 bits, and S with it: of fp16 a power of two near the lengths of the rows measured.
  __device__ __forceinline__ float length_scale() const {
    return Plan::kWeighsKeys && Plan::kScaled ? load_float(scale_address(kLengthScale)) : 1.0f;
  }
  __device__ __forceinline__ float inverse_length_scale() const {
    return Plan::kWeighsKeys && Plan::kScaled ? inverse_of_power(length_scale()) : 1.0f;
  }

  // Where the number of a block stands, counted by heads.
  __device__ __forceinline__ uint32_t number_address() const { return base + Plan::kNumberOffset; }

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
  // A box of K, and the same one of Q, where these stream.
  __device__ __forceinline__ uint32_t pair_key(int place) const {
    return base + Plan::kPairsOffset + place * Plan::kPairBytes;
  }
  __device__ __forceinline__ uint32_t pair_query(int place) const { return pair_key(place) + Plan::kQueryOffset; }
  // They have landed, as fp32; are operands; are wanted no more. V lands behind them.
  __device__ __forceinline__ uint32_t pair_landed(int place) const { return barrier(Plan::kSlotFull, place); }
  __device__ __forceinline__ uint32_t pair_full(int place) const { return barrier(Plan::kPairFull, place); }
  __device__ __forceinline__ uint32_t pair_empty(int place) const { return barrier(Plan::kPairEmpty, place); }
  __device__ __forceinline__ uint32_t value_landed(int stage_idx) const {
    return barrier(Plan::kSlotFull, Plan::kPairs + stage_idx);
  }
  __device__ __forceinline__ uint32_t value(int stage_idx, int box = 0) const {
    return stage(stage_idx) + Plan::kValueOffset + box * Plan::kQueryBox;
  }
  // o of a part of d.
  __device__ __forceinline__ uint32_t output_rows() const { return base + Plan::kOutputRowsOffset; }
  __device__ __forceinline__ uint32_t tiles() const { return ceil_div(chunked().value_dim, Plan::kTileColumns); }
  // Whether the blocks of an item are clusters of two.
  __device__ __forceinline__ bool is_in_pair() const { return tiles() % 2 == 0; }
  // Which parts of d it forms, or halves of boxes: where blocks are clusters of two every other one.
  __device__ __forceinline__ bool shares_delta() const {
    return Plan::kStreams ? is_in_pair() : Plan::kDeltaParts > 1 && tiles() == Plan::kDeltaParts;
  }
  __device__ __forceinline__ bool multiplies(int part) const {
    return !shares_delta() || (Plan::kStreams ? (part ^ work.tile) % Plan::kDeltaBlocks == 0 : part == work.tile);
  }
  // Whether the other block of the cluster has scores of the same rows, and its number there.
  __device__ __forceinline__ bool shares_scores() const {
    return Plan::kSharesScores && is_in_pair();
  }
  __device__ __forceinline__ uint32_t other_rank() const { return (work.tile & 1) ^ 1; }
  // The box that comes at this place of a chunk: the other block begins with the last one.
  __device__ __forceinline__ bool begins_with_last_box() const { return shares_scores() && (work.tile & 1) != 0; }
  __device__ __forceinline__ int box_at(int place) const {
    return begins_with_last_box() ? Plan::kBoxes - 1 - place : place;
  }
  // Whether scores of it are multiplied here.
  __device__ __forceinline__ bool multiplies_scores(int place) const {
    return !shares_scores() || place < Plan::kBoxes / 2;
  }
  __device__ __forceinline__ uint32_t other_scores() const { return base + Plan::kOtherScoresOffset; }
  // o, where d is formed of it.
  __device__ __forceinline__ uint32_t output_rows(int stage_idx, int box) const {
    return stage(stage_idx) + Plan::kRowsOffset + box * Plan::kBoxBytes;
  }
  __device__ __forceinline__ uint32_t weights(int buffer) const {
    return base + Plan::kWeightsOffset + buffer * Plan::kWeightBytes;
  }
  __device__ __forceinline__ uint32_t outputs(int buffer) const {
    return base + Plan::kOutputsOffset + buffer * Plan::kOutputBytes;
  }
  // Factors of the columns of O^T: of the product, then of u.
  __device__ __forceinline__ uint32_t columns(int buffer) const {
    return base + Plan::kColumnsOffset + buffer * 2 * Plan::kChunk * 4;
  }
  // |q| of the rows of a stage, where rows are normalised; weights of z, where its rows are weighed.
  __device__ __forceinline__ uint32_t lengths(int stage_idx) const {
    return base + Plan::kLengthsOffset + stage_idx * Plan::kChunk * 4;
  }
  // 1 / |k| of the rows of a stage, 0 of rows of zeros and past the end, where keys are weighed.
  __device__ __forceinline__ uint32_t key_weights(int stage_idx) const {
    return base + Plan::kKeyWeightsOffset + stage_idx * Plan::kKeyWeightBytes;
  }
  // A part of them, times length_scale().
  __device__ __forceinline__ uint32_t key_weight_part(int stage_idx, int part) const {
    return key_weights(stage_idx) + Plan::kChunk * 4 + part * Plan::kWeightPartBytes;
  }
  __device__ __forceinline__ uint32_t sums() const { return base + Plan::kSumsOffset; }
  // Until the lengths of the rows of a stage are there, and its keys and values past the end are zero.
  __device__ __forceinline__ void wait_for_lengths(int stage_idx, uint32_t parity) const {
    if constexpr (Plan::kWeighsKeys) {
      barrier_wait(barrier(Plan::kLengthsFull, stage_idx), parity);
    }
  }
  // g of the rows of a chunk, and 64 words behind d, or its parts; they are there once rows_full has completed.
  __device__ __forceinline__ uint32_t normalizers(int place) const {
    return base + Plan::kRowValuesOffset + place * Plan::kRowBytesOfChunk;
  }
  __device__ __forceinline__ uint32_t deltas(int place) const { return normalizers(place) + Plan::kChunk * 4; }
  // 1 / length of the rows of z, and behind them of x.
  __device__ __forceinline__ uint32_t scales(int place) const {
    return deltas(place) + Plan::kDeltaParts * Plan::kChunk * 4;
  }
  // That of a row of z, once rows are full; 1 past the end.
  __device__ __forceinline__ float z_scale(int place, int chunk, int row) const {
    if constexpr (!Plan::kKeepsScales) {
      return query_scale(chunk, row);
    }
    return row < rows(chunk) ? load_float(scales(place) + row * 4) : 1.0f;
  }
  __device__ __forceinline__ float x_scale(int place, int chunk, int row) const {
    if constexpr (!Plan::kKeepsScales) {
      return key_scale(chunk, row);
    }
    return row < rows(chunk) ? load_float(scales(place) + (Plan::kChunk + row) * 4) : 1.0f;
  }
  // 1 / length of a row of operands with this scale: NaN where these have lost digits below the range of fp16, so that
  // what depends on it is marked.
  __device__ __forceinline__ float trusted(float row_scale, Scale of_operand) const {
    if constexpr (Plan::kConverted && Plan::kScaled) {
      constexpr float kMost = 0x1p8f;
      return row_scale <= kMost * scale(of_operand) ? row_scale : not_a_number();
    }
    return row_scale;
  }
  __device__ __forceinline__ uint32_t rows_full(int place) const { return barrier(Plan::kRowsFull, place); }
  // Of a chunk.
  __device__ __forceinline__ static int row_place(int chunk) { return chunk % Plan::kRowPlaces; }
  // The same, once its rows are there.
  __device__ __forceinline__ int wait_for_rows(int chunk) const {
    const int place = row_place(chunk);
    barrier_wait(rows_full(place), chunk / Plan::kRowPlaces & 1);
    return place;
  }
  // Of the reverse: the constants of the columns of W. Of sums: what they multiply the rows of y by, and 64 words
  // behind those of z. Then the unit of z.
  __device__ __forceinline__ uint32_t factors(int stage_idx) const {
    return base + Plan::kFactorsOffset + stage_idx * Plan::kFactorBytes;
  }
  __device__ __forceinline__ uint32_t unit_address(int stage_idx) const {
    return factors(stage_idx) + Plan::kFactorBytes - 16;
  }
  // Whether the block sums the rows of a box of y: the tiles of an item share them.
  __device__ __forceinline__ bool sums_keys(int box) const {
    return box % ceil_div(chunked().value_dim, Plan::kTileColumns) == work.tile;
  }
  // Of the item. Sums walk backwards too: the forward that follows finds in the L2 cache what it reads first.
  __device__ __forceinline__ int first_token(int chunk) const {
    const int place = Plan::kSums || Plan::kReverse ? num_chunks - 1 - chunk : chunk;
    return item_chunk(place) * Plan::kChunk;
  }
  __device__ __forceinline__ int rows(int chunk) const {
    return min(Plan::kChunk, work.tokens - first_token(chunk));
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
  // Of a box, where these are given back one by one.
  __device__ __forceinline__ uint32_t box_empty(int stage_idx, int box) const {
    return barrier(Plan::kBoxEmpty, stage_idx * Plan::kBoxes + box);
  }
  __device__ __forceinline__ uint32_t query_empty(int stage_idx) const {
    return barrier(Plan::kApart ? Plan::kQueryEmpty : Plan::kKeyEmpty, stage_idx);
  }
  // Where readers of queries arrive: their place is empty then, or outputs may be put there.
  __device__ __forceinline__ uint32_t query_read(int stage_idx) const {
    return Plan::kOutputsInQueries ? barrier(Plan::kQueryRead, stage_idx) : query_empty(stage_idx);
  }
  __device__ __forceinline__ uint32_t value_empty(int stage_idx) const {
    return barrier(Plan::kApart ? Plan::kValueEmpty : Plan::kKeyEmpty, stage_idx);
  }

  // The unit of O: W and b S are multiplied by it, and g with them. It is 1/b, so that S is its own operand;
  // without b the product of S is thrown away.
  __device__ __forceinline__ float slope() const { return Plan::kGradient ? 1.0f : work.b; }
  __device__ __forceinline__ Unit first_unit() const {
    const float slope = this->slope() * scale(kScoreScale);
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
      unit = Unit{value, power_of_two(-exponent), slope() * value};
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

// Every lane where it has read what threads write next or written what they read, else one of the warp.
template <bool kEveryLane>
__device__ __forceinline__ void arrive_by_lanes(uint32_t barrier, int lane) {
  if constexpr (kEveryLane) {
    barrier_arrive(barrier);
  } else {
    arrive_once_a_warp(barrier, lane);
  }
}

// Splits x into an upper half and what it leaves.
template <class Half>
__device__ __forceinline__ void split(float low, float high, uint32_t& upper, uint32_t& lower) {
  upper = Half::pack(low, high);
  lower = Half::pack(low - Half::low(upper), high - Half::high(upper));
}

// Where 64 value columns of the block are in the states; null where there is none. Computed where it is used, so
// that the addresses hold no registers in between.
template <class Plan>
struct StateAddress {
  const float* state_in;
  const float* key_sum_in;
  const float* value_sum_in;
  float* state_out;
  float* key_sum_out;
  float* value_sum_out;

  int64_t column_stride;  // between value columns of S, and between its key columns
  int64_t key_stride;

  // Of 64 columns from `column` of the block's values on.
  __device__ __forceinline__ explicit StateAddress(const Block<Plan>& block, int column = 0) {
    const ChunkedArguments& args = block.chunked();
    const Turn<Plan> turn(args, block_number(block));
    const auto tile = tile_of<Plan>(args, turn.block);
    column_stride = 1;
    key_stride = args.value_dim;
    if constexpr (Plan::kGradient) {  // S is [Dk, Dv] whichever of the two is wide as the keys here
      if (block.args.gradient.task != kValueGradient) {
        column_stride = args.key_dim;
        key_stride = 1;
      }
    }
    const int64_t state = tile.state * args.key_dim * args.value_dim + (tile.first_column + column) * column_stride;
    const int64_t key_sum = tile.key_sum_offset(args);
    const int64_t value_sum = tile.value_sum_offset(args) + column;
    state_in = args.state_in != nullptr ? args.state_in + state : nullptr;
    key_sum_in = args.key_sum_in != nullptr ? args.key_sum_in + key_sum : nullptr;
    value_sum_in = args.value_sum_in != nullptr ? args.value_sum_in + value_sum : nullptr;
    const bool writes = Plan::kWeighsRows || (tile.head.writes_state(args) &&
                                              turn.walks_to_end(chunks_of<Plan>(tile.item.tokens), args.turns));
    state_out = writes && args.state_out != nullptr ? args.state_out + state : nullptr;
    key_sum_out = writes && args.key_sum_out != nullptr ? args.key_sum_out + key_sum : nullptr;
    value_sum_out = writes && args.value_sum_out != nullptr ? args.value_sum_out + value_sum : nullptr;
  }

  // Among those of its task.
  __device__ __forceinline__ static uint32_t block_number(const Block<Plan>& block) {
    if constexpr (Plan::kMayRelay) {
      return load_word(block.number_address());
    } else if constexpr (Plan::kWeighsRows) {
      return number_in_task<Plan>(block.args.gradient, hopper::block_number());
    } else {
      return hopper::block_number();
    }
  }
};

// Of box `box` of the block's value columns; null where no such column is, or where nobody asks. `number`: of the block in its task.
template <class Plan>
__device__ __forceinline__ uint32_t* mark_address(const Block<Plan>& block, uint32_t number, int box) {
  const ChunkedArguments& args = block.chunked();
  const int column = block.work.first_column + box * Plan::kBoxColumns;
  if (args.marks == nullptr || column >= args.value_dim) {
    return nullptr;
  }
  const int64_t item = quotient_by_tiles(number, block.tiles());
  return args.marks + item * ceil_div(args.value_dim, Plan::kBoxColumns) + column / Plan::kBoxColumns;
}

// Of sums: 1 where anything that the block writes is not finite. It is then formed again (state_sums.cuh).
template <class Plan>
__device__ __forceinline__ void mark_sums(const Block<Plan>& block, uint32_t marked) {
  for (int box = 0; box < Plan::kBeside; ++box) {
    uint32_t* const mark_gmem = mark_address(block, StateAddress<Plan>::block_number(block), box);
    if (mark_gmem != nullptr) {
      *mark_gmem = marked;
    }
  }
}

// Of sums. Asked once for all that a thread has written, since its instructions count at the end of a block.
template <class Plan>
__device__ __forceinline__ void mark_unless_finite(const Block<Plan>& block, float sum) {
  if (Plan::kSums && !isfinite(sum)) {
    mark_sums(block, 1);
  }
}

// Notes which block this is, counted by heads, and waits until the state that it starts from is there, for all threads
// behind their next barrier.
template <class Plan>
__device__ __forceinline__ void take_over(const Block<Plan>& block, uint32_t number, int64_t kv_head, int item) {
  const ChunkedArguments& args = block.chunked();
  if (Plan::kMayRelay && threadIdx.x == 0) {
    store_word(block.number_address(), number);
    const Relay<Plan> relay(args, kv_head, item);
    while (args.tickets != nullptr && relay.takes() && load_acquire(relay.word_before()) < block.tiles()) {
    }
  }
}

// Tells that the block has left its columns of the state. Of a group of query heads, which share one, the first does.
template <class Plan>
__device__ __forceinline__ void hand_on(const Block<Plan>& block) {
  const ChunkedArguments& args = block.chunked();
  if (relays<Plan>(args)) {
    __syncthreads();
    if (threadIdx.x == 0) {
      const auto tile = tile_of<Plan>(args, StateAddress<Plan>::block_number(block));
      const Relay<Plan> relay(args, tile.head.kv_index, tile.block.item_idx);
      if (relay.leaves() && (Plan::kWeighsRows || tile.head.writes_state(args))) {
        increment_release(relay.word());
      }
    }
  }
}

}  // namespace hopper
}  // namespace linattn
