// The causal gradients on the tensor cores of sm_80 and newer: gradient_arguments.h has the vocabulary,
// docs/decisions/0008-backward.md the formulas.
//
// A block has 64 columns of out of an item of a head of x, and works as that of the forward does: four warps keep
// the state, four others are a step ahead and form W. kQueryGradient walks its chunks from the first token on, the
// two others from the last one back.
#pragma once

#include "linattn/mma_gradient_plan.cuh"
#include "linattn/mma_gradient_score.cuh"
#include "linattn/mma_gradient_state.cuh"

namespace linattn {

template <class Plan>
__device__ __forceinline__ void mma_gradient(const GradientArguments& args) {
  using Element = typename Plan::Element;
  extern __shared__ __align__(16) unsigned char chunk_smem[];

  let_later_kernels_start();
  const ChunkedArguments& chunked = args.chunked;
  const GradientMemory<Plan> memory(chunk_smem);
  // In the padding behind the first row, which no copy writes.
  MeetingPlace<Plan::kThreads> roles(reinterpret_cast<uint64_t*>(memory.stages_smem + Plan::kHeadDim));
  const GradientTile tile(chunked, blockIdx.x, Plan::kIsQuery);
  const int thread = static_cast<int>(threadIdx.x);
  const bool is_score_role = thread < Plan::kScoreThreads;
  const int num_chunks = ceil_div(tile.item.tokens, Plan::kTokens);
  const int num_steps = num_chunks * tile.members;
  const auto step_at = [&](int step_idx) {
    return gradient_step<Plan>(step_idx, chunked.group, num_chunks);
  };

  const auto start_step = [&](int step_idx) {
    if (step_idx < num_steps && (Plan::kCopyThreads == Plan::kThreads || is_score_role)) {
      const GradientStep step = step_at(step_idx);
      const int first_token = step.chunk * Plan::kTokens;
      const int64_t token = tile.item.start + static_cast<int64_t>(first_token);
      const int rows = tile.item.tokens - first_token;
      const int source_head = tile.source_head(Plan::kIsQuery, step.member);
      Plan::QueryLayout::template start_copy<Plan::kCopyThreads>(
          memory.query(step_idx), row_address<Element>(chunked.query, tile.batch_idx, tile.head_idx, token),
          chunked.query.token_stride, rows, Plan::kHeadDim);
      Plan::QueryLayout::template start_copy<Plan::kCopyThreads>(
          memory.key(step_idx), row_address<Element>(chunked.key, tile.batch_idx, source_head, token),
          chunked.key.token_stride, rows, Plan::kHeadDim);
      Plan::ValueLayout::template start_copy<Plan::kCopyThreads>(
          memory.value(step_idx),
          row_address<Element>(chunked.value, tile.batch_idx, source_head, token) + tile.first_column,
          chunked.value.token_stride, rows, tile.num_columns);
      start_row_copies<Plan::kTokens, Plan::kCopyThreads>(args, memory.rows(step_idx), tile.batch_idx,
                                                          tile.query_head(Plan::kIsQuery, step.member),
                                                          tile.kv_head_idx, token, rows);
    }
    commit_copies();
  };
  wait_for_earlier_kernels();
#pragma unroll 1
  for (int step_idx = 0; step_idx < Plan::kStages - 2; ++step_idx) {
    start_step(step_idx);
  }

  const auto enter = [&](int step_idx) { enter_iteration<Plan>(roles, step_idx, start_step); };
  // invariant: iteration i forms W of step i + 1 and adds step i to the outputs of its chunk.
  double constant_sum = 0.0;
  double slope_sum = 0.0;
  float poison = 0.0f;  // NaN once a gradient, or a term of da, is not finite
  if (is_score_role) {
    GradientScoreRole<Plan> scores;
    scores.load(chunked, tile, memory, thread);
#pragma unroll 1
    for (int step_idx = -1; step_idx < num_steps; ++step_idx) {
      enter(step_idx);
      if (step_idx + 1 < num_steps) {
        scores.process(args, tile, memory, step_idx + 1, step_at(step_idx + 1), thread);
      }
    }
    constant_sum = tile.block.tile_idx == 0 ? scores.constant_sum : 0.0;
    poison = 0.0f * static_cast<float>(scores.constant_sum);
  } else {
    GradientStateRole<Plan> states;
    states.load(args, tile, thread - Plan::kScoreThreads);
#pragma unroll 1
    for (int step_idx = -1; step_idx < num_steps; ++step_idx) {
      enter(step_idx);
      if (step_idx >= 0) {
        const bool reads_state = step_idx > 0 || chunked.state_in != nullptr;
        const bool updates_state =
            step_idx < num_steps - tile.members || (!Plan::kIsQuery && chunked.state_out != nullptr);
        states.process(args, tile, memory, step_idx, step_at(step_idx), thread - Plan::kScoreThreads,
                       reads_state, updates_state);
      }
    }
    slope_sum = states.slope_sum;
    poison = states.poison;
    if constexpr (!Plan::kIsQuery) {
      // Found again, so that what only the store needs takes no registers in the loop.
      const GradientTile store_tile(chunked, block_again(), Plan::kIsQuery);
      states.store(args, store_tile, static_cast<int>(threadIdx.x) - Plan::kScoreThreads);
    }
  }
  wait_for_copies();
  if constexpr (Plan::kIsQuery) {
    store_partials(args, blockIdx.x, constant_sum, slope_sum, reinterpret_cast<double*>(memory.weights_smem),
                   Plan::kThreads, [&] { roles.meet(); });
  }
  if (chunked.marks != nullptr && thread == 0) {
    chunked.marks[blockIdx.x] = 0;
  }
  roles.meet();
  if (chunked.marks != nullptr && isnan(poison)) {
    chunked.marks[blockIdx.x] = 1;
  }
}

template <class Plan>
__device__ __forceinline__ void query_gradient(const GradientArguments& args) {
  static_assert(Plan::kIsQuery, "sums over the tokens before");
  mma_gradient<Plan>(args);
}

template <class Plan>
__device__ __forceinline__ void key_value_gradient(const GradientArguments& args) {
  static_assert(!Plan::kIsQuery, "sums over the tokens after");
  mma_gradient<Plan>(args);
}

}  // namespace linattn
