// The states before items, or after them, from the sums of items.
#pragma once

#include "linattn/chunk_items.cuh"
#include "linattn/chunk_rows.cuh"
#include "linattn/dependent_launch.cuh"

namespace linattn {

// A thread has two elements of the state of a sequence of a kv head, side by side in S, z or u, in this order:
// block = (kv_head * num_sequences + sequence) * tiles + tile, kElements each. With `spans` null there is one
// sequence. D and Dv are multiples of 16, and states start at multiples of 16 bytes, so no two are apart.
struct StateScanPlan {
  static constexpr int kThreads = 128;
  static constexpr int kElements = 2 * kThreads;
  static constexpr int kSharedBytes = 0;

  __host__ __device__ static constexpr int tiles(int key_dim, int value_dim) {
    return ceil_div(key_dim * value_dim + key_dim + value_dim, kElements);
  }
};

struct TwoSums {
  RunningSum x;
  RunningSum y;

  __device__ __forceinline__ explicit TwoSums(const float2& start) : x(start.x), y(start.y) {}

  __device__ __forceinline__ void add(const float2& terms) {
    x.add(terms.x);
    y.add(terms.y);
    x.fold();
    y.fold();
  }

  __device__ __forceinline__ float2 totals() const { return make_float2(x.total(), y.total()); }
};

template <class Plan>
__device__ __forceinline__ void state_scan(const StateScanArguments& args) {
  constexpr int kBatch = 16;  // loads under way
  let_later_kernels_start();
  const uint32_t tiles = Plan::tiles(args.key_dim, args.value_dim);
  const uint32_t sequence_of_head = blockIdx.x / tiles;
  const int64_t head = sequence_of_head / args.num_sequences;
  const int sequence = static_cast<int>(sequence_of_head % args.num_sequences);
  int element = static_cast<int>(blockIdx.x % tiles) * Plan::kElements + 2 * static_cast<int>(threadIdx.x);
  float* sums_gmem = args.state;
  const float* in_gmem = args.state_in;
  float* out_gmem = args.state_out;
  int extent = args.key_dim * args.value_dim;
  wait_for_earlier_kernels();
  if (element >= extent) {
    element -= extent;
    extent = args.key_dim;
    sums_gmem = args.key_sum;
    in_gmem = args.key_sum_in;
    out_gmem = args.key_sum_out;
    if (element >= extent) {
      element -= extent;
      extent = args.value_dim;
      sums_gmem = args.value_sum;
      in_gmem = args.value_sum_in;
      out_gmem = args.value_sum_out;
      if (element >= extent) {
        return;
      }
    }
  }
  Span span;
  span.first = 0;
  span.num_items = args.num_items;
  if (args.spans != nullptr) {
    span = args.spans[sequence];
  }
  const int64_t end_offset = (head * args.num_sequences + sequence) * extent + element;
  // The last sum is in the final state alone; where nobody wants that, it has not been computed.
  const int num_sums = out_gmem != nullptr || args.spans != nullptr ? span.num_items : span.num_items - 1;
  const float2 zeros = make_float2(0.0f, 0.0f);
  TwoSums sums(in_gmem == nullptr ? zeros : *reinterpret_cast<const float2*>(in_gmem + end_offset));
  if (sums_gmem != nullptr) {
    const bool is_backwards = args.backwards != 0;
    const bool wants_states = args.totals_only == 0;
    const int64_t stride = is_backwards ? -static_cast<int64_t>(extent) : extent;
    const int first = span.first + (is_backwards ? span.num_items - 1 : 0);
    float* item_gmem = sums_gmem + (head * args.num_items + first) * extent + element;
    for (int i = 0; i < span.num_items; i += kBatch) {
      float2 terms_frag[kBatch];
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        terms_frag[k] = i + k < num_sums ? *reinterpret_cast<const float2*>(item_gmem + k * stride) : zeros;
      }
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        if (i + k == span.num_items) {
          break;
        }
        if (wants_states) {
          *reinterpret_cast<float2*>(item_gmem + k * stride) = sums.totals();
        }
        sums.add(terms_frag[k]);
      }
      item_gmem += kBatch * stride;
    }
  }
  if (out_gmem != nullptr) {
    *reinterpret_cast<float2*>(out_gmem + end_offset) = sums.totals();
  }
}

}  // namespace linattn
