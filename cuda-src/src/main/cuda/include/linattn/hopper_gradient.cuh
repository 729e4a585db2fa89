// The gradients on sm_90a: docs/decisions/0008-backward.md has the formulas, gradient_arguments.h the table of
// x, y and z. A block walks the chunks of an item as the forward does, with x, y and z in the places of q, k and
// v: for the gradient of q from the first chunk on, for those of k and v and the sums for them from the last one on,
// once for each query head of a group. The blocks of an item and head are a cluster, those of both gradients together.
#pragma once

#include "linattn/hopper_forward.cuh"
#include "linattn/hopper_gradient_sums.cuh"
#include "linattn/hopper_reverse.cuh"

namespace linattn {
namespace hopper {

// The sums of all threads, in a fixed order, to their place. Warps meet at a barrier in memory: they come from
// loops of their own.
template <class Plan>
__device__ __forceinline__ void write_partials(const Block<Plan>& block, double* sums_smem, double weights,
                                               double slopes) {
  constexpr int kWarps = Plan::kThreads / kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  weights = sum_lanes(weights);
  slopes = sum_lanes(slopes);
  if (threadIdx.x % kWarp == 0) {
    sums_smem[2 * warp] = weights;
    sums_smem[2 * warp + 1] = slopes;
    barrier_arrive(block.barrier(Plan::kPartialsFull));
  }
  if (threadIdx.x == 0) {
    barrier_wait(block.barrier(Plan::kPartialsFull), 0);
    weights = 0.0;
    slopes = 0.0;
    for (int i = 0; i < kWarps; ++i) {
      weights += sums_smem[2 * i];
      slopes += sums_smem[2 * i + 1];
    }
    const int value_dim = block.chunked().value_dim;
    const int64_t walk = blockIdx.x / ceil_div(value_dim, Plan::kTileColumns);
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
}

// Made where it is wanted: a constant would be kept from the start of a role on.
__device__ __forceinline__ double no_sum() {
  double zero;
  asm volatile("mov.f64 %0, 0d0000000000000000;" : "=d"(zero));
  return zero;
}

template <class Plan>
__device__ __forceinline__ void walk_gradient(const HopperGradient& args, uint32_t block_number) {
  extern __shared__ unsigned char shared[];
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarp, 0);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const uint32_t start = shared_address(shared);
  const uint32_t base = (start + Plan::kAlignment - 1) & ~static_cast<uint32_t>(Plan::kAlignment - 1);
  const Turn<Plan> turn(args.gradient.chunked, block_number);
  const ItemWork item(tile_of<Plan>(args.gradient.chunked, turn.block), args.gradient, turn.turn);
  auto* const work_smem = reinterpret_cast<ItemWork*>(shared + (base - start) + Plan::kWorkOffset);
  if (Plan::kBeside > 1 && threadIdx.x == 0) {
    *work_smem = item;
  }
  const ItemWork& work = Plan::kBeside > 1 ? *work_smem : item;
  const int group = Plan::kWeighsRows && Plan::kUneven ? args.gradient.chunked.group : 1;
  const int num_chunks =
      Turn<Plan>::walked_chunks(chunks_of<Plan>(item.tokens), turn.turn, args.gradient.chunked.turns);
  const Block<Plan> block{args, work, base, num_chunks * group};
  if (threadIdx.x == 0) {
    init_barriers(block);
  }
  clear_constants(block);
  publish_to_async_proxy();
  __syncthreads();
  if constexpr (Plan::kScaled) {
    make_scales(block, reinterpret_cast<Extent*>(shared + (base - start) + Plan::kExtentsOffset));
    __syncthreads();
  }
  cluster_sync();
  double weight_sum = 0.0;
  double slope_sum = 0.0;
  float marks = 0.0f;   // NaN once a gradient, or a term of da, was not finite
  int marked_box = -1;  // of the columns; all of them
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
      weight_sum = score.weight_sum;
      marks = 0.0f * static_cast<float>(weight_sum);
    }
  } else if (warpgroup < Plan::kRowsGroup) {
    Plan::Spec::Registers::state();
    Outputs<Plan> outputs(block, warpgroup - Plan::kStateGroup, warp & 3, lane);
    State<Plan>(block, outputs).run();
    if constexpr (Plan::kMarksAtOnce) {
      outputs.write_mark();
    } else {
      slope_sum = outputs.slope_sum;
      marks = outputs.all_marks();
      marked_box = outputs.box;
    }
  } else if constexpr (Plan::kGroups > Plan::kRowsGroup) {
    Plan::Spec::Registers::rows();
    convert(block, warp & 3, lane);
    weight_sum = no_sum();
    slope_sum = no_sum();
  }
  __syncwarp();  // the lanes of the producer
  if constexpr (Plan::kQueryGradient) {
    write_partials(block, reinterpret_cast<double*>(shared + (base - start) + Plan::kPartialsOffset), weight_sum,
                   slope_sum);
  }
  if constexpr (!Plan::kSums && !Plan::kMarksAtOnce) {
    write_marks(block, block_number, marks != 0.0f, marked_box);  // NaN is not 0
  }
  cluster_sync();
}

// Whether every step is like any other: one query head, with a slope.
template <class Plan>
__device__ __forceinline__ bool is_even(const ChunkedArguments& args, uint32_t number) {
  const auto tile = tile_of<Plan>(args, number);
  const float b = args.b_per_head == nullptr ? args.b : args.b_per_head[tile.head.kv_head_idx * args.group];
  return args.group == 1 && b != 0.0f;
}

// The plan for rows that are divided, where it is built.
template <class Plan>
using Divided = std::conditional_t<Plan::kMayScaleRows, WithScaledRows<Plan>, Plan>;

template <class Plan>
__device__ __forceinline__ void gradient(const HopperGradientArguments& args) {
  const bool divides = Plan::kMayScaleRows && args.tasks[0].gradient.query_scale != nullptr;
  if constexpr (Plan::kWeighsRows) {
    const uint32_t task = task_of<Plan>(args.tasks[0].gradient, blockIdx.x);
    const uint32_t number = number_in_task<Plan>(args.tasks[0].gradient, blockIdx.x);
    const HopperGradient& of_task = args.tasks[task];
    if (!is_even<Plan>(of_task.gradient.chunked, number)) {
      walk_gradient<WithUnevenSteps<Divided<Plan>>>(of_task, number);
    } else if (divides) {
      walk_gradient<Divided<Plan>>(of_task, number);
    } else {
      walk_gradient<Plan>(of_task, number);
    }
  } else {
    if (divides) {
      walk_gradient<Divided<Plan>>(args.tasks[0], blockIdx.x);
      return;
    }
    if constexpr (Plan::kMayTakeTurns) {
      if (args.tasks[0].gradient.chunked.turns > 1) {
        walk_gradient<InTurns<Plan>>(args.tasks[0], blockIdx.x);
        return;
      }
    }
    walk_gradient<Plan>(args.tasks[0], blockIdx.x);
  }
}

}  // namespace hopper
}  // namespace linattn
