// Sums of items for the gradients after them, on the tensor cores of sm_80 and newer: gradient_arguments.h has the
// vocabulary, docs/decisions/0008-backward.md the formulas.
#pragma once

#include "linattn/gradient_items.cuh"
#include "linattn/state_sums.cuh"

namespace linattn {

// A block has a part of dS of an item of a key/value head, as in state_sums with q in place of K and dO in place of
// V, and adds up the query heads of its group. dz and du are summed in fp32.
template <typename Element, bool kAccurate>
struct GradientSumsPlan : StateSumsPlan<Element, kAccurate, /*kSharedLimit=*/96 * 1024, kStageRows> {
  using Base = typename GradientSumsPlan::StateSumsPlan;
  // Behind the stages, of each token what it multiplies q and dO by: slope, those of dz and of du.
  static constexpr int kFactors = 3;
  static constexpr int kSharedBytes = Base::kSharedBytes + kFactors * Base::kTokens * 4;

  using Columns = ColumnSums<Element>;
  static constexpr int kSumThreads = (Base::kKeyTile + Base::kValueTile) / Columns::kColumns;
  static constexpr int kSumParts = Base::kThreads / kSumThreads;
  static constexpr int kSumRows = Base::kTokens / kSumParts;
};

// A thread adds its share of the rows of columns of q, or of dO.
template <class Plan>
struct FactorSums {
  using Columns = typename Plan::Columns;
  static constexpr int kColumns = Columns::kColumns;
  int column;
  int first_row;
  RunningSum sum_frag[kColumns];

  __device__ __forceinline__ FactorSums()
      : column(static_cast<int>(threadIdx.x) % Plan::kSumThreads * kColumns),
        first_row(static_cast<int>(threadIdx.x) / Plan::kSumThreads * Plan::kSumRows) {}

  __device__ __forceinline__ bool is_key() const { return column < Plan::kKeyTile; }

  __device__ __forceinline__ void add_chunk(const typename Plan::Element* key_smem,
                                            const typename Plan::Element* value_smem, const float* key_factor_smem,
                                            const float* value_factor_smem) {
    constexpr int kKeyStride = Plan::KeyLayout::kStride;
    constexpr int kValueStride = Plan::ValueLayout::kStride;
    Columns sums;
    if (is_key()) {
      sums.template of_rows<Plan::kSumRows>(key_smem + first_row * kKeyStride + column, kKeyStride,
                                            key_factor_smem + first_row);
    } else {
      const int value_column = column - Plan::kKeyTile;
      sums.template of_rows<Plan::kSumRows>(value_smem + first_row * kValueStride + value_column, kValueStride,
                                            value_factor_smem + first_row);
    }
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      sum_frag[i].add(sums.sum_frag[i]);
      sum_frag[i].fold();
    }
  }

  // A null pointer: not wanted.
  __device__ __forceinline__ void store(float* sums_smem, float* keys_gmem, int num_keys, float* values_gmem,
                                        int num_values) const {
    constexpr int kAll = Plan::kKeyTile + Plan::kValueTile;
    const int part = static_cast<int>(threadIdx.x) / Plan::kSumThreads;
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      sums_smem[part * kAll + column + i] = sum_frag[i].total();
    }
    __syncthreads();
    for (int idx = static_cast<int>(threadIdx.x); idx < kAll; idx += Plan::kThreads) {
      float sum = 0.0f;
#pragma unroll
      for (int other = 0; other < Plan::kSumParts; ++other) {
        sum += sums_smem[other * kAll + idx];
      }
      const int value_column = idx - Plan::kKeyTile;
      if (idx < Plan::kKeyTile) {
        if (keys_gmem != nullptr && idx < num_keys) {
          keys_gmem[idx] = sum;
        }
      } else if (values_gmem != nullptr && value_column < num_values) {
        values_gmem[value_column] = sum;
      }
    }
  }
};

template <class Plan>
__device__ __forceinline__ void sum_gradient_part(const GradientArguments& args, uint32_t part) {
  using Element = typename Plan::Element;
  using Operand = Operands<Element, Plan::kKind>;
  using KeyLayout = typename Plan::KeyLayout;
  using ValueLayout = typename Plan::ValueLayout;
  extern __shared__ __align__(16) unsigned char chunk_smem[];

  const ChunkedArguments& chunked = args.chunked;
  const int value_tiles = ceil_div(chunked.value_dim, Plan::kValueTile);
  const BlockIndex block(part, chunked.num_items, Plan::tiles(chunked.key_dim, chunked.value_dim));
  const int batch_idx = static_cast<int>(chunked.kv_heads.quotient(block.head));
  const int kv_head_idx = static_cast<int>(chunked.kv_heads.remainder(block.head));
  const int first_key = block.tile_idx / value_tiles * Plan::kKeyTile;
  const int first_value = block.tile_idx % value_tiles * Plan::kValueTile;
  const Item item = load_item(chunked, block.item_idx);
  const int num_keys = chunked.key_dim - first_key;
  const int num_values = chunked.value_dim - first_value;
  const int num_chunks = ceil_div(item.tokens, Plan::kTokens);
  const int num_steps = num_chunks * chunked.group.value;

  const int thread = static_cast<int>(threadIdx.x);
  const int warp = warp_of_thread();
  const int warp_row = warp % 4 * (Plan::kValueTile / 4);
  const int warp_column = warp / 4 * (Plan::kKeyTile / 2);

  const auto key_tile = [&](int step) {
    return reinterpret_cast<Element*>(chunk_smem + step % Plan::kStages * Plan::kStageBytes);
  };
  const auto value_tile = [&](int step) { return key_tile(step) + KeyLayout::kElements; };
  const auto rows_of = [&](int step) {
    return reinterpret_cast<float*>(value_tile(step) + ValueLayout::kElements);
  };
  float* const slope_smem = reinterpret_cast<float*>(chunk_smem + Plan::kStages * Plan::kStageBytes);
  float* const key_factor_smem = slope_smem + Plan::kTokens;
  float* const value_factor_smem = key_factor_smem + Plan::kTokens;

  // All chunks of a head come before the next head.
  const auto start_step = [&](int step) {
    if (step < num_steps) {
      const int head_idx = kv_head_idx * chunked.group.value + step / num_chunks;
      const int first_token = step % num_chunks * Plan::kTokens;
      const int64_t token = item.start + static_cast<int64_t>(first_token);
      const int rows = item.tokens - first_token;
      KeyLayout::template start_copy<Plan::kThreads>(
          key_tile(step), row_address<Element>(chunked.key, batch_idx, head_idx, token) + first_key,
          chunked.key.token_stride, rows, num_keys);
      ValueLayout::template start_copy<Plan::kThreads>(
          value_tile(step), row_address<Element>(chunked.value, batch_idx, head_idx, token) + first_value,
          chunked.value.token_stride, rows, num_values);
      start_row_copies<Plan::kTokens, Plan::kThreads>(args, rows_of(step), batch_idx, head_idx, kv_head_idx, token,
                                                      rows);
    }
    commit_copies();
  };

  const bool sums_keys = first_value == 0 && chunked.key_sum_out != nullptr;
  const bool sums_values = first_key == 0 && chunked.value_sum_out != nullptr;
  FactorSums<Plan> sums;
  float state_frag[Plan::kRowBlocks][Plan::kColumnBlocks][2][4];
#pragma unroll
  for (int r = 0; r < Plan::kRowBlocks; ++r) {
    clear(state_frag[r]);
  }

  const int64_t state = state_index(chunked, block.head, item.slot);
  __syncthreads();  // the part before has been stored
#pragma unroll 1
  for (int step = 0; step < Plan::kStages - 1; ++step) {
    start_step(step);
  }
  for (int step = 0; step < num_steps; ++step) {
    wait_for_groups<Plan::kStages - 2>();
    __syncthreads();
    // Nobody reads the stage of the last step, nor its factors, any more.
    start_step(step + Plan::kStages - 1);
    const Element* const key_smem = key_tile(step);
    const Element* const value_smem = value_tile(step);
    if (thread < Plan::kTokens) {
      const float* const row_smem = rows_of(step) + thread;
      const int head_idx = kv_head_idx * chunked.group.value + step / num_chunks;
      const bool valid = step % num_chunks * Plan::kTokens + thread < item.tokens;
      const float inverse = valid ? 1.0f / row_smem[kNormalizerRow * Plan::kTokens] : 0.0f;
      const float scale = args.query_scale == nullptr ? 1.0f : row_smem[kQueryScaleRow * Plan::kTokens];
      const float delta = row_smem[kDeltaRow * Plan::kTokens];
      const float slope = coefficient(chunked.b_per_head, chunked.b, head_idx) * inverse * scale;
      slope_smem[thread] = slope;
      key_factor_smem[thread] = -delta * slope;
      value_factor_smem[thread] = coefficient(chunked.a_per_head, chunked.a, head_idx) * inverse;
    }
    __syncthreads();
    if (sums.is_key() ? sums_keys : sums_values) {
      sums.add_chunk(key_smem, value_smem, key_factor_smem, value_factor_smem);
    }
    add_tile_products<Plan>(
        state_frag, key_smem, value_smem, warp_row, warp_column,
        [&](typename Operand::A& rows, int, int token) { Operand::scale_tokens(rows, slope_smem + token); },
        [](const typename Operand::B&, const typename Operand::B&, int) {});
  }
  wait_for_groups<0>();
  __syncthreads();

  sums.store(reinterpret_cast<float*>(chunk_smem),
             sums_keys ? chunked.key_sum_out + state * chunked.key_dim + first_key : nullptr, num_keys,
             sums_values ? chunked.value_sum_out + state * chunked.value_dim + first_value : nullptr, num_values);
  if (chunked.state_out != nullptr) {
    store_tile<Plan>(state_frag,
                     chunked.state_out + (state * chunked.key_dim + first_key) * chunked.value_dim + first_value,
                     chunked.value_dim, num_keys, num_values, warp_row, warp_column);
  }
}

template <class Plan>
__device__ __forceinline__ void gradient_sums(const GradientArguments& args) {
  let_later_kernels_start();
  wait_for_earlier_kernels();
  visit_sums<Plan>(args.chunked, [&](uint32_t part) { sum_gradient_part<Plan>(args, part); });
}

}  // namespace linattn
