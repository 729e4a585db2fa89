// dq, dk and dv of an item by one walk from its last chunk on, for rows of 128 columns of 16 bits:
// docs/decisions/0012-one-sweep.md. S, which dq takes from the tokens before, comes as it is after the last of them,
// and chunk after chunk is taken out of it; S before the first chunk is known and takes the place of what is left.
//
// Blocks are clusters of two: one forms dk and the columns 64 to 127 of dq, the other dv and the columns 0 to 63. With
// w = b dO / g, d = o . w and E_pi = v_p . w_i - d_i,
//
//   dk_p = sum over i >= p of E_pi q_i
//   dv_p = sum over i >= p of (a / b + k_p . q_i) w_i
//   dq_i = sum over n <= i of E_ni k_n
//   b da = sum over n <= i of E_ni
//
// Warpgroups in this order:
//
//   score   w where dO landed, half of d, which blocks send to each other, E, and W of dv
//   state   two, with 64 columns each of dk or dv and of the sums over the tokens after
//   prefix  64 columns of dq, with S and z of the tokens before
//
// A block has x, y and z as the gradients of k and v have them, and what it wants for dq beside: v and k. An item is
// all tokens of a batch row, so that copies bring zeros for rows past its end, and do not write them.
//
// Of fp16 w comes in a power of two, the unit of a chunk, which brings w, E and the sums over the tokens after into the
// range; these sums follow it where it changes, and d, da and all outputs leave it. Where S is beyond the range outputs
// are marked.
#pragma once

#include <cstddef>

#include "linattn/hopper_outputs.cuh"
#include "linattn/hopper_scales.cuh"
#include "linattn/hopper_score.cuh"
#include "linattn/hopper_state.cuh"
#include "linattn/hopper_tiles.cuh"

namespace linattn {
namespace hopper {

static_assert(sizeof(HopperOneSweepArguments) == 2240 && offsetof(HopperOneSweepArguments, last_state) == 2176 &&
                  offsetof(HopperOneSweepArguments, first_value_sum) == 2216,
              "as the run time fills them in");

// With the task of dk, or of dv.
template <class Spec_, bool kIsKey_ = true>
struct OneSweepPlan : HopperPlan<Spec_> {
  using Base = HopperPlan<Spec_>;
  static constexpr bool kIsKey = kIsKey_;
  static constexpr bool kOneSweep = true;
  static_assert(Base::kHeadDim == 128 && !Base::kConverted, "what its registers suffice for");
  static constexpr bool kWeighsInState = false;
  // Where operands have the range of fp32 outputs are finite where scores and sums are: these are looked at.
  static constexpr bool kMarksInSums = !Base::kScaled;
  static constexpr bool kMarksOutputs = false;
  static constexpr bool kFormsDelta = true;
  static constexpr bool kMerged = true;  // operands are made of few columns of a state at a time
  static constexpr bool kScoresProduce = true;

  static constexpr int kStateGroup = 1;
  static constexpr int kPrefixGroup = kStateGroup + Base::kBeside;
  static constexpr int kThreads = (kPrefixGroup + 1) * kWarpgroup;

  static constexpr int kKeyBox = Base::kBoxBytes;
  static constexpr int kQueryBox = Base::kBoxBytes;
  static constexpr int kQueryOffset = 0;
  static constexpr int kKeyOffset = 2 * Base::kBoxBytes;
  static constexpr int kValueOffset = 4 * Base::kBoxBytes;
  static constexpr int kOtherOffset = 6 * Base::kBoxBytes;  // v with the task of dv, a box of k with that of dk
  static constexpr int kRowsOffset = 8 * Base::kBoxBytes;   // a box of o
  static constexpr int kStageBytes = 9 * Base::kBoxBytes;

  static constexpr int kStagesOffset = 0;
  static constexpr int kOutputsOffset = Base::kStages * kStageBytes;
  static constexpr int kOutputTiles = Base::kBeside * Base::kOutputBuffers + 1;  // the last is that of dq
  static constexpr int kWeightBytes = Base::kBoxBytes + Base::kExtraBytes;
  static constexpr int kWeightsOffset = kOutputsOffset + kOutputTiles * Base::kOutputBytes;
  static constexpr int kOnesOffset = kWeightsOffset + 2 * kWeightBytes;  // 8 rows
  // g of the rows of chunks, two parts of d behind, and -d. Who sends its part of those of a chunk has received the
  // other part of the chunk before, which its peer sent once it had left all but two chunks before that.
  static constexpr int kDeltaParts = 2;
  static constexpr int kRowPlaces = 4;
  static constexpr int kRowBytesOfChunk = (2 + kDeltaParts) * Base::kChunk * 4;
  static constexpr int kRatiosOffset = kOnesOffset + Base::kExtraBytes;  // a / b
  static constexpr int kRowValuesOffset = kRatiosOffset + Base::kChunk * 4;
  static constexpr int kPartialsOffset = kRowValuesOffset + kRowPlaces * kRowBytesOfChunk;
  // Units of w, of all chunks: the unit, 1 / unit, and the unit over that of the chunk walked before.
  static constexpr int kMostChunks = 256;
  static constexpr int kBytesOfUnit = 16;
  static constexpr int kUnitsOffset = kPartialsOffset + Base::kPartialsBytes;
  static constexpr int kExtentsOffset = kUnitsOffset + (Base::kScaled ? kMostChunks * kBytesOfUnit : 0);
  static constexpr int kMarksOffset = kExtentsOffset + (Base::kScaled ? kExtents * sizeof(Extent) : 0);
  static constexpr int kBarriersOffset = kMarksOffset + kThreads * 4;

  static constexpr int kFull = 0;
  static constexpr int kEmpty = kFull + Base::kStages;
  static constexpr int kReady = kEmpty + Base::kStages;  // rows of dO are weighed
  static constexpr int kRowsFull = kReady + Base::kStages;
  static constexpr int kDeltaFull = kRowsFull + kRowPlaces;
  static constexpr int kWeightsFull = kDeltaFull + kRowPlaces;
  static constexpr int kWeightsEmpty = kWeightsFull + 2;
  static constexpr int kPartialsFull = kWeightsEmpty + 2;
  static constexpr int kNumBarriers = kPartialsFull + 1;
  static constexpr int kWorkOffset = kBarriersOffset + kNumBarriers * 8;
  static constexpr int kSharedBytes = kWorkOffset + 56 + Base::kAlignment;

  static constexpr int kSummingWarps = 4 * (kIsKey ? kStateGroup : kPrefixGroup);
};

// What roles know of the tiles of a stage, by the task of the block.
template <class Plan>
struct SweepTiles {
  const Block<Plan>& block;

  __device__ __forceinline__ explicit SweepTiles(const Block<Plan>& shared) : block(shared) {}

  __device__ __forceinline__ uint32_t full(int stage) const { return block.barrier(Plan::kFull, stage); }
  __device__ __forceinline__ uint32_t empty(int stage) const { return block.barrier(Plan::kEmpty, stage); }
  __device__ __forceinline__ uint32_t ready(int stage) const { return block.barrier(Plan::kReady, stage); }
  __device__ __forceinline__ uint32_t delta_full(int place) const { return block.barrier(Plan::kDeltaFull, place); }

  __device__ __forceinline__ uint32_t other(int stage) const { return block.stage(stage) + Plan::kOtherOffset; }
  // Rows of dO, of w once the stage is ready.
  __device__ __forceinline__ uint32_t output_gradient(int stage) const {
    return Plan::kIsKey ? block.key(stage, 0) : block.value(stage, 0);
  }
  __device__ __forceinline__ uint32_t values(int stage) const {
    return Plan::kIsKey ? block.query(stage, 0) : other(stage);
  }
  // The 64 columns of k that those of dq belong to.
  __device__ __forceinline__ int key_box() const { return Plan::kIsKey ? 1 : 0; }
  __device__ __forceinline__ uint32_t keys(int stage) const {
    return Plan::kIsKey ? other(stage) : block.query(stage, 0);
  }
  __device__ __forceinline__ uint32_t ones() const { return block.base + Plan::kOnesOffset; }

  // E has both buffers with the task of dk, chunk by chunk; with that of dv one, and W the other.
  __device__ __forceinline__ int entries_buffer(int chunk) const { return Plan::kIsKey ? chunk & 1 : 0; }
  __device__ __forceinline__ int weights_buffer(int chunk) const { return Plan::kIsKey ? chunk & 1 : 1; }
  __device__ __forceinline__ uint32_t parity(int chunk) const { return (Plan::kIsKey ? chunk >> 1 : chunk) & 1; }
  __device__ __forceinline__ uint32_t weights_full(int buffer) const {
    return block.barrier(Plan::kWeightsFull, buffer);
  }
  __device__ __forceinline__ uint32_t weights_empty(int buffer) const {
    return block.barrier(Plan::kWeightsEmpty, buffer);
  }
  __device__ __forceinline__ int weights_readers(int buffer) const {  // threads of the states, a lane of each warp of S
    return (Plan::kIsKey || buffer == 1 ? Plan::kBeside * kWarpgroup : 0) + (Plan::kIsKey || buffer == 0 ? 4 : 0);
  }

  __device__ __forceinline__ void load(const HopperOneSweepArguments& args, int chunk, int stage) const {
    const ItemWork& work = block.work;
    const TileCoordinates first = {0, work.start + block.first_token(chunk), work.head, work.batch};
    const TileCoordinates second = {Plan::kBoxColumns, first.token, first.head, first.batch};
    const HopperGradient& key_task = args.gradients.tasks[0];
    const HopperGradient& value_task = args.gradients.tasks[1];
    const uint32_t barrier = full(stage);
    barrier_expect(barrier, (Plan::kIsKey ? 8 : 9) * Plan::kBoxBytes);
    load_row(&value_task.value, output_gradient(stage), first, second, barrier);
    load_tile(block.stage(stage) + Plan::kRowsOffset, &key_task.output_rows, Plan::kIsKey ? first : second, barrier);
    load_row(&key_task.query, values(stage), first, second, barrier);
    load_row(&key_task.value, Plan::kIsKey ? block.value(stage, 0) : block.key(stage, 0), first, second, barrier);  // q
    if constexpr (Plan::kIsKey) {
      load_tile(keys(stage), &value_task.query, second, barrier);
    } else {
      load_row(&value_task.query, keys(stage), first, second, barrier);
    }
  }
  __device__ __forceinline__ static void load_row(const TensorMap* map, uint32_t tile, const TileCoordinates& first,
                                                  const TileCoordinates& second, uint32_t barrier) {
    load_tile(tile, map, first, barrier);
    load_tile(tile + Plan::kBoxBytes, map, second, barrier);
  }

  // -d of a chunk.
  __device__ __forceinline__ uint32_t constants(int place) const {
    return block.deltas(place) + Plan::kDeltaParts * Plan::kChunk * 4;
  }

  // What brings w of a chunk into the range of its operands, and out of it; and sums from the chunk walked before.
  __device__ __forceinline__ uint32_t unit_address(int chunk) const {
    return block.base + Plan::kUnitsOffset + chunk * Plan::kBytesOfUnit;
  }
  __device__ __forceinline__ float unit(int chunk) const {
    return Plan::kScaled ? load_float(unit_address(chunk)) : 1.0f;
  }
  __device__ __forceinline__ float inverse_unit(int chunk) const {
    return Plan::kScaled ? load_float(unit_address(chunk) + 4) : 1.0f;
  }
  __device__ __forceinline__ float unit_ratio(int chunk) const {
    return Plan::kScaled ? load_float(unit_address(chunk) + 8) : 1.0f;
  }

  // Whether this thread has seen what is not finite, or not good enough: a register would be one too many.
  __device__ __forceinline__ uint32_t mark_address() const {
    return block.base + Plan::kMarksOffset + static_cast<uint32_t>(threadIdx.x) * 4;
  }
  __device__ __forceinline__ void mark(bool is_bad) const {
    if (is_bad) {
      store_word(mark_address(), 1);
    }
  }
  __device__ __forceinline__ void mark_outputs(Outputs<Plan>& outputs) const {
    if constexpr (Plan::kScaled) {
      mark(outputs.marked_pairs[0] != 0);
      outputs.marked_pairs[0] = 0;
    }
  }
  __device__ __forceinline__ bool has_mark() const { return load_word(mark_address()) != 0; }

  // What a warp has of b da; not finite where its scores are not.
  __device__ __forceinline__ void tell(double sum) const {
    sum = sum_lanes(sum);
    if (threadIdx.x % kWarp == 0) {
      sums_smem()[threadIdx.x / kWarp] = sum;
      barrier_arrive(block.barrier(Plan::kPartialsFull));
    }
  }
  // Once all have told.
  __device__ __forceinline__ double told() const {
    barrier_wait(block.barrier(Plan::kPartialsFull), 0);
    double sum = 0.0;
#pragma unroll 1
    for (int i = 0; i < Plan::kSummingWarps; ++i) {
      sum += sums_smem()[i];
    }
    return sum;
  }
  __device__ __forceinline__ static bool is_finite(double sum) { return 0.0 * sum == 0.0; }
  __device__ __forceinline__ double* sums_smem() const {
    extern __shared__ unsigned char shared[];
    return reinterpret_cast<double*>(shared + (block.base - shared_address(shared)) + Plan::kPartialsOffset);
  }
};

template <class Plan>
struct SweepScore : Scores<Plan> {
  using Base = Scores<Plan>;
  using Base::at;
  using Base::block;
  using Base::lane;
  using Base::warp;
  using Half = typename Plan::Half;
  static constexpr int kRows = 16;          // of a warp
  static constexpr int kConstantParts = 2;  // of 16 bits
  static constexpr int kOnesRow = 3;        // behind the weights: what adds up the rows of z
  static constexpr int kBarrier = 4;        // behind those of the roles with outputs
  // What a single warp does is spread over the warps, since each of them has a quarter of the SM to itself, with an
  // instruction cache of its own; so that the first, with the most weights, has none.
  static constexpr int kFirstAddingWarp = 2;  // of d
  static constexpr int kAskingWarp = 3;

  SweepTiles<Plan> tiles;
  RingPosition<Plan::kRowPlaces> rows_at;
  float slope;               // b
  float sum = 0.0f;          // of E, and of d times the tokens before its row that are in other chunks, taken off
  float later_delta = 0.0f;  // of a row of each chunk after
  const float* normalizer_gmem;  // of the row `lane` of the item

  __device__ __forceinline__ SweepScore(const Block<Plan>& shared, int warp_in_group, int lane_idx)
      : Base(shared, warp_in_group, lane_idx),
        tiles(shared),
        slope(shared.slope_of(0)),
        normalizer_gmem(row_address<const float>(shared.chunked().normalizer, shared.work.batch, shared.work.head,
                                                 static_cast<int64_t>(shared.work.start) + lane_idx)) {}

  __device__ __forceinline__ void run() {
    ask(0);
    ask(1);
    for (int chunk = 0; chunk < block.num_chunks; ++chunk) {
      barrier_wait(tiles.full(at.index()), at.parity());
      ask(chunk + 2);
      barrier_wait(block.rows_full(rows_at.index()), rows_at.parity());
      const int num_rows = block.rows(chunk);
      weigh_rows(chunk, num_rows);
      send_delta(num_rows);
      barrier_arrive(tiles.ready(at.index()));
      barrier_wait(tiles.ready(at.index()), at.parity());
      // One copy of the code: what runs side by side has to fit the instruction caches of a quarter of the SM.
#pragma unroll 1
      for (int tile = Plan::kIsKey ? 1 : 0; tile < 2; ++tile) {
        weigh(chunk, tile == 1, num_rows);
      }
      arrive_once_a_warp(tiles.empty(at.index()), lane);
      at.advance();
      rows_at.advance();
    }
    tiles.tell(sum - static_cast<double>(block.work.count) * later_delta);
  }

  // For g of the rows of a chunk.
  __device__ __forceinline__ void ask(int chunk) const {
    if (warp != kAskingWarp || chunk >= block.num_chunks) {
      return;
    }
    const int place = chunk % Plan::kRowPlaces;
    const int first_token = block.first_token(chunk);
#pragma unroll
    for (int row = 0; row < Plan::kChunk; row += kWarp) {
      if (first_token + row + lane < block.work.tokens) {
        copy_word_async(block.normalizers(place) + (row + lane) * 4,
                        normalizer_gmem + (first_token + row) * block.chunked().normalizer.token_stride);
      }
    }
    arrive_with_words(block.rows_full(place));
  }

  // Rows of dO times b / g, those of this warp.
  __device__ __forceinline__ void weigh_rows(int chunk, int num_rows) const {
    const int own = warp * kRows + (lane & 15);
    const float in_unit = slope * tiles.unit(chunk);
    const float weight =
        own < num_rows ? in_unit * reciprocal(load_float(block.normalizers(rows_at.index()) + own * 4)) : 0.0f;
    const uint32_t tile = tiles.output_gradient(at.index());
#pragma unroll 1
    for (int i = 0; i < kRows / 4; ++i) {
      const float factor = __shfl_sync(kAllLanes, weight, i * 4 + (lane >> 3));
      const uint32_t address = tile + swizzled(warp * kRows + i * 4 + (lane >> 3), lane & 7);
      const uint4 first = load_unit(address);
      const uint4 second = load_unit(address + Plan::kBoxBytes);
      store_unit(address, weighed(first, factor));
      store_unit(address + Plan::kBoxBytes, weighed(second, factor));
    }
    publish_to_async_proxy();
    __syncwarp();
  }
  __device__ __forceinline__ static uint4 weighed(const uint4& unit, float factor) {
    const float2 factors = make_float2(factor, factor);
    return make_uint4(Half::weigh(unit.x, factors), Half::weigh(unit.y, factors), Half::weigh(unit.z, factors),
                      Half::weigh(unit.w, factors));
  }

  // o . w of 64 columns, the diagonal of a product of tiles, to both blocks.
  __device__ __forceinline__ void send_delta(int num_rows) const {
    constexpr int kChains = 2;  // of sums, because a product waits for the one before
    const int part = Plan::kIsKey ? 0 : 1;
    float first_frag[kChains][4] = {};
    float second_frag[kChains][4] = {};
    const uint32_t weighed_rows = tiles.output_gradient(at.index()) + part * Plan::kBoxBytes;
    const uint32_t output_rows = block.stage(at.index()) + Plan::kRowsOffset;
    // Of o the two words that belong to a product come side by side, so that no register has to be moved.
    const uint32_t first_unit = swizzled(warp * kRows + (lane & 15), lane >> 4);
    const uint32_t first_output_unit = swizzled(warp * kRows + (lane & 7) + (lane >> 4) * 8, lane >> 3 & 1);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const uint32_t further = step * 2 * kUnitBytes;  // bits of the unit alone
      uint32_t gradient[4];
      uint32_t output[4];
      load_matrices(weighed_rows + (first_unit ^ further), gradient);
      load_matrices(output_rows + (first_output_unit ^ further), output);
      Half::add_product(first_frag[step % kChains], gradient, output[0], output[1]);
      Half::add_product(second_frag[step % kChains], gradient, output[2], output[3]);
    }
    const bool odd = (lane >> 2 & 1) != 0;
    const float first = odd ? first_frag[0][1] + first_frag[1][1] : first_frag[0][0] + first_frag[1][0];
    const float second = odd ? second_frag[0][3] + second_frag[1][3] : second_frag[0][2] + second_frag[1][2];
    const uint32_t barrier = tiles.delta_full(rows_at.index());
    if (warp == 0 && lane == 0) {
      barrier_expect(barrier, Plan::kDeltaParts * Plan::kChunk * 4);
    }
    if ((lane & 3) == lane >> 3) {  // it has the diagonal
      const int row = this->row();
      const uint32_t word = block.deltas(rows_at.index()) + (part * Plan::kChunk + row) * 4;
#pragma unroll
      for (uint32_t rank = 0; rank < 2; ++rank) {
        const uint32_t to = address_in_block(word, rank);
        const uint32_t at_barrier = address_in_block(barrier, rank);
        store_float_async(to, row < num_rows ? first : 0.0f, at_barrier);
        store_float_async(to + 32, row + 8 < num_rows ? second : 0.0f, at_barrier);
      }
    }
    reads_are_used();
  }

  // -d of the chunk, once both parts have come.
  __device__ __forceinline__ void add_deltas(int chunk, int num_rows) {
    barrier_wait(tiles.delta_full(rows_at.index()), rows_at.parity());
    if (warp >= kFirstAddingWarp) {  // a row each
      const int row = (warp - kFirstAddingWarp) * kWarp + lane;
      const uint32_t word = block.deltas(rows_at.index()) + row * 4;
      const float delta = load_float(word) + load_float(word + Plan::kChunk * 4);
      store_float(tiles.constants(rows_at.index()) + row * 4, -delta);
      sum -= num_rows * later_delta;
      const float inverse = tiles.inverse_unit(chunk);
      later_delta += delta * inverse;
      if (Plan::kIsKey && row < num_rows) {  // for a repair
        const ItemWork& work = block.work;
        block.args.gradient.delta[(static_cast<int64_t>(work.batch) * block.chunked().heads + work.head) *
                                      block.chunked().tokens +
                                  work.start + block.first_token(chunk) + row] =
            delta * inverse * load_float(block.normalizers(rows_at.index()) + row * 4) / slope;
      }
    }
    named_barrier(kBarrier, kWarpgroup);
  }

  // E, or W of dv: rows are tokens p, columns tokens i.
  __device__ __forceinline__ void weigh(int chunk, bool entries, int num_rows) {
    const int row = this->row();
    const int buffer = entries ? tiles.entries_buffer(chunk) : tiles.weights_buffer(chunk);
    float scores_frag[Plan::Products::kScoreRegisters];
    pin(scores_frag);
    products_fence();
    const uint64_t x = operand(entries ? tiles.values(at.index()) : block.query(at.index(), 0));
    const uint64_t y = operand(entries ? tiles.output_gradient(at.index()) : block.key(at.index(), 0));
#pragma unroll
    for (int step = 0; step < Plan::kHeadDim / 16; ++step) {
      const int further_on = step / 4 * Plan::kBoxBytes + step % 4 * 32;
      Plan::Products::scores(scores_frag, further(x, further_on), further(y, further_on), step > 0);
    }
    products_commit();
    if (entries) {
      add_deltas(chunk, num_rows);
    }
    products_wait<0>();
    pin(scores_frag);
    const uint32_t constants =
        entries ? tiles.constants(rows_at.index()) : block.base + static_cast<uint32_t>(Plan::kRatiosOffset);
    barrier_wait(tiles.weights_empty(buffer), tiles.parity(chunk) ^ 1);
    const uint32_t weights =
        block.weights(buffer) + swizzled(0, 0) + static_cast<uint32_t>((warp * kRows + (lane & 15)) * kRowBytes);
    float entries_sum = 0.0f;
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {
      if (pair >= warp) {  // below the diagonal are the zeros of the start
        typename Base::Pair weights_frag;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int block8 = 2 * pair + i;
          const int column = 8 * block8 + 2 * (lane & 3);
          const float2 constant = load_float2(constants + column * 4);
          float w0 = scores_frag[4 * block8] + constant.x;
          float w1 = scores_frag[4 * block8 + 1] + constant.y;
          float w2 = scores_frag[4 * block8 + 2] + constant.x;
          float w3 = scores_frag[4 * block8 + 3] + constant.y;
          if (pair == warp) {
            w0 = column >= row ? w0 : 0.0f;
            w1 = column + 1 >= row ? w1 : 0.0f;
            w2 = column >= row + 8 ? w2 : 0.0f;
            w3 = column + 1 >= row + 8 ? w3 : 0.0f;
          }
          entries_sum += (w0 + w1) + (w2 + w3);  // rows past the end are zero
          weights_frag.set(i, w0, w1, w2, w3);
        }
        this->store(weights, pair, weights_frag);
      }
    }
    if (warp == 3) {
      this->template store_constants<kConstantParts>(buffer, load_float2(constants + 8 * lane));
    }
    sum += entries ? entries_sum * tiles.inverse_unit(chunk) : 0.0f * entries_sum;
    publish_to_async_proxy();
    barrier_arrive(tiles.weights_full(buffer));
  }
};

// Not finite where an element is not.
template <class Plan>
__device__ __forceinline__ float sum_of_state(const State<Plan>& state) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < Plan::kStateRegisters; ++i) {
    sum += 0.0f * state.state_frag[0][i];
  }
  return sum;
}

// O^T = S^T Q^T, a part of the key columns after the other; the product of the last is waited for, or still under way.
template <bool kWaits, class Plan>
__device__ __forceinline__ void multiply_state(State<Plan>& state, float (&outputs_frag)[36], uint64_t query) {
#pragma unroll
  for (int part = 0; part < State<Plan>::kQueryParts; ++part) {
    uint32_t half_frag[State<Plan>::kPairs];
    state.make_operands(1.0f, part, half_frag);
    state.add_state_query(outputs_frag, half_frag, query, part);
    products_commit();
    if (part + 1 < State<Plan>::kQueryParts || kWaits) {
      products_wait<0>();
      pin(half_frag);
      pin(outputs_frag);
      State<Plan>::pin_parts(state.state_frag);
    }
  }
}

// dk or dv, and its sums over the tokens after.
template <class Plan>
struct SweepState {
  static constexpr int kLoadingWarp = 2;

  const Block<Plan>& block;
  const HopperOneSweepArguments& args;
  SweepTiles<Plan> tiles;
  Outputs<Plan>& outputs;
  State<Plan>& state;
  // Sums of rows of z without a factor, of this thread's two columns; in lanes that have the column of ones.
  float first_rows = 0.0f;
  float second_rows = 0.0f;
  double sum = 0.0;  // of v . w over the chunks after each v

  __device__ __forceinline__ SweepState(const HopperOneSweepArguments& all, State<Plan>& sums)
      : block(sums.block), args(all), tiles(sums.block), outputs(sums.outputs), state(sums) {}

  // Not the warp that starts the copies of outputs.
  __device__ __forceinline__ bool loads() const {
    return outputs.box == 0 && outputs.warp == kLoadingWarp && outputs.lane == 0;
  }

  __device__ __forceinline__ void run() {
    if (loads()) {
      for (int chunk = 0; chunk < Plan::kStages && chunk < block.num_chunks; ++chunk) {
        tiles.load(args, chunk, chunk);
      }
    }
    __syncwarp();
    state.start();
    outputs.start();
    RingPosition<Plan::kStages> at;
    for (int chunk = 0; chunk < block.num_chunks; ++chunk) {
      walk(chunk, at);
      at.advance();
    }
    if (Plan::kScaled && block.num_chunks > 0) {
      scale_sums(tiles.inverse_unit(block.num_chunks - 1));
    }
    outputs.finish();
    state.finish();
    if constexpr (!Plan::kIsKey) {
      add_first_values();
      tiles.tell((outputs.lane & 3) == 1 ? sum : 0.0);
    }
    tiles.mark(sum_of_state<Plan>(state) + outputs.all_marks() != 0.0f);
    const bool marked = outputs.is_marked(tiles.has_mark());
    if (outputs.leads()) {
      const int64_t item = StateAddress<Plan>::block_number(block);
      block.chunked().marks[Plan::kBoxes * item + outputs.box] = marked || !tiles.is_finite(tiles.told());
    }
  }

  // The tokens before the first one.
  __device__ __forceinline__ void add_first_values() {
    if (args.first_value_sum != nullptr) {
      const auto tile = tile_of<Plan>(block.chunked(), StateAddress<Plan>::block_number(block));
      const float* const value_gmem = args.first_value_sum + tile.value_sum_offset(block.chunked()) +
                                      outputs.box * Plan::kBoxColumns + outputs.value_column();
      sum += static_cast<double>(first_rows) * value_gmem[0] + static_cast<double>(second_rows) * value_gmem[8];
    }
  }

  __device__ __forceinline__ void scale_sums(float ratio) {
    if (Plan::kScaled && __builtin_expect(ratio != 1.0f, 0)) {
      state.scale_sums(ratio);
      first_rows *= ratio;
      second_rows *= ratio;
    }
  }

  __device__ __forceinline__ void walk(int chunk, const RingPosition<Plan::kStages>& at) {
    const int lane = outputs.lane;
    float outputs_frag[36];
    outputs_frag[32] = outputs_frag[33] = outputs_frag[34] = outputs_frag[35] = 0.0f;
    barrier_wait(tiles.full(at.index()), at.parity());
    const uint64_t query = operand(block.query(at.index(), 0));
    scale_sums(tiles.unit_ratio(chunk));
    multiply_state<!Plan::kIsKey>(state, outputs_frag, query);
    if constexpr (!Plan::kIsKey) {
      add_values(chunk, at.index());
    }
    const int buffer = tiles.weights_buffer(chunk);
    barrier_wait(tiles.weights_full(buffer), tiles.parity(chunk));
    pin(outputs_frag);
    products_fence();
    const uint64_t value = operand(block.value(at.index(), outputs.box));
    outputs.template add_value_weights<4>(outputs_frag, value, operand(block.weights(buffer)), true);
    products_commit();
    state.add_chunk(value, operand(block.key(at.index(), 0), Plan::kBoxBytes));
    products_commit();
    products_wait<1>();
    pin(outputs_frag);
    const bool has_rows = (lane & 3) == 1;
    const float first = has_rows ? outputs_frag[33] : 0.0f;
    const float second = has_rows ? outputs_frag[35] : 0.0f;
    outputs_frag[33] -= first;
    outputs_frag[35] -= second;
    write(outputs_frag, chunk, buffer);
    products_wait<0>();
    State<Plan>::pin_parts(state.state_frag);
    first_rows += first;
    second_rows += second;
    arrive_once_a_warp(tiles.empty(at.index()), lane);
    if (loads() && chunk + Plan::kStages < block.num_chunks) {
      barrier_wait(tiles.empty(at.index()), at.parity());
      tiles.load(args, chunk + Plan::kStages, at.index());
    }
    __syncwarp();
  }

  __device__ __forceinline__ void write(float (&outputs_frag)[36], int chunk, int buffer) {
    if constexpr (Plan::kScaled) {
      const float inverse = tiles.inverse_unit(chunk);  // read where it is used: a register would be one too many
      const float first = outputs.first_sum * inverse;
      const float second = outputs.second_sum * inverse;
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        outputs_frag[i] = fmaf(outputs_frag[i], inverse, i % 4 < 2 ? first : second);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        outputs_frag[i] += i % 4 < 2 ? outputs.first_sum : outputs.second_sum;
      }
    }
    outputs.add_value_sums(outputs_frag[32] + outputs_frag[33], outputs_frag[34] + outputs_frag[35]);
    barrier_arrive(tiles.weights_empty(buffer));
    const uint32_t tile = block.outputs(outputs.box * Plan::kOutputBuffers + chunk % Plan::kOutputBuffers);
    outputs.stage_halves(outputs_frag, tile);
    tiles.mark_outputs(outputs);
    publish_to_async_proxy();
    if (outputs.leads()) {
      wait_for_stores_to_read<Plan::kOutputBuffers - 2>();
    }
    named_barrier(outputs.barrier_number(), kWarpgroup);
    if (outputs.leads()) {
      outputs.start_store(tile, chunk);
    }
  }

  // The sum of the chunk's v with the rows after. By products of their own, while the weights are not there yet:
  // beside others they would take registers.
  __device__ __forceinline__ void add_values(int chunk, int stage) {
    float values_frag[4] = {};  // in each column
    pin(values_frag);
    products_fence();
    const uint64_t rows = operand(tiles.values(stage) + outputs.box * Plan::kBoxBytes);
    const uint64_t ones = operand(tiles.ones());
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      Plan::Products::value_sums(values_frag, rows_further(rows, step), further(ones, step * 32), step > 0);
    }
    products_commit();
    products_wait<0>();
    pin(values_frag);
    sum += fmaf(values_frag[0], first_rows, values_frag[2] * second_rows) * tiles.inverse_unit(chunk);
  }
};

// 64 columns of dq, with S and z of the tokens before each chunk: rows of S^T's transpose are these columns of k.
template <class Plan>
struct SweepPrefix {
  // What is left of S once all is taken out, against S after the first chunk: beyond, early rows of dq have lost
  // digits.
  static constexpr float kMostLeft = 0x1p-6f;

  const Block<Plan>& block;
  const HopperOneSweepArguments& args;
  SweepTiles<Plan> tiles;
  Outputs<Plan>& outputs;  // its buffer and its barrier
  State<Plan>& state;
  float key_sums_frag[4];  // z of this thread's two columns, twice each

  __device__ __forceinline__ SweepPrefix(const HopperOneSweepArguments& all, State<Plan>& sums)
      : block(sums.block), args(all), tiles(sums.block), outputs(sums.outputs), state(sums) {}

  __device__ __forceinline__ void run() {
    // Products under a condition would make the compiler wait for each: what is not wanted is thrown away.
    load(args.last_state, args.last_key_sum, [](float& element, float x) { element = x; });
    if (block.num_chunks > 0) {
      barrier_wait(tiles.full(0), 0);
    }
    take(0);
    wait_for_take();
    if (block.num_chunks == 1) {
      tiles.mark(sum_of_state<Plan>(state) != 0.0f);  // where its keys or values are not finite
      load(args.first_state, args.first_key_sum, [](float& element, float x) { element = x; });
    }
    RingPosition<Plan::kStages> at;
    // The last chunk of the walk starts from what is known before it. What happens once stands behind the loop: between
    // the instructions of every chunk it costs fp16 a twentieth of the time.
    int chunk = 0;
    for (int end = block.num_chunks - 2; end <= block.num_chunks; ++end) {
      for (; chunk < end; ++chunk) {
        walk(chunk, at);
        at.advance();
      }
      if (chunk + 2 == block.num_chunks) {
        keep_largest();
      } else if (chunk + 1 == block.num_chunks && chunk > 0) {
        start_from_first();
      }
    }
    if (outputs.leads()) {
      wait_for_stores();
    }
    write_mark();
  }

  // Hands each element and what stands for it in memory, zero where there is none, to a function.
  template <typename Take>
  __device__ __forceinline__ void load(const float* states_gmem, const float* sums_gmem, Take&& take) {
    const ChunkedArguments& chunked = block.chunked();
    const auto tile = tile_of<Plan>(chunked, StateAddress<Plan>::block_number(block));
    const int64_t row = tile.state * Plan::kHeadDim + tiles.key_box() * Plan::kBoxColumns + outputs.value_column();
    const float* entry_gmem = states_gmem + row * Plan::kHeadDim + 2 * (outputs.lane & 3);
#pragma unroll
    for (int j = 0; j < State<Plan>::kColumns8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        take(State<Plan>::element(state.state_frag, j, i),
             states_gmem == nullptr ? 0.0f : entry_gmem[i / 2 * 8 * Plan::kHeadDim + i % 2]);
      }
      entry_gmem = State<Plan>::after(entry_gmem, 8);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      take(key_sums_frag[i], sums_gmem == nullptr ? 0.0f : sums_gmem[row + i / 2 * 8]);
    }
  }

  // Starts to take the keys and values of a stage out of S and z.
  __device__ __forceinline__ void take(int stage) {
    State<Plan>::pin_parts(state.state_frag);
    pin(key_sums_frag);
    products_fence();
    const uint64_t key = operand(tiles.keys(stage));
    const uint64_t value = operand(tiles.values(stage), Plan::kBoxBytes);
    const uint64_t ones = operand(tiles.ones());
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      Plan::Products::take_key_value(state.state_frag[0], rows_further(key, step), rows_further(value, step), 1);
    }
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      Plan::Products::take_key_sums(key_sums_frag, rows_further(key, step), further(ones, step * 32), 1);
    }
    products_commit();
  }
  __device__ __forceinline__ void wait_for_take() {
    products_wait<0>();
    State<Plan>::pin_parts(state.state_frag);
    pin(key_sums_frag);
  }

  __device__ __forceinline__ void walk(int chunk, const RingPosition<Plan::kStages>& at) {
    const int lane = outputs.lane;
    float outputs_frag[36];
    barrier_wait(tiles.ready(at.index()), at.parity());
    const uint64_t query = operand(tiles.output_gradient(at.index()));
    multiply_state<false>(state, outputs_frag, query);
    const int buffer = tiles.entries_buffer(chunk);
    barrier_wait(tiles.weights_full(buffer), tiles.parity(chunk));
    products_wait<0>();  // the registers of its operands are wanted
    pin(outputs_frag);
    uint32_t sums_frag[4];
    split_key_sums(sums_frag);
    pin(sums_frag);
    pin(outputs_frag);
    products_fence();
    const uint64_t key = operand(tiles.keys(at.index()));
    const uint64_t entries = operand(block.weights(buffer));
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      Plan::Products::key_entries(outputs_frag, rows_further(key, step), rows_further(entries, step), 1);
    }
    Plan::Products::key_sums_constants(outputs_frag, sums_frag, eight_rows(block.weights(buffer) + Plan::kBoxBytes), 1);
    products_commit();
    products_wait<0>();
    pin(sums_frag);
    pin(outputs_frag);
    State<Plan>::pin_parts(state.state_frag);
    arrive_once_a_warp(tiles.weights_empty(buffer), lane);
    const RingPosition<Plan::kStages> next_at = at.ahead(1);
    if (chunk + 1 < block.num_chunks) {
      barrier_wait(tiles.full(next_at.index()), next_at.parity());
    }
    take(next_at.index());  // while the outputs leave
    write(outputs_frag, chunk);
    arrive_once_a_warp(tiles.empty(at.index()), lane);
    wait_for_take();
  }

  // Of S after the item's first chunk, for start_from_first().
  __device__ __forceinline__ void keep_largest() const {
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < Plan::kStateRegisters; ++i) {
      largest = fmaxf(largest, fabsf(state.state_frag[0][i]));
    }
    largest = max_lanes<kWarp>(largest);
    if (outputs.lane == 0) {
      store_float(largest_word(), largest);
    }
  }
  __device__ __forceinline__ uint32_t largest_word() const {
    return block.base + Plan::kPartialsOffset + Plan::kPartialsBytes / 2 + outputs.warp * 4;
  }

  // Before the first chunk S is known: what has come of it says how good it was.
  __device__ __forceinline__ void start_from_first() {
    const float mark = sum_of_state<Plan>(state);  // products with NaN leave NaN
    float left = 0.0f;
    load(args.first_state, args.first_key_sum, [&](float& element, float x) {
      left = fmaxf(left, fabsf(element - x));
      element = fmaf(element, 0.0f, x);  // in its place: a copy of x would take registers
    });
    __syncwarp();
    const float largest = load_float(largest_word());
    left = max_lanes<kWarp>(left);
    tiles.mark(mark != 0.0f || (largest > 0.0f && left > kMostLeft * largest));
  }

  // z in two halves, for the two parts of -d each: 16 columns of an operand, of which all others are zero.
  __device__ __forceinline__ void split_key_sums(uint32_t (&sums_frag)[4]) const {
    const bool has_columns = (outputs.lane & 3) == 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float sum = has_columns ? key_sums_frag[2 * i] : 0.0f;
      sums_frag[i] = Plan::Half::pack(sum, sum);
      const float rest = sum - Plan::Half::low(sums_frag[i]);
      sums_frag[2 + i] = Plan::Half::pack(rest, rest);
    }
  }
  // Eight rows as an operand that has sixteen.
  __device__ __forceinline__ static uint64_t eight_rows(uint32_t tile) {
    constexpr uint64_t kFurtherRows = static_cast<uint64_t>(0x3fff) << 32;
    return operand(tile) & ~kFurtherRows;
  }

  __device__ __forceinline__ void write(float (&outputs_frag)[36], int chunk) {
    if constexpr (Plan::kScaled) {
      const float inverse = tiles.inverse_unit(chunk);
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        outputs_frag[i] *= inverse;
      }
    }
    const uint32_t tile = block.outputs(Plan::kOutputTiles - 1);
    outputs.reuse_buffer();
    outputs.stage_halves(outputs_frag, tile);
    tiles.mark_outputs(outputs);
    publish_to_async_proxy();
    named_barrier(outputs.barrier_number(), kWarpgroup);
    if (outputs.leads()) {
      const ItemWork& work = block.work;
      store_tile(&args.query_gradient,
                 {tiles.key_box() * Plan::kBoxColumns, work.start + block.first_token(chunk), work.head, work.batch},
                 tile);
      commit_stores();
    }
  }

  // The mark of the columns, and where they are the first ones the terms of da.
  __device__ __forceinline__ void write_mark() const {
    const bool marked = outputs.is_marked(tiles.has_mark());
    if (!outputs.leads()) {
      return;
    }
    const int64_t item = StateAddress<Plan>::block_number(block);
    const double sum = tiles.told();
    if constexpr (!Plan::kIsKey) {
      double* const partial_gmem = block.args.gradient.partials + 2 * Plan::kBoxes * item;
      partial_gmem[0] = sum / block.slope_of(0);  // every tile has seen the weights
      partial_gmem[1] = partial_gmem[2] = partial_gmem[3] = 0.0;
    }
    args.query_marks[Plan::kBoxes * item + tiles.key_box()] = marked || !tiles.is_finite(sum);
  }
};

template <class Plan>
__device__ __forceinline__ void init_sweep_barriers(const SweepTiles<Plan>& tiles) {
  const Block<Plan>& block = tiles.block;
  for (int i = 0; i < Plan::kStages; ++i) {
    barrier_init(tiles.full(i), 1);
    barrier_init(tiles.empty(i), Plan::kThreads / kWarp);
    barrier_init(tiles.ready(i), kWarpgroup);
  }
  for (int i = 0; i < Plan::kRowPlaces; ++i) {
    barrier_init(block.rows_full(i), kWarp);
    barrier_init(tiles.delta_full(i), 1);
  }
  for (int i = 0; i < 2; ++i) {
    barrier_init(tiles.weights_full(i), kWarpgroup);
    barrier_init(tiles.weights_empty(i), tiles.weights_readers(i));
  }
  barrier_init(block.barrier(Plan::kPartialsFull), Plan::kSummingWarps);
  barrier_init_fence();
}

// What is not written again: zeros below the diagonal of weights, and rows of ones.
template <class Plan>
__device__ __forceinline__ void clear_sweep_constants(const Block<Plan>& block) {
  constexpr int kWeightUnits = 2 * Plan::kWeightBytes / kUnitBytes;
  for (int i = threadIdx.x; i < kWeightUnits; i += Plan::kThreads) {
    store_unit(block.weights(0) + i * kUnitBytes, make_uint4(0, 0, 0, 0));
  }
  __syncthreads();
  constexpr int kRowWords = kRowBytes / 4;
  constexpr uint32_t kOnesRow = SweepScore<Plan>::kOnesRow * kRowBytes;
  for (int i = threadIdx.x; i < 2 * kRowWords; i += Plan::kThreads) {
    store_word(block.weights(i / kRowWords) + Plan::kBoxBytes + kOnesRow + i % kRowWords * 4, Plan::Half::kOnes);
  }
  for (int i = threadIdx.x; i < 8 * kRowWords; i += Plan::kThreads) {
    store_word(block.base + Plan::kOnesOffset + i * 4, Plan::Half::kOnes);
  }
  store_word(SweepTiles<Plan>(block).mark_address(), 0);
  if (threadIdx.x < Plan::kChunk) {
    store_float(block.base + Plan::kRatiosOffset + threadIdx.x * 4, block.constant_of(0) / block.slope_of(0));
  }
}

// The units of all chunks, the same in both blocks. Of each chunk the largest power of two whose operands are at most
// kMaxHalf, as g of its rows and elements of the first tokens bound them, rounded down to one of few, so that sums
// seldom change theirs. Found one by one between the chunks they would be instructions that caches have no room for.
template <class Plan>
__device__ __forceinline__ void find_units(const HopperOneSweepArguments& args, const SweepTiles<Plan>& tiles,
                                           Extent* extents_smem) {
  constexpr int kExponentStep = 4;
  constexpr int kRowsAtOnce = 32;
  constexpr int kWarps = Plan::kThreads / kWarp;
  const Block<Plan>& block = tiles.block;
  const ItemWork& work = block.work;
  const ChunkedArguments& tensors = args.gradients.tasks[0].gradient.chunked;  // v, dO and q
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp;
  const float* const normalizer_gmem = row_address<const float>(tensors.normalizer, work.batch, work.head, work.start);
  clear_extents(extents_smem);
  float least[Plan::kMostChunks / kWarps];
#pragma unroll
  for (int i = 0; i < Plan::kMostChunks / kWarps; ++i) {
    const int chunk = thread / kWarp + i * kWarps;
    least[i] = INFINITY;
#pragma unroll
    for (int row = lane; row < Plan::kChunk; row += kWarp) {
      if (chunk < block.num_chunks && row < block.rows(chunk)) {
        least[i] = fminf(
            least[i], fabsf(normalizer_gmem[(block.first_token(chunk) + row) * tensors.normalizer.token_stride]));
      }
    }
  }
  static_assert(3 * Plan::kHeadDim <= Plan::kThreads, "a thread for each column");
  const int num_rows = min(Plan::kChunk, work.tokens);
  const int tensor = thread / Plan::kHeadDim;
  if (tensor < 3) {
    measure_column<Plan, kRowsAtOnce>(tensor == 0 ? tensors.query : tensor == 1 ? tensors.key : tensors.value, work.batch, work.head,
                         work.start, thread % Plan::kHeadDim, num_rows, extents_smem + tensor);
  }
  measure_state(block, extents_smem + 3);
#pragma unroll
  for (int i = 0; i < Plan::kMostChunks / kWarps; ++i) {
    const int chunk = thread / kWarp + i * kWarps;
    const float of_chunk = -max_lanes<kWarp>(-least[i]);
    if (chunk < block.num_chunks && lane == 0) {
      store_float(tiles.unit_address(chunk), of_chunk);
    }
  }
  __syncthreads();
  if (thread < block.num_chunks) {
    const float values = 2.0f * size_of(__uint_as_float(extents_smem[0].largest));
    const float gradients = 2.0f * size_of(__uint_as_float(extents_smem[1].largest));
    const float squares = __uint_as_float(extents_smem[1].squares) / num_rows *
                          (__uint_as_float(extents_smem[2].squares) / num_rows);
    const float row_limit = fmaxf(1.0f, gradients * fmaxf(1.0f, 2.0f * Plan::kHeadDim * values));
    const float state_limit = kMargin * sqrtf(squares) * static_cast<float>(work.tokens - block.first_token(thread));
    const float weight = fabsf(block.slope_of(0)) * reciprocal(load_float(tiles.unit_address(thread)));
    const float limit = fmaf(weight, fmaxf(row_limit, state_limit), __uint_as_float(extents_smem[3].largest));
    const int exponent = exponent_of(kMaxHalf * reciprocal(limit));
    const float unit = power_of_two(exponent & -kExponentStep);
    store_float(tiles.unit_address(thread), unit);
    store_float(tiles.unit_address(thread) + 4, inverse_of_power(unit));
  }
  __syncthreads();
  if (thread < block.num_chunks) {
    const float unit = tiles.unit(thread);
    store_float(tiles.unit_address(thread) + 8, thread == 0 ? unit : unit * tiles.inverse_unit(thread - 1));
  }
}

template <class Plan>
__device__ __forceinline__ void walk_one_sweep(const HopperOneSweepArguments& args) {
  extern __shared__ unsigned char shared[];
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarp, 0);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const uint32_t start = shared_address(shared);
  const uint32_t base = (start + Plan::kAlignment - 1) & ~static_cast<uint32_t>(Plan::kAlignment - 1);
  const GradientArguments& first = args.gradients.tasks[0].gradient;
  const HopperGradient& task = args.gradients.tasks[Plan::kIsKey ? 0 : 1];
  auto* const work_smem = reinterpret_cast<ItemWork*>(shared + (base - start) + Plan::kWorkOffset);
  const ItemWork item(tile_of<Plan>(task.gradient.chunked, number_in_task<Plan>(first, blockIdx.x)), task.gradient, 0);
  if (threadIdx.x == 0) {
    *work_smem = item;
  }
  static_assert(sizeof(ItemWork) <= 56, "its place in shared memory");
  const Block<Plan> block{task, *work_smem, base, chunks_of<Plan>(item.tokens)};
  const SweepTiles<Plan> tiles(block);
  if (threadIdx.x == 0) {
    init_sweep_barriers(tiles);
  }
  __syncthreads();
  clear_sweep_constants(block);
  publish_to_async_proxy();
  if constexpr (Plan::kScaled) {
    find_units(args, tiles, reinterpret_cast<Extent*>(shared + (base - start) + Plan::kExtentsOffset));
  }
  __syncthreads();
  cluster_sync();
  const int warpgroup = warp / 4;
  if (warpgroup < Plan::kStateGroup) {
    Plan::Spec::Registers::score();
    SweepScore<Plan>(block, warp, lane).run();
  } else {
    Plan::Spec::Registers::state();
    Outputs<Plan> outputs(block, warpgroup - Plan::kStateGroup, warp & 3, lane);
    State<Plan> state(block, outputs);
    if (warpgroup < Plan::kPrefixGroup) {
      SweepState<Plan>(args, state).run();
    } else {
      SweepPrefix<Plan>(args, state).run();
    }
  }
  cluster_sync();
}

template <class Plan>
__device__ __forceinline__ void one_sweep(const HopperOneSweepArguments& args) {
  if (task_of<Plan>(args.gradients.tasks[0].gradient, blockIdx.x) == 0) {
    walk_one_sweep<Plan>(args);
  } else {
    walk_one_sweep<OneSweepPlan<typename Plan::Spec, false>>(args);
  }
}

}  // namespace hopper
}  // namespace linattn
