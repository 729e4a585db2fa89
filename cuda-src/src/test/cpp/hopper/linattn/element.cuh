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

// Two neighbours in one word: the first one is its low half.
template <class Element>
float2 unpack(uint32_t pair) {
  return make_float2(to_float(Element{static_cast<uint16_t>(pair)}),
                     to_float(Element{static_cast<uint16_t>(pair >> 16)}));
}
template <class Element>
uint32_t pack(float first, float second);
template <>
inline uint32_t pack<Bf16>(float first, float second) {
  return emulator::from_float(emulator::Operand16::kBf16, first) |
         static_cast<uint32_t>(emulator::from_float(emulator::Operand16::kBf16, second)) << 16;
}
template <>
inline uint32_t pack<F16>(float first, float second) {
  return emulator::from_float(emulator::Operand16::kF16, first) |
         static_cast<uint32_t>(emulator::from_float(emulator::Operand16::kF16, second)) << 16;
}

}  // namespace linattn
