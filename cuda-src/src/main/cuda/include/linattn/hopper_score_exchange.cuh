// Scores of a chunk that two blocks of an item share.
#pragma once

#include "linattn/hopper_block.cuh"

namespace linattn {
namespace hopper {

// Each block multiplies half of the columns of Q and K, sends what it has of the scores to the other one, and adds what that
// has: the same sums, since either order of two gives the same. Sent are the tiles of 16 x 8 that stand in W, as a thread
// has them in accumulators, and q.z behind them.
template <class Plan>
struct ScoreExchange {
  static constexpr int kTiles = Plan::kChunk / 8;
  static constexpr int kSums = kTiles;  // their place behind the tiles of the accumulators
  static constexpr int kRegisters = Plan::Products::kScoreRegisters;

  const Block<Plan>& block;
  RingPosition<1> at;

  __device__ __forceinline__ explicit ScoreExchange(const Block<Plan>& shared) : block(shared) {}

  // Once the other block has taken those of the chunk before.
  __device__ __forceinline__ void send(const float (&scores_frag)[kRegisters], int& warp, int& lane) const {
    find_anew(warp, lane);
    const uint32_t rank = block.other_rank();
    barrier_wait(block.barrier(Plan::kOtherScoresTaken), at.parity() ^ 1);
    if (warp == 0 && lane == 0) {
      barrier_expect(block.barrier(Plan::kOtherScoresFull), Plan::kOtherScoreBytes);
    }
    const uint32_t full = address_in_block(block.barrier(Plan::kOtherScoresFull), rank);
    const uint32_t first_tile = address_in_block(tile(0, warp, lane), rank);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      if (has_weights(i, warp)) {
        store_unit_async(first_tile + i * Plan::kScoreTileBytes, unit(scores_frag, i), full);
      }
    }
    if (has_sums(lane)) {
      store_unit_async(address_in_block(sums(warp, lane), rank), unit(scores_frag, kSums), full);
    }
  }

  // What the other block has.
  __device__ __forceinline__ void add(float (&scores_frag)[kRegisters], int& warp, int& lane) {
    find_anew(warp, lane);
    barrier_wait(block.barrier(Plan::kOtherScoresFull), at.parity());
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      if (has_weights(i, warp)) {
        add_unit(scores_frag, i, load_unit(tile(i, warp, lane)));
      }
    }
    if (has_sums(lane)) {
      add_unit(scores_frag, kSums, load_unit(sums(warp, lane)));
    }
    at.advance();
  }

  // Once weights and sums that are made of what was added have been stored: before, a read may still be under way.
  __device__ __forceinline__ void give_back(int lane) const {
    reads_are_used();
    __syncwarp();
    if (lane == 0) {
      barrier_arrive_in_block(address_in_block(block.barrier(Plan::kOtherScoresTaken), block.other_rank()));
    }
  }

 private:
  // What follows from these holds no registers in between.
  __device__ __forceinline__ static void find_anew(int& warp, int& lane) { asm volatile("" : "+r"(warp), "+r"(lane)); }

  // Of tile i of a warp. Tiles of all warps stand one behind the other.
  __device__ __forceinline__ uint32_t tile(int i, int warp, int lane) const {
    const int before = warp * (Plan::kReverse ? 7 - warp : warp + 1);
    return block.other_scores() + (before + i) * Plan::kScoreTileBytes + lane * kUnitBytes;
  }
  __device__ __forceinline__ static bool has_weights(int i, int warp) {
    return Plan::kReverse ? i / 2 >= warp : i / 2 <= warp;
  }
  // Of q.z, in three of eight columns: half of the lanes have some of them.
  __device__ __forceinline__ uint32_t sums(int warp, int lane) const {
    return block.other_scores() + Plan::kScoreTiles * Plan::kScoreTileBytes +
           (warp * 16 + (lane >> 2) * 2 + (lane & 3)) * kUnitBytes;
  }
  __device__ __forceinline__ static bool has_sums(int lane) { return !Plan::kReverse && (lane & 3) < 2; }

  __device__ __forceinline__ static uint4 unit(const float (&scores_frag)[kRegisters], int i) {
    return make_uint4(__float_as_uint(scores_frag[4 * i]), __float_as_uint(scores_frag[4 * i + 1]),
                      __float_as_uint(scores_frag[4 * i + 2]), __float_as_uint(scores_frag[4 * i + 3]));
  }
  __device__ __forceinline__ static void add_unit(float (&scores_frag)[kRegisters], int i, uint4 unit) {
    scores_frag[4 * i] += __uint_as_float(unit.x);
    scores_frag[4 * i + 1] += __uint_as_float(unit.y);
    scores_frag[4 * i + 2] += __uint_as_float(unit.z);
    scores_frag[4 * i + 3] += __uint_as_float(unit.w);
  }
};

}  // namespace hopper
}  // namespace linattn
