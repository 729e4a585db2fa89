// linattn/hopper.cuh on the host: the same functions, done by the emulator.
#pragma once

#include "emulator.h"

namespace linattn {

struct alignas(64) TensorMap {
  unsigned char bytes[128];
};

namespace hopper {

constexpr int kWarpgroup = 128;

inline uint32_t shared_address(const void* pointer_smem) { return emulator::address_of(pointer_smem); }
inline uint32_t block_number() { return emulator::block_number(); }

// --- Words that blocks tell one another ------------------------------------------------------------

// Blocks with smaller numbers have run.
inline uint32_t load_acquire(const uint32_t* word_gmem) { return *word_gmem; }
inline void increment_release(uint32_t* word_gmem) { ++*word_gmem; }

// --- Barriers -------------------------------------------------------------------------------------

inline void barrier_init(uint32_t barrier, int arrivals) { emulator::barrier_init(barrier, arrivals); }
inline void barrier_init_fence() {}
inline void barrier_arrive(uint32_t barrier) { emulator::barrier_arrive(barrier); }
inline void barrier_arrive_in_block(uint32_t barrier) { emulator::barrier_arrive(barrier); }
inline void barrier_expect(uint32_t barrier, int bytes) { emulator::barrier_expect(barrier, bytes); }
inline void barrier_wait(uint32_t barrier, uint32_t parity) { emulator::barrier_wait(barrier, parity); }
inline void named_barrier(int number, int threads) { emulator::meet(number, threads, false); }
inline bool named_barrier_or(int number, int threads, bool says) { return emulator::meet(number, threads, says); }
inline void publish_to_async_proxy() { emulator::publish(); }
inline void finish_reads() { emulator::publish(); }
inline void reads_are_used() { emulator::end_reads(); }
inline void copy_word_async(uint32_t word, const void* source_gmem) { emulator::copy_word(word, source_gmem); }
inline void arrive_with_words(uint32_t barrier) { emulator::arrive_with_words(barrier); }
inline uint32_t address_in_block(uint32_t address, uint32_t rank) { return emulator::in_block(address, rank); }
inline void store_float_async(uint32_t word, float value, uint32_t barrier) {
  emulator::send(word, &value, sizeof value, barrier);
}
inline void store_unit_async(uint32_t unit, uint4 value, uint32_t barrier) {
  emulator::send(unit, &value, sizeof value, barrier);
}
inline uint32_t load_word_in_block(uint32_t address) { return emulator::load<uint32_t>(address); }
inline void cluster_sync() { emulator::meet_cluster(); }

template <int kStages>
class RingPosition {
 public:
  int index() const { return steps % kStages; }
  uint32_t parity() const { return steps / kStages & 1; }
  void advance() { ++steps; }
  RingPosition ahead(int further) const {
    RingPosition position;
    position.steps = steps + further;
    return position;
  }

 private:
  int steps = 0;
};

// --- Tensor copies --------------------------------------------------------------------------------

struct TileCoordinates {
  int column;
  int token;
  int head;
  int batch;
};

inline const emulator::TensorMapContent& content(const TensorMap* map) {
  return *reinterpret_cast<const emulator::TensorMapContent*>(map);
}
inline void load_tile(uint32_t tile, const TensorMap* map, TileCoordinates at, uint32_t barrier) {
  emulator::load_tile(tile, content(map), {at.column, at.token, at.head, at.batch}, barrier);
}
inline void store_tile(const TensorMap* map, TileCoordinates at, uint32_t tile) {
  emulator::store_tile(content(map), {at.column, at.token, at.head, at.batch}, tile);
}
inline void commit_stores() { emulator::commit_stores(); }
template <int kPending>
void wait_for_stores_to_read() {
  emulator::wait_for_stores(kPending);
}
inline void wait_for_stores() { emulator::wait_for_stores(0); }

// --- Tiles and products -----------------------------------------------------------------------------

constexpr int kRowBytes = 128;
constexpr int kUnitBytes = 16;

inline uint32_t swizzled(int row, int unit) {
  return static_cast<uint32_t>(row * kRowBytes + ((unit ^ (row & 7)) * kUnitBytes));
}
inline uint64_t operand(uint32_t tile, uint32_t column_stride = 0) {
  return static_cast<uint64_t>(1024 >> 4) << 32 | static_cast<uint64_t>(column_stride >> 4) << 16 |
         (tile & 0x3ffff) >> 4;
}
constexpr uint64_t further(uint64_t operand, int bytes) { return operand + static_cast<uint64_t>(bytes >> 4); }
constexpr uint64_t rows_further(uint64_t operand, int step) { return further(operand, step * 16 * kRowBytes); }
inline const uint32_t* rows_further(const uint32_t* operand_frag, int step) { return operand_frag + 4 * step; }

inline void products_fence() {}
inline void products_commit() { emulator::commit_products(); }
template <int kPending>
void products_wait() {
  emulator::wait_for_products(kPending);
}
template <typename T, int kCount>
void pin(T (&)[kCount]) {}
template <int kFirst, int kCount>
void pin_first(float (&)[kCount]) {}

// --- Shared memory ----------------------------------------------------------------------------------

// Row r of matrix m is at the address of lane 8 m + r; `visit` gets the address of an element, whose it is, the
// register and which half.
template <typename Visit>
void each_matrix_element(const char* instruction, uint32_t row, uint32_t* four_frag, bool transposed, Visit visit) {
  struct Argument {
    uint32_t row;
    uint32_t* four_frag;
  } mine{row, four_frag};
  emulator::in_warp(instruction, &mine, [&](void* const (&lanes)[32]) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      for (int i = 0; i < 8; ++i) {
        for (int j = 0; j < 8; ++j) {  // (i, j) of the registers
          const int stored_row = transposed ? j : i;
          const int stored_column = transposed ? i : j;
          const auto* of_row = static_cast<Argument*>(lanes[8 * matrix + stored_row]);
          const auto* holder = static_cast<Argument*>(lanes[4 * i + j / 2]);
          visit(of_row->row + 2 * stored_column, holder->four_frag[matrix], 16 * (j % 2));
        }
      }
    }
  });
}
inline void store_matrices_as(bool transposed, uint32_t row, const uint32_t* four_frag) {
  uint32_t copy_frag[4];
  std::memcpy(copy_frag, four_frag, sizeof copy_frag);
  each_matrix_element("stmatrix", row, copy_frag, transposed, [](uint32_t address, uint32_t& word, int shift) {
    emulator::store(address, static_cast<uint16_t>(word >> shift));
  });
}
inline void load_matrices_as(bool transposed, uint32_t row, uint32_t* four_frag) {
  each_matrix_element("ldmatrix", row, four_frag, transposed, [](uint32_t address, uint32_t& word, int shift) {
    word = (word & ~(0xffffu << shift)) | static_cast<uint32_t>(emulator::load<uint16_t>(address)) << shift;
  });
}
inline void store_matrices(uint32_t row, const uint32_t* four_frag) { store_matrices_as(false, row, four_frag); }
inline void store_matrices_transposed(uint32_t row, const uint32_t* four_frag) { store_matrices_as(true, row, four_frag); }
inline void load_matrices(uint32_t row, uint32_t (&four_frag)[4]) { load_matrices_as(false, row, four_frag); }
inline void load_matrices_transposed(uint32_t row, uint32_t* four_frag) { load_matrices_as(true, row, four_frag); }
inline void store_half(uint32_t address, uint32_t half) { emulator::store(address, static_cast<uint16_t>(half)); }
inline void store_word(uint32_t address, uint32_t word) { emulator::store(address, word); }
inline void store_float(uint32_t address, float value) { emulator::store(address, value); }
inline uint32_t load_word(uint32_t address) { return emulator::load<uint32_t>(address); }
inline float load_float(uint32_t address) { return emulator::load<float>(address); }
inline float2 load_float2(uint32_t address) { return emulator::load<float2>(address); }
inline uint4 load_unit(uint32_t address) { return emulator::load<uint4>(address); }
inline void store_unit(uint32_t address, uint4 unit) { emulator::store(address, unit); }
inline float reciprocal(float x) { return 1.0f / x; }

}  // namespace hopper
}  // namespace linattn
