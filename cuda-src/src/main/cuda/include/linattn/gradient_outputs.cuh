// The gradients that are read from a state alone: gradient_arguments.h has the vocabulary,
// docs/decisions/0008-backward.md the formulas.
#pragma once

#include "linattn/gradient_items.cuh"
#include "linattn/state_outputs.cuh"

namespace linattn {

// A block has a tile of columns of out of an item of a head of x. Where all tokens see one state it stands for y and z
// of all of them, and item.count is their number. So no row of y or z is read. chunked.key is null, or o of kQueryGradient: then
// d = dO . o is formed, and the first tile of a row writes it. Of a plan that kFinishes, chunked.value is q or k, rows that
// were divided by their length, and out is their gradient, as normalize_rows_gradient would leave it. This is the plan of
// products by warps, which reads d and finishes nothing.
template <typename Element, bool kAccurate>
struct GradientOutputsPlan : StateOutputsPlan<Element, kAccurate, /*kRowFloats=*/3> {};

// Rows of x.
template <class Plan>
struct GradientOutputRows {
  using Element = typename Plan::Element;
  using Tile = GradientTileOf<Plan::kTileColumns>;
  const GradientArguments& args;
  const Tile& tile;
  float b;                     // of kQueryGradient
  const Element* query_gmem;   // q at the first column of the tile, where db is asked
  const Element* output_gmem;  // o, where d is formed
  double constant_sum;         // m / g
  double slope_sum;            // q . dq / b

  __device__ __forceinline__ GradientOutputRows(const GradientArguments& all, const Tile& of)
      : args(all), tile(of), b(1.0f), query_gmem(nullptr), output_gmem(nullptr), constant_sum(0.0), slope_sum(0.0) {
    if (is_query()) {
      b = coefficient(args.chunked.b_per_head, args.chunked.b, tile.head_idx);
      if (args.slope_query.address != nullptr) {
        query_gmem = row_address<Element>(args.slope_query, tile.batch_idx, tile.head_idx, tile.item.start) +
                     tile.first_column;
      }
      if (kHasOthers && args.chunked.key.address != nullptr) {
        output_gmem = row_address<Element>(args.chunked.key, tile.batch_idx, tile.head_idx, tile.item.start);
      }
    }
  }

  static constexpr bool kHasOthers = Plan::kFormsDots;
  using Source = RowSource<Element>;
  __device__ __forceinline__ Source others() const {
    return {output_gmem, args.chunked.key.token_stride, args.chunked.key_dim};
  }
  __device__ __forceinline__ Source own(int num_columns) const {
    const TensorView& view = args.chunked.value;
    return {row_address<Element>(view, tile.batch_idx, tile.head_idx, tile.item.start) + tile.first_column,
            view.token_stride, num_columns};
  }

  __device__ __forceinline__ float scale(const float* row_smem, int row) const {
    return fmaxf(row_smem[2 * Plan::kTokens + row], 0.0f);
  }
  __device__ __forceinline__ void pass(float along, bool is_first) {
    if (query_gmem != nullptr && is_first) {
      slope_sum += static_cast<double>(along);
    }
  }

  __device__ __forceinline__ bool is_query() const { return args.task == kQueryGradient; }

  // Of [batch, head, token] without gaps, of a head of x.
  __device__ __forceinline__ int64_t row_index(int token) const {
    const ChunkedArguments& chunked = args.chunked;
    const int heads = (is_query() ? chunked.heads : chunked.kv_heads).value;
    const int64_t head = static_cast<int64_t>(tile.batch_idx) * heads + tile.head_idx;
    return head * chunked.tokens + tile.item.start + token;
  }

  // g and d of a row of q, and 1 / length of one that is divided.
  struct Fetched {
    float normalizer = 1.0f;
    float delta = 0.0f;
    float scale = 1.0f;
  };

  __device__ __forceinline__ Fetched fetch(int token, bool is_valid) const {
    Fetched row;
    if (is_valid && is_query()) {
      row.normalizer = row_address<float>(args.chunked.normalizer, tile.batch_idx, tile.head_idx,
                                          tile.item.start + token)[0];
      if (!kHasOthers || output_gmem == nullptr) {
        row.delta = args.delta[row_index(token)];
      }
    }
    if (is_valid && args.query_scale != nullptr && (Plan::kFinishes || args.task != kKeyGradient)) {
      row.scale = (is_query() ? args.query_scale : args.key_scale)[row_index(token)];
    }
    return row;
  }

  __device__ __forceinline__ Fetched measured(Fetched row, int token, bool is_valid, float dot) const {
    row.delta = dot;
    if (is_valid && tile.block.tile_idx == 0) {
      args.delta[row_index(token)] = dot;
    }
    return row;
  }

  __device__ __forceinline__ bool wants_lengths() const { return false; }
  template <int kLanes>
  __device__ __forceinline__ float length(float, int, int, bool) const {
    return 1.0f;
  }

  // The two factors, and 1 / length of a row that was divided. `product` is x . sum of y.
  __device__ __forceinline__ void measure(float* row_smem, int row, int, bool is_valid, float, float product,
                                          const Fetched& fetched) {
    float linear = 0.0f;
    float constant = 0.0f;
    if (is_valid && is_query()) {
      linear = 1.0f / fetched.normalizer;
      constant = -fetched.delta * linear;
      constant_sum += (static_cast<double>(product) -
                       static_cast<double>(fetched.delta) * static_cast<double>(tile.item.count)) *
                      static_cast<double>(linear);
    } else if (is_valid) {
      linear = Plan::kFinishes ? 1.0f : fetched.scale;
      constant = 1.0f;
    }
    row_smem[row] = linear;
    row_smem[Plan::kTokens + row] = constant;
    row_smem[2 * Plan::kTokens + row] = fetched.scale;
  }

  __device__ __forceinline__ OutputFactors factors(const float* row_smem, int row) const {
    return {row_smem[row], row_smem[Plan::kTokens + row], b};
  }

  __device__ __forceinline__ bool wants_outputs() const { return query_gmem != nullptr; }

  __device__ __forceinline__ void visit(const float* row_smem, int row, int token, int column, float2 x) {
    if (wants_outputs() && token + row < tile.item.tokens && column < tile.num_columns) {
      const Element* const pair_gmem =
          query_gmem + static_cast<int64_t>(token + row) * args.slope_query.token_stride + column;
      float2 query;
      if constexpr (sizeof(Element) == 2) {
        query = unpack<Element>(*reinterpret_cast<const uint32_t*>(pair_gmem));
      } else {
        query = *reinterpret_cast<const float2*>(pair_gmem);
      }
      slope_sum += static_cast<double>(fmaf(query.x, x.x, query.y * x.y) * row_smem[2 * Plan::kTokens + row]);
    }
    asm volatile("" ::: "memory");  // loads under way would cost registers
  }
};

template <class Plan>
__device__ __forceinline__ void gradient_outputs(const GradientArguments& args) {
  using Element = typename Plan::Element;
  let_later_kernels_start();
  const ChunkedArguments& chunked = args.chunked;
  const bool is_query = args.task == kQueryGradient;
  const GradientTileOf<Plan::kTileColumns> tile(chunked, blockIdx.x, is_query);
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
    Plan::Outputs::template write<Plan>(
        chunked, tile.item, tile.num_columns,
        row_address<Element>(chunked.query, tile.batch_idx, tile.head_idx, tile.item.start),
        tile.template out<Element>(chunked), state, rows);
  }
  if (is_query) {
    extern __shared__ __align__(16) unsigned char chunk_smem[];
    const int num_boxes = ceil_div(chunked.value_dim, kValueColumns);
    const int first_box = tile.first_column / kValueColumns;
    const int64_t place =
        (tile.block.head * chunked.num_items.value + tile.block.item_idx) * num_boxes + first_box;
    store_partials(args, place, tile.block.tile_idx == 0 ? rows.constant_sum : 0.0, rows.slope_sum,
                   reinterpret_cast<double*>(chunk_smem), Plan::threads(), [] { __syncthreads(); });
    // A wider tile stands for several of 64 columns: the first has its sums.
    constexpr int kOthers = Plan::kTileColumns / kValueColumns - 1;
    const int other = static_cast<int>(threadIdx.x) / 2 + 1;
    if (other <= kOthers && first_box + other < num_boxes) {
      args.partials[2 * (place + other) + threadIdx.x % 2] = 0.0;
    }
  }
}

}  // namespace linattn
