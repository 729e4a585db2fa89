// What a block of a gradient works on: gradient_arguments.h has the vocabulary.
#pragma once

#include "linattn/chunk_items.cuh"
#include "linattn/gradient_arguments.h"
#include "linattn/memory.cuh"
#include "linattn/reduce.cuh"

namespace linattn {

// A block has kColumns columns of out of an item of a head of x, which is a query head for kQueryGradient and else a
// key/value head: block = (head * num_items + item) * tiles + tile, heads counted over all batch rows. Of a
// key/value head, y and z are those of its query heads, the `members` of the group, in turn.
template <int kColumns>
struct GradientTileOf {
  BlockIndex block;
  Item item;
  int batch_idx;
  int head_idx;  // of x and out
  int kv_head_idx;
  int members;
  int first_column;
  int num_columns;  // 1 <= num_columns <= kColumns
  int64_t state;

  __device__ __forceinline__ GradientTileOf(const ChunkedArguments& args, int64_t block_number, bool is_query)
      : block(block_number, args.num_items, ceil_div(args.value_dim, kColumns)),
        item(load_item(args, block.item_idx)),
        members(is_query ? 1 : args.group.value),
        first_column(block.tile_idx * kColumns) {
    const Head head(args, block.head, !is_query);
    batch_idx = head.batch_idx;
    head_idx = head.head_idx;
    kv_head_idx = head.kv_head_idx;
    const int columns_left = args.value_dim - first_column;
    num_columns = columns_left < kColumns ? columns_left : kColumns;
    state = state_index(args, head.kv_index, item.slot);
  }

  __device__ __forceinline__ int query_head(bool is_query, int member) const {
    return is_query ? head_idx : head_idx * members + member;
  }

  // Of y and z.
  __device__ __forceinline__ int source_head(bool is_query, int member) const {
    return is_query ? kv_head_idx : head_idx * members + member;
  }

  template <typename Element>
  __device__ __forceinline__ Element* out(const ChunkedArguments& args) const {
    return row_address<Element>(args.out, batch_idx, head_idx, item.start) + first_column;
  }

  __device__ __forceinline__ int64_t state_offset(const ChunkedArguments& args) const {
    return state * args.key_dim * args.value_dim;
  }
  __device__ __forceinline__ int64_t key_sum_offset(const ChunkedArguments& args) const {
    return state * args.key_dim;
  }
  __device__ __forceinline__ int64_t value_sum_offset(const ChunkedArguments& args) const {
    return state * args.value_dim + first_column;
  }
};

using GradientTile = GradientTileOf<kValueColumns>;

// Strides of a state [Dk, Dv] along the columns of y and of z: kValueGradient alone has Dk as the width of y.
struct StateStrides {
  int64_t y;
  int64_t z;

  __device__ __forceinline__ StateStrides(const ChunkedArguments& args, int task)
      : y(task == kValueGradient ? args.value_dim : 1), z(task == kValueGradient ? 1 : args.key_dim) {}
};

__device__ __forceinline__ float coefficient(const float* per_head_gmem, float scalar, int head_idx) {
  return per_head_gmem == nullptr ? scalar : per_head_gmem[head_idx];
}

// What a row of z, and with it a column of weights, is multiplied by:
//   weight = slope * (x . y) + offset, state += y (slope z)^T, sum += offset z.
struct RowFactors {
  float slope;
  float offset;

  // Of kKeyGradient and kValueGradient; `scale` is 1 / |q|.
  __device__ __forceinline__ RowFactors(int task, float a, float b, float inverse_normalizer, float delta,
                                        float scale) {
    if (task == kKeyGradient) {
      slope = b * inverse_normalizer * scale;
      offset = -delta * slope;
    } else {
      slope = b * inverse_normalizer;
      offset = a * inverse_normalizer;
    }
  }
};

// Writes partial sums number `place`: the terms of the threads of a block, added in their order. `sums_smem` has two
// elements for each warp and may be in use until the first of the barriers.
template <typename Meet>
__device__ __forceinline__ void store_partials(const GradientArguments& args, int64_t place, double constant_term,
                                               double slope_term, double* sums_smem, int num_threads, Meet&& meet) {
  const int thread = static_cast<int>(threadIdx.x);
  const double warp_sums_frag[2] = {sum_lanes(constant_term), sum_lanes(slope_term)};
  meet();
  if (thread % kWarp == 0) {
    sums_smem[thread / kWarp * 2] = warp_sums_frag[0];
    sums_smem[thread / kWarp * 2 + 1] = warp_sums_frag[1];
  }
  meet();
  if (thread < 2) {
    double sum = 0.0;
    for (int warp = 0; warp < num_threads / kWarp; ++warp) {
      sum += sums_smem[warp * 2 + thread];
    }
    args.partials[2 * place + thread] = sum;
  }
}

// What a stage holds of single rows: g, d, 1 / |q| and 1 / |k|.
enum StageRow { kNormalizerRow = 0, kDeltaRow = 1, kQueryScaleRow = 2, kKeyScaleRow = 3 };
constexpr int kStageRows = 4;

// Starts their copies, zero past the last row. Rows that nobody asked for stay as they are.
template <int kTokens, int kThreads>
__device__ __forceinline__ void start_row_copies(const GradientArguments& args, float* rows_smem, int batch_idx,
                                                 int query_head_idx, int kv_head_idx, int64_t token,
                                                 int num_rows) {
  const ChunkedArguments& chunked = args.chunked;
  for (int idx = static_cast<int>(threadIdx.x); idx < kStageRows * kTokens; idx += kThreads) {
    const int row = idx % kTokens;
    const int kind = idx / kTokens;
    const bool valid = row < num_rows;
    const float* source_gmem;
    if (kind == kNormalizerRow) {
      source_gmem = row_address<float>(chunked.normalizer, batch_idx, query_head_idx, token + (valid ? row : 0));
    } else {
      const bool is_key = kind == kKeyScaleRow;
      const int heads = (is_key ? chunked.kv_heads : chunked.heads).value;
      const int64_t head = static_cast<int64_t>(batch_idx) * heads + (is_key ? kv_head_idx : query_head_idx);
      source_gmem = (kind == kDeltaRow ? args.delta : is_key ? args.key_scale : args.query_scale) +
                    head * chunked.tokens + token + (valid ? row : 0);
    }
    if (kind < kQueryScaleRow || args.query_scale != nullptr) {
      copy_async<4>(rows_smem + idx, source_gmem, valid);
    }
  }
}

}  // namespace linattn
