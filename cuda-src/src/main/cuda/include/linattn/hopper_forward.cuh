// The causal forward on sm_90a: one block walks the chunks of an item and keeps 64 value columns of its
// state in the accumulators of a warpgroup. Its warps have roles, in this order:
//
//   producer   1 warp            starts the copies of q, k, v into the ring
//   auxiliary  3 or 7 warps      z, rows past the end
//   score      4 warps           W = T o (a + b Q K^T), g, 1/g
//   state      4 warps           O^T = S^T Q^T + V^T W^T, S^T += V^T K, o = O / g
//   rows       4 warps or none   fp32 tensors: makes 16-bit tiles of what has landed; where rows are
//                                normalised: |q|, and divides the rows of k by |k|
//
// Where one warpgroup of the state would leave q and k to be read by too many blocks there are two, with 64
// value columns each, and the warps of the scores are producer and auxiliary as well (kBeside).
//
// The products are transposed, so that the accumulators of S^T are the registers from which the next
// product takes them, and only W passes through shared memory. The blocks of one item and head, one for
// each 64 value columns, are clusters of two: side by side they find q and k in the L2 cache.
//
// Blocks that take turns walk the same chunks. Of a chunk whose outputs another one writes they bring k and v
// alone, and add them to their sums: a third of the work, so that few heads fill more of the GPU.
#pragma once

#include "linattn/hopper_auxiliary.cuh"
#include "linattn/hopper_block.cuh"
#include "linattn/hopper_outputs.cuh"
#include "linattn/hopper_score.cuh"
#include "linattn/hopper_state.cuh"
#include "linattn/hopper_tiles.cuh"

namespace linattn {
namespace hopper {

// What is not written again: the rows behind z, W above its diagonal, and the row of ones that adds up v.
template <class Plan>
__device__ __forceinline__ void clear_constants(const Block<Plan>& block) {
  constexpr int kWords = Plan::kExtraBytes / 4;
  constexpr int kWeightUnits = Plan::kWeightBuffers * Plan::kWeightBytes / kUnitBytes;
  for (int i = threadIdx.x; i < kWeightUnits; i += Plan::kThreads) {
    store_unit(block.weights(0) + i * kUnitBytes, make_uint4(0, 0, 0, 0));
  }
  for (int i = threadIdx.x; i < Plan::kStages * Plan::kBoxes * kWords; i += Plan::kThreads) {
    const int box = i / kWords;
    store_word(block.key(box / Plan::kBoxes, box % Plan::kBoxes) + Plan::kBoxBytes + (i % kWords) * 4, 0u);
  }
  __syncthreads();
  constexpr int kRowWords = kRowBytes / 4;
  for (int i = threadIdx.x; i < Plan::kWeightBuffers * kRowWords; i += Plan::kThreads) {
    store_word(block.weights(i / kRowWords) + Plan::kBoxBytes + i % kRowWords * 4, Plan::Half::kOnes);
  }
}

template <class Plan>
__device__ __forceinline__ void init_barriers(const Block<Plan>& block) {
  // Who writes shared memory arrives with every thread: racecheck does not follow one lane for its warp.
  constexpr int kFillers = Plan::kConverted ? Plan::kConverters * kWarp : 1;
  constexpr int kStateReaders = 4 * Plan::kBeside;
  constexpr int kStageReaders = Plan::kAuxiliaryArrivals + kStateReaders * (Plan::kWeighsInState ? kWarp : 1) +
                                (Plan::kSums ? 0 : Plan::kScoreArrivals);
  constexpr bool normalizers = !Plan::kConverted && Plan::kNormalize;
  for (int i = 0; i < Plan::kNumSlotBarriers; ++i) {
    barrier_init(block.barrier(Plan::kSlotFull, i), 1);
    if (!Plan::kSplit) {
      barrier_init(block.barrier(Plan::kSlotEmpty, i), 4);
    }
  }
  for (int i = 0; i < Plan::kStages; ++i) {
    barrier_init(block.barrier(Plan::kKeyFull, i), kFillers);
    barrier_init(block.barrier(Plan::kQueryFull, i), kFillers);
    barrier_init(block.barrier(Plan::kValueFull, i), kFillers);
    barrier_init(block.barrier(Plan::kKeyEmpty, i), kStageReaders);
    barrier_init(block.barrier(Plan::kQueryEmpty, i),
                 Plan::kOutputsInQueries ? Plan::kBeside * kWarpgroup : 4 + kStateReaders);
    if constexpr (Plan::kOutputsInQueries) {
      barrier_init(block.barrier(Plan::kQueryRead, i), 4 + kStateReaders);
    }
    // A warp that does not wait for this barrier must not arrive at it either: it would be a phase ahead of others.
    barrier_init(block.barrier(Plan::kValueEmpty, i),
                 Plan::kSums && !Plan::kGradientSums ? kStageReaders : kStateReaders);
    barrier_init(block.barrier(Plan::kReady, i), Plan::kReadyArrivals + (normalizers ? kWarpgroup : 0));
  }
  if constexpr (Plan::kQueryGradient) {
    barrier_init(block.barrier(Plan::kPartialsFull), Plan::kSummingWarps);
  }
  for (int i = 0; Plan::kGradient && i < Plan::kRowPlaces; ++i) {
    // d comes with its bytes from both blocks of a cluster, else from all that convert.
    const int others = !Plan::kSplitsDelta ? 0 : block.shares_delta() ? 1 : kWarpgroup;
    barrier_init(block.barrier(Plan::kRowsFull, i), kWarp + others);
  }
  if constexpr (Plan::kSplitsDelta) {
    barrier_init(block.barrier(Plan::kOutputRowsFull), 1);
    barrier_init(block.barrier(Plan::kOutputRowsEmpty), 4);
  }
  for (int i = 0; i < Plan::kWeightBuffers; ++i) {
    barrier_init(block.barrier(Plan::kWeightsFull, i), kWarpgroup / 4);
    barrier_init(block.barrier(Plan::kWeightsEmpty, i), Plan::kBeside * kWarpgroup);
  }
  barrier_init_fence();
}

// The largest element, and the largest sum of squares of a column, of some rows: as bits, in shared memory.
struct Extent {
  unsigned largest;
  unsigned squares;
};

// One thread for each column, so that the sums do not depend on the order of threads.
template <class Plan>
__device__ __forceinline__ void measure_column(const TensorView& view, int batch, int head, int token, int column,
                                               int num_rows, Extent* extent_smem) {
  using Bytes = Untyped<Plan::Element::kBytes>;
  const Bytes* element_gmem = row_address<Bytes>(view, batch, head, token) + column;
  float largest = 0.0f;
  float squares = 0.0f;
#pragma unroll 16
  for (int row = 0; row < num_rows; ++row) {
    const void* address = element_gmem + row * view.token_stride;
    float x;
    if constexpr (Plan::kConverted) {
      x = *static_cast<const float*>(address);
    } else {
      x = Plan::Half::low(*static_cast<const unsigned short*>(address));
    }
    largest = fmaxf(largest, fabsf(x));
    squares = fmaf(x, x, squares);
  }
  atomicMax(&extent_smem->largest, __float_as_uint(largest));
  atomicMax(&extent_smem->squares, __float_as_uint(squares));
}

// What the scales follow: the first chunk of the item.
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
  constexpr float kMargin = 1.5f;  // for columns that grow behind the first chunk
  if (threadIdx.x < 4) {
    extents_smem[threadIdx.x] = Extent{0, 0};
  }
  __syncthreads();
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

// One mark for each 64 value columns of block `number` of its task. All threads take part.
template <class Plan>
__device__ __forceinline__ void write_marks(const Block<Plan>& block, uint32_t number, bool marks,
                                            int marked_box) {
  const ChunkedArguments& args = block.chunked();
#pragma unroll
  for (int box = 0; box < Plan::kBeside; ++box) {
    const int marked = __syncthreads_or(marks && (marked_box < 0 || marked_box == box));
    const int column = block.work.first_column + box * Plan::kBoxColumns;
    if (threadIdx.x == 0 && args.marks != nullptr && column < args.value_dim) {
      const int64_t item = number / ceil_div(args.value_dim, Plan::kTileColumns);
      args.marks[item * ceil_div(args.value_dim, Plan::kBoxColumns) + column / Plan::kBoxColumns] = marked;
    }
  }
}

template <class Plan>
__device__ __forceinline__ void walk(const HopperArguments& args) {
  extern __shared__ unsigned char shared[];
  const int warp = __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarp, 0);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const uint32_t start = shared_address(shared);
  const uint32_t base = (start + Plan::kAlignment - 1) & ~static_cast<uint32_t>(Plan::kAlignment - 1);
  const Turn<Plan> turn(args.chunked, blockIdx.x);
  const ItemWork item(ValueTile<Plan::kTileColumns>(args.chunked, turn.block), turn.turn);
  // Where registers are short the item is read again where it is used.
  auto* const work_smem = reinterpret_cast<ItemWork*>(shared + (base - start) + Plan::kWorkOffset);
  if (Plan::kReadsItemAgain && threadIdx.x == 0) {
    *work_smem = item;
  }
  const ItemWork& work = Plan::kReadsItemAgain ? *work_smem : item;
  const Block<Plan> block{args, work, base,
                          Turn<Plan>::walked_chunks(chunks_of<Plan>(item.tokens), turn.turn, args.chunked.turns)};
  if (threadIdx.x == 0) {
    init_barriers(block);
  }
  static_assert(sizeof(ItemWork) <= 48, "its place in shared memory");
  clear_constants(block);
  publish_to_async_proxy();
  if constexpr (Plan::kScaled) {
    __syncthreads();
    make_scales(block, reinterpret_cast<Extent*>(shared + (base - start) + Plan::kExtentsOffset));
  }
  __syncthreads();
  cluster_sync();
  float marks = 0.0f;
  int marked_box = -1;  // of the values; all of them
  const int warpgroup = warp / 4;
  if (warpgroup < Plan::kScoreGroup) {
    if constexpr (!Plan::kMerged) {
      Plan::Spec::Registers::auxiliary();
      if (warp > 0) {
        Auxiliary<Plan>(block, warp - 1, lane).run();
      } else if (lane == 0) {
        produce(block, lane);
      }
    }
  } else if (warpgroup < Plan::kStateGroup) {
    if constexpr (!Plan::kSums) {
      Plan::Spec::Registers::score();
      Score<Plan> score(block, warp & 3, lane);
      score.run();
      marks = score.marks;
    }
  } else if (warpgroup < Plan::kRowsGroup) {
    Plan::Spec::Registers::state();
    Outputs<Plan> outputs(block, warpgroup - Plan::kStateGroup, warp & 3, lane);
    State<Plan>(block, outputs).run();
    marks = outputs.all_marks();
    marked_box = outputs.box;
  } else {
    if constexpr (Plan::kConverted) {
      Plan::Spec::Registers::rows();
      convert(block, warp & 3, lane);
    } else if constexpr (Plan::kNormalize) {
      Plan::Spec::Registers::rows();
      normalize(block, warp & 3, lane);
    }
  }
  if constexpr (!Plan::kSums) {
    write_marks(block, blockIdx.x, marks != 0.0f, marked_box);  // NaN is not 0
  }
  cluster_sync();
}

template <class Plan>
__device__ __forceinline__ void forward(const HopperArguments& args) {
  if constexpr (Plan::kMayTakeTurns) {
    if (args.chunked.turns > 1) {
      walk<InTurns<Plan>>(args);
      return;
    }
  }
  walk<Plan>(args);
}

}  // namespace hopper
}  // namespace linattn
