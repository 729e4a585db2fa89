// Enough of a Hopper GPU for a host to run the kernels of sm_90a: the lanes of a cluster as fibers of one thread, and
// what they leave to others (tensor copies, tensor cores, words copied in the background) done some time later, in an
// order that a seed draws. Warps run at random, some slowly, and so do copies; a run is repeated by its seed.
//
// A run fails where a GPU would, and where it would only sometimes: an arrival at a barrier that awaits none, a wait
// without end, an address that the block does not have, lanes of a warp at different instructions, copies under way
// when the block ends. What a copy will write is NaN from its start on, so that a read before its end, or a late read of
// what stood there, shows in the results. Copies and tensor cores see what lanes wrote once these have passed
// publish_to_async_proxy(), not before. Reads count as under way until the fence, or until the code says that what was read
// has been used. What the emulator does not know: registers, and time.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>

#include "../cuda_names.h"

#define __global__
#define __launch_bounds__(...)
#define __grid_constant__

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

namespace emulator {

// --- The grid -------------------------------------------------------------------------------------

// Runs blocks first, first + 1, ... of one cluster to their end; prints what was wrong and ends the process otherwise.
void run_cluster(unsigned first_block, int blocks, int threads, unsigned seed, const std::function<void()>& kernel);

unsigned thread_number();
unsigned block_rank();  // in its cluster
unsigned block_number();
int block_threads();

[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));

// --- Lanes together -------------------------------------------------------------------------------

// Every lane of the warp brings an argument; the last one does what all wait for.
void in_warp(const char* instruction, void* argument, const std::function<void(void* const (&)[32])>& all);

// Meets with so many threads of the block at barrier `number`; whether any of them says so.
bool meet(int number, int threads, bool says);
void meet_cluster();

// --- Shared memory --------------------------------------------------------------------------------

// 32-bit addresses; those above 24 bits tell the rank of a block in its cluster.
constexpr uint32_t kRankStep = 1u << 24;
uint32_t address_of(const void* pointer);
uint32_t in_block(uint32_t address, uint32_t rank);

void read(uint32_t address, void* to, int bytes);
// Not seen by copies and tensor cores until this lane publishes.
void write(uint32_t address, const void* from, int bytes);
void publish();
// Ends the reads of its warp, as publishing does: before, and before an arrival behind it, a copy must not start there.
void end_reads();

template <typename T>
T load(uint32_t address) {
  T value;
  read(address, &value, sizeof value);
  return value;
}
template <typename T>
void store(uint32_t address, const T& value) {
  write(address, &value, sizeof value);
}

// --- Barriers in shared memory ----------------------------------------------------------------------

void barrier_init(uint32_t barrier, int arrivals);
void barrier_arrive(uint32_t barrier);
void barrier_expect(uint32_t barrier, int bytes);
void barrier_wait(uint32_t barrier, uint32_t parity);

// --- In the background ------------------------------------------------------------------------------

void copy_word(uint32_t to, const void* from);
void arrive_with_words(uint32_t barrier);
// Up to 16 bytes, to a block of the cluster.
void send(uint32_t to, const void* from, int bytes, uint32_t barrier);

// What a TensorMap holds here; the copy engine's swizzle is that of 128 bytes.
struct TensorMapContent {
  char* address;
  int64_t extents[4];
  int64_t strides[4];  // in elements
  int box_columns;
  int box_rows;
  int element_bytes;
};
void load_tile(uint32_t tile, const TensorMapContent& map, const int64_t (&at)[4], uint32_t barrier);
void store_tile(const TensorMapContent& map, const int64_t (&at)[4], uint32_t tile);
void commit_stores();
void wait_for_stores(int pending);

// --- Tensor cores -----------------------------------------------------------------------------------

enum class Operand16 { kBf16, kF16 };

float to_float(Operand16 type, uint16_t bits);
uint16_t from_float(Operand16 type, float x);

// d (+)= A B, or its negative, of 64 x 16 and 16 x columns, as one lane issues it: A from its registers or from shared memory. Four words
// of A are read at once, because the compiler keeps their registers until the product is done.
struct Product {
  Operand16 type;
  int columns;
  float* d;
  const uint32_t* a_fragment;
  uint64_t a;
  uint64_t b;
  bool accumulates;
  bool rows_of_a;  // contracts over the rows of the tile, not along them
  bool rows_of_b;
  bool negates = false;  // takes A B off d
};
void issue(const Product& product);
void commit_products();
void wait_for_products(int pending);

}  // namespace emulator

// --- What device code calls -------------------------------------------------------------------------

namespace linattn {
namespace hopper {
extern unsigned char shared[];
}
}  // namespace linattn

#define threadIdx (Index{emulator::thread_number()})
#define blockIdx (Index{emulator::block_number()})
#define blockDim (Index{static_cast<unsigned>(emulator::block_threads())})

inline void __syncthreads() { emulator::meet(0, emulator::block_threads(), false); }
inline int __syncthreads_or(int says) { return emulator::meet(0, emulator::block_threads(), says != 0); }
inline void __syncwarp() {
  emulator::in_warp("__syncwarp", nullptr, [](void* const (&)[32]) {});
}

template <typename T>
T shuffled(T value, int source) {
  struct Argument {
    T value;
    int source;
    T result;
  } mine{value, source, value};
  emulator::in_warp("a shuffle", &mine, [](void* const (&lanes)[32]) {
    for (void* lane : lanes) {
      auto* const to = static_cast<Argument*>(lane);
      to->result = static_cast<Argument*>(lanes[to->source & 31])->value;
    }
  });
  return mine.result;
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return shuffled(value, static_cast<int>(threadIdx.x % 32) ^ mask);
}
template <typename T>
T __shfl_sync(unsigned, T value, int source) {
  return shuffled(value, source);
}

inline int __any_sync(unsigned, int says) {
  struct Argument {
    bool says;
    bool result;
  } mine{says != 0, false};
  emulator::in_warp("a vote", &mine, [](void* const (&lanes)[32]) {
    bool any = false;
    for (void* lane : lanes) {
      any |= static_cast<Argument*>(lane)->says;
    }
    for (void* lane : lanes) {
      static_cast<Argument*>(lane)->result = any;
    }
  });
  return mine.result;
}

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline unsigned atomicMax(unsigned* at, unsigned value) {
  const unsigned before = *at;
  *at = std::max(before, value);
  return before;
}
