// The state role of the forward by mma.
#pragma once

#include "linattn/mma_products.cuh"

namespace linattn {

// The warps that keep the state and form the outputs.
template <class Plan>
struct StateRole : ChunkState<Plan> {
  using Element = typename Plan::Element;
  using State = ChunkState<Plan>;
  using Operand = typename State::Operand;
  using ValueLayout = typename State::ValueLayout;
  using State::state_frag;
  using State::value_sum_frag;

  __device__ __forceinline__ void load(const ChunkedArguments& args, const ValueTile<kValueColumns>& tile,
                                       int thread) {
    const int row = thread / kWarp * 16 + thread % kWarp / 4;
    const bool first = args.state_in != nullptr && row < tile.num_columns;
    const bool second = args.state_in != nullptr && row + 8 < tile.num_columns;
    const int64_t stride = args.value_dim;
    const float* entry_gmem = args.state_in + tile.state_offset(args) + thread % 4 * 2 * stride + row;
#pragma unroll
    for (int j = 0; j < 2 * Plan::kDepthSteps; ++j) {
      state_frag[j][0] = first ? entry_gmem[0] : 0.0f;
      state_frag[j][1] = first ? entry_gmem[stride] : 0.0f;
      state_frag[j][2] = second ? entry_gmem[8] : 0.0f;
      state_frag[j][3] = second ? entry_gmem[stride + 8] : 0.0f;
      entry_gmem = State::after(entry_gmem, 8 * stride);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int value = row + i * 8;
      const bool valid = args.value_sum_in != nullptr && value < tile.num_columns;
      value_sum_frag[i] = RunningSum(valid ? args.value_sum_in[tile.value_sum_offset(args) + value] : 0.0f);
    }
  }

  __device__ __forceinline__ void store(const ChunkedArguments& args, const ValueTile<kValueColumns>& tile,
                                        int thread) const {
    const int row = thread / kWarp * 16 + thread % kWarp / 4;
    if (args.state_out != nullptr) {
      const bool first = row < tile.num_columns;
      const bool second = row + 8 < tile.num_columns;
      const int64_t stride = args.value_dim;
      float* entry_gmem = args.state_out + tile.state_offset(args) + thread % 4 * 2 * stride + row;
#pragma unroll
      for (int j = 0; j < 2 * Plan::kDepthSteps; ++j) {
        if (first) {
          entry_gmem[0] = state_frag[j][0];
          entry_gmem[stride] = state_frag[j][1];
        }
        if (second) {
          entry_gmem[8] = state_frag[j][2];
          entry_gmem[stride + 8] = state_frag[j][3];
        }
        entry_gmem = State::after(entry_gmem, 8 * stride);
      }
    }
    if (args.value_sum_out != nullptr && thread % 4 == 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (row + i * 8 < tile.num_columns) {
          args.value_sum_out[tile.value_sum_offset(args) + row + i * 8] = value_sum_frag[i].total();
        }
      }
    }
  }

  // Returns whether it stored an o that is not finite.
  __device__ __forceinline__ bool process(const ChunkedArguments& args, const ValueTile<kValueColumns>& tile,
                                          const ForwardMemory<Plan>& memory, int chunk, int thread,
                                          bool reads_state, bool updates_state) {
    const int warp_column = thread / kWarp * 16;
    const int lane = thread % kWarp;
    const Element* const query_smem = memory.query(chunk);
    const Element* const key_smem = memory.key(chunk);
    Element* const value_smem = memory.value(chunk);
    const float* const constant_smem = memory.constant_smem + chunk % 2 * Plan::kTokens;
    const float* const inverse_smem = memory.inverse_smem + chunk % 2 * Plan::kTokens;

    typename Operand::A value_frag[Plan::kSteps];
#pragma unroll
    for (int step = 0; step < Plan::kSteps; ++step) {
      Operand::template load_a_transposed<ValueLayout>(value_frag[step], value_smem, step * 16, warp_column);
    }

    float out_frag[Plan::kSteps][2][4];  // O^T, 16 tokens a step
    clear(out_frag);
    if (reads_state) {
      State::add_state_term(query_smem, out_frag);
    }
    const float value_sum_before_frag[2] = {value_sum_frag[0].total(), value_sum_frag[1].total()};
#pragma unroll
    for (int j = 0; j < Plan::kSteps; ++j) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float2 constant =
            *reinterpret_cast<const float2*>(constant_smem + j * 16 + h * 8 + lane % 4 * 2);
        float(&acc_frag)[4] = out_frag[j][h];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          acc_frag[i] = fmaf(tile.head.b, acc_frag[i],
                             (i % 2 == 0 ? constant.x : constant.y) * value_sum_before_frag[i / 2]);
        }
      }
    }
    State::load_in_turn();
    State::template add_weighted_values<Direction::kForwards>(memory.weights(chunk), value_frag, out_frag);
    State::load_in_turn();
    sum_values(value_smem, value_frag, warp_column, lane);
    State::load_in_turn();
    if (updates_state) {
      State::update_state(key_smem, value_frag);
    }

    const int first_token = chunk * Plan::kTokens;
    const int num_rows = min(tile.item.tokens - first_token, Plan::kTokens);
    // NaN once a value is not finite. Columns past the last are so only in rows where others are.
    float poison = 0.0f;
    // The warp's columns of V become its columns of O; no other warp reads them.
    __syncwarp();
#pragma unroll
    for (int j = 0; j < Plan::kSteps; ++j) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = j * 16 + h * 8;
        const float2 inverse = *reinterpret_cast<const float2*>(inverse_smem + row + lane % 4 * 2);
        float(&acc_frag)[4] = out_frag[j][h];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          acc_frag[i] *= i % 2 == 0 ? inverse.x : inverse.y;
          poison = fmaf(acc_frag[i], 0.0f, poison);
        }
        State::put_outputs(value_smem, row, warp_column, lane, acc_frag);
      }
    }
    __syncwarp();
    State::store_outputs(tile.template out<Element>(args), args.out.token_stride, tile.num_columns, value_smem,
                         first_token, num_rows, warp_column, lane);
    return isnan(poison);
  }

 private:
  // u += V^T 1, exact products: elements of 16 bits are their own operands, those of 32 bits are added as
  // read.
  __device__ __forceinline__ void sum_values(const Element* value_smem,
                                             const typename Operand::A (&value_frag)[Plan::kSteps],
                                             int warp_column, int lane) {
    if constexpr (sizeof(Element) == 2) {
      typename Operand::B ones;
      ones.set(0, 1.0f, 1.0f);
      ones.set(1, 1.0f, 1.0f);
      float acc_frag[4];
      clear(acc_frag);
#pragma unroll
      for (int step = 0; step < Plan::kSteps; ++step) {
        multiply(acc_frag, value_frag[step], ones);
      }
      value_sum_frag[0].add(acc_frag[0]);
      value_sum_frag[1].add(acc_frag[2]);
    } else {
      float sum = 0.0f;
#pragma unroll
      for (int row = 0; row < Plan::kTokens; row += 2) {
        sum += value_smem[(row + lane / 16) * ValueLayout::kStride + warp_column + lane % 16];
      }
      sum += __shfl_xor_sync(kAllLanes, sum, 16);
      value_sum_frag[0].add(__shfl_sync(kAllLanes, sum, lane / 4));
      value_sum_frag[1].add(__shfl_sync(kAllLanes, sum, lane / 4 + 8));
    }
    value_sum_frag[0].fold();
    value_sum_frag[1].fold();
  }
};

}  // namespace linattn
