// Integer arithmetic that both the host and the kernels need.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define LINATTN_HOST_DEVICE __host__ __device__
#else
#define LINATTN_HOST_DEVICE
#endif

namespace linattn {

LINATTN_HOST_DEVICE constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }

// A count, and what makes the quotient of a number n < 2^31 and it a product, since a GPU divides by a chain of some
// twenty instructions, each of which waits for the one before:
//
//   n / value = (2 n * multiplier >> 32) >> shift,  shift = ceil(log2 value),  multiplier = ceil(2^(31 + shift) / value)
//
// (T. Granlund, P. L. Montgomery: Division by invariant integers using multiplication, 1994).
//
// offset  bytes  member
//      0      4  value       > 0
//      4      4  multiplier
//      8      4  shift
struct Divisor {
  int32_t value;
  uint32_t multiplier;
  uint32_t shift;

  LINATTN_HOST_DEVICE constexpr uint32_t quotient(uint32_t n) const {
    return static_cast<uint32_t>(static_cast<uint64_t>(2 * n) * multiplier >> 32) >> shift;
  }
  LINATTN_HOST_DEVICE constexpr uint32_t remainder(uint32_t n) const { return n - quotient(n) * value; }
};

}  // namespace linattn
