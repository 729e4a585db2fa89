// The causal forward token by token in fp32: a value that is not finite reaches the rows that depend on it
// and no others, and the range of the operands is that of fp32.
#pragma once

#include "linattn/chunk_items.cuh"
#include "linattn/chunk_rows.cuh"
#include "linattn/dependent_launch.cuh"

namespace linattn {

// A tile is 32 value columns of an item of a head, and a block walks tiles: thread (column, slice) = (thread % 32, thread / 32) has
// key columns slice, slice + 4, ... of a column of S. Key columns: any, to 512. Shared memory, in floats:
//   S [Dk x 32], the rounding errors of S [Dk x 32] where they fit, q and k [T x Dk] each with Dk rounded up
//   to 4, v [T x 32], u [T x 32], partial sums [4 x T x 32], q.z by warps [4 x T], g [T].
template <typename ElementOf>
struct RecurrencePlan {
  using Element = ElementOf;
  static constexpr int kColumns = kRecurrenceColumns;
  static constexpr int kThreads = 128;
  static constexpr int kSlices = kThreads / kColumns;
  static constexpr int kTokens = 4;
  static constexpr int kMostKeys = 512;
  static constexpr int kPrefixesPerThread = kMostKeys / kThreads;
  static constexpr int kLanesPerRow = kThreads / (2 * kTokens);
  static constexpr int kMostBytes = 99 * 1024;

  __host__ __device__ static constexpr int row_stride(int key_dim) { return ceil_div(key_dim, 4) * 4; }

  __host__ __device__ static constexpr int bytes(int key_dim, int num_states) {
    return 4 * (num_states * key_dim * kColumns + 2 * kTokens * row_stride(key_dim) +
                kTokens * kColumns * (2 + kSlices) + kTokens * (kSlices + 1));
  }

  __host__ __device__ static constexpr bool keeps_errors(int key_dim) {
    return bytes(key_dim, 2) <= kMostBytes;
  }

  __host__ __device__ static constexpr int shared_bytes(int key_dim) {
    return bytes(key_dim, keeps_errors(key_dim) ? 2 : 1);
  }

  static_assert(bytes(kMostKeys, 1) <= kMostBytes, "every architecture lends a block this much");
};

// invariant: entering a chunk, the state is linear_smem + recent_smem, and recent_smem what linear_smem lost
// to rounding. Without room for it, what the sum of a chunk loses is lost.
template <class Plan>
__device__ __forceinline__ void scan_tokens(float* linear_smem, float* recent_smem, const float* query_smem,
                                            const float* key_smem, const float* value_smem, int key_dim,
                                            int num_tokens, float (&out_frag)[Plan::kTokens]) {
  const int column = static_cast<int>(threadIdx.x) % Plan::kColumns;
  const int slice = static_cast<int>(threadIdx.x) / Plan::kColumns;
  const int stride = Plan::row_stride(key_dim);
  float value_frag[Plan::kTokens];
#pragma unroll
  for (int t = 0; t < Plan::kTokens; ++t) {
    value_frag[t] = value_smem[t * Plan::kColumns + column];
    out_frag[t] = 0.0f;
  }
  for (int m = slice; m < key_dim; m += Plan::kSlices) {
    const float linear = linear_smem[m * Plan::kColumns + column];
    float recent = recent_smem == nullptr ? 0.0f : recent_smem[m * Plan::kColumns + column];
#pragma unroll
    for (int t = 0; t < Plan::kTokens; ++t) {
      if (t < num_tokens) {
        recent = fmaf(key_smem[t * stride + m], value_frag[t], recent);
        out_frag[t] = fmaf(query_smem[t * stride + m], linear + recent, out_frag[t]);
      }
    }
    const float sum = __fadd_rn(linear, recent);
    linear_smem[m * Plan::kColumns + column] = sum;
    if (recent_smem != nullptr) {
      const float error = __fsub_rn(recent, __fsub_rn(sum, linear));
      recent_smem[m * Plan::kColumns + column] = isinf(sum) ? 0.0f : error;
    }
  }
}

template <class Plan>
__device__ __forceinline__ void recurrence_tile(const ChunkedArguments& args, int64_t tile_number) {
  using Element = typename Plan::Element;
  constexpr int kTokens = Plan::kTokens;
  constexpr int kColumns = Plan::kColumns;
  extern __shared__ __align__(16) unsigned char chunk_smem[];

  const ValueTile<kColumns> tile(args, tile_number);
  const int key_dim = args.key_dim;
  const int stride = Plan::row_stride(key_dim);
  float* const linear_smem = reinterpret_cast<float*>(chunk_smem);
  float* const recent_smem = Plan::keeps_errors(key_dim) ? linear_smem + key_dim * kColumns : nullptr;
  float* const query_smem = linear_smem + (recent_smem == nullptr ? 1 : 2) * key_dim * kColumns;
  float* const key_smem = query_smem + kTokens * stride;
  float* const value_smem = key_smem + kTokens * stride;
  float* const value_sum_smem = value_smem + kTokens * kColumns;
  float* const partial_smem = value_sum_smem + kTokens * kColumns;
  float* const product_smem = partial_smem + Plan::kSlices * kTokens * kColumns;
  float* const normalizer_smem = product_smem + Plan::kSlices * kTokens;

  const int thread = static_cast<int>(threadIdx.x);
  const int column = thread % kColumns;
  const int slice = thread / kColumns;
  const bool column_valid = column < tile.num_columns;
  const Element* const query_gmem = tile.template query<Element>(args);
  const Element* const key_gmem = tile.template key<Element>(args);
  const Element* const value_gmem = tile.template value<Element>(args);
  Element* const out_gmem = tile.template out<Element>(args);

  for (int m = slice; m < key_dim; m += Plan::kSlices) {
    const bool valid = args.state_in != nullptr && column_valid;
    const int64_t source = tile.state_offset(args) + static_cast<int64_t>(m) * args.value_dim + column;
    linear_smem[m * kColumns + column] = valid ? args.state_in[source] : 0.0f;
    if (recent_smem != nullptr) {
      recent_smem[m * kColumns + column] = 0.0f;
    }
  }
  RunningSum value_sum_frag(args.value_sum_in != nullptr && column_valid
                                ? args.value_sum_in[tile.value_sum_offset(args) + column]
                                : 0.0f);
  RunningSum key_sum_frag[Plan::kPrefixesPerThread];
#pragma unroll
  for (int i = 0; i < Plan::kPrefixesPerThread; ++i) {
    const int m = thread + i * Plan::kThreads;
    key_sum_frag[i] = RunningSum(args.key_sum_in != nullptr && m < key_dim
                                     ? args.key_sum_in[tile.key_sum_offset(args) + m]
                                     : 0.0f);
  }

  for (int first_token = 0; first_token < tile.item.tokens; first_token += kTokens) {
    const int tokens_left = tile.item.tokens - first_token;
    const int num_tokens = tokens_left < kTokens ? tokens_left : kTokens;
    // The last chunk's rows and factors are no longer read.
    __syncthreads();
    for (int t = 0; t < kTokens; ++t) {
      const bool valid = t < num_tokens;
      const int64_t token = first_token + t;
      for (int m = thread; m < stride; m += Plan::kThreads) {
        const bool m_valid = valid && m < key_dim;
        query_smem[t * stride + m] =
            m_valid ? to_float(query_gmem[token * args.query.token_stride + m]) : 0.0f;
        key_smem[t * stride + m] = m_valid ? to_float(key_gmem[token * args.key.token_stride + m]) : 0.0f;
      }
      if (slice == t % Plan::kSlices) {
        value_smem[t * kColumns + column] =
            valid && column_valid ? to_float(value_gmem[token * args.value.token_stride + column]) : 0.0f;
      }
    }
    __syncthreads();

    if (args.normalize != 0) {
      const int row = thread / Plan::kLanesPerRow;  // of q, then of k
      const int lane = thread % Plan::kLanesPerRow;
      float* const row_smem = query_smem + row * stride;
      float largest = 0.0f;
      for (int m = lane; m < key_dim; m += Plan::kLanesPerRow) {
        largest = fmaxf(largest, fabsf(row_smem[m]));
      }
      const float scale = scale_for(max_lanes<Plan::kLanesPerRow>(largest));
      float squares = 0.0f;
      for (int m = lane; m < key_dim; m += Plan::kLanesPerRow) {
        const float x = row_smem[m] * scale;
        squares = fmaf(x, x, squares);
      }
      const float length = sqrtf(sum_lanes<Plan::kLanesPerRow>(squares));
      const float inverse = length == 0.0f ? 1.0f : 1.0f / length;
      for (int m = lane; m < key_dim; m += Plan::kLanesPerRow) {
        row_smem[m] = row_smem[m] * scale * inverse;
      }
      __syncthreads();
    }

    float product_frag[kTokens];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      product_frag[t] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < Plan::kPrefixesPerThread; ++i) {
      const int m = thread + i * Plan::kThreads;
      if (m < key_dim) {
#pragma unroll
        for (int t = 0; t < kTokens; ++t) {
          key_sum_frag[i].add(key_smem[t * stride + m]);
          product_frag[t] = fmaf(query_smem[t * stride + m], key_sum_frag[i].total(), product_frag[t]);
        }
        key_sum_frag[i].fold();
      }
    }
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      const float sum = sum_lanes(product_frag[t]);
      if (thread % kWarp == 0) {
        product_smem[t * Plan::kSlices + thread / kWarp] = sum;
      }
    }
    if (slice == 0) {
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        value_sum_frag.add(value_smem[t * kColumns + column]);
        value_sum_smem[t * kColumns + column] = value_sum_frag.total();
      }
      value_sum_frag.fold();
    }
    float out_frag[kTokens];
    scan_tokens<Plan>(linear_smem, recent_smem, query_smem, key_smem, value_smem, key_dim, num_tokens,
                      out_frag);
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      partial_smem[(slice * kTokens + t) * kColumns + column] = out_frag[t];
    }
    __syncthreads();
    if (thread < num_tokens) {
      float sum = 0.0f;
#pragma unroll
      for (int warp = 0; warp < Plan::kSlices; ++warp) {
        sum += product_smem[thread * Plan::kSlices + warp];
      }
      const double count = static_cast<double>(tile.item.count + first_token + thread + 1);
      const float normalizer =
          static_cast<float>(tile.head.a * count + static_cast<double>(tile.head.b) * sum);
      normalizer_smem[thread] = normalizer;
      if (tile.block.tile_idx == 0) {
        tile.normalizer(args)[static_cast<int64_t>(first_token + thread) * args.normalizer.token_stride] =
            normalizer;
      }
    }
    __syncthreads();
    for (int t = slice; t < num_tokens; t += Plan::kSlices) {
      if (column_valid) {
        float linear = 0.0f;
#pragma unroll
        for (int l = 0; l < Plan::kSlices; ++l) {
          linear += partial_smem[(l * kTokens + t) * kColumns + column];
        }
        const float out = fmaf(tile.head.b, linear, tile.head.a * value_sum_smem[t * kColumns + column]);
        out_gmem[static_cast<int64_t>(first_token + t) * args.out.token_stride + column] =
            from_float<Element>(out / normalizer_smem[t]);
      }
    }
  }

  if (!tile.head.writes_state(args)) {
    return;
  }
  if (args.state_out != nullptr && column_valid) {
    for (int m = slice; m < key_dim; m += Plan::kSlices) {
      const float error = recent_smem == nullptr ? 0.0f : recent_smem[m * kColumns + column];
      args.state_out[tile.state_offset(args) + static_cast<int64_t>(m) * args.value_dim + column] =
          linear_smem[m * kColumns + column] + error;
    }
  }
  if (args.value_sum_out != nullptr && column_valid && slice == 0) {
    args.value_sum_out[tile.value_sum_offset(args) + column] = value_sum_frag.total();
  }
  if (args.key_sum_out != nullptr && tile.block.tile_idx == 0) {
#pragma unroll
    for (int i = 0; i < Plan::kPrefixesPerThread; ++i) {
      const int m = thread + i * Plan::kThreads;
      if (m < key_dim) {
        args.key_sum_out[tile.key_sum_offset(args) + m] = key_sum_frag[i].total();
      }
    }
  }
}

// Calls repair(tile) for the tiles from `begin` to `end`, `step` apart, for which is_marked(tile). Mostly nothing is: a
// thread for each tile finds that out at once.
template <int kThreads, typename IsMarked, typename Repair>
__device__ __forceinline__ void walk_marked_tiles(int64_t begin, int64_t end, int64_t step, IsMarked&& is_marked,
                                                  Repair&& repair) {
  for (int64_t first = begin; first < end; first += kThreads * step) {
    const int64_t own = first + threadIdx.x * step;
    if (__syncthreads_or(own < end && is_marked(own)) == 0) {
      continue;
    }
    for (int i = 0; i < kThreads && first + i * step < end; ++i) {
      if (is_marked(first + i * step)) {
        repair(first + i * step);
      }
    }
  }
}

// Whether a sweep marked 64 columns of an item of a head, in any of its turns.
__device__ __forceinline__ bool is_marked(const ChunkedArguments& args, uint32_t item_of_head, uint32_t box) {
  const uint32_t marks_per_item = ceil_div(args.value_dim, kValueColumns);
  uint32_t marked = args.marks == nullptr;
  for (int turn = 0; turn < args.turns && marked == 0; ++turn) {
    const int64_t walk = static_cast<int64_t>(item_of_head) * args.turns + turn;
    marked = args.marks[walk * marks_per_item + box];
  }
  return marked != 0;
}

// tile = (head * num_items + item) * ceil(Dv / 32) + value tile, heads counted over all batch rows; it is left
// alone where the forward did not mark it.
template <class Plan>
__device__ __forceinline__ void recurrence(const ChunkedArguments& args) {
  let_later_kernels_start();
  const uint32_t tiles = ceil_div(args.value_dim, Plan::kColumns);
  const int64_t num_tiles = static_cast<int64_t>(args.batches) * args.heads.value * args.num_items.value * tiles;
  wait_for_earlier_kernels();
  walk_marked_tiles<Plan::kThreads>(
      blockIdx.x, num_tiles, gridDim.x,
      [&](int64_t tile_number) {
        const uint32_t number = static_cast<uint32_t>(tile_number);  // a grid could have it
        const uint32_t item_of_head = quotient_by_tiles(number, tiles);
        return is_marked(args, item_of_head, (number - item_of_head * tiles) / (kValueColumns / Plan::kColumns));
      },
      [&](int64_t tile_number) { recurrence_tile<Plan>(args, tile_number); });
}

}  // namespace linattn
