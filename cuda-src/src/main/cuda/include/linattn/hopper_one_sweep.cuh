// dq, dk and dv of an item by one walk from its last chunk on, for rows of 64 or 128 columns of 16 bits:
// docs/decisions/0012-one-sweep.md. S, which dq takes from the tokens before, comes as it is after the last of them,
// and chunk after chunk is taken out of it; S before the first chunk is known and takes the place of what is left.
//
// Blocks are clusters of two: one forms dk and the columns 64 to 127 of dq, the other dv and the columns 0 to 63; of 64
// columns the one of dk forms all of dq, and E alone. With
// w = b dO / g, d = o . w and E_pi = v_p . w_i - d_i,
//
//   dk_p = sum over i >= p of E_pi q_i
//   dv_p = sum over i >= p of (a / b + k_p . q_i) w_i
//   dq_i = sum over n <= i of E_ni k_n
//   b da = sum over n <= i of E_ni
//
// Warpgroups in this order:
//
//   score   w where dO landed, half of d, which blocks send to each other, E, and W of dv
//   state   one for each 64 columns of dk or dv and of the sums over the tokens after
//   prefix  64 columns of dq, with S and z of the tokens before
//
// A block has x, y and z as the gradients of k and v have them, and what it wants for dq beside: v and k. An item ends
// with the tokens of a batch row, where copies bring zeros for rows past its end, and do not write them; or with a chunk,
// where it is one of a relay or a segment.
//
// Of fp16 w comes in a power of two, the unit of a chunk, which brings w, E and the sums over the tokens after into the
// range; these sums follow it where it changes, and d, da and all outputs leave it. Where S is beyond the range outputs
// are marked.
#pragma once

#include <cstddef>

#include "linattn/hopper_one_sweep_plan.cuh"
#include "linattn/hopper_one_sweep_prefix.cuh"
#include "linattn/hopper_one_sweep_score.cuh"
#include "linattn/hopper_one_sweep_state.cuh"
#include "linattn/hopper_scales.cuh"

namespace linattn {
namespace hopper {

static_assert(sizeof(HopperOneSweepArguments) == 2368 && offsetof(HopperOneSweepArguments, last_state) == 2304 &&
                  offsetof(HopperOneSweepArguments, end_key_sum) == 2360,
              "as the run time fills them in");

template <class Plan>
__device__ __forceinline__ void init_sweep_barriers(const SweepTiles<Plan>& tiles) {
  const Block<Plan>& block = tiles.block;
  for (int i = 0; i < Plan::kStages; ++i) {
    barrier_init(tiles.full(i), 1);
    barrier_init(tiles.empty(i), Plan::kThreads / kWarp - (Plan::kHasPrefix ? 0 : 4));
    barrier_init(tiles.ready(i), kWarpgroup);
  }
  for (int i = 0; i < Plan::kRowPlaces; ++i) {
    barrier_init(block.rows_full(i), kWarp);
    barrier_init(tiles.delta_full(i), 1);
  }
  for (int i = 0; i < 2; ++i) {
    barrier_init(tiles.weights_full(i), kWarpgroup);
    barrier_init(tiles.weights_empty(i), tiles.weights_readers(i));
  }
  barrier_init(block.barrier(Plan::kPartialsFull), Plan::kSummingWarps);
  barrier_init_fence();
}

// What is not written again: zeros below the diagonal of weights, and rows of ones.
template <class Plan>
__device__ __forceinline__ void clear_sweep_constants(const Block<Plan>& block) {
  constexpr int kWeightUnits = 2 * Plan::kWeightBytes / kUnitBytes;
  for (int i = threadIdx.x; i < kWeightUnits; i += Plan::kThreads) {
    store_unit(block.weights(0) + i * kUnitBytes, make_uint4(0, 0, 0, 0));
  }
  __syncthreads();
  constexpr int kRowWords = kRowBytes / 4;
  constexpr uint32_t kOnesRow = SweepScore<Plan>::kOnesRow * kRowBytes;
  for (int i = threadIdx.x; i < 2 * kRowWords; i += Plan::kThreads) {
    store_word(block.weights(i / kRowWords) + Plan::kBoxBytes + kOnesRow + i % kRowWords * 4, Plan::Half::kOnes);
  }
  for (int i = threadIdx.x; i < 8 * kRowWords; i += Plan::kThreads) {
    store_word(block.base + Plan::kOnesOffset + i * 4, Plan::Half::kOnes);
  }
  store_word(SweepTiles<Plan>(block).mark_address(), 0);
  if (threadIdx.x < Plan::kChunk) {
    store_float(block.base + Plan::kRatiosOffset + threadIdx.x * 4, block.constant_of(0) / block.slope_of(0));
  }
}

// The least |g| of the rows of each chunk, where its unit will be: a warp for each, several chunks at once, because each
// round waits for memory behind the first tiles. A chunk that ends early has its last row twice.
template <class Plan, int kWarps>
__device__ __forceinline__ void find_least_normalizers(const SweepTiles<Plan>& tiles, const TensorView& normalizer,
                                                       int warp, int lane) {
  constexpr int kChunksAtOnce = 8;
  const Block<Plan>& block = tiles.block;
  const ItemWork& work = block.work;
  const float* const normalizer_gmem = row_address<const float>(normalizer, work.batch, work.head, work.start);
#pragma unroll 1
  for (int first = warp; first < block.num_chunks; first += kWarps * kChunksAtOnce) {
    float least[kChunksAtOnce];
#pragma unroll
    for (int i = 0; i < kChunksAtOnce; ++i) {
      const int chunk = min(first + i * kWarps, block.num_chunks - 1);
      const int row = block.first_token(chunk) + lane;
      least[i] = fminf(fabsf(normalizer_gmem[min(row, work.tokens - 1) * normalizer.token_stride]),
                       fabsf(normalizer_gmem[min(row + kWarp, work.tokens - 1) * normalizer.token_stride]));
    }
#pragma unroll
    for (int i = 0; i < kChunksAtOnce; ++i) {
      const int chunk = first + i * kWarps;
      const float of_chunk = -max_lanes<kWarp>(-least[i]);
      if (chunk < block.num_chunks && lane == 0) {
        store_float(tiles.unit_address(chunk), of_chunk);
      }
    }
  }
}

// The units of all chunks, the same in both blocks. Of each chunk the largest power of two whose operands are at most
// kMaxHalf, as g of its rows and elements of the tokens measured bound them, rounded down to one of few, so that sums
// seldom change theirs. Found one by one between the chunks they would be instructions that caches have no room for.
template <class Plan>
__device__ __forceinline__ void find_units(const HopperOneSweepArguments& args, const SweepTiles<Plan>& tiles,
                                           Extent* extents_smem) {
  constexpr int kExponentStep = 4;
  constexpr int kColumnWarps = 3 * Plan::kHeadDim / kMeasuredColumns;
  constexpr int kNormalizerWarps = Plan::kThreads / kWarp - kColumnWarps;
  static_assert(kNormalizerWarps > 0, "some for g");
  const Block<Plan>& block = tiles.block;
  const ItemWork& work = block.work;
  const ChunkedArguments& tensors = args.gradients.tasks[0].gradient.chunked;  // v, dO and q
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarp;
  const int num_rows = min(Plan::kChunk, work.tokens);
  const auto view = [&](int tensor) -> const TensorView& {
    return tensor == 0 ? tensors.query : tensor == 1 ? tensors.key : tensors.value;
  };
  clear_extents(extents_smem);
  if (warp < kColumnWarps) {
    const int column = warp * kMeasuredColumns;
    const int tensor = column / Plan::kHeadDim;
    measure_columns<Plan>(view(tensor), work, work.head, 0, column % Plan::kHeadDim, kMeasuredColumns,
                          extents_smem + tensor);
  } else {
    find_least_normalizers<Plan, kNormalizerWarps>(tiles, tensors.normalizer, warp - kColumnWarps, thread % kWarp);
  }
  measure_state(block, extents_smem + kTensors);
  __syncthreads();
  go_on_measuring(0, extents_smem, [&](int tensor) {
    measure_on<Plan>(view(tensor), work, work.head, 1, 0, Plan::kHeadDim, extents_smem + tensor);
  });
  // In a relay the blocks have a gradient of the state each, which need not have the same bits.
  cluster_sync();
  if (thread < block.num_chunks) {
    const uint32_t largest_word = shared_address(&extents_smem[kTensors].largest);
    const float start = __uint_as_float(max(load_word_in_block(address_in_block(largest_word, 0)),
                                            load_word_in_block(address_in_block(largest_word, 1))));
    const float values = 2.0f * size_of(__uint_as_float(extents_smem[0].largest));
    const float gradients = 2.0f * size_of(__uint_as_float(extents_smem[1].largest));
    const float squares = __uint_as_float(extents_smem[1].squares) / num_rows *
                          (__uint_as_float(extents_smem[2].squares) / num_rows);
    const float row_limit = fmaxf(1.0f, gradients * fmaxf(1.0f, 2.0f * Plan::kHeadDim * values));
    const float state_limit = kMargin * sqrtf(squares) * static_cast<float>(work.tokens - block.first_token(thread));
    const float weight = fabsf(block.slope_of(0)) * reciprocal(load_float(tiles.unit_address(thread)));
    const float limit = fmaf(weight, fmaxf(row_limit, state_limit), start);
    const int exponent = exponent_of(kMaxHalf * reciprocal(limit));
    const float unit = power_of_two(exponent & -kExponentStep);
    store_float(tiles.unit_address(thread), unit);
    store_float(tiles.unit_address(thread) + 4, inverse_of_power(unit));
  }
  __syncthreads();
  if (thread < block.num_chunks) {
    const float unit = tiles.unit(thread);
    store_float(tiles.unit_address(thread) + 8, thread == 0 ? unit : unit * tiles.inverse_unit(thread - 1));
  }
}

// Of 64 columns each block has terms of da that the other knows nothing of. All threads take part, at the end.
template <class Plan>
__device__ __forceinline__ void add_partials(const HopperOneSweepArguments& args, const SweepTiles<Plan>& tiles) {
  const int64_t item = StateAddress<Plan>::block_number(tiles.block);
  volatile double* const of_values_gmem = args.gradients.tasks[1].gradient.partials + 2 * item;
  if (!Plan::kIsKey && threadIdx.x == 0) {
    *of_values_gmem = tiles.told();
  }
  __syncwarp();
  cluster_sync();
  if (Plan::kIsKey && threadIdx.x == 0) {
    const double sum = tiles.told() + *of_values_gmem;
    tiles.write_partials(args.gradients.tasks[1].gradient.partials + 2 * item, sum);
    if (!tiles.is_finite(sum)) {
      args.query_marks[item] = 1;
    }
  }
}

template <class Plan>
__device__ __forceinline__ void walk_one_sweep(const HopperOneSweepArguments& args) {
  extern __shared__ unsigned char shared[];
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarp, 0);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const uint32_t start = shared_address(shared);
  const uint32_t base = (start + Plan::kAlignment - 1) & ~static_cast<uint32_t>(Plan::kAlignment - 1);
  const GradientArguments& first = args.gradients.tasks[0].gradient;
  const HopperGradient& task = args.gradients.tasks[Plan::kIsKey ? 0 : 1];
  auto* const work_smem = reinterpret_cast<ItemWork*>(shared + (base - start) + Plan::kWorkOffset);
  const uint32_t number = number_by_head<Plan>(first.chunked, number_in_task<Plan>(first, blockIdx.x));
  const auto tile = tile_of<Plan>(task.gradient.chunked, number);
  const ItemWork item(tile, task.gradient, 0);
  if (threadIdx.x == 0) {
    *work_smem = item;
  }
  static_assert(sizeof(ItemWork) <= 44, "its place in shared memory");
  const Block<Plan> block{task, *work_smem, base, chunks_of<Plan>(item.tokens)};
  const SweepTiles<Plan> tiles(block);
  if (threadIdx.x == 0) {
    init_sweep_barriers(tiles);
  }
  __syncthreads();
  clear_sweep_constants(block);
  publish_to_async_proxy();
  wait_for_earlier_kernels();
  if constexpr (Plan::kScaled) {
    if (threadIdx.x == 0 && block.num_chunks > 0) {  // under way while units are found
      tiles.load(args, 0, 0);
    }
    __syncwarp();
  }
  take_over(block, number, tile.head.kv_index, tile.block.item_idx);
  if constexpr (Plan::kScaled) {
    find_units(args, tiles, reinterpret_cast<Extent*>(shared + (base - start) + Plan::kExtentsOffset));
  }
  __syncthreads();
  cluster_sync();
  const int warpgroup = warp / 4;
  if (warpgroup < Plan::kStateGroup) {
    Plan::Spec::Registers::score();
    SweepScore<Plan>(block, warp, lane).run();
  } else {
    Plan::Spec::Registers::state();
    Outputs<Plan> outputs(block, warpgroup - Plan::kStateGroup, warp & 3, lane);
    State<Plan> state(block, outputs);
    if (warpgroup < Plan::kPrefixGroup) {
      SweepState<Plan>(args, state).run();
    } else if constexpr (Plan::kHasPrefix) {
      SweepPrefix<Plan>(args, state).run();
    }
  }
  hand_on(block);
  if constexpr (Plan::kBoxes == 1) {
    add_partials(args, tiles);
  } else {
    cluster_sync();
  }
}

template <class Plan>
__device__ __forceinline__ void one_sweep(const HopperOneSweepArguments& args) {
  let_later_kernels_start();
  if (task_of<Plan>(args.gradients.tasks[0].gradient, blockIdx.x) == 0) {
    walk_one_sweep<Plan>(args);
  } else {
    walk_one_sweep<OneSweepPlan<typename Plan::Spec, false>>(args);
  }
}

}  // namespace hopper
}  // namespace linattn
