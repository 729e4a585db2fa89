// One token of each key/value head: the state is read, takes the token, answers the queries of the group.
#pragma once

#include "linattn/chunk_items.cuh"
#include "linattn/chunk_rows.cuh"

namespace linattn {

// A block has 32 value columns of an item of a kv head; the item's first token is the token:
//   block = (kv_head * num_items + item) * ceil(Dv / 32) + tile, kv heads counted over all batch rows.
// state_out may be state_in, and value_sum_out value_sum_in. But every tile of a head reads key_sum_in, and
// tile 0 writes key_sum_out: they must be different memory where Dv > 32. Key columns: any, to 512.
// Shared memory, in floats: k and the queries of the group [(1 + group) x row], z before the token [row],
// g [group], partial sums [group x warps x 32], where a row is Dk rounded up to 4.
template <typename ElementOf>
struct DecodePlan {
  using Element = ElementOf;
  static constexpr int kColumns = kRecurrenceColumns;
  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kLanesPerRow = 8;                     // a row of S is 8 x 16 bytes
  static constexpr int kRows = kThreads / kLanesPerRow;
  static constexpr int kRowsPerThread = 4;                   // loads under way
  static constexpr int kMostKeys = 512;
  static constexpr int kKeysPerThread = kMostKeys / kThreads;
  static constexpr int kMinBlocks = 2;

  __host__ __device__ static constexpr int row_stride(int key_dim) { return ceil_div(key_dim, 4) * 4; }

  __host__ __device__ static constexpr int shared_bytes(int key_dim, int group) {
    return 4 * ((2 + group) * row_stride(key_dim) + ceil_div(group, 4) * 4 + group * kWarps * kColumns);
  }
};

template <class Plan>
__device__ __forceinline__ void decode(const ChunkedArguments& args) {
  using Element = typename Plan::Element;
  constexpr int kColumns = Plan::kColumns;
  constexpr int kPassRows = Plan::kRows * Plan::kRowsPerThread;
  extern __shared__ __align__(16) unsigned char chunk_smem[];

  const BlockIndex block(blockIdx.x, args.num_items, ceil_div(args.value_dim, kColumns));
  const int kv_heads = args.heads / args.group;
  const int batch_idx = static_cast<int>(block.head / kv_heads);
  const int kv_head_idx = static_cast<int>(block.head % kv_heads);
  const Item item = load_item(args, block.item_idx);
  const int64_t state = state_index(args, block.head, item.slot);
  const int first_column = block.tile_idx * kColumns;
  const int num_columns = min(args.value_dim - first_column, kColumns);
  const bool has_token = item.tokens > 0;

  const int key_dim = args.key_dim;
  const int stride = Plan::row_stride(key_dim);
  float* const key_smem = reinterpret_cast<float*>(chunk_smem);
  float* const query_smem = key_smem + stride;
  float* const key_sum_smem = query_smem + args.group * stride;
  float* const normalizer_smem = key_sum_smem + stride;
  float* const partial_smem = normalizer_smem + ceil_div(args.group, 4) * 4;

  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarp;
  const int lane = thread % kWarp;
  const int row = thread / Plan::kLanesPerRow;
  const int column = thread % Plan::kLanesPerRow * 4;
  const int64_t offset = state * key_dim * args.value_dim + first_column + column;
  const bool is_vector = args.value_dim % 4 == 0;  // then rows of S stay aligned to 16 bytes

  const auto load_rows = [&](int first_row, float (&state_frag)[Plan::kRowsPerThread][4]) {
#pragma unroll
    for (int i = 0; i < Plan::kRowsPerThread; ++i) {
      const int m = first_row + row + i * Plan::kRows;
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        state_frag[i][c] = 0.0f;
      }
      if (args.state_in != nullptr && m < key_dim) {
        const float* row_gmem = args.state_in + offset + static_cast<int64_t>(m) * args.value_dim;
        if (is_vector) {
          if (column < num_columns) {
            const float4 x = *reinterpret_cast<const float4*>(row_gmem);
            state_frag[i][0] = x.x;
            state_frag[i][1] = x.y;
            state_frag[i][2] = x.z;
            state_frag[i][3] = x.w;
          }
        } else {
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            state_frag[i][c] = column + c < num_columns ? row_gmem[c] : 0.0f;
          }
        }
      }
    }
  };

  // All that comes from memory is asked for before anything is waited for.
  float state_frag[Plan::kRowsPerThread][4];
  load_rows(0, state_frag);
  const int out_column = thread % kColumns;
  const int64_t sum_offset = state * args.value_dim + first_column + out_column;
  const bool column_valid = out_column < num_columns;
  const float value_sum_before =
      args.value_sum_in != nullptr && column_valid ? args.value_sum_in[sum_offset] : 0.0f;
  const Element* const value_row_gmem = row_address<Element>(args.value, batch_idx, kv_head_idx, item.start);
  const float out_value =
      has_token && column_valid ? to_float(value_row_gmem[first_column + out_column]) : 0.0f;
  float key_sum_frag[Plan::kKeysPerThread];
#pragma unroll
  for (int i = 0; i < Plan::kKeysPerThread; ++i) {
    const int m = thread + i * Plan::kThreads;
    key_sum_frag[i] = args.key_sum_in != nullptr && m < key_dim ? args.key_sum_in[state * key_dim + m] : 0.0f;
  }

  float value_frag[4];
  const Element* const value_gmem = value_row_gmem + first_column + column;
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    value_frag[c] = has_token && column + c < num_columns ? to_float(value_gmem[c]) : 0.0f;
  }

  // Row 0 is k, row 1 + i the query of head i of the group; a warp has a row.
  for (int r = warp; r < 1 + args.group; r += Plan::kWarps) {
    const Element* const row_gmem =
        r == 0 ? row_address<Element>(args.key, batch_idx, kv_head_idx, item.start)
               : row_address<Element>(args.query, batch_idx, kv_head_idx * args.group + r - 1, item.start);
    float* const row_smem = key_smem + r * stride;
    float largest = 0.0f;
    for (int m = lane; m < key_dim; m += kWarp) {
      const float x = has_token ? to_float(row_gmem[m]) : 0.0f;
      row_smem[m] = x;
      largest = fmaxf(largest, fabsf(x));
    }
    if (args.normalize != 0) {
      const float scale = scale_for(max_lanes<kWarp>(largest));
      float squares = 0.0f;
      for (int m = lane; m < key_dim; m += kWarp) {
        const float x = row_smem[m] * scale;
        squares = fmaf(x, x, squares);
      }
      const float length = sqrtf(sum_lanes(squares));
      const float inverse = length == 0.0f ? 1.0f : 1.0f / length;
      for (int m = lane; m < key_dim; m += kWarp) {
        row_smem[m] = row_smem[m] * scale * inverse;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < Plan::kKeysPerThread; ++i) {
    const int m = thread + i * Plan::kThreads;
    if (m < key_dim) {
      key_sum_smem[m] = key_sum_frag[i];
    }
  }
  __syncthreads();

  if (block.tile_idx == 0 && args.key_sum_out != nullptr) {
    for (int m = thread; m < key_dim; m += Plan::kThreads) {
      args.key_sum_out[state * key_dim + m] = key_sum_smem[m] + key_smem[m];
    }
  }
  for (int i = warp; i < args.group; i += Plan::kWarps) {
    float sum = 0.0f;
    for (int m = lane; m < key_dim; m += kWarp) {
      sum = fmaf(query_smem[i * stride + m], key_sum_smem[m] + key_smem[m], sum);
    }
    sum = sum_lanes(sum);
    if (lane == 0) {
      const int head_idx = kv_head_idx * args.group + i;
      const Head head(args, static_cast<int64_t>(batch_idx) * args.heads + head_idx);
      const double count = static_cast<double>(item.count + 1);
      const float normalizer = static_cast<float>(head.a * count + static_cast<double>(head.b) * sum);
      normalizer_smem[i] = normalizer;
      if (block.tile_idx == 0 && has_token) {
        *row_address<float>(args.normalizer, batch_idx, head_idx, item.start) = normalizer;
      }
    }
  }

  for (int first_row = 0; first_row < key_dim; first_row += kPassRows) {
    if (first_row > 0) {
      load_rows(first_row, state_frag);
    }
#pragma unroll
    for (int i = 0; i < Plan::kRowsPerThread; ++i) {
      const int m = first_row + row + i * Plan::kRows;
      if (m < key_dim) {
        const float key = key_smem[m];
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          state_frag[i][c] = fmaf(key, value_frag[c], state_frag[i][c]);
        }
        if (args.state_out != nullptr) {
          float* row_gmem = args.state_out + offset + static_cast<int64_t>(m) * args.value_dim;
          if (is_vector) {
            if (column < num_columns) {
              *reinterpret_cast<float4*>(row_gmem) =
                  make_float4(state_frag[i][0], state_frag[i][1], state_frag[i][2], state_frag[i][3]);
            }
          } else {
#pragma unroll
            for (int c = 0; c < 4; ++c) {
              if (column + c < num_columns) {
                row_gmem[c] = state_frag[i][c];
              }
            }
          }
        }
      }
    }
    for (int head = 0; head < args.group; ++head) {
      float sum_frag[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int i = 0; i < Plan::kRowsPerThread; ++i) {
        const int m = first_row + row + i * Plan::kRows;
        if (m < key_dim) {
          const float query = query_smem[head * stride + m];
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            sum_frag[c] = fmaf(query, state_frag[i][c], sum_frag[c]);
          }
        }
      }
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        for (int distance = Plan::kLanesPerRow; distance < kWarp; distance *= 2) {
          sum_frag[c] += __shfl_xor_sync(kAllLanes, sum_frag[c], distance);
        }
      }
      if (lane < Plan::kLanesPerRow) {
        float* const slot_smem = partial_smem + (head * Plan::kWarps + warp) * kColumns + column;
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          slot_smem[c] = sum_frag[c] + (first_row > 0 ? slot_smem[c] : 0.0f);
        }
      }
    }
  }
  __syncthreads();

  const float value_sum = value_sum_before + out_value;
  if (has_token && column_valid) {
    for (int i = warp; i < args.group; i += Plan::kWarps) {  // a warp has the columns of a head
      const int head_idx = kv_head_idx * args.group + i;
      const Head head(args, static_cast<int64_t>(batch_idx) * args.heads + head_idx);
      float linear = 0.0f;
#pragma unroll
      for (int w = 0; w < Plan::kWarps; ++w) {
        linear += partial_smem[(i * Plan::kWarps + w) * kColumns + out_column];
      }
      const float out = fmaf(head.b, linear, head.a * value_sum) / normalizer_smem[i];
      row_address<Element>(args.out, batch_idx, head_idx, item.start)[first_column + out_column] =
          from_float<Element>(out);
    }
  }
  // Every thread has read its column of u: the barrier above came after.
  if (args.value_sum_out != nullptr && warp == 0 && column_valid) {
    args.value_sum_out[sum_offset] = value_sum;
  }
}

}  // namespace linattn
