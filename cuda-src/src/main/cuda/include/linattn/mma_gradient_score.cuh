// The score role of the gradients by mma.
#pragma once

#include "linattn/mma_gradient_plan.cuh"

namespace linattn {

// The warps that form W and the factors of rows; of kQueryGradient m and u as well, as the forward forms g and z.
// Where rows of x and y are to be divided by their lengths they replace them in their stage.
template <class Plan>
struct GradientScoreRole {
  using Element = typename Plan::Element;
  using QueryLayout = typename Plan::QueryLayout;
  using WeightLayout = typename Plan::WeightLayout;

  KeySums<Plan> key_sums;
  double constant_sum = 0.0;  // m / g of this thread's rows

  __device__ __forceinline__ static void synchronize() {
    wait_for_threads<kScoreBarrier, Plan::kScoreThreads>();
  }

  __device__ __forceinline__ void load(const ChunkedArguments& args, const GradientTile& tile,
                                       const GradientMemory<Plan>& memory, int thread) {
    if constexpr (Plan::kIsQuery) {
      key_sums.load(args.key_sum_in, tile.key_sum_offset(args), memory, thread);
    }
  }

  __device__ __forceinline__ void process(const GradientArguments& args, const GradientTile& tile,
                                          const GradientMemory<Plan>& memory, int step_idx,
                                          const GradientStep& step, int thread) {
    measure_rows(args, tile, memory, step_idx, step, thread);
    synchronize();
    if constexpr (Plan::kIsQuery) {
      KeySums<Plan>::sum_chunk(memory, memory.key(step_idx), thread);
    }
    form_weights(memory, step_idx, thread);
    if constexpr (Plan::kIsQuery) {
      synchronize();
      if (thread < Plan::kTokens) {
        float sum = memory.weight_sum_smem[thread];
#pragma unroll
        for (int group = 1; group < Plan::kGroups; ++group) {
          sum += memory.weight_sum_smem[group * Plan::kTokens + thread];
        }
        const int slot = step_idx % 2 * Plan::kTokens + thread;
        const double count =
            static_cast<double>(tile.item.count + static_cast<int64_t>(step.chunk) * Plan::kTokens);
        // The weights hold the offsets of the chunk's own tokens.
        const double constant = static_cast<double>(memory.offset_smem[slot]) * count +
                                static_cast<double>(memory.query_key_sum_smem[thread]) +
                                static_cast<double>(sum);
        constant_sum += constant * static_cast<double>(memory.inverse_smem[slot]);
      }
      key_sums.add_chunk(memory, step_idx, thread);
    }
  }

 private:
  __device__ __forceinline__ static void measure_rows(const GradientArguments& args, const GradientTile& tile,
                                                      const GradientMemory<Plan>& memory, int step_idx,
                                                      const GradientStep& step, int thread) {
    const int row = thread / Plan::kLanesPerRow;
    const int lane = thread % Plan::kLanesPerRow;
    const int slot = step_idx % 2 * Plan::kTokens + row;
    const bool valid = step.chunk * Plan::kTokens + row < tile.item.tokens;
    const float delta = memory.row(step_idx, kDeltaRow)[row];
    // Zero past the end, where g is none.
    const float inverse = valid ? 1.0f / memory.row(step_idx, kNormalizerRow)[row] : 0.0f;
    const bool is_scaled = args.query_scale != nullptr;
    Element* const query_row_smem = memory.query(step_idx) + row * QueryLayout::kStride;
    if constexpr (Plan::kIsQuery) {
      const float* const key_sum_smem = memory.key_sum_smem + step_idx % 2 * Plan::kHeadDim;
      float products = 0.0f;
      visit_row<Plan::kLanesPerRow>(query_row_smem, Plan::kHeadDim, lane, [&](int column, float x, float y) {
        const float2 u = *reinterpret_cast<const float2*>(key_sum_smem + column);
        products = fmaf(x, u.x, fmaf(y, u.y, products));
      });
      products = sum_lanes<Plan::kLanesPerRow>(products);
      if (lane == 0) {
        memory.query_key_sum_smem[row] = products;
        memory.slope_smem[slot] = is_scaled ? memory.row(step_idx, kKeyScaleRow)[row] : 1.0f;
        memory.offset_smem[slot] = -delta;
        memory.inverse_smem[slot] = inverse;
      }
    } else {
      const float query_scale = is_scaled ? memory.row(step_idx, kQueryScaleRow)[row] : 1.0f;
      if (is_scaled && args.task == kValueGradient) {
        Element* const key_row_smem = memory.key(step_idx) + row * QueryLayout::kStride;
        scale_row<Plan::kLanesPerRow>(query_row_smem, Plan::kHeadDim, lane,
                                      memory.row(step_idx, kKeyScaleRow)[row]);
        scale_row<Plan::kLanesPerRow>(key_row_smem, Plan::kHeadDim, lane, query_scale);
      }
      if (lane == 0) {
        const int head_idx = tile.query_head(Plan::kIsQuery, step.member);
        const RowFactors factors(args.task, coefficient(args.chunked.a_per_head, args.chunked.a, head_idx),
                                 coefficient(args.chunked.b_per_head, args.chunked.b, head_idx), inverse, delta,
                                 query_scale);
        memory.slope_smem[slot] = factors.slope;
        memory.offset_smem[slot] = factors.offset;
      }
    }
  }

  __device__ __forceinline__ static void form_weights(const GradientMemory<Plan>& memory, int step_idx,
                                                      int thread) {
    constexpr Direction kDirection = Plan::kDirection;
    const int warp = warp_of_thread();  // the scores have the first warps
    const int strip = warp % Plan::kSteps;
    const int group = warp / Plan::kSteps;
    if (group >= Plan::kGroups) {
      return;
    }
    const int first_block = group * Plan::kColumnBlocks;
    const int lane = thread % kWarp;
    typename Plan::Weight* const weights_smem = memory.weights(step_idx);
    const float* const slope_smem = memory.slope_smem + step_idx % 2 * Plan::kTokens;
    const float* const offset_smem = memory.offset_smem + step_idx % 2 * Plan::kTokens;

    float score_frag[Plan::kColumnBlocks][2][4];
    form_scores<Plan, kDirection>(score_frag, memory.query(step_idx), memory.key(step_idx), strip,
                                  first_block);

    // Blocks that a strip does not see stay unwritten: nobody reads them.
    const int row = strip * 16 + lane / 4;
    const float row_offset_frag[2] = {offset_smem[row], offset_smem[row + 8]};
    float sum_frag[2] = {0.0f, 0.0f};
#pragma unroll
    for (int j = 0; j < Plan::kColumnBlocks; ++j) {
      if (sees<kDirection>(strip, first_block + j)) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {  // left and right accumulator
          const int column = (first_block + j) * 16 + half * 8 + lane % 4 * 2;
          const float2 slopes = *reinterpret_cast<const float2*>(slope_smem + column);
          const float slope_frag[2] = {slopes.x, slopes.y};
          const float2 offsets = *reinterpret_cast<const float2*>(offset_smem + column);
          const float offset_frag[2] = {offsets.x, offsets.y};
#pragma unroll
          for (int i = 0; i < 2; ++i) {  // upper and lower row
            const int weight_row = row + i * 8;
            float weight_frag[2];
#pragma unroll
            for (int c = 0; c < 2; ++c) {
              const float score = score_frag[j][half][i * 2 + c];
              const bool is_seen = sees<kDirection>(weight_row, column + c);
              if constexpr (Plan::kIsQuery) {
                const float weight = is_seen ? score + row_offset_frag[i] : 0.0f;
                sum_frag[i] += weight;
                weight_frag[c] = weight * slope_frag[c];
              } else {
                weight_frag[c] = is_seen ? fmaf(slope_frag[c], score, offset_frag[c]) : 0.0f;
              }
            }
            store_pair(weights_smem + weight_row * WeightLayout::kStride + column, weight_frag);
          }
        }
      }
    }
    if constexpr (Plan::kIsQuery) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float sum = sum_lanes<4>(sum_frag[i]);
        if (lane % 4 == 0) {
          memory.weight_sum_smem[group * Plan::kTokens + row + i * 8] = sum;
        }
      }
    }
  }
};

}  // namespace linattn
