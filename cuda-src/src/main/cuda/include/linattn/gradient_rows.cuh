// What the gradients need of single rows, and what they leave to be done to them: gradient_arguments.h has the
// vocabulary. Bound by memory.
#pragma once

#include "linattn/chunk_items.cuh"
#include "linattn/chunk_rows.cuh"
#include "linattn/dependent_launch.cuh"
#include "linattn/gradient_arguments.h"

namespace linattn {

// kLanes neighbouring lanes have a row: block = rows kRows block .. kRows block + kRows - 1.
template <typename ElementOf>
struct RowsPlan {
  using Element = ElementOf;
  static constexpr int kThreads = 256;
  static constexpr int kMinBlocks = 4;
  static constexpr int kSharedBytes = 0;
  static constexpr int kLanes = 8;
  static constexpr int kRows = kThreads / kLanes;
};

// Row `row` of a tensor, in the order [batch, head, token].
template <typename Element>
__device__ __forceinline__ Element* row_in_order(const TensorView& view, int64_t row, int heads, int tokens) {
  const int64_t head = row / tokens;
  return row_address<Element>(view, static_cast<int>(head / heads), static_cast<int>(head % heads),
                              row - head * tokens);
}

// Calls visit(x0, y0, x1, y1) for pairs of neighbours of two rows, as visit_row does of one.
template <int kLanes, typename Element, typename Visit>
__device__ __forceinline__ void visit_rows(const Element* row, const Element* other_row, int num_columns, int lane,
                                           Visit&& visit) {
  constexpr int kVector = 16 / static_cast<int>(sizeof(Element));
#pragma unroll 4
  for (int column = lane * kVector; column < num_columns; column += kLanes * kVector) {
    const uint4 x = *reinterpret_cast<const uint4*>(row + column);
    const uint4 y = *reinterpret_cast<const uint4*>(other_row + column);
    const uint32_t x_words[4] = {x.x, x.y, x.z, x.w};
    const uint32_t y_words[4] = {y.x, y.y, y.z, y.w};
    if constexpr (sizeof(Element) == 2) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 x_pair = unpack<Element>(x_words[i]);
        const float2 y_pair = unpack<Element>(y_words[i]);
        visit(column + 2 * i, x_pair.x, y_pair.x, x_pair.y, y_pair.y);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        visit(column + i, __uint_as_float(x_words[i]), __uint_as_float(y_words[i]),
              __uint_as_float(x_words[i + 1]), __uint_as_float(y_words[i + 1]));
      }
    }
  }
}

template <class Plan>
__device__ __forceinline__ void gradient_rows(const GradientRowsArguments& args) {
  using Element = typename Plan::Element;
  let_later_kernels_start();
  const int kv_heads = args.heads / args.group;
  const int64_t num_queries = static_cast<int64_t>(args.batches) * args.heads * args.tokens;
  const int64_t num_keys =
      args.query_scale == nullptr ? 0 : static_cast<int64_t>(args.batches) * kv_heads * args.tokens;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * Plan::kRows + threadIdx.x / Plan::kLanes;
  const int lane = static_cast<int>(threadIdx.x) % Plan::kLanes;
  const bool is_query = row < num_queries;
  const bool is_key = !is_query && row - num_queries < num_keys;
  wait_for_earlier_kernels();

  // All loads of a row are under way before the first sum.
  float products = 0.0f;
  if (is_query && args.delta != nullptr) {
    const Element* const out_gmem = row_in_order<Element>(args.out, row, args.heads, args.tokens);
    const Element* const gradient_gmem = row_in_order<Element>(args.out_gradient, row, args.heads, args.tokens);
    visit_rows<Plan::kLanes>(out_gmem, gradient_gmem, args.value_dim, lane,
                             [&](int, float x0, float y0, float x1, float y1) {
                               products = fmaf(x0, y0, fmaf(x1, y1, products));
                             });
  }
  const Element* row_gmem = nullptr;
  float squares = 0.0f;
  const int num_columns = args.query_scale != nullptr && (is_query || is_key) ? args.key_dim : 0;
  if (num_columns > 0) {
    row_gmem = is_query ? row_in_order<Element>(args.query, row, args.heads, args.tokens)
                        : row_in_order<Element>(args.key, row - num_queries, kv_heads, args.tokens);
    visit_row<Plan::kLanes>(row_gmem, num_columns, lane, [&](int, float x, float y) {
      squares = fmaf(x, x, fmaf(y, y, squares));
    });
  }
  const float delta = sum_lanes<Plan::kLanes>(products);
  if (is_query && lane == 0 && args.delta != nullptr) {
    args.delta[row] = delta;
  }
  if (args.query_scale == nullptr) {
    return;
  }
  const float length = row_length<Plan::kLanes>(squares, [&](auto&& visit) {
    visit_row<Plan::kLanes, 1>(row_gmem, num_columns, lane, visit);
  });
  const bool is_zero = sum_lanes<Plan::kLanes>(squares) == 0.0f && length == 1.0f;
  if (lane == 0 && (is_query || is_key)) {
    float* const scale_gmem = is_query ? args.query_scale + row : args.key_scale + (row - num_queries);
    *scale_gmem = is_zero ? -1.0f : inverse_length(length);
  }
}

// dx = (dy - y (y . dy)) s with y = s x, in place, for groups of kLanes lanes with a row each. All lanes of a warp call.
template <int kLanes, typename Element>
__device__ __forceinline__ void finish_row(const Element* row_gmem, Element* gradient_gmem, int num_columns, int lane,
                                           float scale) {
  float products = 0.0f;
  visit_rows<kLanes, Element>(row_gmem, gradient_gmem, num_columns, lane,
                              [&](int, float x0, float y0, float x1, float y1) {
                                products = fmaf(x0 * scale, y0, fmaf(x1 * scale, y1, products));
                              });
  const float along = sum_lanes<kLanes>(products);
  const float factor = scale < 0.0f ? 0.0f : scale;  // a row of zeros gets zeros
  visit_rows<kLanes, Element>(
      row_gmem, gradient_gmem, num_columns, lane, [&](int column, float x0, float y0, float x1, float y1) {
        const float first = fmaf(-along, x0 * scale, y0) * factor;
        const float second = fmaf(-along, x1 * scale, y1) * factor;
        if constexpr (sizeof(Element) == 2) {
          *reinterpret_cast<uint32_t*>(gradient_gmem + column) = pack<Element>(first, second);
        } else {
          *reinterpret_cast<float2*>(gradient_gmem + column) = make_float2(first, second);
        }
      });
}

template <class Plan>
__device__ __forceinline__ void normalize_rows_gradient(const NormalizeRowsGradientArguments& args) {
  using Element = typename Plan::Element;
  let_later_kernels_start();
  const int64_t num_rows = static_cast<int64_t>(args.batches) * args.heads * args.tokens;
  const int64_t row = static_cast<int64_t>(blockIdx.x) * Plan::kRows + threadIdx.x / Plan::kLanes;
  const int lane = static_cast<int>(threadIdx.x) % Plan::kLanes;
  const bool valid = row < num_rows;
  wait_for_earlier_kernels();

  const int num_columns = valid ? args.dim : 0;
  const Element* row_gmem = nullptr;
  Element* gradient_gmem = nullptr;
  float scale = 0.0f;
  if (valid) {
    row_gmem = row_in_order<Element>(args.row, row, args.heads, args.tokens);
    gradient_gmem = row_in_order<Element>(args.gradient, row, args.heads, args.tokens);
    scale = args.scale[row];
  }
  finish_row<Plan::kLanes>(row_gmem, gradient_gmem, num_columns, lane, scale);
}

}  // namespace linattn
