// The gradients that are read from a state alone, on the tensor cores of sm_80 and newer: gradient_arguments.h has
// the vocabulary, docs/decisions/0008-backward.md the formulas.
#pragma once

#include "linattn/gradient_items.cuh"
#include "linattn/state_outputs.cuh"

namespace linattn {

// A block has 64 columns of out of an item of a head of x, as in the sweeps. Where all tokens see one state it
// stands for y and z of all of them, and item.count is their number.
template <typename Element, bool kAccurate>
struct GradientOutputsPlan : StateOutputsPlan<Element, kAccurate, /*kRowFloats=*/3> {};

// Rows of x.
template <class Plan>
struct GradientOutputRows {
  using Element = typename Plan::Element;
  const GradientArguments& args;
  const GradientTile& tile;
  float b;                     // of kQueryGradient
  const Element* query_gmem;   // q at the first column of the tile, where db is asked
  double constant_sum;         // m / g
  double slope_sum;            // q . dq / b

  __device__ __forceinline__ GradientOutputRows(const GradientArguments& all, const GradientTile& of)
      : args(all), tile(of), b(1.0f), query_gmem(nullptr), constant_sum(0.0), slope_sum(0.0) {
    if (is_query()) {
      b = coefficient(args.chunked.b_per_head, args.chunked.b, tile.head_idx);
      if (args.slope_query.address != nullptr) {
        query_gmem = row_address<Element>(args.slope_query, tile.batch_idx, tile.head_idx, tile.item.start) +
                     tile.first_column;
      }
    }
  }

  __device__ __forceinline__ bool is_query() const { return args.task == kQueryGradient; }

  // Of [batch, head, token] without gaps, of a head of x.
  __device__ __forceinline__ float of_row(const float* scalars_gmem, int token) const {
    const ChunkedArguments& chunked = args.chunked;
    const int heads = (is_query() ? chunked.heads : chunked.kv_heads).value;
    const int64_t head = static_cast<int64_t>(tile.batch_idx) * heads + tile.head_idx;
    return scalars_gmem[head * chunked.tokens + tile.item.start + token];
  }

  // The two factors, and of q for db.
  __device__ __forceinline__ void measure(float* row_smem, int row, int row_lane, int token, bool is_valid,
                                          float, float products) {
    const float product = sum_lanes<Plan::kLanesPerRow>(products);  // x . sum of y
    if (row_lane != 0) {
      return;
    }
    float linear = 0.0f;
    float constant = 0.0f;
    float scale = 1.0f;
    if (is_valid) {
      const bool is_scaled = args.query_scale != nullptr;
      if (is_query()) {
        const float normalizer = row_address<float>(args.chunked.normalizer, tile.batch_idx, tile.head_idx,
                                                    tile.item.start + token + row)[0];
        const float delta = of_row(args.delta, token + row);
        linear = 1.0f / normalizer;
        constant = -delta * linear;
        scale = is_scaled ? of_row(args.query_scale, token + row) : 1.0f;
        constant_sum += (static_cast<double>(product) -
                         static_cast<double>(delta) * static_cast<double>(tile.item.count)) *
                        static_cast<double>(linear);
      } else {
        linear = is_scaled && args.task == kValueGradient ? of_row(args.key_scale, token + row) : 1.0f;
        constant = 1.0f;
      }
    }
    row_smem[row] = linear;
    row_smem[Plan::kTokens + row] = constant;
    row_smem[2 * Plan::kTokens + row] = scale;
  }

  __device__ __forceinline__ OutputFactors factors(const float* row_smem, int row) const {
    return {row_smem[row], row_smem[Plan::kTokens + row], b};
  }

  __device__ __forceinline__ void visit(const float* row_smem, int row, int token, int column, float x) {
    if (query_gmem != nullptr && token + row < tile.item.tokens && column < tile.num_columns) {
      const float query =
          to_float(query_gmem[static_cast<int64_t>(token + row) * args.slope_query.token_stride + column]);
      slope_sum += static_cast<double>(query * row_smem[2 * Plan::kTokens + row] * x);
    }
  }
};

template <class Plan>
__device__ __forceinline__ void gradient_outputs(const GradientArguments& args) {
  using Element = typename Plan::Element;
  let_later_kernels_start();
  const ChunkedArguments& chunked = args.chunked;
  const bool is_query = args.task == kQueryGradient;
  const GradientTile tile(chunked, blockIdx.x, is_query);
  wait_for_earlier_kernels();
  const StateStrides stride(chunked, args.task);
  const auto at = [](const float* array_gmem, int64_t offset) {
    return array_gmem == nullptr ? nullptr : array_gmem + offset;
  };
  const StateColumns state = {at(chunked.state_in, tile.state_offset(chunked) + tile.first_column * stride.z),
                              stride.y, stride.z,
                              is_query ? at(chunked.key_sum_in, tile.key_sum_offset(chunked)) : nullptr,
                              at(chunked.value_sum_in, tile.value_sum_offset(chunked))};
  GradientOutputRows<Plan> rows(args, tile);
  if (tile.item.tokens > 0) {
    outputs_of_state<Plan>(
        chunked, tile.item, tile.num_columns,
        row_address<Element>(chunked.query, tile.batch_idx, tile.head_idx, tile.item.start),
        tile.template out<Element>(chunked), state, rows);
  }
  if (is_query) {
    extern __shared__ __align__(16) unsigned char chunk_smem[];
    store_partials<Plan::kThreads>(args, blockIdx.x, tile.block.tile_idx == 0 ? rows.constant_sum : 0.0,
                                   rows.slope_sum, reinterpret_cast<double*>(chunk_smem), [] { __syncthreads(); });
  }
}

}  // namespace linattn
