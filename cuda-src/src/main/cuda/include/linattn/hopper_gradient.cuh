// The gradients on sm_90a: docs/decisions/0008-backward.md has the formulas, gradient_arguments.h the table of
// x, y and z. A block walks the chunks of an item as the forward does, with x, y and z in the places of q, k and
// v: for the gradient of q from the first chunk on, for those of k and v and the sums for them from the last one on,
// once for each query head of a group. Blocks of an item and head are clusters of two.
#pragma once

#include "linattn/hopper_forward.cuh"
#include "linattn/hopper_gradient_sums.cuh"
#include "linattn/hopper_reverse.cuh"

namespace linattn {
namespace hopper {

// Where warps put their sums of da and db. Found anew where it is used, so that it holds no registers in between.
template <class Plan>
__device__ __forceinline__ double* partials_smem(const Block<Plan>& block) {
  extern __shared__ unsigned char shared[];
  return reinterpret_cast<double*>(shared + (block.base - shared_address(shared)) + Plan::kPartialsOffset);
}

// What a warp of the scores or of the state has of da and db, for the thread that adds them up. They meet at a barrier
// in memory: they come from loops of their own.
template <class Plan>
__device__ __forceinline__ void tell_sums(const Block<Plan>& block, double weights, double slopes) {
  if constexpr (Plan::kQueryGradient) {
    double* const sums_smem = partials_smem(block);
    const int warp = static_cast<int>(threadIdx.x) / kWarp - 4 * Plan::kScoreGroup;
    weights = sum_lanes(weights);
    slopes = sum_lanes(slopes);
    if (threadIdx.x % kWarp == 0) {
      sums_smem[2 * warp] = weights;
      sums_smem[2 * warp + 1] = slopes;
      barrier_arrive(block.barrier(Plan::kPartialsFull));
    }
  }
}

// The sums of all warps, in a fixed order, to their place: by one thread.
template <class Plan>
__device__ __forceinline__ void write_partials(const Block<Plan>& block) {
  const double* const sums_smem = partials_smem(block);
  barrier_wait(block.barrier(Plan::kPartialsFull), 0);
  double weights = 0.0;
  double slopes = 0.0;
#pragma unroll 1
  for (int i = 0; i < Plan::kSummingWarps; ++i) {
    weights += sums_smem[2 * i];
    slopes += sums_smem[2 * i + 1];
  }
  const int value_dim = block.chunked().value_dim;
  const int64_t walk = quotient_by_tiles(StateAddress<Plan>::block_number(block), block.tiles());
  const int first_box = block.work.first_column / Plan::kBoxColumns;
  const int boxes = ceil_div(value_dim, Plan::kBoxColumns);
  double* const partial_gmem = block.args.gradient.partials + 2 * (walk * boxes + first_box);
  partial_gmem[0] = block.work.tile == 0 ? weights : 0.0;  // every tile has seen the weights
  partial_gmem[1] = slopes;
  if (Plan::kBeside > 1 && first_box + 1 < boxes) {
    partial_gmem[2] = 0.0;
    partial_gmem[3] = 0.0;
  }
}

template <class Plan>
__device__ __forceinline__ void walk_gradient(const HopperGradient& args, uint32_t block_number) {
  extern __shared__ unsigned char shared[];
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarp, 0);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const uint32_t start = shared_address(shared);
  const uint32_t base = (start + Plan::kAlignment - 1) & ~static_cast<uint32_t>(Plan::kAlignment - 1);
  const Turn<Plan> turn(args.gradient.chunked, block_number);
  const auto tile = tile_of<Plan>(args.gradient.chunked, turn.block);
  const ItemWork item(tile, args.gradient, turn.turn);
  auto* const work_smem = reinterpret_cast<ItemWork*>(shared + (base - start) + Plan::kWorkOffset);
  if constexpr (Plan::kReadsItemAgain) {
    if (threadIdx.x == 0) {
      *work_smem = item;
    }
    __syncthreads();  // it is read from here on
  }
  const ItemWork& work = Plan::kReadsItemAgain ? *work_smem : item;
  const int group = Plan::kWeighsRows && Plan::kUneven ? args.gradient.chunked.group.value : 1;
  const int num_chunks =
      Turn<Plan>::walked_chunks(chunks_of<Plan>(work.tokens), turn.turn, args.gradient.chunked.turns);
  const Block<Plan> block{args, work, base, num_chunks * group};
  if (threadIdx.x == 0) {
    init_barriers(block);
  }
  clear_constants(block);
  publish_to_async_proxy();
  wait_for_earlier_kernels();
  if (Plan::kSums && threadIdx.x == 0) {
    mark_sums(block, 0);
  }
  take_over(block, block_number, tile.head.kv_index, tile.block.item_idx);
  __syncthreads();
  if constexpr (Plan::kScaled) {
    make_scales(block, reinterpret_cast<Extent*>(shared + (base - start) + Plan::kExtentsOffset));
    __syncthreads();
  }
  cluster_sync();
  float marks = 0.0f;  // NaN once a gradient, or a term of da, was not finite
  const int warpgroup = warp / 4;
  if (warpgroup < Plan::kScoreGroup) {
    if constexpr (!Plan::kScoresProduce) {
      Plan::Spec::Registers::auxiliary();
      if (warp > 0) {
        if constexpr (Plan::kGradientSums) {
          SumWeigher<Plan>(block, warp - 1, lane).run();
        } else if constexpr (Plan::kCompact) {
          convert_in_turns(block, warp - 1, lane);
        } else if constexpr (Plan::kReverse && !Plan::kMerged) {
          Weigher<Plan>(block, warp - 1, lane).run();
        } else if constexpr (Plan::kDeltaBeside) {
          Delta<Plan>(block, warp - 1, lane).run();
        } else if constexpr (!Plan::kMerged) {
          Auxiliary<Plan>(block, warp - 1, lane).run();
        }
      } else {
        produce(block, lane);
      }
    }
  } else if (warpgroup < Plan::kStateGroup) {
    if constexpr (Plan::kReverse) {
      Plan::Spec::Registers::score();
      ReverseScore<Plan>(block, warp & 3, lane).run();
    } else if constexpr (!Plan::kSums) {
      Plan::Spec::Registers::score();
      Score<Plan> score(block, warp & 3, lane);
      score.run();
      tell_sums(block, score.weight_sum, 0.0);
      marks = 0.0f * static_cast<float>(score.weight_sum);
    }
  } else if (warpgroup < Plan::kRowsGroup) {
    Plan::Spec::Registers::state();
    Outputs<Plan> outputs(block, warpgroup - Plan::kStateGroup, warp & 3, lane);
    StateOf<Plan>(block, outputs).run();
    tell_sums(block, 0.0, outputs.slope_sum);
    if constexpr (Plan::kMarksAtOnce) {
      outputs.write_mark();
    } else {
      marks = outputs.all_marks();
    }
  } else if constexpr (Plan::kGroups > Plan::kRowsGroup) {
    Plan::Spec::Registers::rows();
    convert(block, warp & 3, lane);
  }
  if (Plan::kQueryGradient && threadIdx.x == 0) {
    write_partials(block);
  }
  __syncwarp();  // the lanes of the producer
  if constexpr (!Plan::kSums && !Plan::kMarksAtOnce) {
    const int marked_box = static_cast<int>(threadIdx.x) / kWarpgroup - Plan::kStateGroup;  // of the scores all
    write_marks(block, StateAddress<Plan>::block_number(block), marks != 0.0f, marked_box);  // NaN is not 0
  }
  hand_on(block);
  cluster_sync();
}

// Whether every step is like any other: one query head, with a slope.
template <class Plan>
__device__ __forceinline__ bool is_even(const ChunkedArguments& args, uint32_t number) {
  const auto tile = tile_of<Plan>(args, number);
  const float b = args.b_per_head == nullptr ? args.b : args.b_per_head[tile.head.kv_head_idx * args.group.value];
  return args.group.value == 1 && b != 0.0f;
}

template <class Plan>
__device__ __forceinline__ void gradient(const HopperGradientArguments& args) {
  let_later_kernels_start();
  if constexpr (Plan::kWeighsRows) {
    const uint32_t task = task_of<Plan>(args.tasks[0].gradient, blockIdx.x);
    const HopperGradient& of_task = args.tasks[task];
    const uint32_t number = number_by_head<Plan>(of_task.gradient.chunked,
                                                 number_in_task<Plan>(args.tasks[0].gradient, blockIdx.x));
    if constexpr (Plan::kReverse) {
      if (is_even<Plan>(of_task.gradient.chunked, number)) {
        walk_gradient<Plan>(of_task, number);
        return;
      }
    }
    walk_gradient<WithUnevenSteps<Plan>>(of_task, number);  // of sums too, where little depends on it
  } else {
    if constexpr (Plan::kMayTakeTurns) {
      if (args.tasks[0].gradient.chunked.turns > 1) {
        walk_gradient<InTurns<Plan>>(args.tasks[0], blockIdx.x);
        return;
      }
    }
    walk_gradient<Plan>(args.tasks[0], number_by_head<Plan>(args.tasks[0].gradient.chunked, blockIdx.x));
  }
}

}  // namespace hopper
}  // namespace linattn
