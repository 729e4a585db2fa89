// Small kernels with a fault each, by name: the emulator has to find it, with exit status 1. "none": without one.
#include <cstdio>
#include <vector>

#include "linattn/hopper.cuh"
#include "linattn/hopper_operand.cuh"

using namespace linattn;
using namespace linattn::hopper;

namespace {

constexpr int kThreads = 256;
constexpr int kRows = 64;
constexpr int kChunks = 6;
constexpr int kColumns = 64;

std::string fault;
std::vector<Element16<emulator::Operand16::kBf16>> rows(kChunks* kRows* kColumns);
std::vector<float> sums(kRows* kColumns, NAN);

bool has(const char* name) { return fault == name; }

TensorMap map_of_rows() {
  const emulator::TensorMapContent content = {
      reinterpret_cast<char*>(rows.data()), {kColumns, kChunks * kRows, 1, 1}, {1, kColumns, 0, 0}, kColumns, kRows, 2};
  TensorMap map = {};
  std::memcpy(&map, &content, sizeof content);
  return map;
}

// The first warp brings chunks of rows X into a ring of two, the second warpgroup adds up X^T X.
void add_products(const TensorMap& map) {
  const uint32_t base = (shared_address(shared) + 1023) / 1024 * 1024;
  const uint32_t tile = base + 1024;
  constexpr int kTileBytes = kRows * kRowBytes;
  const auto full = [&](int stage) { return base + 8 * stage; };
  const auto empty = [&](int stage) { return base + 16 + 8 * stage; };
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < 2; ++stage) {
      barrier_init(full(stage), has("a count too large") ? 2 : 1);
      barrier_init(empty(stage), 4);
    }
    barrier_init(base + 32, 1);
  }
  __syncthreads();
  RingPosition<2> at;
  if (threadIdx.x == 0) {
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      if (!has("no wait for an empty place")) {
        barrier_wait(empty(at.index()), at.parity() ^ 1);
      }
      barrier_expect(full(at.index()), kTileBytes);
      load_tile(tile + at.index() * kTileBytes, &map, {0, chunk * kRows, 0, 0}, full(at.index()));
      at.advance();
    }
  } else if (threadIdx.x >= kWarpgroup) {
    float sum_frag[kColumns / 2] = {};
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      if (!has("no wait for the copy") || chunk == 0) {
        barrier_wait(full(at.index()), at.parity());
      }
      const uint32_t rows_tile = tile + at.index() * kTileBytes;
      if (has("a write without a fence")) {
        emulator::store(rows_tile + 4 * (threadIdx.x % kWarpgroup), 0u);
      }
      named_barrier(1, has("another number of threads") && threadIdx.x % 32 == 7 ? 96 : kWarpgroup);
      const uint64_t columns = operand(rows_tile);
      for (int step = 0; step < kRows / 16; ++step) {
        emulator::issue({emulator::Operand16::kBf16, kColumns, sum_frag, nullptr, further(columns, step * 16 * kRowBytes),
                         further(columns, step * 16 * kRowBytes), true, true, true});
      }
      products_commit();
      if (!has("no wait for the products")) {
        products_wait<0>();
      }
      if (has("a read under way")) {
        load_word(rows_tile + 4 * (threadIdx.x % 32));
      }
      if (has("an arrival for another") && threadIdx.x == kWarpgroup && chunk == 4) {
        barrier_arrive(empty(0));
      }
      if (has("lanes at different instructions") && threadIdx.x % 32 == 3) {
        shuffled(1, 0);
      }
      __syncwarp();
      if (threadIdx.x % 32 == 0) {
        barrier_arrive(empty(at.index()));
      }
      at.advance();
    }
    products_wait<0>();
    const int warp = static_cast<int>(threadIdx.x % kWarpgroup / 32);
    const int lane = static_cast<int>(threadIdx.x % 32);
    for (int i = 0; i < kColumns / 2; ++i) {
      const int row = warp * 16 + lane / 4 + 8 * (i % 4 / 2);
      sums[row * kColumns + 8 * (i / 4) + 2 * (lane % 4) + i % 2] = sum_frag[i];
    }
  }
  if (has("a copy under way at the end") && threadIdx.x == kThreads - 1) {
    barrier_expect(base + 32, kTileBytes);
    load_tile(tile + 2 * kTileBytes, &map, {0, 0, 0, 0}, base + 32);
  }
  if (has("an address outside") && threadIdx.x == 0) {
    load_word(base + (1u << 20));
  }
}

// Of integers, so that they are exact; with the fault that clears the first four rows of a tile, without these.
bool sums_are_right() {
  const int first_row = has("a write without a fence") ? 4 : 0;
  for (int m = 0; m < kColumns; ++m) {
    for (int j = 0; j < kColumns; ++j) {
      float sum = 0;
      for (int row = 0; row < kChunks * kRows; ++row) {
        if (row % kRows >= first_row) {
          sum += to_float(rows[row * kColumns + m]) * to_float(rows[row * kColumns + j]);
        }
      }
      if (!(sums[m * kColumns + j] == sum)) {
        std::printf("sum %d, %d is %g, not %g\n", m, j, sums[m * kColumns + j], sum);
        return false;
      }
    }
  }
  return true;
}

}  // namespace

int main(int, char** values) {
  fault = values[1];
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].bits = emulator::from_float(emulator::Operand16::kBf16, static_cast<float>(static_cast<int>(i * 7 % 11) - 5));
  }
  const TensorMap map = map_of_rows();
  for (unsigned seed = 0; seed < 10; ++seed) {
    emulator::run_cluster(0, 1, kThreads, seed, [&] { add_products(map); });
    if (!sums_are_right()) {
      return 1;
    }
  }
}
