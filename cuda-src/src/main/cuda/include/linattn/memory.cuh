// Copies from global to shared memory that do not pass through registers.
#pragma once

#include <cstdint>

namespace linattn {

// Copies kBytes, or writes kBytes of zero where `valid` is false. Both addresses are aligned to kBytes.
template <int kBytes>
__device__ __forceinline__ void copy_async(void* destination_smem, const void* source_gmem, bool valid) {
  static_assert(kBytes == 4 || kBytes == 16, "cp.async copies 4 or 16 bytes here");
  const uint32_t destination = static_cast<uint32_t>(__cvta_generic_to_shared(destination_smem));
  const int num_read = valid ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(destination), "l"(source_gmem),
                 "r"(num_read)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(destination), "l"(source_gmem),
                 "r"(num_read)
                 : "memory");
  }
}

// The address that instructions on shared memory take.
__device__ __forceinline__ uint32_t shared_address(const void* pointer_smem) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer_smem));
}

// Copies the first `num_bytes` of 16 to a shared address and writes zero behind them, and reads no others.
__device__ __forceinline__ void copy_async_part(uint32_t destination, const void* source_gmem,
                                                int num_bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(destination), "l"(source_gmem),
               "r"(num_bytes)
               : "memory");
}

// Closes the group of the copies that this thread has started since the last one; it may be empty.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }

// Waits until at most kPending of this thread's groups are still under way, the youngest ones.
template <int kPending>
__device__ __forceinline__ void wait_for_groups() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

// Waits for every copy this thread has started; other threads see them after a barrier.
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_all;\n" ::: "memory");
}

}  // namespace linattn
