// The state role.
#pragma once

#include "linattn/hopper_block.cuh"

namespace linattn {
namespace hopper {

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

}  // namespace hopper
}  // namespace linattn
