// Arguments of the gradients of the family `chunked`, passed by value: docs/decisions/0008-backward.md has the
// formulas. Plain C++, so that a host compiler can check the layout.
//
// Each gradient of a head is a sum like that of the forward over other rows:
//
//   out_p = factor_p * sum over n of (offset + x_p . y_n) z_n
//
//   task            x    y    z   out  over    offset     rows of z times    factor
//   query_gradient  dO   v    k   dq   n <= p  -d_p       1 / |k_n|          b / g_p
//   key_gradient    v    dO   q   dk   n >= p  -d_n       b / (g_n |q_n|)    1
//   value_gradient  k    q    dO  dv   n >= p  a, slope b  1 / g_n           1
//
// with d_i = o_i . dO_i. Where rows are normalised, rows of k and q that are x or y are divided by their
// lengths as well; dq and dk are then the gradients of the divided rows, and normalize_rows_gradient finishes
// them. Without causality n is any row: gradients are read from sums, no row of y or z is, and gradient_outputs.cuh
// says what chunked.key and chunked.value are instead.
//
// The states that the tasks walk with are those of the forward, and their gradients, as [Dk, Dv] each:
//
//   S, z, u     of the tokens before an item: sums of k v^T, k, v (k divided)
//   dS, dz, du  of the tokens after it: the gradient of the final state, and
//               sums of b q dO^T / g, -b d q / g, a dO / g (q divided), over all query heads of the group
//
// so that a term S^T.. or dS.. stands for all tokens that the item does not hold.
#pragma once

#include <cstdint>

#include "linattn/chunked_arguments.h"

namespace linattn {

enum GradientTask : int32_t { kQueryGradient = 0, kKeyGradient = 1, kValueGradient = 2 };

// chunked.query, .key, .value and .out are x, y, z and out of the task; .key_dim is the width of x and y,
// .value_dim that of z and out. Of the task kQueryGradient x and out have `heads`, y and z `heads / group`; of
// the others x and out have `heads / group`, y and z `heads`, and a block adds up the heads of a group.
//
// chunked.normalizer is g of the forward, read only. chunked.state_in is S or dS as [slots, Dk, Dv], whichever way the
// task reads it; key_sum_in the sum of rows y (u, for kQueryGradient alone), value_sum_in that of rows z
// (z; dz; du). state_out is dS before the item and written by the task kValueGradient, value_sum_out (dz;
// du) by either of the two; in a relay each task writes all its own, and of one sweep kValueGradient has sums of
// rows z without a factor in key_sum_in and key_sum_out. Items, slots and counts are those of the forward, and so are
// turns and marks: each task has marks of its own, [heads of x, items, turns, tiles], and words and states of a relay.
// chunked.normalize is 1 where query_scale and key_scale are given.
//
// offset  bytes  member
//      0    352  chunked
//    352      8  delta         d [batch, heads, tokens]
//    360      8  query_scale   1 / |q| [batch, heads, tokens], -1 for a row of zeros; or null: as they are
//    368      8  key_scale     1 / |k| [batch, kv heads, tokens], likewise
//    376      8  partials      [batch, heads, num_items, turns, tiles of 64 columns, 2] sums of da and db over the
//                              rows of a tile of dq: da = sum of (sum over n of offset + x.y) / g of the first
//                              tile, 0 of others; db = sum of q . dq / b, 0 unless asked
//    384     32  slope_query   q (divided where rows are normalised), where db is asked; else address null
//    416      4  task          a GradientTask
//    420      4  tasks         of the launch, 1 or 2: 2 where one computes the gradients of k and of v
struct GradientArguments {
  ChunkedArguments chunked;
  float* delta;
  const float* query_scale;
  const float* key_scale;
  double* partials;
  TensorView slope_query;
  int32_t task;
  int32_t tasks;
};

// What the sweeps read of single rows: d and the scales. Row r < batch * heads * tokens is row r of o, dO and q in
// the order [batch, head, token]; row batch * heads * tokens + r is row r of k. Rows of k, and the scales, are
// wanted only where query_scale is not null.
//
// offset  bytes  member
//      0     32  query
//     32     32  key
//     64     32  out
//     96     32  out_gradient
//    128      8  delta        or null
//    136      8  query_scale  or null
//    144      8  key_scale    or null
//    152      4  tokens
//    156      4  heads
//    160      4  group
//    164      4  batches
//    168      4  key_dim      Dk
//    172      4  value_dim    Dv
//    176      4  scales_are_kept  1: a forward has written the scales, 0 where it could not tell
//    180      4  reserved     0
struct GradientRowsArguments {
  TensorView query;
  TensorView key;
  TensorView out;
  TensorView out_gradient;
  float* delta;
  float* query_scale;
  float* key_scale;
  int32_t tokens;
  int32_t heads;
  int32_t group;
  int32_t batches;
  int32_t key_dim;
  int32_t value_dim;
  int32_t scales_are_kept;
  int32_t reserved;
};

// dx = (dy - y (y . dy)) s with y = s x: the gradient of a row from that of the row over its length, in
// place. A row of zeros, which s < 0 says, gets zeros.
//
// offset  bytes  member
//      0     32  row        x: q or k
//     32     32  gradient   dy on entry, dx on return
//     64      8  scale      s [batch, heads, tokens]
//     72      4  tokens
//     76      4  heads      of the rows
//     80      4  batches
//     84      4  dim        columns of a row
struct NormalizeRowsGradientArguments {
  TensorView row;
  TensorView gradient;
  const float* scale;
  int32_t tokens;
  int32_t heads;
  int32_t batches;
  int32_t dim;
};

}  // namespace linattn
