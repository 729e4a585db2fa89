// The state role of the forward by mma.
#pragma once

#include "linattn/mma_plan.cuh"

namespace linattn {

// The warps that keep the state and form the outputs.
template <class Plan>
struct StateRole {
  using Element = typename Plan::Element;
  using Operand = Operands<Element, Plan::kKind>;
  using QueryLayout = typename Plan::QueryLayout;
  using ValueLayout = typename Plan::ValueLayout;
  using WeightLayout = typename Plan::WeightLayout;
  // Blocks of 16 key columns whose products overlap.
  static constexpr int kBatch = sizeof(Element) == 2 && Plan::kHeadDim > 128 ? 1 : 2;

  // invariant: entering a chunk, S^T of the tokens before it, rows 16 warp + group and 8 more, and their u.
  float state_frag[2 * Plan::kDepthSteps][4];
  RunningSum value_sum_frag[2];

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
      entry_gmem = after(entry_gmem, 8 * stride);
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
        entry_gmem = after(entry_gmem, 8 * stride);
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
      add_state_term(query_smem, out_frag);
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
    load_in_turn();
    add_weighted_values(memory.weights(chunk), value_frag, out_frag);
    load_in_turn();
    sum_values(value_smem, value_frag, warp_column, lane);
    load_in_turn();
    if (updates_state) {
      update_state(key_smem, value_frag);
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
        if constexpr (sizeof(Element) == 2) {
          Element* const lane_smem =
              value_smem + (row + lane / 4) * ValueLayout::kStride + warp_column + lane % 4 * 2;
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const uint32_t pair = pack<Element>(acc_frag[2 * i], acc_frag[2 * i + 1]);
            *reinterpret_cast<uint32_t*>(lane_smem + i * 8) = transpose_pairs(pair);
          }
        } else {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int column = warp_column + lane / 4 + i / 2 * 8;
            value_smem[(row + lane % 4 * 2 + i % 2) * ValueLayout::kStride + column] = acc_frag[i];
          }
        }
      }
    }
    __syncwarp();
    store_outputs(args, tile, value_smem, first_token, num_rows, warp_column, lane);
    return isnan(poison);
  }

 private:
  // Loads that the compiler moves ahead cost registers, of which the state leaves few: none passes this point.
  __device__ __forceinline__ static void load_in_turn() {
    if constexpr (Plan::kLoadsInTurn) {
      __syncwarp();
    }
  }

  // One address at a time: many together cost registers, of which the state leaves few.
  template <typename T>
  __device__ __forceinline__ static T* after(T* pointer, int64_t distance) {
    pointer += distance;
    asm volatile("" : "+l"(pointer)::"memory");
    return pointer;
  }

  // The sums inside the tensor core truncate. Where that counts, short sums are formed apart and added in
  // fp32.
  __device__ __forceinline__ static void add_in_fp32(float (&sum_frag)[Plan::kSteps][2][4],
                                                     const float (&term_frag)[Plan::kSteps][2][4]) {
#pragma unroll
    for (int j = 0; j < Plan::kSteps; ++j) {
      add_to(sum_frag[j][0], term_frag[j][0]);
      add_to(sum_frag[j][1], term_frag[j][1]);
    }
  }

  // O^T = S^T Q^T.
  __device__ __forceinline__ void add_state_term(const Element* query_smem,
                                                 float (&out_frag)[Plan::kSteps][2][4]) const {
#pragma unroll
    for (int first_step = 0; first_step < Plan::kDepthSteps; first_step += Plan::kFlushSteps) {
      float product_frag[Plan::kSteps][2][4];
      float(&sum_frag)[Plan::kSteps][2][4] = Plan::kAccurate ? product_frag : out_frag;
      if constexpr (Plan::kAccurate) {
        clear(product_frag);
      }
#pragma unroll
      for (int step = first_step; step < first_step + Plan::kFlushSteps && step < Plan::kDepthSteps; ++step) {
        const typename Operand::A state =
            operand_of<Plan::kKind>(state_frag[2 * step], state_frag[2 * step + 1]);
#pragma unroll
        for (int j = 0; j < Plan::kSteps; ++j) {
          typename Operand::B left;
          typename Operand::B right;
          Operand::template load_b<QueryLayout>(left, right, query_smem, j * 16, step * 16);
          multiply(sum_frag[j][0], state, left);
          multiply(sum_frag[j][1], state, right);
        }
        load_in_turn();
      }
      if constexpr (Plan::kAccurate) {
        add_in_fp32(out_frag, product_frag);
      }
    }
  }

  // O^T += V^T W^T.
  __device__ __forceinline__ static void add_weighted_values(
      const typename Plan::Weight* weights_smem, const typename Operand::A (&value_frag)[Plan::kSteps],
      float (&out_frag)[Plan::kSteps][2][4]) {
    float product_frag[Plan::kSteps][2][4];
    float(&sum_frag)[Plan::kSteps][2][4] = Plan::kAccurate ? product_frag : out_frag;
    if constexpr (Plan::kAccurate) {
      clear(product_frag);
    }
#pragma unroll
    for (int j = 0; j < Plan::kSteps; ++j) {
#pragma unroll
      for (int step = 0; step <= j; ++step) {
        typename Operand::B left;
        typename Operand::B right;
        Operand::template load_weights<WeightLayout>(left, right, weights_smem, j * 16, step * 16);
        multiply(sum_frag[j][0], value_frag[step], left);
        multiply(sum_frag[j][1], value_frag[step], right);
      }
    }
    if constexpr (Plan::kAccurate) {
      add_in_fp32(out_frag, product_frag);
    }
  }

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

  // S^T += V^T K. bf16 rounds more than truncated sums lose; else a chunk's product is formed apart.
  __device__ __forceinline__ void update_state(const Element* key_smem,
                                               const typename Operand::A (&value_frag)[Plan::kSteps]) {
    if constexpr (Plan::kKind == MmaKind::kBf16) {
#pragma unroll
      for (int step = 0; step < Plan::kSteps; ++step) {
        load_in_turn();
#pragma unroll
        for (int j = 0; j < Plan::kDepthSteps; ++j) {
          typename Operand::B left;
          typename Operand::B right;
          Operand::template load_b_transposed<QueryLayout>(left, right, key_smem, step * 16, j * 16);
          multiply(state_frag[2 * j], value_frag[step], left);
          multiply(state_frag[2 * j + 1], value_frag[step], right);
        }
      }
    } else {
#pragma unroll
      for (int first = 0; first < Plan::kDepthSteps; first += kBatch) {
        update_batch(key_smem, value_frag, first);
        load_in_turn();
      }
    }
  }

  __device__ __forceinline__ void update_batch(const Element* key_smem,
                                               const typename Operand::A (&value_frag)[Plan::kSteps],
                                               int first) {
    float product_frag[kBatch][2][4];
    clear(product_frag);
#pragma unroll
    for (int step = 0; step < Plan::kSteps; ++step) {
#pragma unroll
      for (int j = 0; j < kBatch && first + j < Plan::kDepthSteps; ++j) {
        typename Operand::B left;
        typename Operand::B right;
        Operand::template load_b_transposed<QueryLayout>(left, right, key_smem, step * 16, (first + j) * 16);
        multiply(product_frag[j][0], value_frag[step], left);
        multiply(product_frag[j][1], value_frag[step], right);
      }
    }
#pragma unroll
    for (int j = 0; j < kBatch && first + j < Plan::kDepthSteps; ++j) {
      add_to(state_frag[2 * (first + j)], product_frag[j][0]);
      add_to(state_frag[2 * (first + j) + 1], product_frag[j][1]);
    }
  }

  __device__ __forceinline__ static void store_outputs(const ChunkedArguments& args,
                                                       const ValueTile<kValueColumns>& tile,
                                                       const Element* out_smem, int first_token, int num_rows,
                                                       int warp_column, int lane) {
    constexpr int kVector = 16 / Plan::kElementBytes;
    constexpr int kPieces = 16 / kVector;
    constexpr int kRows = kWarp / kPieces;
    const int column = warp_column + lane % kPieces * kVector;
    Element* const out_gmem = tile.template out<Element>(args) + column;
#pragma unroll(Plan::kLoadsInTurn ? 1 : Plan::kTokens)
    for (int first_row = 0; first_row < Plan::kTokens; first_row += kRows) {
      const int row = first_row + lane / kPieces;
      if (row < num_rows) {
        const Element* const piece_smem = out_smem + row * ValueLayout::kStride + column;
        Element* const piece_gmem = out_gmem + (first_token + row) * args.out.token_stride;
        if (column + kVector <= tile.num_columns) {
          *reinterpret_cast<uint4*>(piece_gmem) = *reinterpret_cast<const uint4*>(piece_smem);
        } else {
#pragma unroll
          for (int i = 0; i < kVector; ++i) {
            if (column + i < tile.num_columns) {
              piece_gmem[i] = piece_smem[i];
            }
          }
        }
      }
    }
  }
};

}  // namespace linattn
