// Products of small matrices on tensor cores (sm_80 and newer), and their operands in shared memory.
//
// Operands are made of pairs: a thread with group = lane / 4 and t = lane % 4 holds, of a 16 x 16 operand A,
// the pairs (row group, low), (row group + 8, low), (row group, high), (row group + 8, high), and of a 16 x 8
// operand B the pairs (low, column group), (high, column group). A pair is two neighbours along the index
// that is contracted: 2 t, 2 t + 1 in the low half and 8 more in the high half. The instructions for tf32
// want t and t + 4 there; the order along a contracted index is free as long as A and B agree, so both kinds
// use the same pairs, and accumulators become an operand A without moving between threads.
#pragma once

#include <cstdint>

#include "linattn/arithmetic.h"
#include "linattn/element.cuh"
#include "linattn/memory.cuh"
#include "linattn/reduce.cuh"

namespace linattn {

// kTf32Split: each operand is high + low, and a product is the three largest of the four terms.
enum class MmaKind { kBf16, kTf32, kTf32Split };

// f16 has no products of its own: its values are exact in tf32, which also holds states and weights that
// f16 could not.
template <typename Element, bool kAccurate>
struct MmaKindOf {
  static constexpr MmaKind kKind = kAccurate ? MmaKind::kTf32Split : MmaKind::kTf32;
};
template <>
struct MmaKindOf<F16, false> {
  static constexpr MmaKind kKind = MmaKind::kTf32;
};
template <>
struct MmaKindOf<Bf16, false> {
  static constexpr MmaKind kKind = MmaKind::kBf16;
};

// What weights and states are rounded to where they wait in shared memory.
template <MmaKind kKind>
struct WeightElement {
  using Type = float;
};
template <>
struct WeightElement<MmaKind::kBf16> {
  using Type = Bf16;
};

__device__ __forceinline__ uint32_t round_to_tf32(float x) {
  uint32_t rounded;
  asm("cvt.rna.tf32.f32 %0, %1;\n" : "=r"(rounded) : "f"(x));
  return rounded;
}

// What is left of x when an operand has taken what it can hold.
template <MmaKind kKind>
__device__ __forceinline__ float operand_rest(float x) {
  if constexpr (kKind == MmaKind::kBf16) {
    return x - to_float(from_float<Bf16>(x));
  } else {
    return x - __uint_as_float(round_to_tf32(x));
  }
}

// What rounding took away.
__device__ __forceinline__ uint32_t tf32_rest(float x, uint32_t high) {
  return round_to_tf32(x - __uint_as_float(high));
}

__device__ __forceinline__ void mma_bf16(float (&acc_frag)[4], const uint32_t (&a_frag)[4],
                                         const uint32_t (&b_frag)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};\n"
      : "+f"(acc_frag[0]), "+f"(acc_frag[1]), "+f"(acc_frag[2]), "+f"(acc_frag[3])
      : "r"(a_frag[0]), "r"(a_frag[1]), "r"(a_frag[2]), "r"(a_frag[3]), "r"(b_frag[0]), "r"(b_frag[1]));
}

__device__ __forceinline__ void mma_tf32(float (&acc_frag)[4], const uint32_t* a_frag,
                                         const uint32_t* b_frag) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};\n"
      : "+f"(acc_frag[0]), "+f"(acc_frag[1]), "+f"(acc_frag[2]), "+f"(acc_frag[3])
      : "r"(a_frag[0]), "r"(a_frag[1]), "r"(a_frag[2]), "r"(a_frag[3]), "r"(b_frag[0]), "r"(b_frag[1]));
}

// 16 x 16.
template <MmaKind kKind>
struct OperandA;

template <>
struct OperandA<MmaKind::kBf16> {
  uint32_t frag[4];

  __device__ __forceinline__ void set(int pair, float x, float y) { frag[pair] = pack<Bf16>(x, y); }

  __device__ __forceinline__ float2 get(int pair) const { return unpack<Bf16>(frag[pair]); }

  template <typename Element>
  __device__ __forceinline__ void set_raw(int pair, uint32_t elements) {
    frag[pair] = elements;
  }
};

template <>
struct OperandA<MmaKind::kTf32> {
  uint32_t frag[8];  // of the low half, then of the high half

  __device__ __forceinline__ static constexpr int first(int pair) { return pair / 2 * 4 + pair % 2; }

  __device__ __forceinline__ void set(int pair, float x, float y) {
    frag[first(pair)] = round_to_tf32(x);
    frag[first(pair) + 2] = round_to_tf32(y);
  }

  __device__ __forceinline__ float2 get(int pair) const {
    return make_float2(__uint_as_float(frag[first(pair)]), __uint_as_float(frag[first(pair) + 2]));
  }

  template <typename Element>
  __device__ __forceinline__ void set_raw(int pair, uint32_t elements) {
    const float2 x = unpack<Element>(elements);
    frag[first(pair)] = __float_as_uint(x.x);
    frag[first(pair) + 2] = __float_as_uint(x.y);
  }
};

template <>
struct OperandA<MmaKind::kTf32Split> {
  OperandA<MmaKind::kTf32> high;
  OperandA<MmaKind::kTf32> low;

  __device__ __forceinline__ void set(int pair, float x, float y) {
    high.set(pair, x, y);
    const int i = OperandA<MmaKind::kTf32>::first(pair);
    low.frag[i] = tf32_rest(x, high.frag[i]);
    low.frag[i + 2] = tf32_rest(y, high.frag[i + 2]);
  }

  __device__ __forceinline__ float2 get(int pair) const {
    const float2 x = high.get(pair);
    const float2 rest = low.get(pair);
    return make_float2(x.x + rest.x, x.y + rest.y);
  }
};

// 16 x 8.
template <MmaKind kKind>
struct OperandB;

template <>
struct OperandB<MmaKind::kBf16> {
  uint32_t frag[2];

  __device__ __forceinline__ void set(int pair, float x, float y) { frag[pair] = pack<Bf16>(x, y); }

  template <typename Element>
  __device__ __forceinline__ void set_raw(int pair, uint32_t elements) {
    frag[pair] = elements;
  }
};

template <>
struct OperandB<MmaKind::kTf32> {
  uint32_t frag[4];

  __device__ __forceinline__ void set(int pair, float x, float y) {
    frag[2 * pair] = round_to_tf32(x);
    frag[2 * pair + 1] = round_to_tf32(y);
  }

  template <typename Element>
  __device__ __forceinline__ void set_raw(int pair, uint32_t elements) {
    const float2 x = unpack<Element>(elements);
    frag[2 * pair] = __float_as_uint(x.x);
    frag[2 * pair + 1] = __float_as_uint(x.y);
  }
};

template <>
struct OperandB<MmaKind::kTf32Split> {
  OperandB<MmaKind::kTf32> high;
  OperandB<MmaKind::kTf32> low;

  __device__ __forceinline__ void set(int pair, float x, float y) {
    high.set(pair, x, y);
    low.frag[2 * pair] = tf32_rest(x, high.frag[2 * pair]);
    low.frag[2 * pair + 1] = tf32_rest(y, high.frag[2 * pair + 1]);
  }
};

// acc += A B. The accumulator holds rows group and group + 8 of columns 2 t and 2 t + 1: [0] [1], then [2]
// [3].
__device__ __forceinline__ void multiply(float (&acc_frag)[4], const OperandA<MmaKind::kBf16>& a,
                                         const OperandB<MmaKind::kBf16>& b) {
  mma_bf16(acc_frag, a.frag, b.frag);
}

__device__ __forceinline__ void multiply(float (&acc_frag)[4], const OperandA<MmaKind::kTf32>& a,
                                         const OperandB<MmaKind::kTf32>& b) {
  mma_tf32(acc_frag, a.frag, b.frag);
  mma_tf32(acc_frag, a.frag + 4, b.frag + 2);
}

// The small terms first, while the accumulator is small as well.
__device__ __forceinline__ void multiply(float (&acc_frag)[4], const OperandA<MmaKind::kTf32Split>& a,
                                         const OperandB<MmaKind::kTf32Split>& b) {
  multiply(acc_frag, a.low, b.high);
  multiply(acc_frag, a.high, b.low);
  multiply(acc_frag, a.high, b.high);
}

// Two neighbouring accumulators, 16 columns, as operand A.
template <MmaKind kKind>
__device__ __forceinline__ OperandA<kKind> operand_of(const float (&left_frag)[4],
                                                      const float (&right_frag)[4]) {
  OperandA<kKind> a;
  a.set(0, left_frag[0], left_frag[1]);
  a.set(1, left_frag[2], left_frag[3]);
  a.set(2, right_frag[0], right_frag[1]);
  a.set(3, right_frag[2], right_frag[3]);
  return a;
}

__device__ __forceinline__ void clear(float (&acc_frag)[4]) {
  acc_frag[0] = acc_frag[1] = acc_frag[2] = acc_frag[3] = 0.0f;
}

// Pairs of accumulators.
template <int kPairs>
__device__ __forceinline__ void clear(float (&acc_frag)[kPairs][2][4]) {
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    clear(acc_frag[j][0]);
    clear(acc_frag[j][1]);
  }
}

__device__ __forceinline__ void add_to(float (&sum_frag)[4], const float (&acc_frag)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum_frag[i] += acc_frag[i];
  }
}

__device__ __forceinline__ int lane_of_thread() { return static_cast<int>(threadIdx.x) % kWarp; }

// Offsets are added to a tile's address in the shared window, in 32 bits: constant ones become part of the
// instruction then.
template <bool kTransposed, typename Element>
__device__ __forceinline__ void load_matrices(uint32_t (&pairs_frag)[4], const Element* tile_smem,
                                              int lane_offset, int offset) {
  const uint32_t address = shared_address(tile_smem) + static_cast<uint32_t>(lane_offset * sizeof(Element)) +
                           static_cast<uint32_t>(offset * sizeof(Element));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(pairs_frag[0]), "=r"(pairs_frag[1]), "=r"(pairs_frag[2]), "=r"(pairs_frag[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(pairs_frag[0]), "=r"(pairs_frag[1]), "=r"(pairs_frag[2]), "=r"(pairs_frag[3])
                 : "r"(address)
                 : "memory");
  }
}

// Transposes an 8 x 8 matrix of 16-bit elements: lane l holds a pair of row l / 4.
__device__ __forceinline__ uint32_t transpose_pairs(uint32_t pair) {
  uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(transposed) : "r"(pair));
  return transposed;
}

// A tile in shared memory, row-major. The padding spreads 8 rows over all banks, for ldmatrix as for 8-byte
// loads; it needs kColumns to be a multiple of 16.
template <typename ElementOf, int kRowsOf, int kColumnsOf>
struct TileLayout {
  using Element = ElementOf;
  static constexpr int kRows = kRowsOf;
  static constexpr int kColumns = kColumnsOf;
  static constexpr int kStride = kColumns + 8;
  static constexpr int kElements = kRows * kStride;
  static constexpr int kBytes = kElements * static_cast<int>(sizeof(Element));
  static_assert(kColumns % 16 == 0, "see above");
  static_assert(kRows % 2 == 0, "tiles start at 16 bytes");

  // Starts the copy of `num_rows` rows of `num_columns` columns; the rest of the tile becomes zero.
  template <int kThreads>
  __device__ __forceinline__ static void start_copy(Element* tile_smem, const Element* rows_gmem,
                                                    int64_t row_stride, int num_rows, int num_columns) {
    constexpr int kVector = 16 / static_cast<int>(sizeof(Element));
    constexpr int kPieces = kColumns / kVector;
    constexpr int kRowStep = kThreads / kPieces;  // a thread keeps its column
    const int first_row = static_cast<int>(threadIdx.x) / kPieces;
    const int column = static_cast<int>(threadIdx.x) % kPieces * kVector;
    const int columns_left = num_columns - column;
    const int num_bytes =
        (columns_left < 0 ? 0 : columns_left < kVector ? columns_left : kVector) *
        static_cast<int>(sizeof(Element));
    const Element* source_gmem = rows_gmem + first_row * row_stride + (num_bytes > 0 ? column : 0);
    const uint32_t tile_address =
        shared_address(tile_smem) + static_cast<uint32_t>((first_row * kStride + column) * sizeof(Element));
    const bool is_full = num_rows >= kRows;
    if (kThreads % kPieces == 0 || first_row < kRowStep) {
#pragma unroll
      for (int i = 0; i < ceil_div(kRows, kRowStep); ++i) {
        const int row = first_row + i * kRowStep;
        if (kRows % kRowStep == 0 || row < kRows) {
          constexpr uint32_t kStepBytes = kRowStep * kStride * sizeof(Element);
          const bool valid = is_full || row < num_rows;
          copy_async_part(tile_address + i * kStepBytes, valid ? source_gmem : rows_gmem,
                          valid ? num_bytes : 0);
          source_gmem += kRowStep * row_stride;
        }
      }
    }
  }
};

__device__ __forceinline__ int warp_of_thread() {
  // The shuffle tells the compiler that the branches of a warp agree.
  return __shfl_sync(kAllLanes, static_cast<int>(threadIdx.x) / kWarp, 0);
}

// Operands out of tiles of Element. A contracted index that runs along the columns of a tile has the pairs of
// the head of this file. One that runs along the rows (tokens) has them too where elements have 16 bits, and
// t, t + 4 where they have 32: their rows are then read without bank conflicts.
template <typename Element, MmaKind kKind>
struct Operands {
  using A = OperandA<kKind>;
  using B = OperandB<kKind>;
  static constexpr bool kIsPacked = sizeof(Element) == 2;

  // A[m][k] = tile[m][k].
  template <typename Layout>
  __device__ __forceinline__ static void load_a(A& a, const Element* tile_smem, int row, int column) {
    const int lane = lane_of_thread();
    if constexpr (kIsPacked) {
      uint32_t pairs_frag[4];
      load_matrices<false>(pairs_frag, tile_smem, lane % 16 * Layout::kStride + lane / 16 * 8,
                           row * Layout::kStride + column);
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        a.template set_raw<Element>(pair, pairs_frag[pair]);
      }
    } else {
      const Element* lane_smem =
          tile_smem + (lane / 4 * Layout::kStride + lane % 4 * 2) + (row * Layout::kStride + column);
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        const float2 x =
            *reinterpret_cast<const float2*>(lane_smem + pair % 2 * 8 * Layout::kStride + pair / 2 * 8);
        a.set(pair, x.x, x.y);
      }
    }
  }

  // B[k][n] = tile[n][k], of 16 columns n.
  template <typename Layout>
  __device__ __forceinline__ static void load_b(B& left, B& right, const Element* tile_smem, int row,
                                                int column) {
    const int lane = lane_of_thread();
    if constexpr (kIsPacked) {
      uint32_t pairs_frag[4];
      load_matrices<false>(pairs_frag, tile_smem,
                           (lane % 8 + lane / 16 * 8) * Layout::kStride + lane / 8 % 2 * 8,
                           row * Layout::kStride + column);
      set_both(left, right, pairs_frag);
    } else {
      const Element* lane_smem =
          tile_smem + (lane / 4 * Layout::kStride + lane % 4 * 2) + (row * Layout::kStride + column);
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        const float2 x = *reinterpret_cast<const float2*>(lane_smem + pair * 8);
        const float2 y = *reinterpret_cast<const float2*>(lane_smem + 8 * Layout::kStride + pair * 8);
        left.set(pair, x.x, x.y);
        right.set(pair, y.x, y.y);
      }
    }
  }

  // A[m][k] = tile[k][m].
  template <typename Layout>
  __device__ __forceinline__ static void load_a_transposed(A& a, const Element* tile_smem, int row,
                                                           int column) {
    const int lane = lane_of_thread();
    if constexpr (kIsPacked) {
      uint32_t pairs_frag[4];
      load_matrices<true>(pairs_frag, tile_smem,
                          (lane % 8 + lane / 16 * 8) * Layout::kStride + lane / 8 % 2 * 8,
                          row * Layout::kStride + column);
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        a.template set_raw<Element>(pair, pairs_frag[pair]);
      }
    } else {
      const Element* lane_smem =
          tile_smem + (lane % 4 * Layout::kStride + lane / 4) + (row * Layout::kStride + column);
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        const Element* pair_smem = lane_smem + pair / 2 * 8 * Layout::kStride + pair % 2 * 8;
        a.set(pair, pair_smem[0], pair_smem[4 * Layout::kStride]);
      }
    }
  }

  // B[k][n] = tile[k][n], of 16 columns n.
  template <typename Layout>
  __device__ __forceinline__ static void load_b_transposed(B& left, B& right, const Element* tile_smem,
                                                           int row, int column) {
    const int lane = lane_of_thread();
    if constexpr (kIsPacked) {
      uint32_t pairs_frag[4];
      load_matrices<true>(pairs_frag, tile_smem, lane % 16 * Layout::kStride + lane / 16 * 8,
                          row * Layout::kStride + column);
      set_both(left, right, pairs_frag);
    } else {
      const Element* lane_smem =
          tile_smem + (lane % 4 * Layout::kStride + lane / 4) + (row * Layout::kStride + column);
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        const Element* pair_smem = lane_smem + pair * 8 * Layout::kStride;
        left.set(pair, pair_smem[0], pair_smem[4 * Layout::kStride]);
        right.set(pair, pair_smem[8], pair_smem[4 * Layout::kStride + 8]);
      }
    }
  }

  // Multiplies what load_a_transposed read by factors of its tokens, the rows k; the first is that of k = 0.
  __device__ __forceinline__ static void scale_tokens(A& a, const float* factors_smem) {
    const int t = lane_of_thread() % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 factor = token_pair(factors_smem + half * 8, t);
#pragma unroll
      for (int pair = 2 * half; pair < 2 * half + 2; ++pair) {
        const float2 x = a.get(pair);
        a.set(pair, x.x * factor.x, x.y * factor.y);
      }
    }
  }

  // B[k][n] with sum over n of B[k][n] = factor of token k, to the last digit: column n takes what columns before
  // it have left. The order of tokens is that of load_a_transposed.
  __device__ __forceinline__ static void load_factors(B& b, const float* factors_smem) {
    const int lane = lane_of_thread();
    const int column = lane / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float2 factor = token_pair(factors_smem + half * 8, lane % 4);
#pragma unroll
      for (int n = 0; n < kFactorColumns - 1; ++n) {
        if (n < column) {
          factor = make_float2(operand_rest<kKind>(factor.x), operand_rest<kKind>(factor.y));
        }
      }
      const bool is_taken = column >= kFactorColumns;
      b.set(half, is_taken ? 0.0f : factor.x, is_taken ? 0.0f : factor.y);
    }
  }

  // B[k][n] = weights[n][k], of 16 columns n, where k are tokens. Weights are bf16 or fp32, by kKind.
  template <typename Layout>
  __device__ __forceinline__ static void load_weights(B& left, B& right,
                                                      const typename Layout::Element* weights_smem, int row,
                                                      int column) {
    if constexpr (kKind == MmaKind::kBf16) {
      load_b<Layout>(left, right, weights_smem, row, column);
    } else if constexpr (kIsPacked) {
      Operands<float, kKind>::template load_b<Layout>(left, right, weights_smem, row, column);
    } else {
      const int lane = lane_of_thread();
      const float* lane_smem =
          weights_smem + (lane / 4 * Layout::kStride + lane % 4) + (row * Layout::kStride + column);
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        const float* pair_smem = lane_smem + pair * 8;
        left.set(pair, pair_smem[0], pair_smem[4]);
        right.set(pair, pair_smem[8 * Layout::kStride], pair_smem[8 * Layout::kStride + 4]);
      }
    }
  }

 private:
  static constexpr int kFactorColumns = 3;  // 24 bits of bf16, more of others

  // Of the two tokens of a pair.
  __device__ __forceinline__ static float2 token_pair(const float* factors_smem, int t) {
    if constexpr (kIsPacked) {
      return *reinterpret_cast<const float2*>(factors_smem + 2 * t);
    } else {
      return make_float2(factors_smem[t], factors_smem[t + 4]);
    }
  }

  __device__ __forceinline__ static void set_both(B& left, B& right, const uint32_t (&pairs_frag)[4]) {
    left.template set_raw<Element>(0, pairs_frag[0]);
    left.template set_raw<Element>(1, pairs_frag[1]);
    right.template set_raw<Element>(0, pairs_frag[2]);
    right.template set_raw<Element>(1, pairs_frag[3]);
  }
};

}  // namespace linattn
