// Arguments of the kernels, passed by value. Plain C++, so that a host compiler can check the layout.
//
// Tensors are contiguous, row-major, fp32, 16-byte aligned. heads = batch x heads of the model.
// D is the head dimension, J the value columns of a tile (the manifest's grid rule has D/J).
#pragma once

#include <cstdint>

namespace linattn {

// The four scans compute, per head and value column j, in the order of the scan,
//   X[m] += key_n[m] * (value_scale_n * value_n[j])
//   C    += const_scale_n * value_n[j]
//   out_i[j] = row_linear_i * sum_m query_i[m] X[m] + row_const_i * C
//
//                  forward      query_gradient  key_gradient  value_gradient
//   order          1..N         1..N            N..1          N..1
//   query          q            dO              v - vbar      k
//   key            k            v - vbar        dO            q
//   value          v            k               q             dO
//   out            o            dq              dk            dv
//   value_scale    1            1               1/g           1/g
//   const_scale    1            1               delta         1/g
//   row_linear     b/g          b/g             b             b
//   row_const      a/g          -b delta        -b            a
//   normalizer     g, written   g, read         g, read       g, read
//   delta          -            read            read          -
//
// vbar is value_center. dq and dk sum e_in = (dO_i / g_i) . v_n - delta_i, which stays as it is when
// one vector is taken from every v_n and from o_i; sums of centred rows cancel less. So delta_i is that
// of o - vbar, and query_gradient starts from the state of centred values, S - z vbar^T and
// u - initial_count vbar.
//
// State: S [heads, D (key), D (value)], z and u [heads, D], fp32. A null input means zero, a null
// output means not wanted. forward reads and writes all three; query_gradient reads the state that
// forward started from; key_gradient and value_gradient use none.
// key_sum_in must not overlap key_sum_out: every block of a head reads z, one writes it. state and
// value_sum may be updated in place.
//
// offset  bytes  member
//      0      8  query                 [heads, tokens, D]
//      8      8  key                   [heads, tokens, D]
//     16      8  value                 [heads, tokens, D]
//     24      8  out                   [heads, tokens, D]
//     32      8  normalizer            g [heads, tokens]
//     40      8  delta                 [heads, tokens]
//     48      8  value_center          query_gradient, key_gradient: vbar [heads, D]; else unused
//     56      8  a_per_head            [heads_per_batch], or null: the scalar a
//     64      8  b_per_head            [heads_per_batch], or null: the scalar b
//     72      8  coefficient_query     query_gradient: q [heads, tokens, D]; else unused
//     80      8  coefficient_partials  query_gradient: double {da, db} [heads, D/J, 2], or null: not wanted
//     88      8  state_in              S
//     96      8  key_sum_in            z
//    104      8  value_sum_in          u
//    112      8  state_out             S
//    120      8  key_sum_out           z
//    128      8  value_sum_out         u
//    136      8  tokens                N >= 0
//    144      8  initial_count         tokens in the initial state
//    152      4  heads_per_batch       head index within a batch = head % heads_per_batch
//    156      4  a
//    160      4  b
//    164      4  reserved              0
struct ScanArguments {
  const float* query;
  const float* key;
  const float* value;
  float* out;
  float* normalizer;
  const float* delta;
  const float* value_center;
  const float* a_per_head;
  const float* b_per_head;
  const float* coefficient_query;
  double* coefficient_partials;
  const float* state_in;
  const float* key_sum_in;
  const float* value_sum_in;
  float* state_out;
  float* key_sum_out;
  float* value_sum_out;
  int64_t tokens;
  int64_t initial_count;
  int32_t heads_per_batch;
  float a;
  float b;
  int32_t reserved;
};

// The mean of the first 64 rows of v of each head, or of all where there are fewer; 0 in a column
// where it is not finite, and without tokens. Any constant would do, see ScanArguments.
//
// offset  bytes  member
//      0      8  value         v [heads, tokens, D]
//      8      8  value_center  vbar [heads, D], written
//     16      8  tokens
struct ValueCenterArguments {
  const float* value;
  float* value_center;
  int64_t tokens;
};

// delta_i = ((output_i - value_center) . output_gradient_i) / normalizer_i.
//
// offset  bytes  member
//      0      8  output           [rows, D]
//      8      8  output_gradient  [rows, D]
//     16      8  normalizer       [rows]
//     24      8  value_center     [heads, D]
//     32      8  delta            [rows], written
//     40      8  rows             heads x tokens
//     48      8  tokens           rows of a head
struct RowDotArguments {
  const float* output;
  const float* output_gradient;
  const float* normalizer;
  const float* value_center;
  float* delta;
  int64_t rows;
  int64_t tokens;
};

// output_i = input_i / |input_i|; output may be input.
//
// offset  bytes  member
//      0      8  input   [rows, D]
//      8      8  output  [rows, D], written
//     16      8  rows
struct NormalizeArguments {
  const float* input;
  float* output;
  int64_t rows;
};

// gradient_i: with respect to input_i / |input_i| before, with respect to input_i after.
//
// offset  bytes  member
//      0      8  input     [rows, D], before normalisation
//      8      8  gradient  [rows, D], read and written
//     16      8  rows
struct NormalizeGradientArguments {
  const float* input;
  float* gradient;
  int64_t rows;
};

// Adds the tiles of each head, in order.
//
// offset  bytes  member
//      0      8  partials    double {da, db} [heads, D/J, 2]
//      8      8  a_gradient  [heads], written; null: not wanted
//     16      8  b_gradient  [heads], written; null: not wanted
//     24      8  heads
struct CoefficientGradientArguments {
  const double* partials;
  float* a_gradient;
  float* b_gradient;
  int64_t heads;
};

}  // namespace linattn
