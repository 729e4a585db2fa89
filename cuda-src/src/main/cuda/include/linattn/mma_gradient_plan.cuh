// The shared memory of the gradients by mma: mma_gradient.cuh has the algorithm.
#pragma once

#include "linattn/gradient_items.cuh"
#include "linattn/mma_products.cuh"

namespace linattn {

// kDirection: kForwards for kQueryGradient, kBackwards for the two others. In the names of the forward x is Q, y is
// K and z is V. A stage also has g, d, 1 / |q| and 1 / |k| of its tokens; seven more floats of a token are x.u and
// 2 x {slope, offset, 1 / g}.
template <Direction kDirectionOf, typename Element, bool kAccurate, int kHeadDim>
struct MmaGradientPlan : MmaChunkPlan<Element, kAccurate, kHeadDim, /*kStageFloats=*/kStageRows, /*kTokenFloats=*/7> {
  static constexpr Direction kDirection = kDirectionOf;
  static constexpr bool kIsQuery = kDirection == Direction::kForwards;
  // As in the forward, and where operands are split in two.
  static constexpr bool kLoadsInTurn = MmaGradientPlan::MmaChunkPlan::kLoadsInTurn || (kAccurate && kHeadDim > 96);
};

// What a step works on: a chunk, and one head of the group whose rows are y and z. All heads of a chunk come
// before the next chunk.
struct GradientStep {
  int chunk;
  int member;
};

template <class Plan>
__device__ __forceinline__ GradientStep gradient_step(int step_idx, const Divisor& group, int num_chunks) {
  GradientStep step;
  if constexpr (Plan::kIsQuery) {
    step.chunk = step_idx;
    step.member = 0;
  } else {
    const int passed = static_cast<int>(group.quotient(step_idx));
    step.chunk = num_chunks - 1 - passed;
    step.member = step_idx - passed * group.value;
  }
  return step;
}

template <class Plan>
struct GradientMemory : ChunkMemory<Plan> {
  float* weight_sum_smem;
  float* slope_smem;    // of a row of z
  float* offset_smem;   // of a row of z; of a row of x where that is dO: -d
  float* inverse_smem;  // 1 / g

  __device__ __forceinline__ explicit GradientMemory(unsigned char* base_smem) : ChunkMemory<Plan>(base_smem) {
    weight_sum_smem = this->query_key_sum_smem + Plan::kTokens;
    slope_smem = weight_sum_smem + Plan::kGroups * Plan::kTokens;
    offset_smem = slope_smem + 2 * Plan::kTokens;
    inverse_smem = offset_smem + 2 * Plan::kTokens;
  }

  __device__ __forceinline__ float* rows(int step) const {
    return reinterpret_cast<float*>(this->value(step) + Plan::ValueLayout::kElements);
  }

  __device__ __forceinline__ const float* row(int step, StageRow row) const {
    return rows(step) + row * Plan::kTokens;
  }
};

}  // namespace linattn
