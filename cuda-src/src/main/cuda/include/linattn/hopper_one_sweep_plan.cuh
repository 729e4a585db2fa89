// What the roles of one sweep share: its shared memory, and the tiles of a stage.
#pragma once

#include "linattn/hopper_block.cuh"
#include "linattn/hopper_outputs.cuh"
#include "linattn/hopper_plan.cuh"
#include "linattn/hopper_scales.cuh"

namespace linattn {
namespace hopper {

// With the task of dk, or of dv.
template <class Spec_, bool kIsKey_ = true>
struct OneSweepPlan : HopperPlan<Spec_> {
  using Base = HopperPlan<Spec_>;
  static constexpr bool kIsKey = kIsKey_;
  static constexpr bool kOneSweep = true;
  static constexpr bool kMayRelay = true;
  static_assert((Base::kHeadDim == 64 || Base::kHeadDim == 128) && Base::kBeside == Base::kBoxes && !Base::kConverted,
                "what its registers suffice for");
  // Blocks have half of the columns of dq each; of 64 columns the block of dk has them all, and E alone.
  static constexpr bool kHasPrefix = kIsKey || Base::kBoxes == 2;
  static constexpr bool kWeighsInState = false;
  // Where operands have the range of fp32 outputs are finite where scores and sums are: these are looked at.
  static constexpr bool kMarksInSums = !Base::kScaled;
  static constexpr bool kMarksOutputs = false;
  static constexpr bool kFormsDelta = true;
  static constexpr bool kMerged = Base::kBoxes == 2;  // operands are made of few columns of a state at a time
  static constexpr bool kScoresProduce = true;

  static constexpr int kStateGroup = 1;
  static constexpr int kPrefixGroup = kStateGroup + Base::kBeside;
  static constexpr int kThreads = (kPrefixGroup + 1) * kWarpgroup;

  static constexpr int kKeyBox = Base::kBoxBytes;
  static constexpr int kQueryBox = Base::kBoxBytes;
  static constexpr int kQueryOffset = 0;
  static constexpr int kTensorBytes = Base::kBoxes * Base::kBoxBytes;  // of a chunk of a tensor
  static constexpr int kKeyOffset = kTensorBytes;
  static constexpr int kValueOffset = 2 * kTensorBytes;
  static constexpr int kOtherOffset = 3 * kTensorBytes;  // v with the task of dv, a box of k with that of dk
  static constexpr int kRowsOffset = 4 * kTensorBytes;   // a box of o
  static constexpr int kStageBytes = kRowsOffset + Base::kBoxBytes;

  static constexpr int kStagesOffset = 0;
  static constexpr int kOutputsOffset = Base::kStages * kStageBytes;
  static constexpr int kOutputTiles = Base::kBeside * Base::kOutputBuffers + 1;  // the last is that of dq
  static constexpr int kWeightBytes = Base::kBoxBytes + Base::kExtraBytes;
  static constexpr int kWeightsOffset = kOutputsOffset + kOutputTiles * Base::kOutputBytes;
  static constexpr int kOnesOffset = kWeightsOffset + 2 * kWeightBytes;  // 8 rows
  // g of the rows of chunks, two parts of d behind, and -d. Who sends its part of those of a chunk has received the
  // other part of the chunk before, which its peer sent once it had left all but two chunks before that. So blocks stay
  // together too, and what both read comes from memory once.
  static constexpr int kDeltaParts = 2;
  static constexpr int kRowPlaces = 4;
  static constexpr int kRowBytesOfChunk = (2 + kDeltaParts) * Base::kChunk * 4;
  static constexpr int kRatiosOffset = kOnesOffset + Base::kExtraBytes;  // a / b
  static constexpr int kRowValuesOffset = kRatiosOffset + Base::kChunk * 4;
  static constexpr int kPartialsOffset = kRowValuesOffset + kRowPlaces * kRowBytesOfChunk;
  // Units of w, of all chunks: the unit, 1 / unit, and the unit over that of the chunk walked before.
  static constexpr int kMostChunks = 256;
  static constexpr int kBytesOfUnit = 16;
  static constexpr int kUnitsOffset = kPartialsOffset + Base::kPartialsBytes;
  static constexpr int kExtentsOffset = kUnitsOffset + (Base::kScaled ? kMostChunks * kBytesOfUnit : 0);
  static constexpr int kMarksOffset = kExtentsOffset + (Base::kScaled ? kExtents * sizeof(Extent) : 0);
  static constexpr int kBarriersOffset = kMarksOffset + kThreads * 4;

  static constexpr int kFull = 0;
  static constexpr int kEmpty = kFull + Base::kStages;
  static constexpr int kReady = kEmpty + Base::kStages;  // rows of dO are weighed
  static constexpr int kRowsFull = kReady + Base::kStages;
  static constexpr int kDeltaFull = kRowsFull + kRowPlaces;
  static constexpr int kWeightsFull = kDeltaFull + kRowPlaces;
  static constexpr int kWeightsEmpty = kWeightsFull + 2;
  static constexpr int kPartialsFull = kWeightsEmpty + 2;
  static constexpr int kNumBarriers = kPartialsFull + 1;
  static constexpr int kWorkOffset = kBarriersOffset + kNumBarriers * 8;
  static constexpr int kNumberOffset = kWorkOffset + 44;
  static constexpr int kSharedBytes = kNumberOffset + 4 + Base::kAlignment;

  static constexpr int kSummingWarps = 4 * (kIsKey ? kStateGroup : kPrefixGroup);
};

// What roles know of the tiles of a stage, by the task of the block.
template <class Plan>
struct SweepTiles {
  const Block<Plan>& block;

  __device__ __forceinline__ explicit SweepTiles(const Block<Plan>& shared) : block(shared) {}

  __device__ __forceinline__ uint32_t full(int stage) const { return block.barrier(Plan::kFull, stage); }
  __device__ __forceinline__ uint32_t empty(int stage) const { return block.barrier(Plan::kEmpty, stage); }
  __device__ __forceinline__ uint32_t ready(int stage) const { return block.barrier(Plan::kReady, stage); }
  __device__ __forceinline__ uint32_t delta_full(int place) const { return block.barrier(Plan::kDeltaFull, place); }

  __device__ __forceinline__ uint32_t other(int stage) const { return block.stage(stage) + Plan::kOtherOffset; }
  // Rows of dO, of w once the stage is ready.
  __device__ __forceinline__ uint32_t output_gradient(int stage) const {
    return Plan::kIsKey ? block.key(stage, 0) : block.value(stage, 0);
  }
  __device__ __forceinline__ uint32_t values(int stage) const {
    return Plan::kIsKey ? block.query(stage, 0) : other(stage);
  }
  // The 64 columns of k that those of dq belong to.
  __device__ __forceinline__ int key_box() const { return Plan::kIsKey ? Plan::kBoxes - 1 : 0; }
  __device__ __forceinline__ uint32_t keys(int stage) const {
    return Plan::kIsKey ? other(stage) : block.query(stage, 0);
  }
  __device__ __forceinline__ uint32_t ones() const { return block.base + Plan::kOnesOffset; }

  // E has both buffers with the task of dk, chunk by chunk; with that of dv one, and W the other.
  __device__ __forceinline__ int entries_buffer(int chunk) const { return Plan::kIsKey ? chunk & 1 : 0; }
  __device__ __forceinline__ int weights_buffer(int chunk) const { return Plan::kIsKey ? chunk & 1 : 1; }
  __device__ __forceinline__ uint32_t parity(int chunk) const { return (Plan::kIsKey ? chunk >> 1 : chunk) & 1; }
  __device__ __forceinline__ uint32_t weights_full(int buffer) const {
    return block.barrier(Plan::kWeightsFull, buffer);
  }
  __device__ __forceinline__ uint32_t weights_empty(int buffer) const {
    return block.barrier(Plan::kWeightsEmpty, buffer);
  }
  __device__ __forceinline__ int weights_readers(int buffer) const {  // threads of the states, a lane of each warp of S
    return (Plan::kIsKey || buffer == 1 ? Plan::kBeside * kWarpgroup : 0) +
           (Plan::kIsKey || buffer == 0 ? 4 : 0);  // unused where there is no E
  }

  __device__ __forceinline__ void load(const HopperOneSweepArguments& args, int chunk, int stage) const {
    const ItemWork& work = block.work;
    const TileCoordinates first = {0, work.start + block.first_token(chunk), work.head, work.batch};
    const TileCoordinates second = {Plan::kBoxColumns, first.token, first.head, first.batch};
    constexpr bool has_two = Plan::kBoxes == 2;
    const HopperGradient& key_task = args.gradients.tasks[0];
    const HopperGradient& value_task = args.gradients.tasks[1];
    const uint32_t barrier = full(stage);
    barrier_expect(barrier, (Plan::kIsKey ? 3 : 4) * Plan::kTensorBytes + (Plan::kIsKey ? 2 : 1) * Plan::kBoxBytes);
    load_row(&value_task.value, output_gradient(stage), first, second, barrier);
    load_tile(block.stage(stage) + Plan::kRowsOffset, &key_task.output_rows, has_two && !Plan::kIsKey ? second : first,
              barrier);
    load_row(&key_task.query, values(stage), first, second, barrier);
    load_row(&key_task.value, Plan::kIsKey ? block.value(stage, 0) : block.key(stage, 0), first, second, barrier);  // q
    if constexpr (Plan::kIsKey) {
      load_tile(keys(stage), &value_task.query, has_two ? second : first, barrier);
    } else {
      load_row(&value_task.query, keys(stage), first, second, barrier);
    }
  }
  __device__ __forceinline__ static void load_row(const TensorMap* map, uint32_t tile, const TileCoordinates& first,
                                                  const TileCoordinates& second, uint32_t barrier) {
    load_tile(tile, map, first, barrier);
    if constexpr (Plan::kBoxes == 2) {
      load_tile(tile + Plan::kBoxBytes, map, second, barrier);
    }
  }

  // -d of a chunk.
  __device__ __forceinline__ uint32_t constants(int place) const {
    return block.deltas(place) + Plan::kDeltaParts * Plan::kChunk * 4;
  }

  // What brings w of a chunk into the range of its operands, and out of it; and sums from the chunk walked before.
  __device__ __forceinline__ uint32_t unit_address(int chunk) const {
    return block.base + Plan::kUnitsOffset + chunk * Plan::kBytesOfUnit;
  }
  __device__ __forceinline__ float unit(int chunk) const {
    return Plan::kScaled ? load_float(unit_address(chunk)) : 1.0f;
  }
  __device__ __forceinline__ float inverse_unit(int chunk) const {
    return Plan::kScaled ? load_float(unit_address(chunk) + 4) : 1.0f;
  }
  __device__ __forceinline__ float unit_ratio(int chunk) const {
    return Plan::kScaled ? load_float(unit_address(chunk) + 8) : 1.0f;
  }

  // Whether this thread has seen what is not finite, or not good enough: a register would be one too many.
  __device__ __forceinline__ uint32_t mark_address() const {
    return block.base + Plan::kMarksOffset + static_cast<uint32_t>(threadIdx.x) * 4;
  }
  __device__ __forceinline__ void mark(bool is_bad) const {
    if (is_bad) {
      store_word(mark_address(), 1);
    }
  }
  __device__ __forceinline__ void mark_outputs(Outputs<Plan>& outputs) const {
    if constexpr (Plan::kScaled) {
      mark(outputs.marked_pairs[0] != 0);
      outputs.marked_pairs[0] = 0;
    }
  }
  __device__ __forceinline__ bool has_mark() const { return load_word(mark_address()) != 0; }

  // What a warp has of b da; not finite where its scores are not.
  __device__ __forceinline__ void tell(double sum) const {
    sum = sum_lanes(sum);
    if (threadIdx.x % kWarp == 0) {
      sums_smem()[threadIdx.x / kWarp] = sum;
      barrier_arrive(block.barrier(Plan::kPartialsFull));
    }
  }
  // Once all have told.
  __device__ __forceinline__ double told() const {
    barrier_wait(block.barrier(Plan::kPartialsFull), 0);
    double sum = 0.0;
#pragma unroll 1
    for (int i = 0; i < Plan::kSummingWarps; ++i) {
      sum += sums_smem()[i];
    }
    return sum;
  }
  __device__ __forceinline__ static bool is_finite(double sum) { return 0.0 * sum == 0.0; }
  // The terms of da of an item, of b da: every tile has seen the weights.
  __device__ __forceinline__ void write_partials(double* partials_gmem, double sum) const {
    partials_gmem[0] = sum / block.slope_of(0);
#pragma unroll
    for (int i = 1; i < 2 * Plan::kBoxes; ++i) {
      partials_gmem[i] = 0.0;
    }
  }
  __device__ __forceinline__ double* sums_smem() const {
    extern __shared__ unsigned char shared[];
    return reinterpret_cast<double*>(shared + (block.base - shared_address(shared)) + Plan::kPartialsOffset);
  }
};

}  // namespace hopper
}  // namespace linattn
