// The powers of two that bring operands into the range of fp16: they follow the first rows of an item.
#pragma once

#include "linattn/hopper_block.cuh"

namespace linattn {
namespace hopper {

// The largest element, and the largest sum of squares of a column, of some rows: as bits, in shared memory.
struct Extent {
  unsigned largest;
  unsigned squares;
};

constexpr int kTensors = 3;             // of an item: what a sweep has as q, k and v
constexpr int kExtents = kTensors + 1;  // and that of S
constexpr float kMargin = 1.5f;         // for columns that grow behind the rows measured

__device__ __forceinline__ void clear_extents(Extent* extents_smem) {
  if (threadIdx.x < kExtents) {
    extents_smem[threadIdx.x] = Extent{0, 0};
  }
  __syncthreads();
}

// By what the lanes of a warp have found; the largest element is returned. One that is infinite tells nothing.
__device__ __forceinline__ float widen(Extent* extent_smem, float largest, float squares) {
  largest = max_lanes<kWarp>(largest);
  largest = isfinite(largest) ? largest : 0.0f;
  squares = max_lanes<kWarp>(squares);
  if (threadIdx.x % kWarp == 0) {
    atomicMax(&extent_smem->largest, __float_as_uint(largest));
    atomicMax(&extent_smem->squares, __float_as_uint(squares));
  }
  return largest;
}

template <class Plan>
__device__ __forceinline__ float4 load_four(const typename Plan::Element* element_gmem) {
  using Half = typename Plan::Half;
  if constexpr (Plan::kConverted) {
    return *reinterpret_cast<const float4*>(element_gmem);
  } else {
    const uint2 pairs = *reinterpret_cast<const uint2*>(element_gmem);
    return make_float4(Half::low(pairs.x), Half::high(pairs.x), Half::low(pairs.y), Half::high(pairs.y));
  }
}

// What a warp measures at once. A lane has four columns of every fourth row of a chunk, so that all of it is asked for
// before the first comes; of rows past the end the last one is asked for, without a branch.
constexpr int kMeasuredColumns = 32;

// Of as many columns from `column` on, of which num_columns are there, a multiple of four, and of as many rows as a
// chunk has from one of the item on. Sums do not depend on the order of threads.
template <class Plan>
__device__ __forceinline__ float measure_columns(const TensorView& view, const ItemWork& work, int head, int start,
                                                 int column, int num_columns, Extent* extent_smem) {
  using Element = typename Plan::Element;
  const int num_rows = min(Plan::kChunk, work.tokens);
  if (num_rows <= 0) {
    return 0.0f;
  }
  constexpr int kLanesOfRow = kMeasuredColumns / 4;
  constexpr int kRowsAtOnce = kWarp / kLanesOfRow;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const Element* const four_gmem = row_address<const Element>(view, work.batch, head, work.start + start) + column +
                                   min(lane % kLanesOfRow * 4, num_columns - 4);
  float largest = 0.0f;
  float4 squares = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
  for (int first_row = 0; first_row < Plan::kChunk; first_row += kRowsAtOnce) {
    const int row = first_row + lane / kLanesOfRow;
    float4 x = load_four<Plan>(four_gmem + min(row, num_rows - 1) * view.token_stride);
    if (row >= num_rows) {
      x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    largest = fmaxf(largest, fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w))));
    squares.x = fmaf(x.x, x.x, squares.x);
    squares.y = fmaf(x.y, x.y, squares.y);
    squares.z = fmaf(x.z, x.z, squares.z);
    squares.w = fmaf(x.w, x.w, squares.w);
  }
#pragma unroll
  for (int offset = kLanesOfRow; offset < kWarp; offset *= 2) {
    squares.x += __shfl_xor_sync(kAllLanes, squares.x, offset);
    squares.y += __shfl_xor_sync(kAllLanes, squares.y, offset);
    squares.z += __shfl_xor_sync(kAllLanes, squares.z, offset);
    squares.w += __shfl_xor_sync(kAllLanes, squares.w, offset);
  }
  return widen(extent_smem, largest, fmaxf(fmaxf(squares.x, squares.y), fmaxf(squares.z, squares.w)));
}

// What is smaller, as zeros of padding or of the gradient of a prompt that no loss is taken of, says nothing of other
// rows.
constexpr float kLeastSize = 0x1p-66f;

// Of a tensor whose first rows say nothing each warp measures others until it has met some that do: of one head of the
// group after the other, from the end of the item that a walk begins at. All warps take part.
template <class Plan>
__device__ __forceinline__ void measure_on(const TensorView& view, const ItemWork& work, int head, int num_heads,
                                           int first_column, int num_columns, Extent* extent_smem) {
  constexpr int kWarps = Plan::kThreads / kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll 1
  for (int member = 0; member < num_heads; ++member) {
#pragma unroll 1
    for (int row = warp * Plan::kChunk; row < work.tokens; row += kWarps * Plan::kChunk) {
      const int last_start = work.tokens - Plan::kChunk;
      const int start = max(0, Plan::kReverse ? last_start - row : min(row, last_start));
      float largest = 0.0f;
#pragma unroll 1
      for (int column = 0; column < num_columns; column += kMeasuredColumns) {
        largest = fmaxf(largest, measure_columns<Plan>(view, work, head + member, start, first_column + column,
                                                       num_columns - column, extent_smem));
      }
      if (largest >= kLeastSize) {
        return;
      }
    }
  }
}

// Calls `measure` with each tensor from first_tensor on whose first rows say nothing. All threads take part.
template <class Measure>
__device__ __forceinline__ void go_on_measuring(int first_tensor, const Extent* extents_smem, const Measure& measure) {
  unsigned lacking = 0;
  for (int i = first_tensor; i < kTensors; ++i) {
    lacking |= __uint_as_float(extents_smem[i].largest) < kLeastSize ? 1u << i : 0;
  }
  if (lacking == 0) {
    return;
  }
  __syncthreads();  // all know which
#pragma unroll 1
  for (int i = first_tensor; i < kTensors; ++i) {
    if ((lacking >> i & 1) != 0) {
      measure(i);
    }
  }
  __syncthreads();
}

// The columns of a tensor that a block reads.
template <class Plan>
struct MeasuredTensor {
  const TensorView& view;
  const int head;
  const int num_heads;
  const int first_column;
  const int num_columns;

  __device__ __forceinline__ MeasuredTensor(const Block<Plan>& block, int index)
      : view(index == 0   ? block.chunked().query
             : index == 1 ? block.chunked().key
                          : block.chunked().value),
        head(index == 0 ? block.query_head() : block.key_head(0)),
        num_heads(index == 0 ? 1 : block.group()),
        first_column(index == 2 ? block.work.first_column : 0),
        num_columns(index == 2 ? min(Plan::kTileColumns, block.chunked().value_dim - block.work.first_column)
                               : Plan::kHeadDim) {}
};

// Of the rows of the item.
template <class Plan>
__device__ __forceinline__ void measure_rows(const Block<Plan>& block, Extent* extents_smem) {
  // As many as warps measure, each those of one tensor.
  constexpr int kColumns = ceil_div(Plan::kHeadDim, kMeasuredColumns) * kMeasuredColumns;
  constexpr int kFirst = Plan::kSums ? 1 : 0;  // sums see no queries
  const int num_values = MeasuredTensor<Plan>(block, 2).num_columns;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
#pragma unroll 1
  for (int i = kFirst * kColumns + warp * kMeasuredColumns; i < 2 * kColumns + num_values;
       i += Plan::kThreads / kWarp * kMeasuredColumns) {
    const int index = min(i / kColumns, 2);
    const int column = i - index * kColumns;
    const MeasuredTensor<Plan> tensor(block, index);
    measure_columns<Plan>(tensor.view, block.work, tensor.head, 0, tensor.first_column + column,
                          tensor.num_columns - column, extents_smem + index);
  }
  __syncthreads();
  go_on_measuring(kFirst, extents_smem, [&](int index) {
    const MeasuredTensor<Plan> tensor(block, index);
    measure_on<Plan>(tensor.view, block.work, tensor.head, tensor.num_heads, tensor.first_column, tensor.num_columns,
                     extents_smem + index);
  });
}

// The largest element of S that the block starts from, by all threads: a warp has some rows of memory at a time, which
// are value columns of the block or its key columns. Past the end the last element comes again.
template <class Plan>
__device__ __forceinline__ void measure_state(const Block<Plan>& block, Extent* extent_smem) {
  constexpr int kMostElements = Plan::kHeadDim > Plan::kTileColumns ? Plan::kHeadDim : Plan::kTileColumns;
  constexpr int kLoads = 16;
  constexpr int kLoadsOfRow = ceil_div(kMostElements, kWarp);
  constexpr int kRowsAtOnce = kLoads / kLoadsOfRow;
  constexpr int kWarps = Plan::kThreads / kWarp;
  const StateAddress<Plan> address(block);
  if (address.state_in == nullptr) {
    return;
  }
  const int num_values = min(Plan::kTileColumns, block.chunked().value_dim - block.work.first_column);
  const bool by_values = address.column_stride != 1;
  const int num_rows = by_values ? num_values : Plan::kHeadDim;
  const int row_size = by_values ? Plan::kHeadDim : num_values;
  const int64_t row_stride = by_values ? address.column_stride : address.key_stride;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float largest = 0.0f;
#pragma unroll 1
  for (int first_row = warp; first_row < num_rows; first_row += kWarps * kRowsAtOnce) {
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      const float* const row_gmem = address.state_in + min(first_row + i * kWarps, num_rows - 1) * row_stride;
#pragma unroll
      for (int j = 0; j < kLoadsOfRow; ++j) {
        largest = fmaxf(largest, fabsf(row_gmem[min(j * kWarp + lane, row_size - 1)]));
      }
    }
  }
  widen(extent_smem, largest, 0.0f);
}

// 2^e of a number in [2^e, 2^(e+1)), no less than 2^-60, since scales of two tensors are multiplied; 1 of what says
// nothing, and of what is too large to go by, which leaves the range of operands and is repaired.
__device__ __forceinline__ float size_of(float x) {
  return x >= kLeastSize && x < 0x1p60f ? fmaxf(power_of_two(exponent_of(x)), 0x1p-60f) : 1.0f;
}

// S is made of y and z. Where an item has nothing of one of them, as of dO of a prompt, S that it starts from tells its
// scale, such that S times both scales is of the size of an operand. fp16 tensors are not scaled: there z tells the unit
// of S. A large S lowers that unit by itself, and a scale of y below 1 would take digits from the constants of W.
template <class Plan>
__device__ __forceinline__ void find_sizes_by_state(const Extent* extents_smem, float (&sizes)[kTensors]) {
  const float start = __uint_as_float(extents_smem[kTensors].largest);
  const auto says_nothing = [&](int i) { return __uint_as_float(extents_smem[i].largest) < kLeastSize; };
  if (start > 0.0f && says_nothing(2)) {
    sizes[2] = size_of(Plan::kConverted ? start / sizes[1] : start);
  }
  if (start > 0.0f && says_nothing(1) && Plan::kConverted) {
    sizes[1] = size_of(fminf(1.0f, start / sizes[2]));
  }
}

template <class Plan>
__device__ __forceinline__ void make_scales(const Block<Plan>& block, Extent* extents_smem) {
  // Elements of fp32 tensors are brought to below 2 kTop, unless they are of an ordinary size.
  constexpr float kTop = 2.0f;
  constexpr float kLeastOrdinary = 0x1p-4f;
  constexpr float kMostOrdinary = 0x1p4f;
  clear_extents(extents_smem);
  if constexpr (Plan::kReverse) {
    measure_state(block, extents_smem + kTensors);
  }
  measure_rows(block, extents_smem);
  if (threadIdx.x != 0) {
    return;
  }
  const ItemWork& work = block.work;
  const float num_rows = static_cast<float>(max(1, min(Plan::kChunk, work.tokens)));
  float sizes[kTensors];
#pragma unroll
  for (int i = 0; i < kTensors; ++i) {
    sizes[i] = size_of(__uint_as_float(extents_smem[i].largest));
  }
  if constexpr (Plan::kReverse) {
    find_sizes_by_state<Plan>(extents_smem, sizes);
  }
  float scale[kTensors];
  float bound[kTensors];  // of elements
  float root[kTensors];   // of the mean square of a column
#pragma unroll
  for (int i = 0; i < kTensors; ++i) {
    const bool ordinary = sizes[i] >= kLeastOrdinary && sizes[i] <= kMostOrdinary;
    scale[i] = Plan::kConverted && !ordinary ? kTop / sizes[i] : 1.0f;
    bound[i] = 2.0f * sizes[i];
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
  if constexpr (Plan::kScalesRows && !Plan::kWeighsRows) {  // z are unit rows
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
                __uint_as_float(extents_smem[kTensors].largest) * scale[1] * scale[2] * row_top);
  }
  store_float(block.scale_address(kWeightScale), Plan::kFollows && weight_bound > kMaxHalf
                                                     ? power_of_two(-1 - exponent_of(weight_bound / kMaxHalf))
                                                     : 1.0f);
  store_float(block.scale_address(kPlainTokens),
              weight_bound <= kMaxHalf * b ? fminf(kMaxHalf * b / state_bound, 0x1p100f) : -1.0f);
}

}  // namespace hopper
}  // namespace linattn
