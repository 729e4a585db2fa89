// The prefix role of one sweep: dq.
#pragma once

#include "linattn/hopper_one_sweep_plan.cuh"
#include "linattn/hopper_one_sweep_state.cuh"

namespace linattn {
namespace hopper {

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
    load_last();
    if (block.num_chunks > 0) {
      barrier_wait(tiles.full(0), 0);
    }
    take(0);
    wait_for_take();
    if (block.num_chunks == 1) {
      tiles.mark(sum_of_state<Plan>(state) != 0.0f);  // where its keys or values are not finite
      if (!leave()) {
        load(args.first_state, args.first_key_sum, tile().state);
      }
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
      } else if (chunk + 1 == block.num_chunks && chunk > 0 && !leave()) {
        start_from_first();
      }
    }
    if (outputs.leads()) {
      wait_for_stores();
    }
    write_mark();
  }

  __device__ __forceinline__ auto tile() const {
    return tile_of<Plan>(block.chunked(), StateAddress<Plan>::block_number(block));
  }

  // Hands each element of S and z and its place in state `index` of memory to a function.
  template <typename T, typename Use>
  __device__ __forceinline__ void visit(T* states_gmem, T* sums_gmem, int64_t index, Use&& use) {
    const int64_t row = index * Plan::kHeadDim + tiles.key_box() * Plan::kBoxColumns + outputs.value_column();
    T* entry_gmem = states_gmem + row * Plan::kHeadDim + 2 * (outputs.lane & 3);
#pragma unroll
    for (int j = 0; j < State<Plan>::kColumns8; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        use(State<Plan>::element(state.state_frag, j, i), entry_gmem + i / 2 * 8 * Plan::kHeadDim + i % 2);
      }
      entry_gmem = State<Plan>::after(entry_gmem, 8);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      use(key_sums_frag[i], sums_gmem + row + i / 2 * 8);
    }
  }

  // From zeros where there is no state.
  __device__ __forceinline__ void load(const float* states_gmem, const float* sums_gmem, int64_t index) {
    visit(states_gmem, sums_gmem, index, [&](float& element, const float* place_gmem) {
      element = states_gmem == nullptr ? 0.0f : *place_gmem;
    });
  }

  __device__ __forceinline__ void load_last() {
    const auto of_block = tile();
    const bool ends = args.end_state != nullptr && of_block.block.item_idx + 1 == block.chunked().num_items.value;
    load(ends ? args.end_state : args.last_state, ends ? args.end_key_sum : args.last_key_sum,
         ends ? of_block.head.kv_index : of_block.state);
  }

  // Leaves what is left of S and z for the item before, if there is one: the last chunk of the walk does not change it.
  __device__ __forceinline__ bool leave() {
    const auto of_block = tile();
    if (!relays<Plan>(block.chunked()) || of_block.block.item_idx == 0) {
      return false;
    }
    tiles.mark(sum_of_state<Plan>(state) != 0.0f);
    visit(args.first_state, args.first_key_sum, of_block.state,
          [](float element, float* place_gmem) { *place_gmem = element; });
    return true;
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
    visit(args.first_state, args.first_key_sum, tile().state, [&](float& element, const float* place_gmem) {
      const float x = args.first_state == nullptr ? 0.0f : *place_gmem;
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
      tiles.write_partials(block.args.gradient.partials + 2 * Plan::kBoxes * item, sum);
    }
    args.query_marks[Plan::kBoxes * item + tiles.key_box()] = marked || !tiles.is_finite(sum);
  }
};

}  // namespace hopper
}  // namespace linattn
