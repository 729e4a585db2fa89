// Elements of 16 bits as tensors hold them. Not CUDA's own headers: these would take a seventh of the time in which a
// kernel is compiled.
#pragma once

#include <cstdint>

namespace linattn {

struct alignas(2) Bf16 {
  uint16_t bits;
};
struct alignas(2) F16 {
  uint16_t bits;
};

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(Bf16 x) {
  float value;
  asm("mov.b32 %0, {0, %1};" : "=f"(value) : "h"(x.bits));
  return value;
}
__device__ __forceinline__ float to_float(F16 x) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x.bits));
  return value;
}

// The nearest one, and of two that are as near the even one.
template <typename Element>
__device__ __forceinline__ Element from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ Bf16 from_float<Bf16>(float x) {
  Bf16 rounded;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded.bits) : "f"(x));
  return rounded;
}
template <>
__device__ __forceinline__ F16 from_float<F16>(float x) {
  F16 rounded;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(rounded.bits) : "f"(x));
  return rounded;
}

// Two neighbours in one word: the first one is its low half.
template <typename Element>
__device__ __forceinline__ float first_of(uint32_t pair);
template <typename Element>
__device__ __forceinline__ float second_of(uint32_t pair);
template <typename Element>
__device__ __forceinline__ uint32_t pack(float first, float second);

template <>
__device__ __forceinline__ float first_of<Bf16>(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
template <>
__device__ __forceinline__ float second_of<Bf16>(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}
template <>
__device__ __forceinline__ uint32_t pack<Bf16>(float first, float second) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}

template <>
__device__ __forceinline__ float first_of<F16>(uint32_t pair) {
  float first;
  asm("{.reg .f16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, low;}" : "=f"(first) : "r"(pair));
  return first;
}
template <>
__device__ __forceinline__ float second_of<F16>(uint32_t pair) {
  float second;
  asm("{.reg .f16 low, high; mov.b32 {low, high}, %1; cvt.f32.f16 %0, high;}" : "=f"(second) : "r"(pair));
  return second;
}
template <>
__device__ __forceinline__ uint32_t pack<F16>(float first, float second) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  return pair;
}

template <typename Element>
__device__ __forceinline__ float2 unpack(uint32_t pair) {
  return make_float2(first_of<Element>(pair), second_of<Element>(pair));
}

}  // namespace linattn
