// Names that the headers of the family `chunked` want, in functions that nobody calls on the host.
#pragma once

#include <cstdint>
#include <cstdlib>

inline int __syncthreads_or(int) { std::abort(); }
inline int __any_sync(unsigned, int) { std::abort(); }
inline float __shfl_sync(unsigned, float, int) { std::abort(); }
inline uint32_t __cvta_generic_to_shared(const void*) { std::abort(); }
