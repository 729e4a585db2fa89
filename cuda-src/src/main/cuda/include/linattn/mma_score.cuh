// The score role of the forward by mma.
#pragma once

#include "linattn/mma_products.cuh"

namespace linattn {

// The warps that form W, g and z. Where rows are normalised they also replace K in its stage by its rows over
// their lengths, a chunk before the other warps read it.
template <class Plan>
struct ScoreRole {
  using Element = typename Plan::Element;
  using QueryLayout = typename Plan::QueryLayout;
  using WeightLayout = typename Plan::WeightLayout;

  KeySums<Plan> key_sums;

  __device__ __forceinline__ static void synchronize() {
    wait_for_threads<kScoreBarrier, Plan::kScoreThreads>();
  }

  __device__ __forceinline__ void load(const ChunkedArguments& args, const ValueTile<kValueColumns>& tile,
                                       const ForwardMemory<Plan>& memory, int thread) {
    key_sums.load(args.key_sum_in, tile.key_sum_offset(args), memory, thread);
  }

  __device__ __forceinline__ void store(const ChunkedArguments& args, const ValueTile<kValueColumns>& tile,
                                        int thread) const {
    if (args.key_sum_out != nullptr && tile.block.tile_idx == 0) {
      key_sums.store(args.key_sum_out, tile.key_sum_offset(args), thread);
    }
  }

  // Returns whether it stored a g that is not finite.
  __device__ __forceinline__ bool process(const ChunkedArguments& args, const ValueTile<kValueColumns>& tile,
                                          const ForwardMemory<Plan>& memory, int chunk, int thread) {
    const Element* const query_smem = memory.query(chunk);
    Element* const key_smem = memory.key(chunk);
    measure_rows(args, tile, memory, query_smem, key_smem, chunk, thread);
    synchronize();
    KeySums<Plan>::sum_chunk(memory, key_smem, thread);
    form_weights(tile, memory, query_smem, key_smem, chunk, thread);
    synchronize();

    bool is_bad = false;
    if (thread < Plan::kTokens) {
      float sum = memory.weight_sum_smem[thread];
#pragma unroll
      for (int group = 1; group < Plan::kGroups; ++group) {
        sum += memory.weight_sum_smem[group * Plan::kTokens + thread];
      }
      const float length = memory.length_smem[thread];
      const int64_t first_token = static_cast<int64_t>(chunk) * Plan::kTokens;
      const double constant = static_cast<double>(tile.head.a) * length;
      // W holds the constant term of the chunk's own tokens.
      const float normalizer = static_cast<float>(
          constant * static_cast<double>(tile.item.count + first_token) +
          static_cast<double>(tile.head.b) * memory.query_key_sum_smem[thread] + static_cast<double>(sum));
      const int slot = chunk % 2 * Plan::kTokens + thread;
      const bool valid = first_token + thread < tile.item.tokens;
      // Zero past the end, where g may be zero and nothing is stored: o is finite there.
      memory.inverse_smem[slot] = valid ? 1.0f / normalizer : 0.0f;
      if (tile.block.tile_idx == 0 && valid) {
        const float stored = normalizer / length;
        tile.normalizer(args)[(first_token + thread) * args.normalizer.token_stride] = stored;
        is_bad = !isfinite(stored);
      }
    }
    key_sums.add_chunk(memory, chunk, thread);
    return is_bad;
  }

 private:
  __device__ __forceinline__ static void measure_rows(const ChunkedArguments& args,
                                                      const ValueTile<kValueColumns>& tile,
                                                      const ForwardMemory<Plan>& memory,
                                                      const Element* query_smem, Element* key_smem, int chunk,
                                                      int thread) {
    const int row = thread / Plan::kLanesPerRow;
    const int lane = thread % Plan::kLanesPerRow;
    const Element* const query_row_smem = query_smem + row * QueryLayout::kStride;
    const float* const key_sum_smem = memory.key_sum_smem + chunk % 2 * Plan::kHeadDim;
    float products = 0.0f;
    float squares = 0.0f;
    visit_row<Plan::kLanesPerRow>(query_row_smem, Plan::kHeadDim, lane, [&](int column, float x, float y) {
      const float2 z = *reinterpret_cast<const float2*>(key_sum_smem + column);
      products = fmaf(x, z.x, fmaf(y, z.y, products));
      squares = fmaf(x, x, fmaf(y, y, squares));
    });
    products = sum_lanes<Plan::kLanesPerRow>(products);
    float length = 1.0f;
    if (args.normalize != 0) {
      length = row_length<Plan::kLanesPerRow>(squares, [&](auto&& visit) {
        visit_row<Plan::kLanesPerRow, 1>(query_row_smem, Plan::kHeadDim, lane, visit);
      });
      Element* const key_row_smem = key_smem + row * QueryLayout::kStride;
      const float key_length = row_length<Plan::kLanesPerRow>(key_row_smem, Plan::kHeadDim, lane);
      scale_row<Plan::kLanesPerRow>(key_row_smem, Plan::kHeadDim, lane, 1.0f / key_length);
    }
    if (lane == 0) {
      memory.query_key_sum_smem[row] = products;
      memory.length_smem[row] = length;
      memory.constant_smem[chunk % 2 * Plan::kTokens + row] = tile.head.a * length;
    }
  }

  __device__ __forceinline__ static void form_weights(const ValueTile<kValueColumns>& tile,
                                                      const ForwardMemory<Plan>& memory,
                                                      const Element* query_smem, const Element* key_smem,
                                                      int chunk, int thread) {
    const int warp = warp_of_thread();  // the scores have the first warps
    const int strip = warp % Plan::kSteps;
    const int group = warp / Plan::kSteps;
    if (group >= Plan::kGroups) {
      return;
    }
    const int first_block = group * Plan::kColumnBlocks;
    const int lane = thread % kWarp;
    typename Plan::Weight* const weights_smem = memory.weights(chunk);

    float score_frag[Plan::kColumnBlocks][2][4];
    form_scores<Plan, Direction::kForwards>(score_frag, query_smem, key_smem, strip, first_block);

    // Blocks right of the diagonal stay unwritten: nobody reads them.
    const int row = strip * 16 + lane / 4;
    const float constant_frag[2] = {tile.head.a * memory.length_smem[row],
                                    tile.head.a * memory.length_smem[row + 8]};
    float sum_frag[2] = {0.0f, 0.0f};
#pragma unroll
    for (int j = 0; j < Plan::kColumnBlocks; ++j) {
      if (sees<Direction::kForwards>(strip, first_block + j)) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // left and right accumulator, upper and lower row
          const int weight_row = row + i % 2 * 8;
          const int column = (first_block + j) * 16 + i / 2 * 8 + lane % 4 * 2;
          float weight_frag[2];
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            const float weight =
                fmaf(tile.head.b, score_frag[j][i / 2][i % 2 * 2 + c], constant_frag[i % 2]);
            weight_frag[c] = sees<Direction::kForwards>(weight_row, column + c) ? weight : 0.0f;
          }
          sum_frag[i % 2] += weight_frag[0] + weight_frag[1];
          store_pair(weights_smem + weight_row * WeightLayout::kStride + column, weight_frag);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float sum = sum_lanes<4>(sum_frag[i]);
      if (lane % 4 == 0) {
        memory.weight_sum_smem[group * Plan::kTokens + row + i * 8] = sum;
      }
    }
  }
};

}  // namespace linattn
