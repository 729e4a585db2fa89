// Enough of CUDA for a host compiler to run the device headers: a fiber for each CUDA thread, one block after the other.
// For ThreadSanitizer each is a std::thread; __syncthreads is a barrier of the block and a shuffle one of its warp, so that
// it sees a missing __syncthreads as a data race.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "cuda_names.h"
#include "fiber.h"

inline thread_local Index threadIdx;
inline thread_local Index blockIdx;

struct alignas(16) float4 {
  float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

#ifdef __SANITIZE_THREAD__
// Of pthread, because ThreadSanitizer knows what its barrier orders.
class Barrier {
 public:
  explicit Barrier(unsigned threads) { pthread_barrier_init(&barrier_, nullptr, threads); }
  ~Barrier() { pthread_barrier_destroy(&barrier_); }
  Barrier(const Barrier&) = delete;
  Barrier& operator=(const Barrier&) = delete;
  void wait() { pthread_barrier_wait(&barrier_); }

 private:
  pthread_barrier_t barrier_;
};
#else
class Barrier {
 public:
  explicit Barrier(unsigned threads) : threads_(threads) {}
  void wait() {
    const unsigned before = generation_;
    if (++arrived_ == threads_) {
      arrived_ = 0;
      ++generation_;
    }
    while (generation_ == before) {
      Fiber::suspend();
    }
  }

 private:
  unsigned threads_;
  unsigned arrived_ = 0;
  unsigned generation_ = 0;
};
#endif

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

using std::isfinite;

// Shared memory starts as NaN in every block: a read before a write shows in the results.
namespace linattn {
alignas(16) inline float shared_smem[32 * 1024];
}

template <typename Kernel>
void run_block(unsigned threads, unsigned block_idx, Kernel kernel) {
#ifdef __SANITIZE_THREAD__
  std::vector<std::thread> running;
  for (unsigned thread_idx = 0; thread_idx < threads; ++thread_idx) {
    running.emplace_back([=] {
      blockIdx.x = block_idx;
      threadIdx.x = thread_idx;
      kernel();
    });
  }
  for (auto& thread : running) thread.join();
#else
  static std::vector<Fiber> fibers;
  if (fibers.size() < threads) fibers = std::vector<Fiber>(threads);
  blockIdx.x = block_idx;
  for (unsigned i = 0; i < threads; ++i) fibers[i].start(kernel);
  for (bool all_ended = false; !all_ended;) {
    all_ended = true;
    for (unsigned i = 0; i < threads; ++i) {
      if (fibers[i].ended()) continue;
      all_ended = false;
      threadIdx.x = i;
      fibers[i].resume();
    }
  }
#endif
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
