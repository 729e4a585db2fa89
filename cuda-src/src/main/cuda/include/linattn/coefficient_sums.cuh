// da and db of a head, from partial sums of the sweeps and, where these say little, from rows.
#pragma once

#include <type_traits>

#include "linattn/coefficient_arguments.h"
#include "linattn/gradient_items.cuh"
#include "linattn/gradient_rows.cuh"

namespace linattn {

// The threads of a block that sums, and how they share rows.
struct CoefficientPlan {
  static constexpr int kThreads = 128;
  static constexpr int kRows = kThreads;  // RowShape wants to know
  static constexpr int kSamples = 8;
  // How many times the error of da by m may be that by q . dq before all of q and dq is read, which takes time. Random rows
  // have one or two, and normalised ones about the root of their columns, unless v has a mean.
  static constexpr double kMostMagnified = 32.0;
};

// The sums over a block in a fixed order, in every thread. `sums_smem` has kCount elements for each warp.
template <int kCount>
__device__ __forceinline__ void sum_block(double (&values)[kCount], double* sums_smem) {
  constexpr int kWarps = CoefficientPlan::kThreads / kWarp;
  __syncthreads();  // the sums before have been read
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const double of_warp = sum_lanes(values[i]);
    if (threadIdx.x % kWarp == 0) {
      sums_smem[threadIdx.x / kWarp * kCount + i] = of_warp;
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    values[i] = 0.0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) {
      values[i] += sums_smem[warp * kCount + i];
    }
  }
}

// The last token of a part of all tokens: of sample `number`.
__device__ __forceinline__ int sampled_token(int tokens, int number) {
  const int64_t end = static_cast<int64_t>(number + 1) * tokens / CoefficientPlan::kSamples;
  return end == 0 ? 0 : static_cast<int>(end - 1);
}

// Tokens that `token` sees. Items of a list stand in the order of their tokens; the last one that starts there is not empty.
__device__ __forceinline__ int64_t tokens_seen(const ChunkedArguments& args, bool sees_all, int token) {
  int item_idx = 0;
  if (args.items == nullptr) {
    item_idx = token / args.item_tokens;
  } else {
    for (int end = args.num_items.value; end - item_idx > 1;) {
      const int middle = (item_idx + end) / 2;
      if (args.items[middle].start <= token) {
        item_idx = middle;
      } else {
        end = middle;
      }
    }
  }
  const Item item = load_item(args, item_idx);
  return item.count + (sees_all ? 0 : token - item.start + 1);
}

// The rows of a head, by the task of dq.
template <typename Element>
struct CoefficientRows {
  using Plan = CoefficientPlan;

  const GradientArguments& task;
  const CoefficientSumsArguments& args;
  int batch_idx;
  int head_idx;

  __device__ __forceinline__ CoefficientRows(const GradientArguments& of_query, const CoefficientSumsArguments& sums,
                                             uint32_t head)
      : task(of_query), args(sums), batch_idx(static_cast<int>(head / sums.heads)) {
    head_idx = static_cast<int>(head) - batch_idx * sums.heads;
  }

  // What this thread has read of sampled rows: errors of a m / g, squared, in units of the roundoff, by either way. d = o . dO
  // has that of a rounded o; of it m / g, whose sum is da, has the share a c / g, c tokens seen, and q . dq = -a m / g the
  // rest. Where q . dq is not summed yet it has the rounding of dq too.
  struct Samples {
    double of_sums = 0.0;
    double of_products = 0.0;
  };

  __device__ __forceinline__ Samples sample(double a) const {
    const int key_vectors = vectors_of(task.chunked.value_dim);
    const int value_vectors = vectors_of(task.chunked.key_dim);
    const int most_vectors = key_vectors > value_vectors ? key_vectors : value_vectors;
    Samples samples;
    with_shape<Plan>(most_vectors, [&](auto shape) {
      using Shape = decltype(shape);
#pragma unroll 1
      for (int first = 0; first < Plan::kSamples; first += Shape::kRowsAtOnce) {
        const int number = first + static_cast<int>(threadIdx.x) / Shape::kLanes;
        const bool is_sample = number < Plan::kSamples;
        const int token = sampled_token(task.chunked.tokens, number % Plan::kSamples);
        const float normalizer = *row_address<float>(task.chunked.normalizer, batch_idx, head_idx, token);
        double outs_squared = 0.0;
        double products_squared = 0.0;
        visit_spans<Shape>(most_vectors, [&](int vector) {
          const auto load = [&](const TensorView& view, int num_vectors) {
            RowPart<Shape, Element> part;
            part.load(is_sample ? row(view, token) : nullptr, num_vectors, vector);
            return part;
          };
          const RowPart<Shape, Element> outs = load(args.out, value_vectors);
          const RowPart<Shape, Element> out_gradients = load(task.chunked.query, value_vectors);
          if (args.slope_is_summed == 0) {
            const RowPart<Shape, Element> queries = load(args.query, key_vectors);
            const RowPart<Shape, Element> query_gradients = load(task.chunked.out, key_vectors);
            products_squared = add_errors(query_gradients, queries, products_squared);
          }
          outs_squared = add_errors(outs, out_gradients, outs_squared);
        });
        const double share = a * static_cast<double>(tokens_seen(task.chunked, args.sees_all != 0, token)) / normalizer;
        samples.of_sums += share * share * outs_squared;
        const double scale = query_scale(token);
        samples.of_products += (1.0 - share) * (1.0 - share) * outs_squared + scale * scale * products_squared;
      }
    });
    return samples;
  }

  // What this thread has of the sum of q . dq over tokens of a part.
  __device__ __forceinline__ double products(int part, int parts) const {
    const int64_t tokens = task.chunked.tokens;
    const int begin = static_cast<int>(part * tokens / parts);
    const int end = static_cast<int>((part + 1) * tokens / parts);
    const int num_vectors = vectors_of(task.chunked.value_dim);
    double sum = 0.0;
    with_shape<Plan>(num_vectors, [&](auto shape) {
      using Shape = decltype(shape);
#pragma unroll 4
      for (int token = begin + static_cast<int>(threadIdx.x) / Shape::kLanes; token < end;
           token += Shape::kRowsAtOnce) {
        visit_spans<Shape>(num_vectors, [&](int vector) {
          RowPart<Shape, Element> queries;
          RowPart<Shape, Element> query_gradients;
          queries.load(row(args.query, token), num_vectors, vector);
          query_gradients.load(row(task.chunked.out, token), num_vectors, vector);
          sum += queries.add_product(query_gradients, 0.0f) * query_scale(token);
        });
      }
    });
    return sum;
  }

 private:
  // Below it numbers are as far apart as there; of fp16 it is not small.
  static constexpr float kSmallestNormal = std::is_same<Element, F16>::value ? 0x1p-14f : 0x1p-126f;

  // Adds what a product of two rows has of the rounding of x, squared.
  template <class Part>
  __device__ __forceinline__ static double add_errors(const Part& x, const Part& y, double sum) {
    Part unused = y;
    x.replace(unused, [&](float x_element, float y_element) {
      const double error = static_cast<double>(fmaxf(fabsf(x_element), kSmallestNormal)) * y_element;
      sum = fma(error, error, sum);
      return y_element;
    });
    return sum;
  }

  // 1 / |q| where rows are divided by their length; a row of zeros is multiplied by it.
  __device__ __forceinline__ double query_scale(int64_t token) const {
    const int64_t head = static_cast<int64_t>(batch_idx) * args.heads + head_idx;
    return task.query_scale == nullptr ? 1.0 : task.query_scale[head * task.chunked.tokens + token];
  }

  __device__ __forceinline__ const Element* row(const TensorView& view, int64_t token) const {
    return row_address<const Element>(view, batch_idx, head_idx, token);
  }

  __device__ __forceinline__ static int vectors_of(int dim) { return dim * static_cast<int>(sizeof(Element)) / 16; }

  // Calls visit(vector) with the first vector of each span of a row: but for the longest rows there is one.
  template <class Shape, typename Visit>
  __device__ __forceinline__ static void visit_spans(int num_vectors, Visit&& visit) {
    visit(0);
    if constexpr (Shape::kVectors > 1) {
#pragma unroll 1
      for (int vector = Shape::kLanes * Shape::kVectors; vector < num_vectors;
           vector += Shape::kLanes * Shape::kVectors) {
        visit(vector);
      }
    }
  }
};

// Leaves the sum of a part. Returns, to one thread of the block that comes last, the sum of all parts in their order, and
// false to all others.
__device__ __forceinline__ bool add_parts(const CoefficientSumsArguments& args, uint32_t head, int part, int parts,
                                          double& sum) {
  if (threadIdx.x != 0) {
    return false;
  }
  double* const products_gmem = args.products + head * parts;
  products_gmem[part] = sum;
  __threadfence();
  if (atomicAdd(args.tickets + head, 1u) + 1 < static_cast<uint32_t>(parts)) {
    return false;
  }
  args.tickets[head] = 0;  // for the next launch
  __threadfence();
  sum = 0.0;
  for (int i = 0; i < parts; ++i) {
    sum += __ldcg(products_gmem + i);
  }
  return true;
}

// a da + b db = 0, since o depends on a : b alone, so that either follows from the other: da from db where weights are flat,
// |b q.k| far below |a|, since there the terms of m nearly cancel, or where no sample has a dO; else db from da. By the blocks
// of all parts of a head, or by one.
template <typename Element>
__device__ __forceinline__ void sum_coefficients(const GradientArguments& task, const CoefficientSumsArguments& args,
                                                 bool adds, uint32_t head, int part, int parts,
                                                 double* sums_smem) {
  const CoefficientRows<Element> rows(task, args, head);
  const double a = coefficient(args.a_per_head, args.a, rows.head_idx);
  const double b = coefficient(args.b_per_head, args.b, rows.head_idx);
  const bool is_summed = args.slope_is_summed != 0;

  const double2* const partials_gmem = reinterpret_cast<const double2*>(args.partials) + static_cast<int64_t>(head) * args.count;
  const auto samples = rows.sample(a);
  double sums[4] = {0.0, 0.0, samples.of_sums, samples.of_products};
  for (int i = static_cast<int>(threadIdx.x); i < args.count; i += CoefficientPlan::kThreads) {
    const double2 partial = partials_gmem[i];
    sums[0] += partial.x;
    sums[1] += partial.y;
  }
  sum_block(sums, sums_smem);

  const double most = is_summed ? 1.0 : CoefficientPlan::kMostMagnified;
  const bool says_nothing = sums[2] == 0.0;  // no sample has a dO
  const bool is_flat = a != 0.0 && (says_nothing || sums[2] > most * most * sums[3]);
  bool writes = part == 0 && threadIdx.x == 0;
  double slope = sums[1];
  if (is_flat && !is_summed) {
    double products[1] = {rows.products(part, parts)};
    sum_block(products, sums_smem);
    if (parts > 1) {
      writes = add_parts(args, head, part, parts, products[0]);
    }
    slope = products[0] / b;
  } else if (!is_flat && b != 0.0) {
    slope = -a * sums[0] / b;
  }
  if (writes) {
    const double constant = is_flat ? -b * slope / a : sums[0];
    if (args.a_gradient != nullptr) {
      args.a_gradient[head] = static_cast<float>(constant + (adds ? args.a_gradient[head] : 0.0f));
    }
    if (args.b_gradient != nullptr) {
      args.b_gradient[head] = static_cast<float>(slope + (adds ? args.b_gradient[head] : 0.0f));
    }
  }
}

}  // namespace linattn
