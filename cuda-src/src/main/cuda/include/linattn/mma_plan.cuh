// The shared memory of the sweeps by mma, and where their roles meet: mma_forward.cuh has the algorithm.
#pragma once

#include <type_traits>

#include "linattn/chunk_items.cuh"
#include "linattn/chunk_rows.cuh"
#include "linattn/dependent_launch.cuh"
#include "linattn/mma.cuh"

namespace linattn {

// A barrier of the threads of one role.
constexpr int kScoreBarrier = 1;

template <int kBarrier, int kThreads>
__device__ __forceinline__ void wait_for_threads() {
  asm volatile("bar.sync %0, %1;\n" ::"n"(kBarrier), "n"(kThreads) : "memory");
}

// Where the roles meet. They do so in loops of their own, and a barrier by number of all threads wants them at one
// instruction.
template <int kThreads>
class MeetingPlace {
 public:
  // All threads of the block call it.
  __device__ __forceinline__ explicit MeetingPlace(uint64_t* barrier_smem)
      : barrier(static_cast<uint32_t>(__cvta_generic_to_shared(barrier_smem))) {
    if (threadIdx.x == 0) {
      asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "n"(kThreads) : "memory");
    }
    __syncthreads();
  }

  // What any thread wrote before is seen by all after.
  __device__ __forceinline__ void meet() {
    asm volatile(
        "{\n"
        ".reg .b64 state;\n"
        ".reg .pred done;\n"
        "mbarrier.arrive.shared.b64 state, [%0];\n"
        "again:\n"
#if LINATTN_DEPENDENT_LAUNCHES  // sm_90 sleeps while it waits
        "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
#else
        "mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
#endif
        "@!done bra again;\n"
        "}\n" ::"r"(barrier),
        "r"(parity)
        : "memory");
    parity ^= 1;
  }

 private:
  uint32_t barrier;
  uint32_t parity = 0;
};

// blockIdx.x, read where this stands.
__device__ __forceinline__ int64_t block_again() {
  uint32_t block;
  asm volatile("mov.u32 %0, %%ctaid.x;\n" : "=r"(block)::"memory");
  return block;
}

// How a sweep cuts its tokens into chunks, and its products into those of tensor cores.
//
// Shared memory: kStages of {Q [C x D], K [C x D], V [C x 64], kStageFloats x C}, 2 x W [C x C], and in floats
// 2 x z [D], partial sums of z [kSumParts x D], kTokenFloats x C, sums of W's rows [kGroups x C].
template <typename ElementOf, bool kAccurateOf, int kHeadDimOf, int kStageFloats, int kTokenFloats>
struct MmaChunkPlan {
  using Element = ElementOf;
  static constexpr bool kAccurate = kAccurateOf;
  static constexpr MmaKind kKind = MmaKindOf<Element, kAccurate>::kKind;
  using Weight = typename WeightElement<kKind>::Type;
  static constexpr int kHeadDim = kHeadDimOf;
  static constexpr int kScoreThreads = 128;
  static constexpr int kStateThreads = 128;
  static constexpr int kThreads = kScoreThreads + kStateThreads;

  static constexpr int kElementBytes = static_cast<int>(sizeof(Element));
  static constexpr int kWeightBytes = static_cast<int>(sizeof(Weight));

  __host__ __device__ static constexpr int stage_bytes(int tokens) {
    return tokens * ((2 * (kHeadDim + 8) + kValueColumns + 8) * kElementBytes + 4 * kStageFloats);
  }

  __host__ __device__ static constexpr int sum_parts(int tokens) {
    const int columns = kHeadDim / ColumnSums<Element>::kColumns;
    int parts = 1;
    while (parts * 2 * columns <= kScoreThreads && parts * 4 <= tokens) {
      parts *= 2;
    }
    return parts;
  }

  __host__ __device__ static constexpr int fixed_bytes(int tokens) {
    const int groups = tokens == 32 ? 2 : 1;
    return 2 * tokens * (tokens + 8) * kWeightBytes +
           4 * ((2 + sum_parts(tokens)) * kHeadDim + (kTokenFloats + groups) * tokens);
  }

  __host__ __device__ static constexpr int bytes(int tokens, int stages) {
    return stages * stage_bytes(tokens) + fixed_bytes(tokens);
  }

  static constexpr int kSharedLimit = 99 * 1024;  // a block may ask for so much on every architecture
  static constexpr int kTokens = bytes(64, 3) <= kSharedLimit   ? 64
                                 : bytes(32, 3) <= kSharedLimit ? 32
                                                                : 16;
  static constexpr int kStages = bytes(kTokens, 4) <= kSharedLimit   ? 4
                                 : bytes(kTokens, 3) <= kSharedLimit ? 3
                                                                     : 2;
  static constexpr int kSharedBytes = bytes(kTokens, kStages);
  // Where the state leaves its warps few registers, they load in turn and the other warps start all copies.
  static constexpr bool kLoadsInTurn = kHeadDim > (std::is_same_v<Element, F16> ? 64 : 128);
  static constexpr int kCopyThreads = kHeadDim > 128 ? kScoreThreads : kThreads;

  using QueryLayout = TileLayout<Element, kTokens, kHeadDim>;
  using ValueLayout = TileLayout<Element, kTokens, kValueColumns>;
  using WeightLayout = TileLayout<Weight, kTokens, kTokens>;
  static constexpr int kStageElements = stage_bytes(kTokens) / kElementBytes;
  static constexpr int kSteps = kTokens / 16;
  static constexpr int kDepthSteps = kHeadDim / 16;
  static constexpr int kFlushSteps = kAccurate ? 4 : kDepthSteps;  // see add_in_fp32
  static constexpr int kScoreSteps = kDepthSteps % 4 == 0   ? 4
                                     : kDepthSteps % 3 == 0 ? 3
                                                            : 2 - kDepthSteps % 2;

  // Of W, a warp has 16 rows and kColumnBlocks blocks of 16 columns.
  static constexpr int kGroups = kTokens == 32 ? 2 : 1;
  static constexpr int kColumnBlocks = kSteps / kGroups;

  static constexpr int kLanesPerRow = kScoreThreads / kTokens;
  static constexpr int kSumParts = sum_parts(kTokens);
  static constexpr int kSumColumns = kHeadDim / ColumnSums<Element>::kColumns;
  static constexpr int kColumnsPerThread = ceil_div(kHeadDim, kScoreThreads);

  static_assert(kHeadDim % 16 == 0 && kHeadDim <= 256, "S^T stays in registers");
  static_assert(kSharedBytes <= kSharedLimit, "two stages of 16 tokens must fit");
  static_assert(stage_bytes(kTokens) ==
                    2 * QueryLayout::kBytes + ValueLayout::kBytes + 4 * kStageFloats * kTokens,
                "the stage as laid out");
};

// Waits for the tiles of chunk `chunk + 1`, and starts those of the last stage.
template <class Plan, typename StartChunk>
__device__ __forceinline__ void enter_iteration(MeetingPlace<Plan::kThreads>& roles, int chunk,
                                                const StartChunk& start_chunk) {
  if constexpr (Plan::kStages > 2) {
    wait_for_groups<Plan::kStages - 3>();
    roles.meet();
    start_chunk(chunk + Plan::kStages - 1);
  } else {
    roles.meet();
    start_chunk(chunk + 1);
    wait_for_copies();
    roles.meet();
  }
}

// The stages and the arrays behind them, up to those that only some sweeps have.
template <class Plan>
struct ChunkMemory {
  typename Plan::Element* stages_smem;
  typename Plan::Weight* weights_smem;
  float* key_sum_smem;
  float* key_sum_parts_smem;
  float* query_key_sum_smem;

  __device__ __forceinline__ explicit ChunkMemory(unsigned char* base_smem) {
    stages_smem = reinterpret_cast<typename Plan::Element*>(base_smem);
    weights_smem =
        reinterpret_cast<typename Plan::Weight*>(stages_smem + Plan::kStages * Plan::kStageElements);
    key_sum_smem = reinterpret_cast<float*>(weights_smem + 2 * Plan::WeightLayout::kElements);
    key_sum_parts_smem = key_sum_smem + 2 * Plan::kHeadDim;
    query_key_sum_smem = key_sum_parts_smem + Plan::kSumParts * Plan::kHeadDim;
  }

  __device__ __forceinline__ typename Plan::Element* query(int chunk) const {
    return stages_smem + chunk % Plan::kStages * Plan::kStageElements;
  }
  __device__ __forceinline__ typename Plan::Element* key(int chunk) const {
    return query(chunk) + Plan::QueryLayout::kElements;
  }
  __device__ __forceinline__ typename Plan::Element* value(int chunk) const {
    return query(chunk) + 2 * Plan::QueryLayout::kElements;
  }
  __device__ __forceinline__ typename Plan::Weight* weights(int chunk) const {
    return weights_smem + chunk % 2 * Plan::WeightLayout::kElements;
  }
};

// Six floats of a token: q.z, |q|, 2 x {1 / g, a |q|}.
template <typename Element, bool kAccurate, int kHeadDim>
using MmaForwardPlan = MmaChunkPlan<Element, kAccurate, kHeadDim, /*kStageFloats=*/0, /*kTokenFloats=*/6>;

template <class Plan>
struct ForwardMemory : ChunkMemory<Plan> {
  float* length_smem;
  float* weight_sum_smem;
  float* inverse_smem;   // 1 / g, times |q|^-1 where q is normalised, as is g in it
  float* constant_smem;  // a |q|

  __device__ __forceinline__ explicit ForwardMemory(unsigned char* base_smem) : ChunkMemory<Plan>(base_smem) {
    length_smem = this->query_key_sum_smem + Plan::kTokens;
    weight_sum_smem = length_smem + Plan::kTokens;
    inverse_smem = weight_sum_smem + Plan::kGroups * Plan::kTokens;
    constant_smem = inverse_smem + 2 * Plan::kTokens;
  }
};

}  // namespace linattn
