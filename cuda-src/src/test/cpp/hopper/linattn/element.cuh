// linattn/element.cuh on the host: the same types, with the emulator's arithmetic.
#pragma once

#include "emulator.h"

namespace linattn {

template <emulator::Operand16 kType>
struct Element16 {
  uint16_t bits;
};
using Bf16 = Element16<emulator::Operand16::kBf16>;
using F16 = Element16<emulator::Operand16::kF16>;

inline float to_float(float x) { return x; }
template <emulator::Operand16 kType>
float to_float(Element16<kType> x) {
  return emulator::to_float(kType, x.bits);
}

template <typename Element>
struct OnHost;
template <>
struct OnHost<float> {
  static float rounded(float x) { return x; }
};
template <emulator::Operand16 kType>
struct OnHost<Element16<kType>> {
  static Element16<kType> rounded(float x) { return {emulator::from_float(kType, x)}; }
  static uint32_t pack(float first, float second) {
    return rounded(first).bits | static_cast<uint32_t>(rounded(second).bits) << 16;
  }
  static float first_of(uint32_t pair) { return emulator::to_float(kType, static_cast<uint16_t>(pair)); }
  static float second_of(uint32_t pair) { return emulator::to_float(kType, static_cast<uint16_t>(pair >> 16)); }
};

template <typename Element>
Element from_float(float x) {
  return OnHost<Element>::rounded(x);
}
template <typename Element>
uint32_t pack(float first, float second) {
  return OnHost<Element>::pack(first, second);
}
template <typename Element>
float2 unpack(uint32_t pair) {
  return make_float2(OnHost<Element>::first_of(pair), OnHost<Element>::second_of(pair));
}

}  // namespace linattn
