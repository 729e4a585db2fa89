// Enough of CUDA for a host compiler to run the device headers: a fiber for each CUDA thread, one block after the other.
// __syncthreads is a barrier of the block and a shuffle one of its warp, so that ThreadSanitizer sees a missing
// __syncthreads as a data race.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "cuda_names.h"
#include "fiber.h"

inline Index threadIdx;
inline Index blockIdx;

UNWATCHED inline void set_thread(unsigned thread_idx) { threadIdx.x = thread_idx; }

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) double2 {
  double x, y;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

class Barrier {
 public:
  explicit Barrier(unsigned threads) : threads_(threads) {}
  UNWATCHED void wait() {
    const unsigned before = generation_;
    Fiber::release(&places_[before % 2]);  // one that is ahead says the other
    if (++arrived_ == threads_) {
      arrived_ = 0;
      ++generation_;
    }
    while (generation_ == before) {
      Fiber::suspend();
    }
    Fiber::acquire(&places_[before % 2]);
  }

 private:
  unsigned threads_;
  unsigned arrived_ = 0;
  unsigned generation_ = 0;
  uint64_t places_[2] = {};
};

struct Warp {
  Barrier barrier{32};
  double lanes[32];
};
struct Block {
  explicit Block(unsigned threads) : barrier(threads), warps(threads / 32) {
    for (auto& warp : warps) warp = std::make_unique<Warp>();
  }
  Barrier barrier;
  std::vector<std::unique_ptr<Warp>> warps;
};
inline Block* current_block;

inline void __syncthreads() { current_block->barrier.wait(); }

template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  Warp& warp = *current_block->warps[threadIdx.x / 32];
  warp.lanes[threadIdx.x % 32] = value;
  warp.barrier.wait();
  const T other = static_cast<T>(warp.lanes[(threadIdx.x % 32) ^ mask]);
  warp.barrier.wait();
  return other;
}

// Blocks come one after the other, and of a block one thread at a time.
inline void __threadfence() {}
inline unsigned atomicAdd(unsigned* word, unsigned addend) {
  const unsigned before = *word;
  *word += addend;
  return before;
}
inline double __ldcg(const double* number) { return *number; }

// Shared memory starts as NaN in every block: a read before a write shows in the results.
namespace linattn {
alignas(16) inline float shared_smem[32 * 1024];
}

inline std::vector<Fiber> fibers;

template <typename Kernel>
void run_block(unsigned threads, unsigned block_idx, Kernel kernel) {
  if (fibers.size() < threads) fibers = std::vector<Fiber>(threads);
  blockIdx.x = block_idx;
  for (unsigned i = 0; i < threads; ++i) fibers[i].start(kernel);
  for (bool all_ended = false; !all_ended;) {
    all_ended = true;
    for (unsigned i = 0; i < threads; ++i) {
      if (fibers[i].ended()) continue;
      all_ended = false;
      set_thread(i);
      fibers[i].resume();
    }
  }
}

template <typename Kernel>
void launch(unsigned blocks, unsigned threads, Kernel kernel) {
  for (unsigned block_idx = 0; block_idx < blocks; ++block_idx) {
    std::fill(std::begin(linattn::shared_smem), std::end(linattn::shared_smem), NAN);
    Block block(threads);
    current_block = &block;
    run_block(threads, block_idx, kernel);
  }
}
