// Kernels that are bound by memory: those whose rows are independent, kLanes neighbouring lanes of a
// warp per row, and sums over few rows or tiles.
#pragma once

#include "linattn/arguments.h"
#include "linattn/reduce.cuh"

namespace linattn {

// The part of one row that a lane holds: float4 number lane + i * kLanes for i < kVectors.
template <int kHeadDim, int kLanes, int kThreads>
struct RowShare {
  static_assert((kLanes & (kLanes - 1)) == 0 && kLanes <= kWarp, "a group of lanes stays inside its warp");
  static_assert(kHeadDim % (4 * kLanes) == 0, "the lanes of a row share its float4s evenly");
  static constexpr int kVectors = kHeadDim / (4 * kLanes);

  int lane;
  int64_t row;
  bool valid;

  __device__ __forceinline__ explicit RowShare(int64_t rows)
      : lane(static_cast<int>(threadIdx.x) % kLanes),
        row(static_cast<int64_t>(blockIdx.x) * (kThreads / kLanes) + threadIdx.x / kLanes),
        valid(row < rows) {}

  // Zero past the last row: its lanes still take part in the shuffles of their warp.
  __device__ __forceinline__ void load(const float* tensor_gmem, float4 (&share_frag)[kVectors]) const {
    load_row(tensor_gmem, row, share_frag);
  }

  // The same columns of another row, such as one of each head.
  __device__ __forceinline__ void load_row(const float* tensor_gmem, int64_t row_idx,
                                           float4 (&share_frag)[kVectors]) const {
    const float4* row_gmem = reinterpret_cast<const float4*>(tensor_gmem + row_idx * kHeadDim);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      share_frag[i] = valid ? row_gmem[lane + i * kLanes] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
  }

  __device__ __forceinline__ void store(float* tensor_gmem, const float4 (&share_frag)[kVectors]) const {
    float4* row_gmem = reinterpret_cast<float4*>(tensor_gmem + row * kHeadDim);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (valid) {
        row_gmem[lane + i * kLanes] = share_frag[i];
      }
    }
  }

  // The dot product of two rows, in every lane of the row.
  __device__ __forceinline__ static float dot(const float4 (&x_frag)[kVectors], const float4 (&y_frag)[kVectors]) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      sum = fmaf(x_frag[i].x, y_frag[i].x, sum);
      sum = fmaf(x_frag[i].y, y_frag[i].y, sum);
      sum = fmaf(x_frag[i].z, y_frag[i].z, sum);
      sum = fmaf(x_frag[i].w, y_frag[i].w, sum);
    }
    return sum_lanes<kLanes>(sum);
  }
};

__device__ __forceinline__ float4 operator-(float4 x, float4 y) {
  return make_float4(x.x - y.x, x.y - y.y, x.z - y.z, x.w - y.w);
}

__device__ __forceinline__ float4 operator*(float4 x, float scale) {
  return make_float4(x.x * scale, x.y * scale, x.z * scale, x.w * scale);
}

// A row times `scale`, a power of two, and the length of the scaled row.
template <int kHeadDim, int kLanes, int kThreads>
struct ScaledRow {
  using Share = RowShare<kHeadDim, kLanes, kThreads>;
  float4 scaled_frag[Share::kVectors];
  float scale;
  float length;

  __device__ __forceinline__ ScaledRow(const Share& share, const float* tensor_gmem) {
    share.load(tensor_gmem, scaled_frag);
    float largest = 0.0f;
#pragma unroll
    for (int i = 0; i < Share::kVectors; ++i) {
      const float4 x = scaled_frag[i];
      largest = fmaxf(fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w))), largest);
    }
    scale = scale_for(max_lanes<kLanes>(largest));
#pragma unroll
    for (int i = 0; i < Share::kVectors; ++i) {
      scaled_frag[i] = scaled_frag[i] * scale;
    }
    length = sqrtf(Share::dot(scaled_frag, scaled_frag));
  }
};

// A block per head, a thread per column.
template <int kHeadDim>
__device__ __forceinline__ void value_center(const ValueCenterArguments& args) {
  constexpr int kMostRows = 64;
  const int column = static_cast<int>(threadIdx.x);
  if (column >= kHeadDim) {
    return;
  }
  const int64_t head = blockIdx.x;
  const int num_rows = args.tokens < kMostRows ? static_cast<int>(args.tokens) : kMostRows;
  const float* value_gmem = args.value + head * args.tokens * kHeadDim + column;
  float sum = 0.0f;
#pragma unroll 16
  for (int row_idx = 0; row_idx < num_rows; ++row_idx) {
    sum += value_gmem[row_idx * kHeadDim];
  }
  const float mean = sum / static_cast<float>(num_rows);
  args.value_center[head * kHeadDim + column] = isfinite(mean) ? mean : 0.0f;
}

template <int kHeadDim, int kLanes, int kThreads>
__device__ __forceinline__ void row_dot(const RowDotArguments& args) {
  using Share = RowShare<kHeadDim, kLanes, kThreads>;
  const Share share(args.rows);
  float4 output_frag[Share::kVectors];
  float4 gradient_frag[Share::kVectors];
  share.load(args.output, output_frag);
  share.load(args.output_gradient, gradient_frag);
  float4 center_frag[Share::kVectors];
  share.load_row(args.value_center, share.valid ? share.row / args.tokens : 0, center_frag);
#pragma unroll
  for (int i = 0; i < Share::kVectors; ++i) {
    output_frag[i] = output_frag[i] - center_frag[i];
  }
  const float dot = Share::dot(output_frag, gradient_frag);
  if (share.valid && share.lane == 0) {
    args.delta[share.row] = dot / args.normalizer[share.row];
  }
}

template <int kHeadDim, int kLanes, int kThreads>
__device__ __forceinline__ void normalize(const NormalizeArguments& args) {
  using Share = RowShare<kHeadDim, kLanes, kThreads>;
  const Share share(args.rows);
  ScaledRow<kHeadDim, kLanes, kThreads> x(share, args.input);
  const float inverse = x.length == 0.0f ? 0.0f : 1.0f / x.length;
#pragma unroll
  for (int i = 0; i < Share::kVectors; ++i) {
    x.scaled_frag[i] = x.scaled_frag[i] * inverse;
  }
  share.store(args.output, x.scaled_frag);
}

template <int kHeadDim, int kLanes, int kThreads>
__device__ __forceinline__ void normalize_gradient(const NormalizeGradientArguments& args) {
  using Share = RowShare<kHeadDim, kLanes, kThreads>;
  const Share share(args.rows);
  const ScaledRow<kHeadDim, kLanes, kThreads> x(share, args.input);
  float4 gradient_frag[Share::kVectors];
  share.load(args.gradient, gradient_frag);
  const float inverse = 1.0f / x.length;
  const float projection = Share::dot(x.scaled_frag, gradient_frag) * inverse * inverse;
  const bool is_zero = x.length == 0.0f;
#pragma unroll
  for (int i = 0; i < Share::kVectors; ++i) {
    const float4 y = x.scaled_frag[i];
    const float4 g = gradient_frag[i];
    const float4 across = make_float4(fmaf(-projection, y.x, g.x), fmaf(-projection, y.y, g.y),
                                      fmaf(-projection, y.z, g.z), fmaf(-projection, y.w, g.w));
    gradient_frag[i] = is_zero ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : across * inverse * x.scale;
  }
  share.store(args.gradient, gradient_frag);
}

template <int kTiles, int kThreads>
__device__ __forceinline__ void coefficient_gradient(const CoefficientGradientArguments& args) {
  const int64_t head = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (head >= args.heads) {
    return;
  }
  const double* partial_gmem = args.partials + head * kTiles * 2;
  double a_sum = 0.0;
  double b_sum = 0.0;
  for (int tile = 0; tile < kTiles; ++tile) {
    a_sum += partial_gmem[2 * tile];
    b_sum += partial_gmem[2 * tile + 1];
  }
  if (args.a_gradient != nullptr) {
    args.a_gradient[head] = static_cast<float>(a_sum);
  }
  if (args.b_gradient != nullptr) {
    args.b_gradient[head] = static_cast<float>(b_sum);
  }
}

}  // namespace linattn
