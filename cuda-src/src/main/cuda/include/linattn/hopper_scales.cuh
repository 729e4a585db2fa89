// The powers of two that bring operands into the range of fp16: they follow the first chunk of an item.
#pragma once

#include "linattn/hopper_block.cuh"

namespace linattn {
namespace hopper {

// The largest element, and the largest sum of squares of a column, of some rows: as bits, in shared memory.
struct Extent {
  unsigned largest;
  unsigned squares;
};

constexpr int kExtents = 4;      // of three tensors, and of S
constexpr float kMargin = 1.5f;  // for columns that grow behind the first chunk

__device__ __forceinline__ void clear_extents(Extent* extents_smem) {
  if (threadIdx.x < kExtents) {
    extents_smem[threadIdx.x] = Extent{0, 0};
  }
  __syncthreads();
}

__device__ __forceinline__ void widen(Extent* extent_smem, float largest, float squares) {
  atomicMax(&extent_smem->largest, __float_as_uint(largest));
  atomicMax(&extent_smem->squares, __float_as_uint(squares));
}

// One thread for each column, so that the sums do not depend on the order of threads.
template <class Plan, int kRowsAtOnce = 16>
__device__ __forceinline__ float2 extent_of_column(const TensorView& view, int batch, int head, int token, int column,
                                                   int num_rows) {
  using Element = typename Plan::Element;
  const Element* element_gmem = row_address<Element>(view, batch, head, token) + column;
  float largest = 0.0f;
  float squares = 0.0f;
#pragma unroll kRowsAtOnce
  for (int row = 0; row < num_rows; ++row) {
    const float x = to_float(element_gmem[row * view.token_stride]);
    largest = fmaxf(largest, fabsf(x));
    squares = fmaf(x, x, squares);
  }
  return make_float2(largest, squares);
}

template <class Plan>
__device__ __forceinline__ void measure_column(const TensorView& view, int batch, int head, int token, int column,
                                               int num_rows, Extent* extent_smem) {
  const float2 extent = extent_of_column<Plan>(view, batch, head, token, column, num_rows);
  widen(extent_smem, extent.x, extent.y);
}

// Of the first chunk of the item.
template <class Plan>
__device__ __forceinline__ void measure_first_chunk(const Block<Plan>& block, Extent* extents_smem) {
  const ItemWork& work = block.work;
  const ChunkedArguments& args = block.chunked();
  const int num_rows = min(Plan::kChunk, work.tokens);
  const int first_value = work.first_column;
  const int num_values = min(Plan::kTileColumns, args.value_dim - first_value);
  // Sums see no queries.
  constexpr int kFirst = Plan::kSums ? Plan::kHeadDim : 0;
  for (int i = kFirst + threadIdx.x; i < 2 * Plan::kHeadDim + num_values; i += Plan::kThreads) {
    const int column = i % Plan::kHeadDim;
    if (i < Plan::kHeadDim) {
      measure_column<Plan>(args.query, work.batch, block.query_head(), work.start, column, num_rows, extents_smem);
    } else if (i < 2 * Plan::kHeadDim) {
      measure_column<Plan>(args.key, work.batch, block.key_head(0), work.start, column, num_rows, extents_smem + 1);
    } else {
      measure_column<Plan>(args.value, work.batch, block.key_head(0), work.start,
                           first_value + i - 2 * Plan::kHeadDim, num_rows, extents_smem + 2);
    }
  }
}

// The largest element of S that the block starts from.
template <class Plan>
__device__ __forceinline__ void measure_state(const Block<Plan>& block, Extent* extent_smem) {
  const StateAddress<Plan> address(block);
  if (address.state_in == nullptr) {
    return;
  }
  const int num_values = min(Plan::kTileColumns, block.chunked().value_dim - block.work.first_column);
  float largest = 0.0f;
#pragma unroll 8
  for (int i = threadIdx.x; i < Plan::kHeadDim * num_values; i += Plan::kThreads) {
    const float x = address.state_in[i / num_values * address.key_stride + i % num_values * address.column_stride];
    largest = fmaxf(largest, fabsf(x));
  }
  atomicMax(&extent_smem->largest, __float_as_uint(largest));
}

// 2^e of a positive number in [2^e, 2^(e+1)); 1 where it is zero or not a size to go by.
__device__ __forceinline__ float size_of(float x) {
  return x > 0x1p-60f && x < 0x1p60f ? power_of_two(exponent_of(x)) : 1.0f;
}

template <class Plan>
__device__ __forceinline__ void make_scales(const Block<Plan>& block, Extent* extents_smem) {
  // Elements of fp32 tensors are brought to below 2 kTop, unless they are of an ordinary size.
  constexpr float kTop = 2.0f;
  constexpr float kLeastOrdinary = 0x1p-4f;
  constexpr float kMostOrdinary = 0x1p4f;
  clear_extents(extents_smem);
  measure_first_chunk(block, extents_smem);
  if constexpr (Plan::kReverse) {
    measure_state(block, extents_smem + 3);
  }
  __syncthreads();
  if (threadIdx.x != 0) {
    return;
  }
  const ItemWork& work = block.work;
  const float num_rows = static_cast<float>(max(1, min(Plan::kChunk, work.tokens)));
  float scale[3];
  float bound[3];  // of elements
  float root[3];   // of the mean square of a column
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    const float size = size_of(__uint_as_float(extents_smem[i].largest));
    const bool ordinary = size >= kLeastOrdinary && size <= kMostOrdinary;
    scale[i] = Plan::kConverted && !ordinary ? kTop / size : 1.0f;
    bound[i] = 2.0f * size;
    root[i] = fminf(sqrtf(__uint_as_float(extents_smem[i].squares) / num_rows), bound[i]);
  }
  const float key_scale = scale[1];
  if constexpr (Plan::kWeighsKeys) {
    store_float(block.scale_address(kLengthScale), size_of(sqrtf(Plan::kHeadDim) * root[1]));
  }
  if constexpr (Plan::kNormalize) {  // what follows sees unit rows
    bound[1] = 1.0f;
    root[1] = 1.0f;
    scale[1] = 1.0f;
  }
  if constexpr (Plan::kScalesRows && !Plan::kReverse) {  // z are unit rows
    bound[2] = 1.0f;
    root[2] = 1.0f;
    scale[2] = Plan::kConverted ? kTop * size_of(sqrtf(Plan::kHeadDim)) : 1.0f;
  }
  float a = fabsf(work.a) * (Plan::kNormalize ? Plan::kHeadDim * bound[0] : 1.0f);
  float b = fabsf(work.b);
  if constexpr (Plan::kGradient) {
    b = 1.0f;
    a = block.constant_bound(Plan::kHeadDim * bound[0] * bound[1]);
  }
  const float weight_bound = a + b * Plan::kHeadDim * bound[0] * bound[1];
  const float state_bound = b * kMargin * root[1] * root[2];
  const float tokens = work.count + static_cast<float>(work.tokens);
  if constexpr (Plan::kConverted) {
    // In the unit 1/b: W / b grows as q shrinks against a, and S with the tokens of the item.
    const float weight = weight_bound / b * (scale[0] * scale[1]);
    if (b > 0.0f && weight > kMaxHalf) {
      scale[0] *= power_of_two(-1 - exponent_of(weight / kMaxHalf));
    }
    const float state = kMargin * root[1] * root[2] * scale[1] * scale[2] * tokens;
    if (!Plan::kWeighsRows && state > kMaxHalf) {
      scale[2] *= power_of_two(-1 - exponent_of(state / kMaxHalf));
    }
  }
  store_float(block.scale_address(kQueryScale), scale[0]);
  store_float(block.scale_address(kKeyScale), key_scale);
  store_float(block.scale_address(kValueScale), scale[2]);
  store_float(block.scale_address(kScoreScale), 1.0f / (scale[0] * scale[1]));
  store_float(block.scale_address(kOutputScale), 1.0f / scale[2]);
  store_float(block.scale_address(kWeightBound), weight_bound);
  // Elements of fp16 tensors may be small, and the lower of two halves has few digits below 1.
  float row_top = Plan::kFollows ? kTop * kTop * kTop / (0.5f * bound[2]) : Plan::kSplit ? 0x1p8f : 1.0f;
  if constexpr (Plan::kFollows && Plan::kWeighsInState) {  // the weights themselves are operands of 16 bits
    row_top = fminf(fmaxf(row_top, 0x1p-8f), 0x1p14f);
  }
  store_float(block.scale_address(kRowTop), row_top);
  store_float(block.scale_address(kStateBound),
              Plan::kReverse ? state_bound * scale[1] * scale[2] * row_top : state_bound);
  if constexpr (Plan::kReverse) {
    store_float(block.scale_address(kStartBound),
                __uint_as_float(extents_smem[3].largest) * scale[1] * scale[2] * row_top);
  }
  store_float(block.scale_address(kWeightScale), Plan::kFollows && weight_bound > kMaxHalf
                                                     ? power_of_two(-1 - exponent_of(weight_bound / kMaxHalf))
                                                     : 1.0f);
  store_float(block.scale_address(kPlainTokens),
              weight_bound <= kMaxHalf * b ? fminf(kMaxHalf * b / state_bound, 0x1p100f) : -1.0f);
}

}  // namespace hopper
}  // namespace linattn
