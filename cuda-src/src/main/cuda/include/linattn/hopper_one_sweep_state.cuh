// The state role of one sweep: dk or dv.
#pragma once

#include "linattn/hopper_one_sweep_plan.cuh"
#include "linattn/hopper_outputs.cuh"
#include "linattn/hopper_state.cuh"

namespace linattn {
namespace hopper {

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
      for (int chunk = Plan::kScaled ? 1 : 0; chunk < Plan::kStages && chunk < block.num_chunks; ++chunk) {
        tiles.load(args, chunk, chunk);
      }
    }
    __syncwarp();
    state.start();
    outputs.start();
    if constexpr (!Plan::kIsKey) {
      start_rows();
    }
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
      finish_rows();
      add_first_values();
      tiles.tell(has_rows() ? sum : 0.0);
    }
    tiles.mark(sum_of_state<Plan>(state) + outputs.all_marks() != 0.0f);
    const bool marked = outputs.is_marked(tiles.has_mark());
    if (outputs.leads()) {
      const int64_t item = StateAddress<Plan>::block_number(block);
      block.chunked().marks[Plan::kBoxes * item + outputs.box] = marked || !tiles.is_finite(tiles.told());
    }
  }

  // The sums of rows of the items after. Blocks of a relay hand them on where y would have its sums.
  __device__ __forceinline__ void start_rows() {
    const StateAddress<Plan> address(block);
    if (address.key_sum_in != nullptr && has_rows()) {
      const float* const rows_gmem = address.key_sum_in + outputs.box * Plan::kBoxColumns + outputs.value_column();
      first_rows = rows_gmem[0];
      second_rows = rows_gmem[8];
    }
  }
  __device__ __forceinline__ void finish_rows() const {
    const StateAddress<Plan> address(block);
    if (address.key_sum_out != nullptr && has_rows()) {
      float* const rows_gmem = address.key_sum_out + outputs.box * Plan::kBoxColumns + outputs.value_column();
      rows_gmem[0] = first_rows;
      rows_gmem[8] = second_rows;
    }
  }
  __device__ __forceinline__ bool has_rows() const { return (outputs.lane & 3) == 1; }

  // The tokens before the first one; before an item whose state others go on with, they add theirs.
  __device__ __forceinline__ void add_first_values() {
    const auto tile = tile_of<Plan>(block.chunked(), StateAddress<Plan>::block_number(block));
    if (args.first_value_sum != nullptr && !(relays<Plan>(block.chunked()) && tile.block.item_idx > 0)) {
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
    State<Plan>::add_chunk(state.state_frag, value, operand(block.key(at.index(), 0), Plan::kBoxBytes));
    products_commit();
    products_wait<1>();
    pin(outputs_frag);
    const float first = has_rows() ? outputs_frag[33] : 0.0f;
    const float second = has_rows() ? outputs_frag[35] : 0.0f;
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

}  // namespace hopper
}  // namespace linattn
