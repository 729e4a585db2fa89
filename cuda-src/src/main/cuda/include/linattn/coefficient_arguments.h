// Arguments of the last kernel of a backward. Plain C++, so that a host compiler can check the layout.
#pragma once

#include "linattn/gradient_arguments.h"

namespace linattn {

// da and db of each head from the partial sums, in order, and where weights are flat from q and dq.
//
// offset  bytes  member
//      0     32  query            q; unread where db is summed
//     32     32  out              o
//     64      8  partials         [batch * heads, count, 2]
//     72      8  products         [batch * heads, parts], takes the sum of q . dq of each part; unread where there is one
//     80      8  tickets          [batch * heads], words that are zero before and after each launch; likewise
//     88      8  a_per_head       or null
//     96      8  b_per_head       or null
//    104      8  a_gradient       [batch * heads], or null
//    112      8  b_gradient       [batch * heads], or null
//    120      4  count            partial sums of a head
//    124      4  heads            of a batch row
//    128      4  batches
//    132      4  parts            blocks that share the tokens of a head, where these are read
//    136      4  slope_is_summed  1: the partial sums have db too
//    140      4  sees_all         1: without causality
//    144      4  a
//    148      4  b
struct CoefficientSumsArguments {
  TensorView query;
  TensorView out;
  const double* partials;
  double* products;
  uint32_t* tickets;
  const float* a_per_head;
  const float* b_per_head;
  float* a_gradient;
  float* b_gradient;
  int32_t count;
  int32_t heads;
  int32_t batches;
  int32_t parts;
  int32_t slope_is_summed;
  int32_t sees_all;
  float a;
  float b;
};

// What is left to do after sweeps: the gradients to repair where they are marked, and the coefficients, for which the
// first of the tasks is that of dq.
//
// offset  bytes  member
//      0   1272  tasks
//   1272    152  coefficients  partials null where they are not asked for
//   1424      4  first         of the tasks that are to be repaired
//   1428      4  count         of the tasks: up to the last one to repair
//   1432      4  adds          1: da and db come to those that are there, of later tokens
//   1436      4  reserved      0
struct GradientRecurrenceArguments {
  GradientArguments tasks[3];
  CoefficientSumsArguments coefficients;
  int32_t first;
  int32_t count;
  int32_t adds;
  int32_t reserved;
};

}  // namespace linattn
