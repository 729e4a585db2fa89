// What the gradients need of single rows, and what they leave to be done to them: gradient_arguments.h has the
// vocabulary. Bound by memory: a row is in the registers of as many lanes as it has pieces of 16 bytes.
#pragma once

#include "linattn/chunk_items.cuh"
#include "linattn/chunk_rows.cuh"
#include "linattn/dependent_launch.cuh"
#include "linattn/gradient_arguments.h"

namespace linattn {

// A block has kRows rows of one tensor.
template <typename ElementOf>
struct RowsPlan {
  using Element = ElementOf;
  static constexpr int kThreads = 256;
  static constexpr int kSharedBytes = 0;
  static constexpr int kRows = 128;
};

// kLanes neighbouring lanes have a row, each kVectors pieces of it; kTogether rows are under way at once.
template <class Plan, int kLanesOf, int kVectorsOf>
struct RowShape {
  static constexpr int kLanes = kLanesOf;
  static constexpr int kVectors = kVectorsOf;
  static constexpr int kRowsAtOnce = Plan::kThreads / kLanes;
  static constexpr int kTurns = Plan::kRows / kRowsAtOnce;
  static constexpr int kTogether = 2 / kVectors;  // more of them take registers that other blocks want
  static_assert(kTurns % kTogether == 0, "batches of rows are whole");
};

// Calls body(shape) with that of rows of so many pieces of 16 bytes. The last one goes over longer rows in spans.
template <class Plan, typename Body>
__device__ __forceinline__ void with_shape(int num_vectors, Body&& body) {
  if (num_vectors <= 4) {
    body(RowShape<Plan, 4, 1>());
  } else if (num_vectors <= 8) {
    body(RowShape<Plan, 8, 1>());
  } else if (num_vectors <= 16) {
    body(RowShape<Plan, 16, 1>());
  } else if (num_vectors <= 32) {
    body(RowShape<Plan, 32, 1>());
  } else {
    body(RowShape<Plan, 32, 2>());
  }
}

// The rows of a group of lanes in a block, in the order [batch, head, token]. Numbers of rows are divided once, in 32
// bits where they fit: it takes longer than what is done to a row.
template <class Plan, class Shape>
struct RowWalk {
  int row;  // of the block
  int end;
  int heads;
  int tokens;
  int batch_idx;
  int head_idx;
  int token;

  __device__ __forceinline__ RowWalk(int64_t block, int batches, int heads_of_batch, int tokens_of_head)
      : row(static_cast<int>(threadIdx.x) / Shape::kLanes), heads(heads_of_batch), tokens(tokens_of_head) {
    const int64_t first = block * Plan::kRows;
    const int64_t rows_left = static_cast<int64_t>(batches) * heads * tokens - first;
    end = rows_left < Plan::kRows ? static_cast<int>(rows_left) : Plan::kRows;
    const int64_t number = first + row;
    const bool fits = number >> 32 == 0;
    const uint32_t head = static_cast<uint32_t>(fits ? static_cast<uint32_t>(number) / tokens : number / tokens);
    batch_idx = static_cast<int>(head / heads);
    head_idx = static_cast<int>(head) - batch_idx * heads;
    token = static_cast<int>(number - static_cast<int64_t>(head) * tokens);
  }

  __device__ __forceinline__ bool is_within() const { return row < end; }

  // Null past the last row.
  template <typename Element>
  __device__ __forceinline__ Element* address(const TensorView& view) const {
    return is_within() ? row_address<Element>(view, batch_idx, head_idx, token) : nullptr;
  }

  __device__ __forceinline__ void advance() {
    row += Shape::kRowsAtOnce;
    token += Shape::kRowsAtOnce;
    while (token >= tokens && is_within()) {
      token -= tokens;
      if (++head_idx == heads) {
        head_idx = 0;
        ++batch_idx;
      }
    }
  }
};

// A lane's pieces of a row, zero where the row has none.
template <class Shape, typename Element>
struct RowPart {
  static constexpr int kElements = 16 / static_cast<int>(sizeof(Element));

  uint4 vectors[Shape::kVectors];

  __device__ __forceinline__ static int vector_of_lane(int first, int i) {
    return first + i * Shape::kLanes + static_cast<int>(threadIdx.x) % Shape::kLanes;
  }

  // From vector `first` on. The row may be null.
  __device__ __forceinline__ void load(const Element* row_gmem, int num_vectors, int first = 0) {
#pragma unroll
    for (int i = 0; i < Shape::kVectors; ++i) {
      const int vector = vector_of_lane(first, i);
      vectors[i] = row_gmem != nullptr && vector < num_vectors ? reinterpret_cast<const uint4*>(row_gmem)[vector]
                                                               : make_uint4(0, 0, 0, 0);
    }
  }

  __device__ __forceinline__ void store(Element* row_gmem, int num_vectors) const {
#pragma unroll
    for (int i = 0; i < Shape::kVectors; ++i) {
      const int vector = vector_of_lane(0, i);
      if (row_gmem != nullptr && vector < num_vectors) {
        reinterpret_cast<uint4*>(row_gmem)[vector] = vectors[i];
      }
    }
  }

  // y = map(x, y) of each element x of this part and y of the other one.
  template <typename Map>
  __device__ __forceinline__ void replace(RowPart& other, Map&& map) const {
#pragma unroll
    for (int i = 0; i < Shape::kVectors; ++i) {
      replace(vectors[i].x, other.vectors[i].x, map);
      replace(vectors[i].y, other.vectors[i].y, map);
      replace(vectors[i].z, other.vectors[i].z, map);
      replace(vectors[i].w, other.vectors[i].w, map);
    }
  }

  // sum + x . y
  __device__ __forceinline__ float add_product(const RowPart& other, float sum) const {
    RowPart unused = other;
    replace(unused, [&](float x, float y) {
      sum = fmaf(x, y, sum);
      return y;
    });
    return sum;
  }

 private:
  template <typename Map>
  __device__ __forceinline__ static void replace(uint32_t x_word, uint32_t& y_word, Map&& map) {
    if constexpr (sizeof(Element) == 2) {
      const float2 x = unpack<Element>(x_word);
      const float2 y = unpack<Element>(y_word);
      const float low = map(x.x, y.x);
      y_word = pack<Element>(low, map(x.y, y.y));
    } else {
      y_word = __float_as_uint(map(__uint_as_float(x_word), __uint_as_float(y_word)));
    }
  }
};

// d = o . dO of the rows of a block.
template <class Plan>
__device__ __forceinline__ void row_products(const GradientRowsArguments& args, int64_t block) {
  using Element = typename Plan::Element;
  const int num_vectors = args.value_dim * static_cast<int>(sizeof(Element)) / 16;
  float* const products_gmem = args.delta + block * Plan::kRows;
  with_shape<Plan>(num_vectors, [&](auto shape) {
    using Shape = decltype(shape);
    RowWalk<Plan, Shape> walk(block, args.batches, args.heads, args.tokens);
#pragma unroll 1
    for (int turn = 0; turn < Shape::kTurns; turn += Shape::kTogether) {
      const int first_row = walk.row;
      const Element* outs_gmem[Shape::kTogether];
      const Element* gradients_gmem[Shape::kTogether];
      float products[Shape::kTogether] = {};
#pragma unroll
      for (int i = 0; i < Shape::kTogether; ++i) {
        outs_gmem[i] = walk.template address<const Element>(args.out);
        gradients_gmem[i] = walk.template address<const Element>(args.out_gradient);
        walk.advance();
      }
#pragma unroll 1
      for (int vector = 0; vector < num_vectors; vector += Shape::kLanes * Shape::kVectors) {
        RowPart<Shape, Element> outs[Shape::kTogether];
        RowPart<Shape, Element> gradients[Shape::kTogether];
#pragma unroll
        for (int i = 0; i < Shape::kTogether; ++i) {
          outs[i].load(outs_gmem[i], num_vectors, vector);
          gradients[i].load(gradients_gmem[i], num_vectors, vector);
        }
#pragma unroll
        for (int i = 0; i < Shape::kTogether; ++i) {
          products[i] = outs[i].add_product(gradients[i], products[i]);
        }
      }
#pragma unroll
      for (int i = 0; i < Shape::kTogether; ++i) {
        const float sum = sum_lanes<Shape::kLanes>(products[i]);
        const int row = first_row + i * Shape::kRowsAtOnce;
        if (threadIdx.x % Shape::kLanes == 0 && row < walk.end) {
          products_gmem[row] = sum;
        }
      }
    }
  });
}

// 1 / |x| of the rows of a block, -1 of a row of zeros.
template <class Plan>
__device__ __forceinline__ void row_scales(const TensorView& view, float* scales, int batches, int heads, int tokens,
                                           int dim, int64_t block) {
  using Element = typename Plan::Element;
  float* const scales_gmem = scales + block * Plan::kRows;
  const int num_vectors = dim * static_cast<int>(sizeof(Element)) / 16;
  with_shape<Plan>(num_vectors, [&](auto shape) {
    using Shape = decltype(shape);
    const int lane = static_cast<int>(threadIdx.x) % Shape::kLanes;
    RowWalk<Plan, Shape> walk(block, batches, heads, tokens);
#pragma unroll 1
    for (int turn = 0; turn < Shape::kTurns; turn += Shape::kTogether) {
      RowWalk<Plan, Shape> again = walk;
      RowPart<Shape, Element> parts[Shape::kTogether];
#pragma unroll
      for (int i = 0; i < Shape::kTogether; ++i) {
        parts[i].load(walk.template address<const Element>(view), num_vectors);
        walk.advance();
      }
      bool are_plain = true;
#pragma unroll
      for (int i = 0; i < Shape::kTogether; ++i) {
        const float squares = sum_lanes<Shape::kLanes>(parts[i].add_product(parts[i], 0.0f));
        const int row = again.row + i * Shape::kRowsAtOnce;
        const bool is_within = row < walk.end;
        are_plain = are_plain && (is_plain(squares) || !is_within);
        if (lane == 0 && is_within) {
          scales_gmem[row] = inverse_length(sqrtf(squares));
        }
      }
      if (__any_sync(kAllLanes, !are_plain)) {  // the rows once more, with care
#pragma unroll 1
        for (int i = 0; i < Shape::kTogether; ++i) {
          const Element* const row_gmem = again.template address<const Element>(view);
          const int num_columns = row_gmem == nullptr ? 0 : dim;
          float largest = 0.0f;
          visit_row<Shape::kLanes, 1>(row_gmem, num_columns, lane, [&](int, float x, float y) {
            largest = fmaxf(largest, fmaxf(fabsf(x), fabsf(y)));
          });
          const bool is_zero = max_lanes<Shape::kLanes>(largest) == 0.0f;
          const float length = row_length<Shape::kLanes>(row_gmem, num_columns, lane);
          if (lane == 0 && row_gmem != nullptr) {
            scales_gmem[again.row] = is_zero ? -1.0f : inverse_length(length);
          }
          again.advance();
        }
      }
    }
  });
}

// Whether a forward could not tell the scale of any row of a block.
template <class Plan>
__device__ __forceinline__ bool misses_scales(const float* scales, int64_t num_rows, int64_t block) {
  static_assert(Plan::kRows <= Plan::kThreads, "a row is looked at by a thread");
  const int64_t row = block * Plan::kRows + threadIdx.x;
  const bool is_missing = threadIdx.x < Plan::kRows && row < num_rows && scales[row] == 0.0f;
  return __syncthreads_or(is_missing) != 0;
}

// The blocks of d, where it is wanted, then those of the rows of q and of k, where their scales are.
template <class Plan>
__device__ __forceinline__ void gradient_rows(const GradientRowsArguments& args) {
  let_later_kernels_start();
  const int kv_heads = args.heads / args.group;
  const int64_t num_queries = static_cast<int64_t>(args.batches) * args.heads * args.tokens;
  const int64_t query_blocks = (num_queries + Plan::kRows - 1) / Plan::kRows;
  int64_t block = blockIdx.x;
  wait_for_earlier_kernels();
  if (args.delta != nullptr) {
    if (block < query_blocks) {
      row_products<Plan>(args, block);
      return;
    }
    block -= query_blocks;
  }
  const bool is_query = block < query_blocks;
  block -= is_query ? 0 : query_blocks;
  float* const scales = is_query ? args.query_scale : args.key_scale;
  const int heads = is_query ? args.heads : kv_heads;
  if (args.scales_are_kept != 0 &&
      !misses_scales<Plan>(scales, static_cast<int64_t>(args.batches) * heads * args.tokens, block)) {
    return;
  }
  row_scales<Plan>(is_query ? args.query : args.key, scales, args.batches, heads, args.tokens, args.key_dim, block);
}

// dx = (dy - y (y . dy)) s with y = s x, in place. Rows are of at most 1024 bytes.
template <class Plan>
__device__ __forceinline__ void normalize_rows_gradient(const NormalizeRowsGradientArguments& args) {
  using Element = typename Plan::Element;
  let_later_kernels_start();
  const int num_vectors = args.dim * static_cast<int>(sizeof(Element)) / 16;
  wait_for_earlier_kernels();
  with_shape<Plan>(num_vectors, [&](auto shape) {
    using Shape = decltype(shape);
    const float* const scales_gmem = args.scale + static_cast<int64_t>(blockIdx.x) * Plan::kRows;
    RowWalk<Plan, Shape> walk(blockIdx.x, args.batches, args.heads, args.tokens);
#pragma unroll 1
    for (int turn = 0; turn < Shape::kTurns; turn += Shape::kTogether) {
      RowPart<Shape, Element> rows[Shape::kTogether];
      RowPart<Shape, Element> gradients[Shape::kTogether];
      Element* gradients_gmem[Shape::kTogether];
      float scales[Shape::kTogether];
#pragma unroll
      for (int i = 0; i < Shape::kTogether; ++i) {
        gradients_gmem[i] = walk.template address<Element>(args.gradient);
        rows[i].load(walk.template address<const Element>(args.row), num_vectors);
        gradients[i].load(gradients_gmem[i], num_vectors);
        scales[i] = walk.is_within() ? scales_gmem[walk.row] : 0.0f;
        walk.advance();
      }
#pragma unroll
      for (int i = 0; i < Shape::kTogether; ++i) {
        float products = 0.0f;
        const float scale = scales[i];
        rows[i].replace(gradients[i], [&](float x, float y) {
          products = fmaf(x * scale, y, products);
          return y;
        });
        const float along = sum_lanes<Shape::kLanes>(products);
        const float factor = scale < 0.0f ? 0.0f : scale;  // a row of zeros gets zeros
        rows[i].replace(gradients[i],
                        [&](float x, float y) { return fmaf(-along, x * scale, y) * factor; });
        gradients[i].store(gradients_gmem[i], num_vectors);
      }
    }
  });
}

}  // namespace linattn
