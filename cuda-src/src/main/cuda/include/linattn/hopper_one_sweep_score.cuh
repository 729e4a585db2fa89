// The score role of one sweep: w, d, E and W.
#pragma once

#include "linattn/hopper_auxiliary.cuh"
#include "linattn/hopper_one_sweep_plan.cuh"
#include "linattn/hopper_score.cuh"

namespace linattn {
namespace hopper {

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
      for (int tile = Plan::kIsKey ? 1 : 0; tile < (Plan::kHasPrefix ? 2 : 1); ++tile) {
        weigh(chunk, tile == 1, num_rows);
      }
      if constexpr (!Plan::kHasPrefix) {
        barrier_wait(tiles.delta_full(rows_at.index()), rows_at.parity());
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
    const int place = block.row_place(chunk);
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
      uint4 units[Plan::kBoxes];
#pragma unroll
      for (int box = 0; box < Plan::kBoxes; ++box) {
        units[box] = load_unit(address + box * Plan::kBoxBytes);
      }
#pragma unroll
      for (int box = 0; box < Plan::kBoxes; ++box) {
        store_unit(address + box * Plan::kBoxBytes, weighed(units[box], factor));
      }
    }
    publish_to_async_proxy();
    __syncwarp();
  }
  __device__ __forceinline__ static uint4 weighed(const uint4& unit, float factor) {
    const float2 factors = make_float2(factor, factor);
    return make_uint4(Half::weigh(unit.x, factors), Half::weigh(unit.y, factors), Half::weigh(unit.z, factors),
                      Half::weigh(unit.w, factors));
  }

  // o . w of half of the columns, the diagonal of a product of tiles, to both blocks.
  __device__ __forceinline__ void send_delta(int num_rows) const {
    constexpr int kChains = 2;  // of sums, because a product waits for the one before
    const int part = Plan::kIsKey ? 0 : 1;
    float first_frag[kChains][4] = {};
    float second_frag[kChains][4] = {};
    constexpr int kSteps = Plan::kHeadDim / 32;
    constexpr int kFirstStep = Plan::kIsKey || Plan::kBoxes == 2 ? 0 : kSteps;  // of its box
    const uint32_t weighed_rows = tiles.output_gradient(at.index()) + (Plan::kBoxes == 2 ? part : 0) * Plan::kBoxBytes;
    const uint32_t output_rows = block.stage(at.index()) + Plan::kRowsOffset;
    // Of o the two words that belong to a product come side by side, so that no register has to be moved.
    const uint32_t first_unit = swizzled(warp * kRows + (lane & 15), lane >> 4);
    const uint32_t first_output_unit = swizzled(warp * kRows + (lane & 7) + (lane >> 4) * 8, lane >> 3 & 1);
#pragma unroll
    for (int step = kFirstStep; step < kFirstStep + kSteps; ++step) {
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
        block.args.gradient.delta[(static_cast<int64_t>(work.batch) * block.chunked().heads.value + work.head) *
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

}  // namespace hopper
}  // namespace linattn
