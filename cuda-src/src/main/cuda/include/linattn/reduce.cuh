// Sums: over the lanes of a warp in a fixed order, and over many tokens without losing digits.
#pragma once

namespace linattn {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

// The sum over each aligned group of kLanes lanes, in every lane. All lanes of the warp take part.
template <int kLanes = kWarp, typename T>
__device__ __forceinline__ T sum_lanes(T value) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, offset);
  }
  return value;
}

// The sums of the first kLeft values over the lanes that differ in log2(kLanes) bits of their number from kStep on, shared out:
// the lane is left with kLeft / kLanes of them in front, from the one on that is returned. All lanes of the warp take part.
template <int kLanes, int kStep, int kCount, int kLeft = kCount>
__device__ __forceinline__ int share_sums(float (&values)[kCount], int lane) {
  static_assert(kLeft % kLanes == 0, "as many for each lane");
  if constexpr (kLanes == 1) {
    return 0;
  } else {
    constexpr int kHalf = kLeft / 2;
    constexpr int kDistance = kLanes / 2 * kStep;
    const bool takes_later = (lane & kDistance) != 0;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float given = takes_later ? values[i] : values[kHalf + i];
      const float kept = takes_later ? values[kHalf + i] : values[i];
      values[i] = kept + __shfl_xor_sync(kAllLanes, given, kDistance);
    }
    return (takes_later ? kHalf : 0) + share_sums<kLanes / 2, kStep, kCount, kHalf>(values, lane);
  }
}

// The largest value of each aligned group of kLanes lanes, in every lane; NaN is passed over.
template <int kLanes>
__device__ __forceinline__ float max_lanes(float value) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, offset));
  }
  return value;
}

// A power of two that brings `largest` into [1, 2), as far as both are normal numbers: squares of
// the scaled row neither overflow nor vanish. 1 <= exponent field of the result <= 253.
__device__ __forceinline__ float scale_for(float largest) {
  const int exponent = min(max((__float_as_int(largest) >> 23) & 0xff, 1), 253);
  return __int_as_float((254 - exponent) << 23);
}

// A running sum. Terms of a chunk go to `recent`; fold() moves it into high + low, whose rounding
// error is kept (Knuth's two-sum), so the error does not grow with the number of chunks.
struct RunningSum {
  float high;
  float low;
  float recent;

  __device__ __forceinline__ explicit RunningSum(float start = 0.0f) : high(start), low(0.0f), recent(0.0f) {}

  __device__ __forceinline__ void add(float term) { recent += term; }

  __device__ __forceinline__ float total() const { return high + (low + recent); }

  // An infinite sum stays infinite: its rounding "error" would be NaN.
  __device__ __forceinline__ void fold() {
    const float addend = __fadd_rn(low, recent);
    const float sum = __fadd_rn(high, addend);
    const float addend_in_sum = __fsub_rn(sum, high);
    const float high_in_sum = __fsub_rn(sum, addend_in_sum);
    const float error = __fadd_rn(__fsub_rn(high, high_in_sum), __fsub_rn(addend, addend_in_sum));
    high = sum;
    low = isinf(sum) ? 0.0f : error;
    recent = 0.0f;
  }
};

}  // namespace linattn
