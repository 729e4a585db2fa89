// What happens to a chunk of outputs: the constant part, the division by g, and the way to global memory.
#pragma once

#include "linattn/hopper_block.cuh"

namespace linattn {
namespace hopper {

// 64 value columns of the block, held by a warpgroup.
template <class Plan>
struct Outputs {
  static constexpr int kFirstBarrier = 1;  // of as many as there are warpgroups with outputs
  // Of additions to marks that don't wait for one another.
  static constexpr int kMarkChains = Plan::kGradient && !Plan::kOneSweep ? 4 : 1;
  static constexpr bool kMarksInSums = Plan::kMarksInSums;
  using Element = typename Plan::Element;
  using Half = typename Plan::Half;

  const Block<Plan>& block;
  int box;  // of the block's values
  int warp;
  int lane;
  float first_sum = 0.0f;  // u of this thread's two rows
  float second_sum = 0.0f;
  double slope_sum = 0.0;  // of q . dq / b, where wanted
  float marks = 0.0f;      // NaN once an output was not finite
  uint32_t marked_pairs[kMarkChains] = {};  // the same of outputs of 16 bits

  __device__ __forceinline__ Outputs(const Block<Plan>& shared, int box_idx, int warp_in_group, int lane_idx)
      : block(shared),
        box(box_idx),
        warp(warp_in_group),
        lane(lane_idx) {}

  // What follows from these is found anew in each chunk and holds no registers in between.
  __device__ __forceinline__ void find_anew() { asm volatile("" : "+r"(warp), "+r"(lane)); }

  __device__ __forceinline__ bool leads() const { return warp == 0 && lane == 0; }

  __device__ __forceinline__ int first_column() const {
    return block.work.first_column + box * Plan::kBoxColumns;
  }
  // Of this warpgroup.
  __device__ __forceinline__ int barrier_number() const { return kFirstBarrier + box; }
  // Within the warpgroup's columns: of the first of this thread's two rows, which are 8 apart.
  __device__ __forceinline__ int value_column() const { return warp * 16 + (lane >> 2); }
  // None of a box that begins past the end.
  __device__ __forceinline__ int num_columns() const {
    return min(Plan::kBoxColumns, block.chunked().value_dim - first_column());
  }

  // Of u against that of the tensors.
  __device__ __forceinline__ float sum_scale() const {
    if constexpr (Plan::kReverse) {
      return block.scale(kValueScale) * block.scale(kWeightScale) * inverse_of_power(block.scale(kScoreScale));
    }
    return block.scale(kValueScale);
  }

  __device__ __forceinline__ void start() {
    const StateAddress<Plan> address(block, box * Plan::kBoxColumns);
    if (address.value_sum_in != nullptr) {
      const int column = value_column();
      const float scale = sum_scale();
      first_sum = column < num_columns() ? address.value_sum_in[column] * scale : 0.0f;
      second_sum = column + 8 < num_columns() ? address.value_sum_in[column + 8] * scale : 0.0f;
    }
  }

  // Once all chunks are written.
  __device__ __forceinline__ void finish() const {
    const StateAddress<Plan> address(block, box * Plan::kBoxColumns);
    if (address.value_sum_out != nullptr && (lane & 3) == 0) {
      const int column = value_column();
      const float scale = 1.0f / sum_scale();
      if (column < num_columns()) {
        address.value_sum_out[column] = first_sum * scale;
      }
      if (column + 8 < num_columns()) {
        address.value_sum_out[column + 8] = second_sum * scale;
      }
    }
    if (leads()) {
      wait_for_stores();
    }
  }

  // Not 0, NaN, where an output was not finite.
  __device__ __forceinline__ float all_marks() const {
    if constexpr (kMarksInSums) {
      return 0.0f * (first_sum + second_sum);
    }
    float all = marks;
#pragma unroll
    for (int i = 0; i < kMarkChains; ++i) {
      all += Half::low(marked_pairs[i]);
      all += Half::high(marked_pairs[i]);
    }
    return all;
  }

  // Whether any thread of the warpgroup found a mark, NaN.
  __device__ __forceinline__ bool is_marked(float mark) const {
    return named_barrier_or(barrier_number(), kWarpgroup, mark != 0.0f);  // NaN is not 0
  }

  // The mark of the warpgroup's columns.
  __device__ __forceinline__ void write_mark() const {
    const bool marked = is_marked(all_marks());
    const ChunkedArguments& args = block.chunked();
    if (leads() && args.marks != nullptr && num_columns() > 0) {
      const int64_t item = quotient_by_tiles(StateAddress<Plan>::block_number(block), block.tiles());
      args.marks[item * ceil_div(args.value_dim, Plan::kBoxColumns) + first_column() / Plan::kBoxColumns] = marked;
    }
  }

  // O^T += V^T W^T; the product of S, which without b is not wanted, stands there already.
  template <int kSteps, typename Values>
  __device__ __forceinline__ static void add_value_weights(float (&outputs_frag)[36], Values value, uint64_t weights,
                                                           bool uses_state) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      Plan::Products::value_weights(outputs_frag, rows_further(value, step), further(weights, step * 32),
                                    step > 0 || uses_state);
    }
  }

  // V^T times the row of ones behind the weights, which is always there.
  template <typename Values>
  __device__ __forceinline__ void sum_values(float (&sums_frag)[4], Values value) const {
    const uint64_t ones = operand(block.weights(0) + Plan::kBoxBytes);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      Plan::Products::value_sums(sums_frag, rows_further(value, step), further(ones, step * 32), step > 0);
    }
  }

  // Where outputs leave from the place of their queries: gives it back, once all have read these and the copies have
  // read the outputs. Every thread arrives: it wrote there, and of a tail it reads.
  __device__ __forceinline__ void give_back_queries(const RingPosition<Plan::kStages>& at) const {
    if (leads()) {
      barrier_wait(block.query_read(at.index()), at.parity());
      wait_for_stores_to_read<0>();
    }
    barrier_arrive(block.query_empty(at.index()));
  }

  // With one buffer: until the copy of the chunk before has read it.
  __device__ __forceinline__ void reuse_buffer() const {
    if (leads()) {
      wait_for_stores_to_read<0>();
    }
    named_barrier(barrier_number(), kWarpgroup);
  }

  // u of a chunk; every fourth lane has it. Of the reverse it comes in parts, in the neighbouring lanes too.
  __device__ __forceinline__ void add_value_sums(float first, float second) {
    if constexpr (Plan::kReverse) {
      first_sum += sum_lanes<4>(first);
      second_sum += sum_lanes<4>(second);
    } else {
      first_sum += __shfl_sync(kAllLanes, first, lane & 28);
      second_sum += __shfl_sync(kAllLanes, second, lane & 28);
    }
  }

  // The rows of dq are multiplied by b; before, where the gradient of b is wanted of them, by q.
  __device__ __forceinline__ void apply_slope(float (&outputs_frag)[36], int chunk) {
    const ItemWork& work = block.work;
    const TensorView& query = block.args.gradient.slope_query;
    if (query.address != nullptr) {
      const int first = value_column();
      const int64_t token = static_cast<int64_t>(work.start) + block.first_token(chunk) + 2 * (lane & 3);
      const auto* const query_gmem = row_address<const Element>(query, work.batch, work.head, token) + first_column();
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        const int row = i / 4 * 8 + i % 2;
        const int column = first + (i % 4 < 2 ? 0 : 8);
        if (row + 2 * (lane & 3) < block.rows(chunk) && column < num_columns()) {
          float element = to_float(query_gmem[row * query.token_stride + column]);
          if constexpr (Plan::kScalesRows) {
            element *= block.query_scale(chunk, row + 2 * (lane & 3));
          }
          sum = fmaf(element, outputs_frag[i], sum);
        }
        asm volatile("" ::: "memory");  // loads under way would cost registers
      }
      slope_sum += sum;
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      outputs_frag[i] *= work.b;
    }
  }

  // o = (O + a u) / g, by way of shared memory to global memory; u of the chunk stands in column 64.
  __device__ __forceinline__ void write(float (&outputs_frag)[36], float constant, int chunk, int weights_idx,
                                        int outputs_idx) {
    const uint32_t columns = block.columns(weights_idx) + (lane & 3) * 8;
    if constexpr (Plan::kReverse && Plan::kScalesRows) {
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const float2 factor = load_float2(columns + j * 32);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float& output = outputs_frag[4 * j + i];
          output = fmaf(output, i % 2 == 0 ? factor.x : factor.y, i < 2 ? first_sum : second_sum) * constant;
        }
      }
    } else if constexpr (Plan::kReverse) {
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        outputs_frag[i] = (outputs_frag[i] + (i % 4 < 2 ? first_sum : second_sum)) * constant;
      }
    } else if constexpr (Plan::kRowConstants) {
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
    if constexpr (Plan::kQueryGradient) {
      apply_slope(outputs_frag, chunk);
    }
    if constexpr (Plan::kReverse) {
      add_value_sums(outputs_frag[32] + outputs_frag[33], outputs_frag[34] + outputs_frag[35]);
    } else {
      add_value_sums(outputs_frag[32], outputs_frag[34]);
    }
    if constexpr (kMarksInSums && Plan::kMarksOutputs) {
#pragma unroll
      for (int i = 0; i < 32; ++i) {
        float& sum = i % 4 < 2 ? first_sum : second_sum;
        sum = fmaf(outputs_frag[i], 0.0f, sum);
      }
    }
    barrier_arrive(block.barrier(Plan::kWeightsEmpty, weights_idx));
    const uint32_t tile =
        Plan::kOutputsInQueries ? block.query(outputs_idx, box)
                                : block.outputs(box * Plan::kOutputBuffers + outputs_idx);
    if constexpr (Plan::kElementBytes == 2) {
      stage_halves(outputs_frag, tile);
    } else {
      stage_floats(outputs_frag, tile);
    }
    publish_to_async_proxy();
    if constexpr (Plan::kOutputBuffers > 1) {  // the copy of two chunks before has read its buffer
      if (leads()) {
        wait_for_stores_to_read<Plan::kOutputBuffers - 2>();
      }
    }
    named_barrier(barrier_number(), kWarpgroup);
    if (block.rows(chunk) == Plan::kChunk) {
      if (leads()) {
        start_store(tile, chunk);
      }
    } else {
      copy_tail(tile, chunk);
      if constexpr (Plan::kOutputsInQueries) {
        named_barrier(barrier_number(), kWarpgroup);
      }
    }
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
        if constexpr (!kMarksInSums) {
          marked_pairs[i % kMarkChains] = Half::mark(halves[i], marked_pairs[i % kMarkChains]);
        }
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
        if constexpr (!kMarksInSums) {
          marks = fmaf(outputs_frag[4 * j + i], 0.0f, marks);
        }
      }
    }
  }

  __device__ __forceinline__ void start_store(uint32_t tile, int chunk) const {
    const ItemWork& work = block.work;
    const int token = work.start + block.first_token(chunk);
    store_tile(&block.args.out, {first_column(), token, block.query_head(), work.batch}, tile);
    if constexpr (Plan::kElementBytes == 4) {
      store_tile(&block.args.out, {first_column() + 32, token, block.query_head(), work.batch}, tile + Plan::kBoxBytes);
    }
    commit_stores();
  }

  // The rows behind those of the chunk may belong to another item.
  __device__ __forceinline__ void copy_tail(uint32_t tile, int chunk) const {
    const ItemWork& work = block.work;
    constexpr int kUnitElements = kUnitBytes / Plan::kElementBytes;
    constexpr int kUnits = Plan::kBoxColumns / kUnitElements;
    const int token = work.start + block.first_token(chunk);
    for (int i = warp * kWarp + lane; i < block.rows(chunk) * kUnits; i += kWarpgroup) {
      const int row = i / kUnits;
      const int unit = i % kUnits;
      if (unit * kUnitElements < num_columns()) {
        const uint4 data = load_unit(tile + (unit >> 3) * Plan::kBoxBytes + swizzled(row, unit & 7));
        Element* out_gmem = row_address<Element>(block.chunked().out, work.batch, block.query_head(), token + row);
        *reinterpret_cast<uint4*>(out_gmem + first_column() + unit * kUnitElements) = data;
      }
    }
    reads_are_used();
  }
};

}  // namespace hopper
}  // namespace linattn
