// Enough of CUDA for a host compiler to run the device headers: one std::thread per CUDA thread,
// one block after the other. __syncthreads is a barrier of the block and a shuffle one of its warp,
// so ThreadSanitizer sees a missing __syncthreads as a data race.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__
#define __align__(n) __attribute__((aligned(n)))

struct Index {
  unsigned x;
};
inline thread_local Index threadIdx;
inline thread_local Index blockIdx;

struct alignas(16) float4 {
  float x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

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

inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline int __float_as_int(float x) {
  int bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline float __int_as_float(int bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
using std::isfinite;
using std::isinf;
using std::max;
using std::min;

// Shared memory starts as NaN in every block: a read before a write shows in the results.
namespace linattn {
alignas(16) inline float shared_smem[32 * 1024];
}

template <typename Kernel>
void launch(unsigned blocks, unsigned threads, Kernel kernel) {
  for (unsigned block_idx = 0; block_idx < blocks; ++block_idx) {
    std::fill(std::begin(linattn::shared_smem), std::end(linattn::shared_smem), NAN);
    Block block(threads);
    current_block = &block;
    std::vector<std::thread> running;
    for (unsigned thread_idx = 0; thread_idx < threads; ++thread_idx) {
      running.emplace_back([=] {
        blockIdx.x = block_idx;
        threadIdx.x = thread_idx;
        kernel();
      });
    }
    for (auto& thread : running) thread.join();
  }
}
