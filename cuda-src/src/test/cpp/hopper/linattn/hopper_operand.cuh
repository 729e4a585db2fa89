// linattn/hopper_operand.cuh on the host: the same types, with the emulator's arithmetic.
#pragma once

#include "linattn/element.cuh"

namespace linattn {
namespace hopper {

template <emulator::Operand16 kType>
struct HostOperand {
  static constexpr bool kScaled = kType == emulator::Operand16::kF16;
  static constexpr uint32_t kOnes = kScaled ? 0x3c003c00u : 0x3f803f80u;

  using Element = OnHost<Element16<kType>>;

  static uint32_t pack(float low, float high) { return Element::pack(low, high); }
  static float low(uint32_t pair) { return Element::first_of(pair); }
  static float high(uint32_t pair) { return Element::second_of(pair); }
  static float element(uint32_t pair, int i) { return i == 0 ? low(pair) : high(pair); }

  static uint32_t weigh(uint32_t pair, float2 weights) {
    return kScaled ? pack(low(pair) * to_operand(weights.x), high(pair) * to_operand(weights.y))
                   : pack(low(pair) * weights.x, high(pair) * weights.y);
  }
  static float to_operand(float x) { return emulator::to_float(kType, emulator::from_float(kType, x)); }

  static uint32_t mark(uint32_t pair, uint32_t marks) {
    return pack(low(pair) * 0.0f + low(marks), high(pair) * 0.0f + high(marks));
  }

  static void add_product(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    struct Argument {
      float* d;
      const uint32_t* a;
      uint32_t b[2];
    } mine{d, a, {b0, b1}};
    emulator::in_warp("mma.sync", &mine, [](void* const (&lanes)[32]) {
      float product[16][8] = {};
      for (int row = 0; row < 16; ++row) {
        for (int column = 0; column < 8; ++column) {
          for (int k = 0; k < 16; ++k) {
            const auto* of_a = static_cast<Argument*>(lanes[row % 8 * 4 + k % 8 / 2]);
            const auto* of_b = static_cast<Argument*>(lanes[column * 4 + k % 8 / 2]);
            product[row][column] += element(of_a->a[row / 8 + 2 * (k / 8)], k % 2) * element(of_b->b[k / 8], k % 2);
          }
        }
      }
      for (int lane = 0; lane < 32; ++lane) {
        for (int i = 0; i < 4; ++i) {
          static_cast<Argument*>(lanes[lane])->d[i] += product[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2];
        }
      }
    });
  }
};

template <typename Element>
struct Operand;
template <>
struct Operand<Bf16> : HostOperand<emulator::Operand16::kBf16> {};
template <>
struct Operand<F16> : HostOperand<emulator::Operand16::kF16> {};

}  // namespace hopper
}  // namespace linattn
