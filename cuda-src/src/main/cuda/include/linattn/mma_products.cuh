// What the sweeps by mma have in common: the products of a chunk, and its sums of keys.
#pragma once

#include "linattn/mma_plan.cuh"

namespace linattn {

// Which tokens a row sums over: those up to itself, or those from itself on. The same holds of blocks of 16.
enum class Direction { kForwards, kBackwards };

template <Direction kDirection>
__device__ __forceinline__ constexpr bool sees(int row, int column) {
  return kDirection == Direction::kForwards ? column <= row : column >= row;
}

// The sum of the keys of all chunks before: a thread of the score role has columns of it in registers, rows of
// a chunk read it from shared memory.
template <class Plan>
struct KeySums {
  using Element = typename Plan::Element;

  // invariant: entering chunk c, key_sum_frag and key_sum_smem[c % 2] hold the sum of the keys before it.
  RunningSum key_sum_frag[Plan::kColumnsPerThread];

  __device__ __forceinline__ void load(const float* sums_gmem, int64_t offset, const ChunkMemory<Plan>& memory,
                                       int thread) {
#pragma unroll
    for (int i = 0; i < Plan::kColumnsPerThread; ++i) {
      const int column = thread + i * Plan::kScoreThreads;
      if (column < Plan::kHeadDim) {
        const float sum = sums_gmem == nullptr ? 0.0f : sums_gmem[offset + column];
        key_sum_frag[i] = RunningSum(sum);
        memory.key_sum_smem[column] = sum;
      }
    }
    // Seen by the first chunk after the barrier of its iteration.
  }

  __device__ __forceinline__ void store(float* sums_gmem, int64_t offset, int thread) const {
#pragma unroll
    for (int i = 0; i < Plan::kColumnsPerThread; ++i) {
      const int column = thread + i * Plan::kScoreThreads;
      if (column < Plan::kHeadDim) {
        sums_gmem[offset + column] = key_sum_frag[i].total();
      }
    }
  }

  __device__ __forceinline__ static void sum_chunk(const ChunkMemory<Plan>& memory, const Element* key_smem,
                                                   int thread) {
    constexpr int kStride = Plan::QueryLayout::kStride;
    constexpr int kRows = Plan::kTokens / Plan::kSumParts;
    for (int idx = thread; idx < Plan::kSumParts * Plan::kSumColumns; idx += Plan::kScoreThreads) {
      const int part = idx / Plan::kSumColumns;
      const int column = idx % Plan::kSumColumns * ColumnSums<Element>::kColumns;
      ColumnSums<Element> sums;
      sums.template of_rows<kRows>(key_smem + part * kRows * kStride + column, kStride);
#pragma unroll
      for (int i = 0; i < ColumnSums<Element>::kColumns; ++i) {
        memory.key_sum_parts_smem[part * Plan::kHeadDim + column + i] = sums.sum_frag[i];
      }
    }
  }

  // Behind a barrier after sum_chunk.
  __device__ __forceinline__ void add_chunk(const ChunkMemory<Plan>& memory, int chunk, int thread) {
    float* const next_sum_smem = memory.key_sum_smem + (chunk + 1) % 2 * Plan::kHeadDim;
#pragma unroll
    for (int i = 0; i < Plan::kColumnsPerThread; ++i) {
      const int column = thread + i * Plan::kScoreThreads;
      if (column < Plan::kHeadDim) {
#pragma unroll
        for (int part = 0; part < Plan::kSumParts; ++part) {
          key_sum_frag[i].add(memory.key_sum_parts_smem[part * Plan::kHeadDim + column]);
        }
        key_sum_frag[i].fold();
        next_sum_smem[column] = key_sum_frag[i].total();
      }
    }
  }
};

// Q K^T of a strip of 16 rows and kColumnBlocks blocks of 16 columns, those of them that are
// seen.
template <class Plan, Direction kDirection>
__device__ __forceinline__ void form_scores(float (&score_frag)[Plan::kColumnBlocks][2][4],
                                            const typename Plan::Element* query_smem,
                                            const typename Plan::Element* key_smem, int strip,
                                            int first_block) {
  using Operand = Operands<typename Plan::Element, Plan::kKind>;
  using QueryLayout = typename Plan::QueryLayout;
  clear(score_frag);
  // Rolled: the code of a chunk has to stay in the instruction cache.
#pragma unroll 1
  for (int first_step = 0; first_step < Plan::kDepthSteps; first_step += Plan::kScoreSteps) {
    float product_frag[Plan::kColumnBlocks][2][4];
    float(&sum_frag)[Plan::kColumnBlocks][2][4] = Plan::kAccurate ? product_frag : score_frag;
    if constexpr (Plan::kAccurate) {
      clear(product_frag);
    }
#pragma unroll
    for (int i = 0; i < Plan::kScoreSteps; ++i) {
      const int step = first_step + i;
      typename Operand::A query_frag;
      Operand::template load_a<QueryLayout>(query_frag, query_smem, strip * 16, step * 16);
#pragma unroll
      for (int j = 0; j < Plan::kColumnBlocks; ++j) {
        if (sees<kDirection>(strip, first_block + j)) {
          typename Operand::B left;
          typename Operand::B right;
          Operand::template load_b<QueryLayout>(left, right, key_smem, (first_block + j) * 16, step * 16);
          multiply(sum_frag[j][0], query_frag, left);
          multiply(sum_frag[j][1], query_frag, right);
        }
      }
    }
    if constexpr (Plan::kAccurate) {
#pragma unroll
      for (int j = 0; j < Plan::kColumnBlocks; ++j) {
        add_to(score_frag[j][0], product_frag[j][0]);
        add_to(score_frag[j][1], product_frag[j][1]);
      }
    }
  }
}

// Two neighbouring weights.
template <typename Weight>
__device__ __forceinline__ void store_pair(Weight* pair_smem, const float (&weight_frag)[2]) {
  if constexpr (sizeof(Weight) == 2) {
    *reinterpret_cast<uint32_t*>(pair_smem) = pack<Weight>(weight_frag[0], weight_frag[1]);
  } else {
    *reinterpret_cast<float2*>(pair_smem) = make_float2(weight_frag[0], weight_frag[1]);
  }
}

// The state of the warps that keep one, and the products that they form: 16 value columns each.
template <class Plan>
struct ChunkState {
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
  template <Direction kDirection>
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
      for (int step = 0; step < Plan::kSteps; ++step) {
        if (!sees<kDirection>(j, step)) {
          continue;
        }
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

  // 8 tokens of O^T, of a warp's columns, become rows of a tile.
  __device__ __forceinline__ static void put_outputs(Element* out_smem, int row, int warp_column, int lane,
                                                     const float (&acc_frag)[4]) {
    if constexpr (sizeof(Element) == 2) {
      Element* const lane_smem =
          out_smem + (row + lane / 4) * ValueLayout::kStride + warp_column + lane % 4 * 2;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t pair = pack<Element>(acc_frag[2 * i], acc_frag[2 * i + 1]);
        *reinterpret_cast<uint32_t*>(lane_smem + i * 8) = transpose_pairs(pair);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = warp_column + lane / 4 + i / 2 * 8;
        out_smem[(row + lane % 4 * 2 + i % 2) * ValueLayout::kStride + column] = acc_frag[i];
      }
    }
  }

  // A warp's columns of a tile leave.
  __device__ __forceinline__ static void store_outputs(Element* tile_gmem, int64_t token_stride,
                                                       int num_columns, const Element* out_smem,
                                                       int first_token, int num_rows, int warp_column,
                                                       int lane) {
    constexpr int kVector = 16 / Plan::kElementBytes;
    constexpr int kPieces = 16 / kVector;
    constexpr int kRows = kWarp / kPieces;
    const int column = warp_column + lane % kPieces * kVector;
    Element* const out_gmem = tile_gmem + column;
#pragma unroll(Plan::kLoadsInTurn ? 1 : Plan::kTokens)
    for (int first_row = 0; first_row < Plan::kTokens; first_row += kRows) {
      const int row = first_row + lane / kPieces;
      if (row < num_rows) {
        const Element* const piece_smem = out_smem + row * ValueLayout::kStride + column;
        Element* const piece_gmem = out_gmem + (first_token + row) * token_stride;
        if (column + kVector <= num_columns) {
          *reinterpret_cast<uint4*>(piece_gmem) = *reinterpret_cast<const uint4*>(piece_smem);
        } else {
#pragma unroll
          for (int i = 0; i < kVector; ++i) {
            if (column + i < num_columns) {
              piece_gmem[i] = piece_smem[i];
            }
          }
        }
      }
    }
  }
};

}  // namespace linattn
