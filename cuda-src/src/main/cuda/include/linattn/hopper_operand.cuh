// The 16-bit elements that tensor cores multiply.
#pragma once

#include <cstdint>

#include "linattn/element.cuh"

namespace linattn {
namespace hopper {

// Operands of 16 bits, two to a register; `low` is the element with the smaller index.
template <typename Element>
struct OperandPairs {
  __device__ __forceinline__ static uint32_t pack(float low, float high) { return linattn::pack<Element>(low, high); }
  __device__ __forceinline__ static float low(uint32_t pair) { return first_of<Element>(pair); }
  __device__ __forceinline__ static float high(uint32_t pair) { return second_of<Element>(pair); }
};

template <typename Element>
struct Operand;

template <>
struct Operand<Bf16> : OperandPairs<Bf16> {
  static constexpr bool kScaled = false;  // has the range of fp32
  static constexpr uint32_t kOnes = 0x3f803f80u;

  // Each element times its weight, of which bf16 itself would leave too few digits.
  __device__ __forceinline__ static uint32_t weigh(uint32_t pair, float2 weights) {
    return pack(low(pair) * weights.x, high(pair) * weights.y);
  }

  // Adds zero times each element: NaN from then on if one is not finite.
  __device__ __forceinline__ static uint32_t mark(uint32_t pair, uint32_t marks) {
    asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(marks) : "r"(pair), "r"(0));
    return marks;
  }

  // d += a b for a of 16 x 16 and b of 16 x 8.
  __device__ __forceinline__ static void add_product(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                                     uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

template <>
struct Operand<F16> : OperandPairs<F16> {
  static constexpr bool kScaled = true;
  static constexpr uint32_t kOnes = 0x3c003c00u;

  __device__ __forceinline__ static uint32_t weigh(uint32_t pair, float2 weights) {
    asm("mul.rn.f16x2 %0, %0, %1;" : "+r"(pair) : "r"(pack(weights.x, weights.y)));
    return pair;
  }

  __device__ __forceinline__ static uint32_t mark(uint32_t pair, uint32_t marks) {
    asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(marks) : "r"(pair), "r"(0));
    return marks;
  }

  // d += a b for a of 16 x 16 and b of 16 x 8.
  __device__ __forceinline__ static void add_product(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                                     uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

}  // namespace hopper
}  // namespace linattn
