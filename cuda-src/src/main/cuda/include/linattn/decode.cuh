// One token of each key/value head: the state is read, takes the token, answers the queries of the group.
#pragma once

#include "linattn/chunk_items.cuh"
#include "linattn/chunk_rows.cuh"
#include "linattn/dependent_launch.cuh"

namespace linattn {

// A block has a tile of kColumns value columns of an item of a kv head, whose first token is the token:
//   block = (kv_head * num_items + item) * tiles + tile, kv heads counted over all batch rows.
// The final state may be the initial one. A thread reads what it has of S and u before it writes it. All tiles
// read z; the block that is the last of them to have read it, as the item's ticket tells, writes it. Key columns:
// any, to 512. Shared memory, in floats:
//   z with the token [row], k and the queries of the group where they are staged [(1 + group) x row], partial
//   sums [group x warps x kPartials], where a row is Dk rounded up to 4.
template <typename ElementOf, int kColumnsOf, int kThreadsOf>
struct DecodePlan {
  using Element = ElementOf;
  static constexpr int kColumns = kColumnsOf;
  static constexpr int kThreads = kThreadsOf;
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kLanesPerRow = kColumns / 4;  // 16 bytes each
  static constexpr int kRows = kLanesPerRow;         // of S, neighbours, in a thread; a lane has z of one
  static constexpr int kPassRows = kThreads / kLanesPerRow * kRows;  // of a block, under way at once
  static constexpr int kPartials = kColumns + 4;     // q.S of a tile, q.z, padding to 16 bytes

  static_assert(kColumns == 16 || kColumns == 32, "rows of a thread are few, and fours");
  static_assert(kThreads % kColumns == 0, "a thread has one column of the outputs");

  __host__ __device__ static constexpr int row_stride(int key_dim) { return ceil_div(key_dim, 4) * 4; }

  __host__ __device__ static constexpr int shared_bytes(int key_dim, int group) {
    return 4 * ((2 + group) * row_stride(key_dim) + group * kWarps * kPartials);
  }
};

// Returns how many were taken before. Relaxed, because a fence would wait for the block's writes of S: what this
// block has read of z stands in its registers by then, and who writes z has seen all tickets.
__device__ __forceinline__ uint32_t take_ticket(uint32_t* tickets) {
  uint32_t before;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(tickets) : "memory");
  return before;
}

template <typename Element>
__device__ __forceinline__ float4 load_four(const Element* x) {
  if constexpr (sizeof(Element) == 4) {
    return *reinterpret_cast<const float4*>(x);
  } else {
    const uint2 words = *reinterpret_cast<const uint2*>(x);
    const float2 low = unpack<Element>(words.x);
    const float2 high = unpack<Element>(words.y);
    return make_float4(low.x, low.y, high.x, high.y);
  }
}

// Neighbours of a row, of which `num_valid` are there; the others are zero. Fours are aligned to their size.
template <int kCount, typename Element>
__device__ __forceinline__ void load_neighbours(float (&x_frag)[kCount], const Element* x, int num_valid) {
  if (num_valid >= kCount) {
#pragma unroll
    for (int i = 0; i < kCount; i += 4) {
      const float4 four = load_four(x + i);
      x_frag[i] = four.x;
      x_frag[i + 1] = four.y;
      x_frag[i + 2] = four.z;
      x_frag[i + 3] = four.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      x_frag[i] = i < num_valid ? to_float(x[i]) : 0.0f;
    }
  }
}

// Brings a row to shared memory, divided by its length if `normalize`: by a power of two first, so that
// squares neither overflow nor vanish. A warp has the row, a lane always the same fours.
template <typename Element>
__device__ __forceinline__ void stage_row(float* row_smem, const Element* row_gmem, int num_columns,
                                          bool normalize) {
  const int first_column = static_cast<int>(threadIdx.x) % kWarp * 4;
  const auto visit_fours = [&](auto&& visit) {
#pragma unroll 1
    for (int column = first_column; column < num_columns; column += 4 * kWarp) {
      visit(column, *reinterpret_cast<float4*>(row_smem + column));
    }
  };
  float largest = 0.0f;
  visit_fours([&](int column, float4& four) {
    float x_frag[4];
    load_neighbours(x_frag, row_gmem + column, num_columns - column);
    four = make_float4(x_frag[0], x_frag[1], x_frag[2], x_frag[3]);
    largest = fmaxf(fmaxf(largest, fmaxf(fabsf(four.x), fabsf(four.y))), fmaxf(fabsf(four.z), fabsf(four.w)));
  });
  if (!normalize) {
    return;
  }
  const float scale = scale_for(max_lanes<kWarp>(largest));
  float squares = 0.0f;
  visit_fours([&](int, float4& four) {
    four = make_float4(four.x * scale, four.y * scale, four.z * scale, four.w * scale);
    squares += four.x * four.x + four.y * four.y + four.z * four.z + four.w * four.w;
  });
  const float length = sqrtf(sum_lanes(squares));
  const float inverse = length == 0.0f ? 1.0f : 1.0f / length;
  visit_fours([&](int, float4& four) {
    four = make_float4(four.x * inverse, four.y * inverse, four.z * inverse, four.w * inverse);
  });
}

// What a block works on. Items and coefficients are constants: no kernel writes them.
template <class Plan>
struct DecodeWork {
  using Element = typename Plan::Element;
  int tile;
  int num_tiles;
  uint32_t item_of_head;  // counted over all kv heads
  int batch_idx;
  int kv_head_idx;
  int first_head;
  Item item;
  int64_t state;
  int num_keys;  // of k and q: 0 where the item has no token

  __device__ __forceinline__ explicit DecodeWork(const ChunkedArguments& args) {
    num_tiles = ceil_div(args.value_dim, Plan::kColumns);
    // Plainly: these divisions are over before the earlier kernel is, and their products would take registers.
    item_of_head = blockIdx.x / num_tiles;
    tile = static_cast<int>(blockIdx.x % num_tiles);
    const uint32_t kv_index = item_of_head / args.num_items.value;
    batch_idx = static_cast<int>(kv_index / args.kv_heads.value);
    kv_head_idx = static_cast<int>(kv_index % args.kv_heads.value);
    first_head = kv_head_idx * args.group.value;
    item = load_item(args, static_cast<int>(item_of_head % args.num_items.value));
    state = state_index(args, kv_index, item.slot);
    num_keys = has_token() ? args.key_dim : 0;
  }

  __device__ __forceinline__ bool has_token() const { return item.tokens > 0; }

  __device__ __forceinline__ const Element* key(const ChunkedArguments& args) const {
    return row_address<Element>(args.key, batch_idx, kv_head_idx, item.start);
  }

  __device__ __forceinline__ const Element* value(const ChunkedArguments& args) const {
    return row_address<Element>(args.value, batch_idx, kv_head_idx, item.start);
  }

  __device__ __forceinline__ const Element* query(const ChunkedArguments& args, int head) const {
    return row_address<Element>(args.query, batch_idx, first_head + head, item.start);
  }

  __device__ __forceinline__ int64_t state_offset(const ChunkedArguments& args, int row, int column) const {
    return (state * args.key_dim + row) * args.value_dim + column;
  }
};

// Asks for all that a block reads.
template <class Plan>
__device__ __forceinline__ void prefetch_token(const ChunkedArguments& args, const DecodeWork<Plan>& work) {
  const int thread = static_cast<int>(threadIdx.x);
  const int first_column = work.tile * Plan::kColumns;
  const int column = thread % Plan::kLanesPerRow * 4;
  if (args.state_in != nullptr && first_column + column < args.value_dim) {
#pragma unroll 4
    for (int m = thread / Plan::kLanesPerRow; m < args.key_dim; m += Plan::kThreads / Plan::kLanesPerRow) {
      prefetch_before_wait(args.state_in + work.state_offset(args, m, first_column + column));
    }
  }
  for (int m = thread; m < args.key_dim; m += Plan::kThreads) {
    if (args.key_sum_in != nullptr) {
      prefetch_before_wait(args.key_sum_in + work.state * args.key_dim + m);
    }
    if (m < work.num_keys) {
      prefetch_before_wait(work.key(args) + m);
      for (int head = 0; head < args.group.value; ++head) {
        prefetch_before_wait(work.query(args, head) + m);
      }
    }
  }
  if (first_column + column < args.value_dim) {
    if (args.value_sum_in != nullptr) {
      prefetch_before_wait(args.value_sum_in + work.state * args.value_dim + first_column + column);
    }
    if (work.has_token()) {
      prefetch_before_wait(work.value(args) + first_column + column);
    }
  }
}

template <class Plan>
__device__ __forceinline__ void decode(const ChunkedArguments& args) {
  let_later_kernels_start();
  using Element = typename Plan::Element;
  constexpr int kColumns = Plan::kColumns;
  constexpr int kRows = Plan::kRows;
  extern __shared__ __align__(16) unsigned char chunk_smem[];

  const DecodeWork<Plan> work(args);
  const int key_dim = args.key_dim;
  const int num_keys = work.num_keys;
  const int stride = Plan::row_stride(key_dim);
  float* const key_sum_smem = reinterpret_cast<float*>(chunk_smem);
  float* const key_smem = key_sum_smem + stride;
  float* const query_smem = key_smem + stride;
  float* const partial_smem = query_smem + args.group.value * stride;

  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarp;
  const int lane = thread % kWarp;
  const int row = thread / Plan::kLanesPerRow * kRows;
  const int own = thread % Plan::kLanesPerRow;  // the row of which this lane has z
  const int column = own * 4;
  const int out_column = thread % kColumns;
  const int first_column = work.tile * kColumns;
  const int num_columns = min(args.value_dim - first_column, kColumns);
  const bool is_vector = args.value_dim % 4 == 0;  // then rows of S stay aligned to 16 bytes
  const bool is_staged = args.normalize != 0 || args.group.value > 1;

  float state_frag[kRows][4];
  float key_frag[kRows];
  float query_frag[kRows];
  float key_sum;

  const auto load_state = [&](int m) {
    const float* const rows_gmem = args.state_in + work.state_offset(args, m, first_column + column);
    const int num_rows = args.state_in != nullptr ? key_dim - m : 0;
    if (is_vector) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const bool valid = i < num_rows && column < num_columns;
        const float4 four = valid ? load_four(rows_gmem + static_cast<int64_t>(i) * args.value_dim)
                                  : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        state_frag[i][0] = four.x;
        state_frag[i][1] = four.y;
        state_frag[i][2] = four.z;
        state_frag[i][3] = four.w;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const bool valid = i < num_rows && column + c < num_columns;
          state_frag[i][c] = valid ? rows_gmem[static_cast<int64_t>(i) * args.value_dim + c] : 0.0f;
        }
      }
    }
    const bool valid = args.key_sum_in != nullptr && m + own < key_dim;
    key_sum = valid ? args.key_sum_in[work.state * key_dim + m + own] : 0.0f;
  };
  const auto store_state = [&](int m) {
    float* const rows_gmem = args.state_out + work.state_offset(args, m, first_column + column);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      float* const row_gmem = rows_gmem + static_cast<int64_t>(i) * args.value_dim;
      if (is_vector) {
        if (m + i < key_dim && column < num_columns) {
          *reinterpret_cast<float4*>(row_gmem) =
              make_float4(state_frag[i][0], state_frag[i][1], state_frag[i][2], state_frag[i][3]);
        }
      } else {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          if (m + i < key_dim && column + c < num_columns) {
            row_gmem[c] = state_frag[i][c];
          }
        }
      }
    }
  };
  const auto load_key = [&](int m) {
    if (is_staged) {
      load_neighbours(key_frag, key_smem + m, num_keys - m);
    } else {
      load_neighbours(key_frag, work.key(args) + m, num_keys - m);
    }
  };
  const auto load_query = [&](int m, int i) {
    if (is_staged) {
      load_neighbours(query_frag, query_smem + i * stride + m, num_keys - m);
    } else {
      load_neighbours(query_frag, work.query(args, i) + m, num_keys - m);
    }
  };
  const auto own_row = [&](const float(&row_frag)[kRows]) {
    float x = row_frag[0];
#pragma unroll
    for (int i = 1; i < kRows; ++i) {
      x = own == i ? row_frag[i] : x;
    }
    return x;
  };

#if LINATTN_DEPENDENT_LAUNCHES
  prefetch_token<Plan>(args, work);
#endif
  wait_for_earlier_kernels();

  // All that comes from memory is asked for before anything is waited for.
  load_state(row);
  const Element* const value_gmem = work.value(args) + first_column;
  float value_frag[4];
  load_neighbours(value_frag, value_gmem + column, work.has_token() ? num_columns - column : 0);
  const int64_t value_sum_offset = work.state * args.value_dim + first_column + out_column;
  const bool column_valid = out_column < num_columns;
  float value_sum = args.value_sum_in != nullptr && column_valid ? args.value_sum_in[value_sum_offset] : 0.0f;
  if (work.has_token() && column_valid) {
    value_sum += to_float(value_gmem[out_column]);
  }
  if (is_staged) {
    for (int r = warp; r < 1 + args.group.value; r += Plan::kWarps) {
      stage_row(key_smem + r * stride, r == 0 ? work.key(args) : work.query(args, r - 1), num_keys,
                args.normalize != 0);
    }
    __syncthreads();
  }

#pragma unroll 1
  for (int m = row; m - row < key_dim; m += Plan::kPassRows) {
    if (m > row) {
      load_state(m);
    }
    load_key(m);
    load_query(m, 0);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (m + i < key_dim) {  // 0 times an infinite v would not be 0
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          state_frag[i][c] = fmaf(key_frag[i], value_frag[c], state_frag[i][c]);
        }
      }
    }
    if (args.state_out != nullptr) {
      store_state(m);
    }
    key_sum += own_row(key_frag);
    if (m + own < key_dim) {
      key_sum_smem[m + own] = key_sum;
    }

#pragma unroll 1
    for (int head = 0; head < args.group.value; ++head) {
      if (head > 0) {
        load_query(m, head);
      }
      float sum_frag[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          sum_frag[c] = fmaf(query_frag[i], state_frag[i][c], sum_frag[c]);
        }
      }
#pragma unroll
      for (int distance = Plan::kLanesPerRow; distance < kWarp; distance *= 2) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          sum_frag[c] += __shfl_xor_sync(kAllLanes, sum_frag[c], distance);
        }
      }
      const float product = sum_lanes(own_row(query_frag) * key_sum);
      if (lane < Plan::kLanesPerRow) {
        float* const slot_smem = partial_smem + (head * Plan::kWarps + warp) * Plan::kPartials;
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          slot_smem[column + c] = sum_frag[c] + (m > row ? slot_smem[column + c] : 0.0f);
        }
        if (lane == 0) {
          slot_smem[kColumns] = product + (m > row ? slot_smem[kColumns] : 0.0f);
        }
      }
    }
  }
  __syncthreads();
  // All threads have read their part of z; the answer comes while the outputs are computed.
  uint32_t tickets_before = 0;
  if (thread == 0 && args.key_sum_out != nullptr) {
    tickets_before = take_ticket(args.tickets + kTicketWords * work.item_of_head);
  }

  for (int i = thread / kColumns; i < args.group.value; i += Plan::kThreads / kColumns) {
    float linear = 0.0f;
    float product = 0.0f;
#pragma unroll
    for (int w = 0; w < Plan::kWarps; ++w) {
      const float* const slot_smem = partial_smem + (i * Plan::kWarps + w) * Plan::kPartials;
      linear += slot_smem[out_column];
      product += slot_smem[kColumns];
    }
    const int head_idx = work.first_head + i;
    const float a = args.a_per_head == nullptr ? args.a : args.a_per_head[head_idx];
    const float b = args.b_per_head == nullptr ? args.b : args.b_per_head[head_idx];
    const double count = static_cast<double>(work.item.count + 1);
    const float normalizer = static_cast<float>(a * count + static_cast<double>(b) * product);
    if (work.has_token() && column_valid) {
      const float out = fmaf(b, linear, a * value_sum) / normalizer;
      row_address<Element>(args.out, work.batch_idx, head_idx, work.item.start)[first_column + out_column] =
          from_float<Element>(out);
    }
    if (work.has_token() && work.tile == 0 && out_column == 0) {
      *row_address<float>(args.normalizer, work.batch_idx, head_idx, work.item.start) = normalizer;
    }
  }
  // Every thread has read its column of u: the barrier above came after.
  if (args.value_sum_out != nullptr && thread < kColumns && column_valid) {
    args.value_sum_out[value_sum_offset] = value_sum;
  }
  if (args.key_sum_out == nullptr) {
    return;
  }
  const bool is_last = tickets_before + 1 == static_cast<uint32_t>(work.num_tiles);
  if (__syncthreads_or(thread == 0 && is_last) != 0) {
    for (int m = thread; m < key_dim; m += Plan::kThreads) {
      args.key_sum_out[work.state * key_dim + m] = key_sum_smem[m];
    }
    if (thread == 0) {
      args.tickets[kTicketWords * work.item_of_head] = 0;  // for the next launch
    }
  }
}

}  // namespace linattn
