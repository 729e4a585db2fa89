// A row in the registers of neighbouring lanes, in pieces of 16 bytes.
#pragma once

#include "linattn/element.cuh"
#include "linattn/gradient_arguments.h"
#include "linattn/reduce.cuh"

namespace linattn {

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

// dy becomes (dy - y (y . dy)) s with y = s x, of rows that the same lanes have; of a row of zeros, where s < 0, zero.
template <class Shape, typename Element, int kRows>
__device__ __forceinline__ void finish_gradients(const RowPart<Shape, Element> (&rows)[kRows],
                                                 const float (&scales)[kRows],
                                                 RowPart<Shape, Element> (&gradients)[kRows]) {
  float products[kRows] = {};
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    rows[i].replace(gradients[i], [&](float x, float y) {
      products[i] = fmaf(x * scales[i], y, products[i]);
      return y;
    });
  }
#pragma unroll
  for (int offset = Shape::kLanes / 2; offset > 0; offset /= 2) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      products[i] += __shfl_xor_sync(kAllLanes, products[i], offset);
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const float factor = scales[i] < 0.0f ? 0.0f : scales[i];
    rows[i].replace(gradients[i], [&](float x, float y) { return fmaf(-products[i], x * scales[i], y) * factor; });
  }
}

// The first word of the progress of an item of a key/value head, which is counted over all batch rows.
__device__ __forceinline__ int64_t progress_of(int64_t item_of_head, int tiles, int shares) {
  return item_of_head * (2 * tiles + shares);
}

// Whether nothing is computed again of an item of a key/value head, of no head of its group.
__device__ __forceinline__ bool is_unmarked(const NormalizeRowsGradientArguments& args, int64_t kv_head, int item) {
  uint32_t marked = 0;
  for (int member = 0; member < args.group; ++member) {
    const int64_t first = ((kv_head * args.group + member) * args.num_items + item) * args.turns * args.tiles;
    for (int i = 0; i < args.turns * args.tiles; ++i) {
      marked |= args.marks[first + i];
    }
  }
  return marked == 0;
}

// Whether the sweep has finished a row of a head.
__device__ __forceinline__ bool is_finished(const NormalizeRowsGradientArguments& args, int64_t head, int token) {
  constexpr int kChunk = 64;
  const int64_t kv_head = head / args.group;
  const int item = token / args.item_tokens;
  const int start = item * args.item_tokens;
  const int item_tokens = min(args.item_tokens, args.tokens - start);
  const int chunk = (item_tokens - 1) / kChunk - (token - start) / kChunk;
  const int share = (token - start) % kChunk % args.shares;
  const uint32_t* const finished_gmem =
      args.progress + progress_of(kv_head * args.num_items + item, args.tiles, args.shares) + 2 * args.tiles;
  return chunk < static_cast<int>(finished_gmem[share]) && is_unmarked(args, kv_head, item);
}

}  // namespace linattn
