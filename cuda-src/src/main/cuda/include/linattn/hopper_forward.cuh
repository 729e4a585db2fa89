// The causal forward on sm_90a: one block walks the chunks of an item and keeps 64 value columns of its
// state in the accumulators of a warpgroup. Its warps have roles, in this order:
//
//   producer   1 warp            starts the copies of q, k, v into the ring
//   auxiliary  3 or 7 warps      z, rows past the end; V where boxes stream; nothing where rows make z on their way
//   score      4 warps           W = T o (a + b Q K^T), g, 1/g
//   state      4 warps           O^T = S^T Q^T + V^T W^T, S^T += V^T K, o = O / g
//   rows       4 warps or none   fp32 tensors: makes 16-bit tiles of what has landed, of normalised k divided by
//                                |k|; normalised rows of 16 bits: |q| and 1 / |k|
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
#include "linattn/hopper_converter.cuh"
#include "linattn/hopper_normalizer.cuh"
#include "linattn/hopper_outputs.cuh"
#include "linattn/hopper_producer.cuh"
#include "linattn/hopper_scales.cuh"
#include "linattn/hopper_score.cuh"
#include "linattn/hopper_stream.cuh"
#include "linattn/hopper_sums_state.cuh"

namespace linattn {
namespace hopper {

// What a warpgroup of the state runs.
template <class Plan>
using StateOf = std::conditional_t<Plan::kSums, SumsState<Plan>,
                                   std::conditional_t<Plan::kStreams, StreamState<Plan>, State<Plan>>>;

// Of a long item by code of its own, so that others do not pay for it.
template <class Plan>
__device__ __forceinline__ void run_state(const Block<Plan>& block, Outputs<Plan>& outputs) {
  if constexpr (Plan::kPutByChunks > 0) {
    if (block.num_chunks > Plan::kPutByChunks) {
      State<Plan, true>(block, outputs).run();
      return;
    }
  }
  StateOf<Plan>(block, outputs).run();
}

// What is not written again: the rows behind z, W above its diagonal, and the row of ones that adds up v. Weights of
// rows past the end are what stood there before, so that they have to be numbers at first.
template <class Plan>
__device__ __forceinline__ void clear_constants(const Block<Plan>& block) {
  constexpr int kWords = Plan::kKeyExtra / 4;
  constexpr int kWeightUnits = Plan::kWeightBuffers * Plan::kWeightBytes / kUnitBytes;
  for (int i = threadIdx.x; i < kWeightUnits; i += Plan::kThreads) {
    store_unit(block.weights(0) + i * kUnitBytes, make_uint4(0, 0, 0, 0));
  }
  constexpr int kBoxes = Plan::kStreams ? Plan::kPairs : Plan::kStages * Plan::kBoxes;
  if constexpr (kWords > 0) {
    for (int i = threadIdx.x; i < kBoxes * kWords; i += Plan::kThreads) {
      const int box = i / kWords;
      const uint32_t key = Plan::kStreams ? block.pair_key(box) : block.key(box / Plan::kBoxes, box % Plan::kBoxes);
      store_word(key + Plan::kBoxBytes + (i % kWords) * 4, 0u);
    }
  }
  if constexpr (Plan::kQueryGradient && Plan::kWeighsInState) {
    for (int i = threadIdx.x; i < Plan::kRowPlaces * Plan::kRowBytesOfChunk / 4; i += Plan::kThreads) {
      store_word(block.normalizers(0) + i * 4, 0u);
    }
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
  constexpr int kStageReaders = Plan::kAuxiliaryArrivals +
                                kStateReaders * (Plan::kWeighsInState || Plan::kWeighsKeys ? kWarp : 1) +
                                (Plan::kSums ? 0 : Plan::kScoreArrivals);
  for (int i = 0; i < Plan::kNumSlotBarriers; ++i) {
    barrier_init(block.barrier(Plan::kSlotFull, i), i < Plan::kPairs ? 2 : 1);
    if (!Plan::kSplit) {
      barrier_init(block.barrier(Plan::kSlotEmpty, i), 4);
    }
  }
  for (int i = 0; i < Plan::kStages; ++i) {
    barrier_init(block.barrier(Plan::kKeyFull, i), kFillers);
    barrier_init(block.barrier(Plan::kQueryFull, i), kFillers);
    barrier_init(block.barrier(Plan::kValueFull, i), Plan::kStreams ? Plan::kAuxiliaryWarps * kWarp : kFillers);
    barrier_init(block.barrier(Plan::kKeyEmpty, i), kStageReaders);
    barrier_init(block.barrier(Plan::kQueryEmpty, i),
                 Plan::kOutputsInQueries ? Plan::kBeside * kWarpgroup
                                         : 4 + kStateReaders + (Plan::kDeltaBeside ? Plan::kDeltaWarps : 0));
    if constexpr (Plan::kOutputsInQueries) {
      barrier_init(block.barrier(Plan::kQueryRead, i), 4 + kStateReaders);
    }
    // A warp that does not wait for this barrier must not arrive at it either: it would be a phase ahead of others.
    barrier_init(block.barrier(Plan::kValueEmpty, i), Plan::kSums && !Plan::kGradientSums ? kStageReaders
                                                      : Plan::kStreams                    ? kStateReaders * kWarp
                                                                                          : kStateReaders);
    barrier_init(block.barrier(Plan::kReady, i), Plan::kReadyArrivals);
    if constexpr (Plan::kWeighsKeys) {
      barrier_init(block.barrier(Plan::kLengthsFull, i), kWarpgroup);
    }
  }
  for (int i = 0; Plan::kBoxesApart && i < Plan::kStages * Plan::kBoxes; ++i) {
    barrier_init(block.barrier(Plan::kBoxEmpty, i), kStateReaders);
  }
  for (int i = 0; i < Plan::kPairs; ++i) {
    constexpr int kSummers = Plan::kReverse ? 0 : kWarp;  // of a box of keys, after they have put z behind it
    barrier_init(block.pair_full(i), kFillers + kSummers);
    barrier_init(block.pair_empty(i), 4 + kStateReaders + kSummers);
  }
  if constexpr (Plan::kSharesScores) {
    barrier_init(block.barrier(Plan::kOtherScoresFull), 1);
    barrier_init(block.barrier(Plan::kOtherScoresTaken), kWarpgroup / kWarp);
  }
  if constexpr (Plan::kQueryGradient) {
    barrier_init(block.barrier(Plan::kPartialsFull), Plan::kSummingWarps);
  }
  for (int i = 0; Plan::kGradient && i < Plan::kRowPlaces; ++i) {
    // Parts of d come with their bytes from both blocks of a cluster, else from all that form them.
    const int others = !Plan::kSendsDelta ? 0 : block.shares_delta() ? 1 : Plan::kDeltaWarps * kWarp;
    barrier_init(block.barrier(Plan::kRowsFull, i), kWarp + others);
  }
  if constexpr (Plan::kSendsDelta) {
    barrier_init(block.barrier(Plan::kOutputRowsFull), 1);
    barrier_init(block.barrier(Plan::kOutputRowsEmpty), Plan::kDeltaWarps);
  }
  for (int i = 0; i < Plan::kWeightBuffers; ++i) {
    barrier_init(block.barrier(Plan::kWeightsFull, i), kWarpgroup / 4);
    barrier_init(block.barrier(Plan::kWeightsEmpty, i), Plan::kBeside * kWarpgroup);
  }
  barrier_init_fence();
}

// One mark for each 64 value columns of block `number` of its task. All threads take part.
template <class Plan>
__device__ __forceinline__ void write_marks(const Block<Plan>& block, uint32_t number, bool marks,
                                            int marked_box) {
#pragma unroll
  for (int box = 0; box < Plan::kBeside; ++box) {
    const int marked = __syncthreads_or(marks && (marked_box < 0 || marked_box == box));
    uint32_t* const mark_gmem = mark_address(block, number, box);
    if (threadIdx.x == 0 && mark_gmem != nullptr) {
      *mark_gmem = marked;
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
  const uint32_t number = number_by_head<Plan>(args.chunked, blockIdx.x);
  const Turn<Plan> turn(args.chunked, number);
  const ValueTile<Plan::kTileColumns> tile(args.chunked, turn.block);
  const ItemWork item(tile, turn.turn);
  // Where registers are short the item is read again where it is used.
  auto* const work_smem = reinterpret_cast<ItemWork*>(shared + (base - start) + Plan::kWorkOffset);
  if constexpr (Plan::kReadsItemAgain) {
    if (threadIdx.x == 0) {
      *work_smem = item;
    }
    __syncthreads();  // it is read from here on
  }
  const ItemWork& work = Plan::kReadsItemAgain ? *work_smem : item;
  const Block<Plan> block{args, work, base,
                          Turn<Plan>::walked_chunks(chunks_of<Plan>(work.tokens), turn.turn, args.chunked.turns)};
  if (threadIdx.x == 0) {
    init_barriers(block);
  }
  static_assert(sizeof(ItemWork) <= 44, "its place in shared memory");
  clear_constants(block);
  publish_to_async_proxy();
  wait_for_earlier_kernels();
  if (Plan::kSums && threadIdx.x == 0) {
    mark_sums(block, 0);
  }
  take_over(block, number, tile.head.kv_index, tile.block.item_idx);
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
        if constexpr (!Plan::kSumsOnTheWay) {
          Auxiliary<Plan>(block, warp - 1, lane).run();
        }
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
    run_state(block, outputs);
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
    write_marks(block, StateAddress<Plan>::block_number(block), marks != 0.0f, marked_box);  // NaN is not 0
  }
  hand_on(block);
  cluster_sync();
}

template <class Plan>
__device__ __forceinline__ void forward(const HopperArguments& args) {
  let_later_kernels_start();
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
