// The score role of the forward, and of the gradient of q.
#pragma once

#include "linattn/hopper_auxiliary.cuh"
#include "linattn/hopper_block.cuh"
#include "linattn/hopper_producer.cuh"
#include "linattn/hopper_score_exchange.cuh"

namespace linattn {
namespace hopper {

// Q K^T of a chunk and the way of weights to shared memory. A warp has 16 rows; pair i of its accumulators are
// the columns from 16 i on, of which a thread has 2 t, 2 t + 1 and 8 more of the rows row() and row() + 8.
template <class Plan>
struct Scores {
  using Half = typename Plan::Half;
  using Products = typename Plan::Products;
  static constexpr int kSteps = (Plan::kHeadDim + 15) / 16;

  const Block<Plan>& block;
  int warp;
  int lane;
  RingPosition<Plan::kStages> at;
  RingPosition<Plan::kWeightBuffers> weights_at;
  // Of pairs of boxes: the next that comes, and that is given back.
  RingPosition<Plan::kStreams ? Plan::kPairs : 1> pair_at;
  RingPosition<Plan::kStreams ? Plan::kPairs : 1> given_back_at;
  ScoreExchange<Plan> exchange;

  __device__ __forceinline__ Scores(const Block<Plan>& shared, int warp_in_group, int lane_idx)
      : block(shared), warp(warp_in_group), lane(lane_idx), exchange(shared) {}

  __device__ __forceinline__ int row() const { return warp * 16 + (lane >> 2); }

  __device__ __forceinline__ void start_products(float (&scores_frag)[Products::kScoreRegisters]) {
    if constexpr (Plan::kStreams) {
      start_pairs(scores_frag);
    } else {
      start_chunk(scores_frag);
    }
  }

  __device__ __forceinline__ void start_chunk(float (&scores_frag)[Products::kScoreRegisters]) const {
    barrier_wait(block.query_full(at.index()), at.parity());
    if constexpr (Plan::kApart) {
      barrier_wait(block.key_full(at.index()), at.parity());
    }
    barrier_wait(block.barrier(Plan::kReady, at.index()), at.parity());
    pin(scores_frag);
    products_fence();
    const uint64_t query = operand(block.query(at.index(), 0));
    const uint64_t key = operand(block.key(at.index(), 0));
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      multiply(scores_frag, further(query, step / 4 * Plan::kQueryBox + step % 4 * 32),
               further(key, step / 4 * Plan::kKeyBox + step % 4 * 32), step > 0);
    }
    products_commit();
  }

  // 16 columns of Q K^T.
  __device__ __forceinline__ static void multiply(float (&scores_frag)[Products::kScoreRegisters], uint64_t query,
                                                  uint64_t key, int accumulate) {
    Products::scores(scores_frag, query, key, accumulate);
    if constexpr (Plan::kSplit) {
      Products::scores_of_lower_query(scores_frag, further(query, Plan::kLower), key, 1);
    }
    if constexpr (Plan::kSplit && !Plan::kScoresApart) {
      Products::scores(scores_frag, query, further(key, Plan::kLowerKey), 1);
    }
  }

  // The same of pairs of boxes as they come; all but the last are given back. Where two blocks may share the scores products
  // end here; where they do, they are of half of the boxes and go to the other block.
  __device__ __forceinline__ void start_pairs(float (&scores_frag)[Products::kScoreRegisters]) {
    pin(scores_frag);
#pragma unroll
    for (int box = 0; box < Plan::kBoxes; ++box) {
      if (!block.multiplies_scores(box)) {
        break;
      }
      barrier_wait(block.pair_full(pair_at.index()), pair_at.parity());
      products_fence();
      const uint64_t query = operand(block.pair_query(pair_at.index()));
      const uint64_t key = operand(block.pair_key(pair_at.index()));
#pragma unroll
      for (int step = 0; step < 4 && 4 * box + step < kSteps; ++step) {
        multiply(scores_frag, further(query, step * 32), further(key, step * 32), box + step > 0);
      }
      products_commit();
      pair_at.advance();
      if (box > 0) {
        products_wait<1>();
        give_back_pair();
      }
    }
    if constexpr (Plan::kSharesScores) {
      end_products(scores_frag);
      if (block.shares_scores()) {
        exchange.send(scores_frag, warp, lane);
      }
    }
    if constexpr (Plan::kReverse) {
      barrier_wait(block.barrier(Plan::kReady, at.index()), at.parity());
    }
  }

  // The first that was not given back.
  __device__ __forceinline__ void give_back_pair() {
    arrive_once_a_warp(block.pair_empty(given_back_at.index()), lane);
    given_back_at.advance();
  }

  // Whether this lane reads of a stage what threads wrote.
  __device__ __forceinline__ bool reads() const {
    if constexpr (Plan::kNormalize) {
      return true;
    } else if constexpr (Plan::kQueryGradient) {
      return (lane & 3) == 0;
    } else if constexpr (Plan::kReverse) {
      return lane < 4 || warp == 3 || (Plan::kKeepsScales && (lane & 3) == 0);
    } else {
      return lane == 0;
    }
  }

  __device__ __forceinline__ void give_back_keys() const {
    __syncwarp();
    if (reads()) {
      barrier_arrive(block.key_empty(at.index()));
    }
  }

  // Gives back the pairs of boxes of a chunk that the other block multiplies.
  __device__ __forceinline__ void pass_pairs() {
#pragma unroll 1
    for (int box = Plan::kBoxes / 2; box < Plan::kBoxes; ++box) {
      barrier_wait(block.pair_full(pair_at.index()), pair_at.parity());  // synccheck wants each phase awaited
      pair_at.advance();
      give_back_pair();
    }
  }

  // Once the weights have been stored.
  __device__ __forceinline__ void give_back_shared() {
    if constexpr (Plan::kSharesScores) {
      if (block.shares_scores()) {
        exchange.give_back(lane);
        if constexpr (!Plan::kQueryGradient) {
          pass_pairs();
        }
      }
    }
  }

  __device__ __forceinline__ void finish_products(float (&scores_frag)[Products::kScoreRegisters]) {
    if constexpr (Plan::kSharesScores) {
      if (block.shares_scores()) {
        if constexpr (Plan::kQueryGradient) {  // they are there by now: the last part of d is of the last
          pass_pairs();
        }
        exchange.add(scores_frag, warp, lane);
      }
    } else {
      end_products(scores_frag);
    }
  }

  __device__ __forceinline__ void end_products(float (&scores_frag)[Products::kScoreRegisters]) {
    products_wait<0>();
    pin(scores_frag);
    if constexpr (Plan::kStreams) {
      give_back_pair();
    } else {
      if constexpr (!Plan::kReverse) {  // it still reads what belongs to the stage
        give_back_keys();
      }
      if constexpr (Plan::kApart) {
        arrive_once_a_warp(block.query_read(at.index()), lane);
      }
    }
    if constexpr (Plan::kScoresApart) {
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        scores_frag[i] += scores_frag[Plan::kLowerScores + i];
      }
    }
  }

  // Waits until W may be written; its rows of this warp.
  __device__ __forceinline__ uint32_t weights_row() {
    barrier_wait(block.barrier(Plan::kWeightsEmpty, weights_at.index()), weights_at.parity() ^ 1);
    return block.weights(weights_at.index()) + swizzled(0, 0) +
           static_cast<uint32_t>((warp * 16 + (lane & 15)) * kRowBytes);
  }

  // Stores four weights of a pair at a time, those of rows row() and row() + 8.
  struct Pair {
    uint32_t upper_frag[4];
    uint32_t lower_frag[4];

    __device__ __forceinline__ void set(int block8, float w0, float w1, float w2, float w3) {
      if constexpr (Plan::kSplit) {
        split<Half>(w0, w1, upper_frag[2 * block8], lower_frag[2 * block8]);
        split<Half>(w2, w3, upper_frag[2 * block8 + 1], lower_frag[2 * block8 + 1]);
      } else {
        upper_frag[2 * block8] = Half::pack(w0, w1);
        upper_frag[2 * block8 + 1] = Half::pack(w2, w3);
      }
    }
  };

  __device__ __forceinline__ void store(uint32_t weights, int pair, const Pair& weights_frag) const {
    const uint32_t matrices = weights + (((2 * pair + (lane >> 4)) ^ (lane & 7)) * kUnitBytes);
    store_matrices(matrices, weights_frag.upper_frag);
    if constexpr (Plan::kSplit) {
      store_matrices(matrices + Plan::kLowerWeights, weights_frag.lower_frag);
    }
  }

  // The constants of columns 2 lane and 2 lane + 1 of W, in parts of 16 bits, each a row behind the weights: the products
  // add up constant times z there.
  template <int kParts>
  __device__ __forceinline__ void store_constants(int buffer, float2 constants) const {
    const uint32_t rows = block.weights(buffer) + Plan::kBoxBytes + (lane & 3) * 4;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const uint32_t pair = Half::pack(constants.x, constants.y);
      store_word(rows + swizzled(part, lane >> 2), pair);
      constants.x -= Half::low(pair);
      constants.y -= Half::high(pair);
    }
  }
};

// What the scores of a gradient read of rows row and row + 8 of a chunk. Nobody asked for those past the end.
template <class Plan, bool kRead = Plan::kQueryGradient>
struct GradientRows {
  float delta[2];
  float normalizer[2];

  __device__ __forceinline__ GradientRows(const Block<Plan>& block, int place, int row, int num_rows) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int i = 0; i < 2; ++i) {  // a lane reads for the four of its row
      const bool reads = (lane & 3) == 0 && row + 8 * i < num_rows;
      if constexpr (!Plan::kDeltaBeside) {
        normalizer[i] = read_normalizer(block, place, row + 8 * i, reads);
      }
      if constexpr (!Plan::kDeltaInStage) {
        const uint32_t word = block.deltas(place) + (row + 8 * i) * 4;
        delta[i] = reads ? load_float(word) : 0.0f;
#pragma unroll
        for (int part = 1; part < Plan::kDeltaParts; ++part) {
          delta[i] += reads ? load_float(word + part * Plan::kChunk * 4) : 0.0f;
        }
        delta[i] = __shfl_sync(kAllLanes, delta[i], lane & 28);
      }
    }
  }

  __device__ __forceinline__ static float read_normalizer(const Block<Plan>& block, int place, int row, bool reads) {
    return reads ? load_float(block.normalizers(place) + row * 4) : 1.0f;
  }

  __device__ __forceinline__ float constant(int i, float) const { return -delta[i]; }
};

template <class Plan>
struct GradientRows<Plan, false> {
  __device__ __forceinline__ GradientRows(const Block<Plan>&, int, int, int) {}
  __device__ __forceinline__ static float constant(int, float a) { return a; }
};

// b in the unit of the weights, of columns column and column + 1 of each 8; where keys are weighed, with 1 / |k|.
template <class Plan, bool kWeighted = Plan::kWeighsKeys>
struct ColumnSlopes {
  float2 slopes[Plan::kChunk / 8];

  __device__ __forceinline__ ColumnSlopes(const Block<Plan>& block, int stage_idx, int column, float slope) {
#pragma unroll
    for (int block8 = 0; block8 < Plan::kChunk / 8; ++block8) {
      const float2 weight = load_float2(block.key_weights(stage_idx) + (8 * block8 + column) * 4);
      slopes[block8] = make_float2(slope * weight.x, slope * weight.y);
    }
  }

  __device__ __forceinline__ float2 of(int block8) const { return slopes[block8]; }
};

template <class Plan>
struct ColumnSlopes<Plan, false> {
  float slope;

  __device__ __forceinline__ ColumnSlopes(const Block<Plan>&, int, int, float of_all) : slope(of_all) {}
  __device__ __forceinline__ float2 of(int) const { return make_float2(slope, slope); }
};

template <class Plan>
struct Score : Scores<Plan> {
  using Base = Scores<Plan>;
  using Base::at;
  using Base::block;
  using Base::lane;
  using Base::warp;
  using Base::weights_at;

  float count;  // before the chunk
  float plain_tokens;
  Unit unit;
  float marks = 0.0f;  // NaN once a g was not finite
  double weight_sum = 0.0;  // of a gradient: the weights of each row over its g

  __device__ __forceinline__ Score(const Block<Plan>& shared, int warp_in_group, int lane_idx)
      : Base(shared, warp_in_group, lane_idx),
        count(shared.work.count),
        plain_tokens(shared.plain_tokens()),
        unit(shared.first_unit()) {}

  __device__ __forceinline__ void run() {
    Auxiliary<Plan> auxiliary(block, warp, lane);
    if constexpr (Plan::kMerged) {
      auxiliary.start();
      if (Plan::kScoresProduce && warp == 0 && block.num_chunks > 0) {
        load_chunk(block, 0, at, lane);
      }
    }
    for (int chunk = 0; chunk < block.num_chunks; ++chunk) {
      if constexpr (Plan::kMerged) {
        auxiliary.prepare(chunk, at);
      }
      if (block.writes(chunk)) {
        weigh(chunk);
        weights_at.advance();
      } else {
        barrier_wait(block.key_full(at.index()), at.parity());
        barrier_wait(block.barrier(Plan::kReady, at.index()), at.parity());  // synccheck wants each phase awaited
        wait_for_rows(chunk);
        this->give_back_keys();
      }
      count += Plan::kChunk;
      if constexpr (Plan::kMerged) {
        if (Plan::kScoresProduce && warp == 0 && chunk + 1 < block.num_chunks) {
          RingPosition<Plan::kStages> next_at = at;
          next_at.advance();
          load_chunk(block, chunk + 1, next_at, lane);
        }
        auxiliary.sum_chunk(at);
      }
      at.advance();
    }
    if constexpr (Plan::kMerged) {
      auxiliary.finish();
    }
  }

  __device__ __forceinline__ int wait_for_rows(int chunk) const {
    return Plan::kQueryGradient ? block.wait_for_rows(chunk) : 0;
  }

  // d = o . dO of this warp's rows, the diagonal of a product of tiles, under the products of the scores. Every lane
  // gets those of row() and row() + 8.
  __device__ __forceinline__ void form_delta(float (&delta)[2]) const {
    using Half = typename Plan::Half;
    constexpr int kChains = 2;  // of sums, because a product waits for the one before
    float first_frag[kChains][4] = {};
    float second_frag[kChains][4] = {};
    const int matrix_row = warp * 16 + (lane & 15);
#pragma unroll
    for (int step = 0; step < Base::kSteps; ++step) {
      const uint32_t unit = swizzled(matrix_row, step % 4 * 2 + (lane >> 4));
      uint32_t gradient[4];
      uint32_t output[4];
      load_matrices(block.query(at.index(), step / 4) + unit, gradient);
      load_matrices(block.output_rows(at.index(), step / 4) + unit, output);
      Half::add_product(first_frag[step % kChains], gradient, output[0], output[2]);
      Half::add_product(second_frag[step % kChains], gradient, output[1], output[3]);
    }
    const bool odd = (lane >> 2 & 1) != 0;
    const float first = odd ? first_frag[0][1] + first_frag[1][1] : first_frag[0][0] + first_frag[1][0];
    const float second = odd ? second_frag[0][3] + second_frag[1][3] : second_frag[0][2] + second_frag[1][2];
    const int diagonal_lane = (lane & 28) + (lane >> 3 & 3);
    delta[0] = __shfl_sync(kAllLanes, first, diagonal_lane);
    delta[1] = __shfl_sync(kAllLanes, second, diagonal_lane);
  }

  // d of row() and row() + 8, for the other sweep.
  __device__ __forceinline__ void write_delta(int chunk, const float (&delta)[2]) const {
    const ItemWork& work = block.work;
    if (work.tile == 0 && (lane & 3) == 0) {
      const ChunkedArguments& args = block.chunked();
      const int row = this->row();
      float* const delta_gmem =
          block.args.gradient.delta + (static_cast<int64_t>(work.batch) * args.heads.value + work.head) * args.tokens +
          work.start + block.first_token(chunk) + row;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (row + 8 * i < block.rows(chunk)) {
          delta_gmem[8 * i] = delta[i];
        }
      }
    }
  }

  // W of a chunk, g and the factors of the outputs.
  __device__ __forceinline__ void weigh(int chunk) {
    const ItemWork& work = block.work;
    const int t = lane & 3;
    const int row = this->row();
    float scores_frag[Plan::Products::kScoreRegisters];
    if (block.rows(chunk) < Plan::kChunk) {
      block.wait_for_lengths(at.index(), at.parity());
    }
    this->start_products(scores_frag);
    // Everything is in the unit of O; with normalised rows times |q| as well. Formed under the
    // products, if these have not ended.
    block.follow(count + Plan::kChunk, plain_tokens, unit);
    const float slope = unit.slope;
    const float key_sum_scale = slope * power_of_two(block.key_sum_exponent(count + 1.0f));
    float first_length = 1.0f;
    float second_length = 1.0f;
    block.wait_for_lengths(at.index(), at.parity());
    const ColumnSlopes<Plan> slopes(block, at.index(), 2 * t, slope);
    if constexpr (Plan::kNormalize) {
      const float query_scale = block.scale(kScoreScale);
      first_length = load_float(block.lengths(at.index()) + row * 4) * query_scale;
      second_length = load_float(block.lengths(at.index()) + row * 4 + 32) * query_scale;
    }
    GradientRows<Plan> rows(block, wait_for_rows(chunk), row, block.rows(chunk));
    if constexpr (Plan::kDeltaInStage) {
      form_delta(rows.delta);
    }
    if constexpr (Plan::kFormsDelta && (Plan::kSplit || !Plan::kConverted)) {
      write_delta(chunk, rows.delta);
    }
    const float first_offset = rows.constant(0, work.a) * unit.value * first_length;
    const float second_offset = rows.constant(1, work.a) * unit.value * second_length;
    const float first_before = first_offset * count;
    const float second_before = second_offset * count;
    this->finish_products(scores_frag);
    float first_g = (scores_frag[32] + scores_frag[33]) * key_sum_scale;
    float second_g = (scores_frag[34] + scores_frag[35]) * key_sum_scale;
    const uint32_t weights = this->weights_row();
#pragma unroll
    for (int pair = 0; pair < 4; ++pair) {  // of 8 columns each
      if (pair <= warp) {  // above the diagonal are the zeros of the start
        typename Base::Pair weights_frag;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int block8 = 2 * pair + i;
          const int column = 8 * block8 + 2 * t;
          const float2 slope_of = slopes.of(block8);
          float w0 = fmaf(slope_of.x, scores_frag[4 * block8], first_offset);
          float w1 = fmaf(slope_of.y, scores_frag[4 * block8 + 1], first_offset);
          float w2 = fmaf(slope_of.x, scores_frag[4 * block8 + 2], second_offset);
          float w3 = fmaf(slope_of.y, scores_frag[4 * block8 + 3], second_offset);
          if (pair == warp) {
            w0 = column <= row ? w0 : 0.0f;
            w1 = column + 1 <= row ? w1 : 0.0f;
            w2 = column <= row + 8 ? w2 : 0.0f;
            w3 = column + 1 <= row + 8 ? w3 : 0.0f;
          }
          first_g += w0 + w1;
          second_g += w2 + w3;
          weights_frag.set(i, w0, w1, w2, w3);
        }
        this->store(weights, pair, weights_frag);
      }
    }
    first_g = sum_lanes<4>(first_g) + first_before;  // while the weights are on their way
    second_g = sum_lanes<4>(second_g) + second_before;
    const int num_rows = block.rows(chunk);
    if (t == 0) {
      // Rows past the end divide nothing: their outputs are zero and mark nothing.
      const float outputs = block.scale(kOutputScale);
      float first_inverse = reciprocal(first_g);
      float second_inverse = reciprocal(second_g);
      if constexpr (Plan::kQueryGradient) {
        if constexpr (Plan::kDeltaBeside) {  // late, because registers are short
          const int place = block.row_place(chunk);
          rows.normalizer[0] = rows.read_normalizer(block, place, row, row < num_rows);
          rows.normalizer[1] = rows.read_normalizer(block, place, row + 8, row + 8 < num_rows);
        }
        first_inverse = unit.inverse * reciprocal(rows.normalizer[0]);
        second_inverse = unit.inverse * reciprocal(rows.normalizer[1]);
        weight_sum += row < num_rows ? first_g * first_inverse : 0.0f;
        weight_sum += row + 8 < num_rows ? second_g * second_inverse : 0.0f;
      }
      const float first_factor = row < num_rows ? first_inverse * outputs : 0.0f;
      const float second_factor = row + 8 < num_rows ? second_inverse * outputs : 0.0f;
      const uint32_t columns = block.columns(weights_at.index()) + row * 4;
      store_float(columns, first_factor);
      store_float(columns + 32, second_factor);
      if constexpr (Plan::kRowConstants) {
        store_float(columns + 256, first_factor * first_offset);
        store_float(columns + 256 + 32, second_factor * second_offset);
      }
      if constexpr (!Plan::kGradient) {
        marks = fmaf(row < num_rows ? first_g : 0.0f, 0.0f, marks);
        marks = fmaf(row + 8 < num_rows ? second_g : 0.0f, 0.0f, marks);
      }
    }
    publish_to_async_proxy();
    __syncwarp();
    if (t == 0) {
      barrier_arrive(block.barrier(Plan::kWeightsFull, weights_at.index()));
    }
    this->give_back_shared();
    if (!Plan::kGradient && t == 0 && work.tile == 0) {
      const TensorView& normalizer = block.chunked().normalizer;
      float* const g_gmem =
          row_address<float>(normalizer, work.batch, work.head, work.start + chunk * Plan::kChunk + row);
      if (row < num_rows) {
        g_gmem[0] = first_g * unit.inverse * reciprocal(first_length);
      }
      if (row + 8 < num_rows) {
        g_gmem[8 * normalizer.token_stride] = second_g * unit.inverse * reciprocal(second_length);
      }
    }
  }
};

}  // namespace hopper
}  // namespace linattn
