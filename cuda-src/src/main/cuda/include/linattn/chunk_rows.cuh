// Lengths of rows and sums of columns: what the chunked kernels compute in fp32 beside their products.
#pragma once

#include <cuda_runtime.h>

#include "linattn/mma.cuh"
#include "linattn/reduce.cuh"

namespace linattn {

// Calls visit(column, x, y) for pairs of neighbours of a row, shared among kLanes lanes, 16 bytes at a time.
// `row` is aligned to 16 bytes and `num_columns` a multiple of 16 bytes.
template <int kLanes, int kUnroll = 4, typename Element, typename Visit>
__device__ __forceinline__ void visit_row(const Element* row, int num_columns, int lane, Visit&& visit) {
  constexpr int kVector = 16 / static_cast<int>(sizeof(Element));
#pragma unroll kUnroll
  for (int column = lane * kVector; column < num_columns; column += kLanes * kVector) {
    const uint4 elements = *reinterpret_cast<const uint4*>(row + column);
    const uint32_t words[4] = {elements.x, elements.y, elements.z, elements.w};
    if constexpr (sizeof(Element) == 2) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 x = unpack<Element>(words[i]);
        visit(column + 2 * i, x.x, x.y);
      }
    } else {
      visit(column, __uint_as_float(words[0]), __uint_as_float(words[1]));
      visit(column + 2, __uint_as_float(words[2]), __uint_as_float(words[3]));
    }
  }
}

// Whether a sum of squares neither overflowed nor vanished.
__device__ __forceinline__ bool is_plain(float sum) { return sum >= 1e-30f && sum <= 1e38f; }

// The length of a row, in each of its kLanes lanes; 1 for a row of zeros. `squares` is this lane's share of
// the sum of squares, `visit_again(visit)` passes the lane's elements to visit(column, x, y) once more:
// squares that overflow or vanish are formed again from elements scaled by a power of two. All lanes of a
// warp call.
template <int kLanes, typename VisitAgain>
__device__ __forceinline__ float row_length(float squares, VisitAgain&& visit_again) {
  const float sum = sum_lanes<kLanes>(squares);
  float length = sqrtf(sum);
  if (__any_sync(kAllLanes, !is_plain(sum))) {
    float largest = 0.0f;
    visit_again([&](int, float x, float y) { largest = fmaxf(largest, fmaxf(fabsf(x), fabsf(y))); });
    const float scale = scale_for(max_lanes<kLanes>(largest));
    float scaled_squares = 0.0f;
    visit_again([&](int, float x, float y) {
      scaled_squares = fmaf(x * scale, x * scale, scaled_squares);
      scaled_squares = fmaf(y * scale, y * scale, scaled_squares);
    });
    const float scaled_length = sqrtf(sum_lanes<kLanes>(scaled_squares));
    if (!is_plain(sum)) {
      length = scaled_length == 0.0f ? 1.0f : scaled_length / scale;
    }
  }
  return length;
}

// The same of a row that is read in one go.
template <int kLanes, typename Element>
__device__ __forceinline__ float row_length(const Element* row, int num_columns, int lane) {
  float squares = 0.0f;
  visit_row<kLanes>(row, num_columns, lane, [&](int, float x, float y) {
    squares = fmaf(x, x, squares);
    squares = fmaf(y, y, squares);
  });
  return row_length<kLanes>(squares,
                            [&](auto&& visit) { visit_row<kLanes, 1>(row, num_columns, lane, visit); });
}

// 1 / length; finite, since a row shorter than the smallest normal number is not worth a NaN in a state.
__device__ __forceinline__ float inverse_length(float length) { return fminf(1.0f / length, 3.0e38f); }

// Multiplies a row in shared memory by `scale`, a lane's share of it.
template <int kLanes, typename Element>
__device__ __forceinline__ void scale_row(Element* row_smem, int num_columns, int lane, float scale) {
  visit_row<kLanes>(row_smem, num_columns, lane, [&](int column, float x, float y) {
    if constexpr (sizeof(Element) == 2) {
      *reinterpret_cast<uint32_t*>(row_smem + column) = pack<Element>(x * scale, y * scale);
    } else {
      *reinterpret_cast<float2*>(row_smem + column) = make_float2(x * scale, y * scale);
    }
  });
}

// The sums of a thread's columns over `num_rows` rows: a pair of columns where elements have 16 bits, else
// one.
template <typename Element>
struct ColumnSums {
  static constexpr int kColumns = sizeof(Element) == 2 ? 2 : 1;
  float sum_frag[kColumns];

  template <int kRows>
  __device__ __forceinline__ void of_rows(const Element* column_smem, int stride) {
    sum_rows<kRows>(column_smem, stride, [](float sum, float x, int) { return sum + x; });
  }

  // Of rows times their factors.
  template <int kRows>
  __device__ __forceinline__ void of_rows(const Element* column_smem, int stride, const float* factors_smem) {
    sum_rows<kRows>(column_smem, stride,
                    [&](float sum, float x, int row) { return fmaf(factors_smem[row], x, sum); });
  }

 private:
  template <int kRows, typename AddTo>
  __device__ __forceinline__ void sum_rows(const Element* column_smem, int stride, AddTo&& add_to) {
    float odd_frag[kColumns];
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      sum_frag[i] = 0.0f;
      odd_frag[i] = 0.0f;
    }
    static_assert(kRows % 2 == 0, "two sums, so that additions overlap");
#pragma unroll 4
    for (int row = 0; row < kRows; row += 2) {
      add(sum_frag, column_smem + row * stride, row, add_to);
      add(odd_frag, column_smem + (row + 1) * stride, row + 1, add_to);
    }
#pragma unroll
    for (int i = 0; i < kColumns; ++i) {
      sum_frag[i] += odd_frag[i];
    }
  }

  template <typename AddTo>
  __device__ __forceinline__ static void add(float (&frag)[kColumns], const Element* element_smem, int row,
                                             AddTo&& add_to) {
    if constexpr (kColumns == 2) {
      const float2 x = unpack<Element>(*reinterpret_cast<const uint32_t*>(element_smem));
      frag[0] = add_to(frag[0], x.x, row);
      frag[1] = add_to(frag[1], x.y, row);
    } else {
      frag[0] = add_to(frag[0], to_float(*element_smem), row);
    }
  }
};

// 64 x 8 values and more of a row leave as pieces of 32 bytes: four lanes with neighbouring accumulators of
// one row, of columns 2 t, 2 t + 1 and 8 more, store them.
template <typename Element>
__device__ __forceinline__ void store_pieces(Element* row_gmem, int num_columns, int column, float2 left,
                                             float2 right) {
  const int t = lane_of_thread() % 4;
  if constexpr (sizeof(Element) == 2) {
    const uint32_t left_pair = pack<Element>(left.x, left.y);
    const uint32_t right_pair = pack<Element>(right.x, right.y);
    const bool is_odd = t % 2 == 1;
    const uint32_t received = __shfl_xor_sync(kAllLanes, is_odd ? left_pair : right_pair, 1);
    // Even lanes store four columns of the left accumulator, odd ones of the right.
    const uint2 pairs = is_odd ? make_uint2(received, right_pair) : make_uint2(left_pair, received);
    const int first = column + (is_odd ? 8 : 0) + t / 2 * 4;
    if (row_gmem == nullptr) {
      return;
    }
    if (first + 4 <= num_columns) {
      *reinterpret_cast<uint2*>(row_gmem + first) = pairs;
    } else {
      const uint32_t words[2] = {pairs.x, pairs.y};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (first + i < num_columns) {
          const uint16_t bits = static_cast<uint16_t>(words[i / 2] >> (i % 2 * 16));
          reinterpret_cast<uint16_t*>(row_gmem)[first + i] = bits;
        }
      }
    }
  } else if (row_gmem != nullptr) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 x = half == 0 ? left : right;
      const int first = column + half * 8 + 2 * t;
      if (first + 2 <= num_columns) {
        *reinterpret_cast<float2*>(row_gmem + first) = x;
      } else if (first < num_columns) {
        row_gmem[first] = x.x;
      }
    }
  }
}

}  // namespace linattn
