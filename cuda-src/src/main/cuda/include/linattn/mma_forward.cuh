// The causal forward on the tensor cores of sm_80 and newer: chunked_arguments.h has the vocabulary,
// docs/decisions/0004-chunked-family.md the formulas.
//
// A block has 64 value columns of an item of a head. Four warps keep S^T in registers, 16 value columns each,
// and form O^T = S^T Q^T + V^T W^T and S^T += V^T K; its accumulators become their own operands. Four other
// warps are a chunk ahead and form W, g and z. One barrier per chunk hands W over and frees the oldest stage.
#pragma once

#include "linattn/mma_plan.cuh"
#include "linattn/mma_score.cuh"
#include "linattn/mma_state.cuh"

namespace linattn {

template <class Plan>
__device__ __forceinline__ void mma_forward(const ChunkedArguments& args) {
  using Element = typename Plan::Element;
  extern __shared__ __align__(16) unsigned char chunk_smem[];

  let_later_kernels_start();
  const ForwardMemory<Plan> memory(chunk_smem);
  // In the padding behind the first row, which no copy writes.
  MeetingPlace<Plan::kThreads> roles(reinterpret_cast<uint64_t*>(memory.stages_smem + Plan::kHeadDim));
  const ValueTile<kValueColumns> tile(args);
  const int thread = static_cast<int>(threadIdx.x);
  const bool is_score_role = thread < Plan::kScoreThreads;
  const int num_chunks = ceil_div(tile.item.tokens, Plan::kTokens);
  const bool writes_state = tile.head.writes_state(args) && args.state_out != nullptr;
  const Element* const query_gmem = tile.template query<Element>(args);
  const Element* const key_gmem = tile.template key<Element>(args);
  const Element* const value_gmem = tile.template value<Element>(args);

  const auto start_chunk = [&](int chunk) {
    if (chunk < num_chunks && (Plan::kCopyThreads == Plan::kThreads || is_score_role)) {
      const int64_t token = static_cast<int64_t>(chunk) * Plan::kTokens;
      const int rows = tile.item.tokens - static_cast<int>(token);
      Plan::QueryLayout::template start_copy<Plan::kCopyThreads>(
          memory.query(chunk), query_gmem + token * args.query.token_stride, args.query.token_stride, rows,
          Plan::kHeadDim);
      Plan::QueryLayout::template start_copy<Plan::kCopyThreads>(
          memory.key(chunk), key_gmem + token * args.key.token_stride, args.key.token_stride, rows,
          Plan::kHeadDim);
      Plan::ValueLayout::template start_copy<Plan::kCopyThreads>(
          memory.value(chunk), value_gmem + token * args.value.token_stride, args.value.token_stride, rows,
          tile.num_columns);
    }
    commit_copies();
  };
  wait_for_earlier_kernels();
#pragma unroll 1
  for (int chunk = 0; chunk < Plan::kStages - 2; ++chunk) {
    start_chunk(chunk);
  }

  const auto enter = [&](int chunk) { enter_iteration<Plan>(roles, chunk, start_chunk); };
  // invariant: iteration c forms W of chunk c + 1 and the outputs of chunk c. Each role has a loop of its own:
  // the registers of one are not live in the other.
  bool is_bad = false;
  if (is_score_role) {
    ScoreRole<Plan> scores;
    scores.load(args, tile, memory, thread);
#pragma unroll 1
    for (int chunk = -1; chunk < num_chunks; ++chunk) {
      enter(chunk);
      if (chunk + 1 < num_chunks) {
        is_bad = scores.process(args, tile, memory, chunk + 1, thread) || is_bad;
      }
    }
    if (tile.head.writes_state(args)) {
      scores.store(args, tile, thread);
    }
  } else {
    StateRole<Plan> states;
    states.load(args, tile, thread - Plan::kScoreThreads);
#pragma unroll 1
    for (int chunk = -1; chunk < num_chunks; ++chunk) {
      enter(chunk);
      if (chunk >= 0) {
        const bool reads_state = chunk > 0 || args.state_in != nullptr;
        const bool updates_state = chunk < num_chunks - 1 || writes_state;
        is_bad = states.process(args, tile, memory, chunk, thread - Plan::kScoreThreads, reads_state,
                                updates_state) ||
                 is_bad;
      }
    }
    // Found again, so that what only the store needs takes no registers in the loop.
    const ValueTile<kValueColumns> store_tile(args, block_again());
    if (store_tile.head.writes_state(args)) {
      states.store(args, store_tile, static_cast<int>(threadIdx.x) - Plan::kScoreThreads);
    }
  }
  wait_for_copies();
  if (args.marks != nullptr && thread == 0) {
    args.marks[blockIdx.x] = 0;
  }
  roles.meet();
  if (args.marks != nullptr && is_bad) {
    args.marks[blockIdx.x] = 1;
  }
}

}  // namespace linattn
