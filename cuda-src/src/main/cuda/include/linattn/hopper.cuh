// What sm_90a adds: barriers in shared memory that count bytes, tensor copies, warpgroup products.
// Addresses of shared memory are 32-bit here.
#pragma once

#include <cstdint>

namespace linattn {

// A CUtensorMap as the driver encodes it; copies take its address in the kernel's parameters.
struct alignas(64) TensorMap {
  unsigned char bytes[128];
};

namespace hopper {

constexpr int kWarpgroup = 128;

__device__ __forceinline__ uint32_t shared_address(const void* pointer_smem) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer_smem));
}

// blockIdx.x, read anew each time, so that it holds no register.
__device__ __forceinline__ uint32_t block_number() {
  uint32_t number;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(number));
  return number;
}

// --- Words that blocks tell one another ------------------------------------------------------------

// Behind it this thread, and those that meet it later, see what was written ahead of the additions to the word.
__device__ __forceinline__ uint32_t load_acquire(const uint32_t* word_gmem) {
  uint32_t word;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(word_gmem) : "memory");
  return word;
}

// Adds one behind all that this thread, and those that it has met, have written.
__device__ __forceinline__ void increment_release(uint32_t* word_gmem) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(word_gmem) : "memory");
}

// --- Barriers -------------------------------------------------------------------------------------

__device__ __forceinline__ void barrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes the initialised barriers known to the copy engine.
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// The same at a barrier of another block of the cluster, whose address is address_in_block's, once what this thread has read
// has been used. A release to the whole cluster would wait for all that the thread has under way.
__device__ __forceinline__ void barrier_arrive_in_block(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives, and lets the phase wait for this many bytes of copies too.
__device__ __forceinline__ void barrier_expect(uint32_t barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// A barrier of `threads` threads of the block, by number; 0 is __syncthreads.
__device__ __forceinline__ void named_barrier(int number, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// Meets as named_barrier does; whether any thread said so.
__device__ __forceinline__ bool named_barrier_or(int number, int threads, bool says) {
  uint32_t any;
  asm volatile(
      "{\n\t"
      ".reg .pred p, q;\n\t"
      "setp.ne.u32 p, %1, 0;\n\t"
      "barrier.cta.red.or.pred.aligned q, %2, %3, p;\n\t"
      "selp.u32 %0, 1, 0, q;\n\t"
      "}"
      : "=r"(any)
      : "r"(static_cast<uint32_t>(says)), "r"(number), "r"(threads)
      : "memory");
  return any != 0;
}

// Generic writes to shared memory before this are seen by copies and products that start after the
// barrier which follows.
__device__ __forceinline__ void publish_to_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Reads of shared memory before this are over before copies write there that start after the barrier which follows. A
// read may still be under way when its thread arrives, unless what it read has been used by then. The fence is the same.
__device__ __forceinline__ void finish_reads() { publish_to_async_proxy(); }

// Says, without an instruction, that what this thread has read of tiles has been used: no read is under way.
__device__ __forceinline__ void reads_are_used() {}

// Copies a word to shared memory without passing through registers.
__device__ __forceinline__ void copy_word_async(uint32_t word, const void* source_gmem) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(word), "l"(source_gmem) : "memory");
}

// Arrives once the words that this thread asked for are there.
__device__ __forceinline__ void arrive_with_words(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// The same place in the shared memory of a block of the cluster, for asynchronous stores and arrivals. Illegal where the
// launch has no clusters.
__device__ __forceinline__ uint32_t address_in_block(uint32_t address, uint32_t rank) {
  uint32_t in_block;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(in_block) : "r"(address), "r"(rank));
  return in_block;
}

// Its bytes count at the barrier, of the same block, as those of copies do.
__device__ __forceinline__ void store_float_async(uint32_t word, float value, uint32_t barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(word),
               "r"(__float_as_uint(value)), "r"(barrier)
               : "memory");
}

// The same of 16 bytes.
__device__ __forceinline__ void store_unit_async(uint32_t unit, uint4 value, uint32_t barrier) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                   unit),
               "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(barrier)
               : "memory");
}

// A word there, once it has been written and both blocks have met since.
__device__ __forceinline__ uint32_t load_word_in_block(uint32_t address) {
  uint32_t word;
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}

__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// A place in a ring of kStages buffers and the parity of the phase that its barriers are in.
template <int kStages>
class RingPosition {
 public:
  __device__ __forceinline__ int index() const { return place; }
  __device__ __forceinline__ uint32_t parity() const { return phase; }

  __device__ __forceinline__ void advance() {
    if (++place == kStages) {
      place = 0;
      phase ^= 1;
    }
  }

  // So many steps further.
  __device__ __forceinline__ RingPosition ahead(int steps) const {
    RingPosition position;
    position.place = (place + steps) % kStages;
    position.phase = phase ^ ((place + steps) / kStages & 1);
    return position;
  }

 private:
  int place = 0;
  uint32_t phase = 0;
};

// Rings of two that move together share one register.
template <>
class RingPosition<2> {
 public:
  __device__ __forceinline__ int index() const { return steps & 1; }
  __device__ __forceinline__ uint32_t parity() const { return static_cast<uint32_t>(steps) >> 1 & 1; }
  __device__ __forceinline__ void advance() { ++steps; }
  __device__ __forceinline__ RingPosition ahead(int further) const {
    RingPosition position;
    position.steps = steps + further;
    return position;
  }

 private:
  int steps = 0;
};

// --- Tensor copies: [batch, head, token, column], column innermost --------------------------------

struct TileCoordinates {
  int column;
  int token;
  int head;
  int batch;
};

// What lies outside the tensor becomes zero; its bytes count all the same.
__device__ __forceinline__ void load_tile(uint32_t tile, const TensorMap* map, TileCoordinates at,
                                          uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(tile),
      "l"(map), "r"(at.column), "r"(at.token), "r"(at.head), "r"(at.batch), "r"(barrier)
      : "memory");
}

// What lies outside the tensor is not written.
__device__ __forceinline__ void store_tile(const TensorMap* map, TileCoordinates at, uint32_t tile) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3, %4}], [%5];" ::"l"(map),
               "r"(at.column), "r"(at.token), "r"(at.head), "r"(at.batch), "r"(tile)
               : "memory");
}

__device__ __forceinline__ void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Until at most kPending groups of this thread still read shared memory.
template <int kPending>
__device__ __forceinline__ void wait_for_stores_to_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

__device__ __forceinline__ void wait_for_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// --- Tiles with the 128-byte swizzle: rows of 128 bytes, 16-byte unit u of row r lies at u ^ (r % 8) ---

constexpr int kRowBytes = 128;
constexpr int kUnitBytes = 16;

__device__ __forceinline__ uint32_t swizzled(int row, int unit) {
  return static_cast<uint32_t>(row * kRowBytes + ((unit ^ (row & 7)) * kUnitBytes));
}

// Descriptor of an operand in such a tile, at a multiple of 1024. Contraction over the rows:
// column_stride = distance of neighbouring tiles of 64 columns; along the row it is unused. The address
// has 18 bits; those above tell the block's rank in its cluster and have no place here.
__device__ __forceinline__ uint64_t operand(uint32_t tile, uint32_t column_stride = 0) {
  constexpr uint64_t kSwizzle128 = 1ull << 62;
  constexpr uint64_t kEightRows = static_cast<uint64_t>(1024 >> 4) << 32;
  return kSwizzle128 | kEightRows | (static_cast<uint64_t>(column_stride >> 4) << 16) |
         ((tile & 0x3ffff) >> 4);
}

// The operand `bytes` further: 32 for each step of 16 along the row, 2048 for each of 16 rows, and whole
// tiles. One addition, where a descriptor made anew takes several instructions.
__device__ __forceinline__ constexpr uint64_t further(uint64_t operand, int bytes) {
  return operand + static_cast<uint64_t>(bytes >> 4);
}

// 16 rows further: of an operand in shared memory, or in registers.
__device__ __forceinline__ constexpr uint64_t rows_further(uint64_t operand, int step) {
  return further(operand, step * 16 * kRowBytes);
}
__device__ __forceinline__ const uint32_t* rows_further(const uint32_t* operand_frag, int step) {
  return operand_frag + 4 * step;
}

// --- Warpgroup products ---------------------------------------------------------------------------

__device__ __forceinline__ void products_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int kPending>
__device__ __forceinline__ void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving uses of registers that a product reads or writes across this point.
template <int kCount>
__device__ __forceinline__ void pin(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    asm volatile("" : "+f"(registers[i])::"memory");
  }
}

// Of registers of which a product takes the first.
template <int kFirst, int kCount>
__device__ __forceinline__ void pin_first(float (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kFirst; ++i) {
    asm volatile("" : "+f"(registers[i])::"memory");
  }
}

template <int kCount>
__device__ __forceinline__ void pin(uint32_t (&registers)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    asm volatile("" : "+r"(registers[i])::"memory");
  }
}

// --- Shared memory by words and by matrices of 8 x 8 -------------------------------------------------

__device__ __forceinline__ void store_matrices(uint32_t row, const uint32_t* four_frag) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(four_frag[0]),
               "r"(four_frag[1]), "r"(four_frag[2]), "r"(four_frag[3])
               : "memory");
}

__device__ __forceinline__ void store_matrices_transposed(uint32_t row, const uint32_t* four_frag) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(four_frag[0]), "r"(four_frag[1]), "r"(four_frag[2]), "r"(four_frag[3])
               : "memory");
}

__device__ __forceinline__ void load_matrices(uint32_t row, uint32_t (&four_frag)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(four_frag[0]), "=r"(four_frag[1]), "=r"(four_frag[2]), "=r"(four_frag[3])
               : "r"(row)
               : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(uint32_t row, uint32_t* four_frag) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(four_frag[0]), "=r"(four_frag[1]), "=r"(four_frag[2]), "=r"(four_frag[3])
               : "r"(row)
               : "memory");
}

__device__ __forceinline__ void store_word(uint32_t address, uint32_t word) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}

__device__ __forceinline__ void store_half(uint32_t address, uint32_t half) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(static_cast<uint16_t>(half)) : "memory");
}

__device__ __forceinline__ void store_float(uint32_t address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

__device__ __forceinline__ uint32_t load_word(uint32_t address) {
  uint32_t word;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}

__device__ __forceinline__ float load_float(uint32_t address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}

__device__ __forceinline__ float2 load_float2(uint32_t address) {
  float2 pair;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "r"(address) : "memory");
  return pair;
}

__device__ __forceinline__ uint4 load_unit(uint32_t address) {
  uint4 unit;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(unit.x), "=r"(unit.y), "=r"(unit.z), "=r"(unit.w)
               : "r"(address)
               : "memory");
  return unit;
}

__device__ __forceinline__ void store_unit(uint32_t address, uint4 unit) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(unit.x), "r"(unit.y), "r"(unit.z),
               "r"(unit.w)
               : "memory");
}

__device__ __forceinline__ float reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

}  // namespace hopper
}  // namespace linattn
