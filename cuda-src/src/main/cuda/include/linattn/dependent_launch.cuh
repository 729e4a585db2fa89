// A kernel of the family `chunked` may start before those ahead of it in its stream have ended. Until it has
// waited for them it touches nothing that they write: docs/decisions/0006-dependent-launches.md.
#pragma once

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define LINATTN_DEPENDENT_LAUNCHES 1
#else
#define LINATTN_DEPENDENT_LAUNCHES 0
#endif

namespace linattn {

// Waits until the earlier kernels have ended and their writes are seen. Every thread calls it, also one that
// has nothing to do: later kernels wait for this one alone, and so through it for those before.
__device__ __forceinline__ void wait_for_earlier_kernels() {
#if LINATTN_DEPENDENT_LAUNCHES
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel start as soon as every block of this one has called it or ended.
__device__ __forceinline__ void let_later_kernels_start() {
#if LINATTN_DEPENDENT_LAUNCHES
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Asks for what will be read after the wait. It comes to the L2 cache, where earlier kernels write too, so
// that it can't be out of date there. Without a wait ahead it would only double the load.
__device__ __forceinline__ void prefetch_before_wait(const void* address_gmem) {
#if LINATTN_DEPENDENT_LAUNCHES
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address_gmem));
#endif
}

}  // namespace linattn
