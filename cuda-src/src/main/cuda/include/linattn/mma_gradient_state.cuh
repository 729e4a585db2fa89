// The state role of the gradients by mma.
#pragma once

#include "linattn/mma_gradient_plan.cuh"

namespace linattn {

// The warps that keep the state and form the outputs. Of z' = slope z only fragments exist: weights hold the slope
// themselves.
template <class Plan>
struct GradientStateRole : ChunkState<Plan> {
  using Element = typename Plan::Element;
  using State = ChunkState<Plan>;
  using Operand = typename State::Operand;
  using ValueLayout = typename State::ValueLayout;
  using State::state_frag;
  using State::value_sum_frag;

  // O^T, 16 tokens a step: of a chunk, across the heads of its group.
  float out_frag[Plan::kSteps][2][4];
  double slope_sum = 0.0;  // q . dq / b of this thread's elements
  float poison = 0.0f;     // NaN once a gradient is not finite

  __device__ __forceinline__ void load(const GradientArguments& args, const GradientTile& tile, int thread) {
    const ChunkedArguments& chunked = args.chunked;
    const int row = thread / kWarp * 16 + thread % kWarp / 4;
    const bool first = chunked.state_in != nullptr && row < tile.num_columns;
    const bool second = chunked.state_in != nullptr && row + 8 < tile.num_columns;
    const StateStrides stride(chunked, task(args));
    const float* entry_gmem = chunked.state_in + entry_offset(chunked, tile, stride, thread);
#pragma unroll
    for (int j = 0; j < 2 * Plan::kDepthSteps; ++j) {
      state_frag[j][0] = first ? entry_gmem[0] : 0.0f;
      state_frag[j][1] = first ? entry_gmem[stride.y] : 0.0f;
      state_frag[j][2] = second ? entry_gmem[8 * stride.z] : 0.0f;
      state_frag[j][3] = second ? entry_gmem[8 * stride.z + stride.y] : 0.0f;
      entry_gmem = State::after(entry_gmem, 8 * stride.y);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int column = row + i * 8;
      const bool valid = chunked.value_sum_in != nullptr && column < tile.num_columns;
      value_sum_frag[i] = RunningSum(valid ? chunked.value_sum_in[tile.value_sum_offset(chunked) + column] : 0.0f);
    }
  }

  __device__ __forceinline__ void store(const GradientArguments& args, const GradientTile& tile,
                                        int thread) const {
    const ChunkedArguments& chunked = args.chunked;
    const int row = thread / kWarp * 16 + thread % kWarp / 4;
    if (chunked.state_out != nullptr) {
      const bool first = row < tile.num_columns;
      const bool second = row + 8 < tile.num_columns;
      const StateStrides stride(chunked, task(args));
      float* entry_gmem = chunked.state_out + entry_offset(chunked, tile, stride, thread);
#pragma unroll
      for (int j = 0; j < 2 * Plan::kDepthSteps; ++j) {
        if (first) {
          entry_gmem[0] = state_frag[j][0];
          entry_gmem[stride.y] = state_frag[j][1];
        }
        if (second) {
          entry_gmem[8 * stride.z] = state_frag[j][2];
          entry_gmem[8 * stride.z + stride.y] = state_frag[j][3];
        }
        entry_gmem = State::after(entry_gmem, 8 * stride.y);
      }
    }
    if (chunked.value_sum_out != nullptr && thread % 4 == 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (row + i * 8 < tile.num_columns) {
          chunked.value_sum_out[tile.value_sum_offset(chunked) + row + i * 8] = value_sum_frag[i].total();
        }
      }
    }
  }

  __device__ __forceinline__ void process(const GradientArguments& args, const GradientTile& tile,
                                          const GradientMemory<Plan>& memory, int step_idx,
                                          const GradientStep& step, int thread, bool reads_state,
                                          bool updates_state) {
    const int warp_column = thread / kWarp * 16;
    const int lane = thread % kWarp;
    Element* const value_smem = memory.value(step_idx);
    const float* const slope_smem = memory.slope_smem + step_idx % 2 * Plan::kTokens;
    const float* const offset_smem = memory.offset_smem + step_idx % 2 * Plan::kTokens;

    typename Operand::A value_frag[Plan::kSteps];
#pragma unroll
    for (int i = 0; i < Plan::kSteps; ++i) {
      Operand::template load_a_transposed<ValueLayout>(value_frag[i], value_smem, i * 16, warp_column);
    }
    if (step.member == 0) {
      start_outputs(memory.query(step_idx), offset_smem, lane, reads_state);
    }
    State::load_in_turn();
    State::template add_weighted_values<Plan::kDirection>(memory.weights(step_idx), value_frag, out_frag);
    State::load_in_turn();
    sum_values(value_smem, value_frag, Plan::kIsQuery ? slope_smem : offset_smem, warp_column, lane);
    State::load_in_turn();
    if (updates_state) {
#pragma unroll
      for (int i = 0; i < Plan::kSteps; ++i) {
        Operand::scale_tokens(value_frag[i], slope_smem + i * 16);
      }
      State::update_state(memory.key(step_idx), value_frag);
    }
    if (step.member == tile.members - 1) {
      finish_outputs(args, tile, memory, step_idx, step.chunk * Plan::kTokens, warp_column, lane);
    }
  }

 private:
  __device__ __forceinline__ static int task(const GradientArguments& args) {
    return Plan::kIsQuery ? kQueryGradient : args.task;
  }

  __device__ __forceinline__ static int64_t entry_offset(const ChunkedArguments& chunked,
                                                         const GradientTile& tile, const StateStrides& stride,
                                                         int thread) {
    const int row = thread / kWarp * 16 + thread % kWarp / 4;
    return tile.state_offset(chunked) + (tile.first_column + row) * stride.z + thread % 4 * 2 * stride.y;
  }

  // What the tokens outside the chunk give it.
  __device__ __forceinline__ void start_outputs(const Element* query_smem, const float* offset_smem, int lane,
                                                bool reads_state) {
    clear(out_frag);
    if (reads_state) {
      State::add_state_term(query_smem, out_frag);
    }
    const float value_sum_before_frag[2] = {value_sum_frag[0].total(), value_sum_frag[1].total()};
#pragma unroll
    for (int j = 0; j < Plan::kSteps; ++j) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float2 offset = make_float2(1.0f, 1.0f);  // the sum holds offsets of z
        if constexpr (Plan::kIsQuery) {
          offset = *reinterpret_cast<const float2*>(offset_smem + j * 16 + h * 8 + lane % 4 * 2);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float& out = out_frag[j][h][i];
          out = fmaf(i % 2 == 0 ? offset.x : offset.y, value_sum_before_frag[i / 2], out);
        }
      }
    }
  }

  // Sum of factor z over the chunk. Elements of 32 bits are added as read.
  __device__ __forceinline__ void sum_values(const Element* value_smem,
                                             const typename Operand::A (&value_frag)[Plan::kSteps],
                                             const float* factors_smem, int warp_column, int lane) {
    if constexpr (sizeof(Element) == 2) {
      float acc_frag[4];
      clear(acc_frag);
#pragma unroll
      for (int step = 0; step < Plan::kSteps; ++step) {
        typename Operand::B factors;
        Operand::load_factors(factors, factors_smem + step * 16);
        multiply(acc_frag, value_frag[step], factors);
      }
      value_sum_frag[0].add(sum_lanes<4>(acc_frag[0] + acc_frag[1]));
      value_sum_frag[1].add(sum_lanes<4>(acc_frag[2] + acc_frag[3]));
    } else {
      float sum = 0.0f;
#pragma unroll
      for (int row = 0; row < Plan::kTokens; row += 2) {
        const float value = value_smem[(row + lane / 16) * ValueLayout::kStride + warp_column + lane % 16];
        sum = fmaf(factors_smem[row + lane / 16], value, sum);
      }
      sum += __shfl_xor_sync(kAllLanes, sum, 16);
      value_sum_frag[0].add(__shfl_sync(kAllLanes, sum, lane / 4));
      value_sum_frag[1].add(__shfl_sync(kAllLanes, sum, lane / 4 + 8));
    }
    value_sum_frag[0].fold();
    value_sum_frag[1].fold();
  }

  __device__ __forceinline__ void finish_outputs(const GradientArguments& args, const GradientTile& tile,
                                                 const GradientMemory<Plan>& memory, int step_idx,
                                                 int first_token, int warp_column, int lane) {
    const ChunkedArguments& chunked = args.chunked;
    Element* const value_smem = memory.value(step_idx);
    const int num_rows = min(tile.item.tokens - first_token, Plan::kTokens);
    if constexpr (Plan::kIsQuery) {
      const float* const inverse_smem = memory.inverse_smem + step_idx % 2 * Plan::kTokens;
#pragma unroll
      for (int j = 0; j < Plan::kSteps; ++j) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float2 inverse =
              *reinterpret_cast<const float2*>(inverse_smem + j * 16 + h * 8 + lane % 4 * 2);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            out_frag[j][h][i] *= i % 2 == 0 ? inverse.x : inverse.y;
          }
        }
      }
      if (args.slope_query.address != nullptr) {
        add_slopes(args, tile, memory.row(step_idx, kQueryScaleRow), first_token, num_rows, warp_column, lane);
      }
    }
    const float factor =
        Plan::kIsQuery ? coefficient(chunked.b_per_head, chunked.b, tile.head_idx) : 1.0f;
    // The warp's columns of z become its columns of out; no other warp reads them.
    __syncwarp();
#pragma unroll
    for (int j = 0; j < Plan::kSteps; ++j) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if constexpr (Plan::kIsQuery) {
            out_frag[j][h][i] *= factor;
          }
          poison = fmaf(out_frag[j][h][i], 0.0f, poison);
        }
        State::put_outputs(value_smem, j * 16 + h * 8, warp_column, lane, out_frag[j][h]);
      }
    }
    __syncwarp();
    State::store_outputs(tile.template out<Element>(chunked), chunked.out.token_stride, tile.num_columns,
                         value_smem, first_token, num_rows, warp_column, lane);
  }

  __device__ __forceinline__ void add_slopes(const GradientArguments& args, const GradientTile& tile,
                                             const float* scale_smem, int first_token, int num_rows,
                                             int warp_column, int lane) {
    const Element* const query_gmem =
        row_address<Element>(args.slope_query, tile.batch_idx, tile.head_idx, tile.item.start + first_token) +
        tile.first_column;
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < Plan::kSteps; ++j) {
      State::load_in_turn();
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = j * 16 + h * 8 + lane % 4 * 2 + i % 2;
          const int column = warp_column + lane / 4 + i / 2 * 8;
          if (row < num_rows && column < tile.num_columns) {
            const float scale = args.query_scale == nullptr ? 1.0f : scale_smem[row];
            const float query = to_float(query_gmem[row * args.slope_query.token_stride + column]);
            sum = fmaf(query * scale, out_frag[j][h][i], sum);
          }
        }
      }
    }
    slope_sum += static_cast<double>(sum);
  }
};

}  // namespace linattn
