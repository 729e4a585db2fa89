// The paper's family: forward and the three gradients of causal linear attention are one scan
// (table in arguments.h). A block owns a tile of value columns of one head, with all slices of the
// key dimension: thread (j, l) keeps slice l of column j of the state in registers, and the sums
// over slices go through shared memory in a fixed order. No atomics, no workspace.
// docs/decisions/0001-paper-family.md has the derivation.
#pragma once

#include "linattn/arguments.h"
#include "linattn/arithmetic.h"
#include "linattn/memory.cuh"
#include "linattn/reduce.cuh"

namespace linattn {

enum class ScanOperation { kForward, kQueryGradient, kKeyGradient, kValueGradient };

// Sizes in elements unless named otherwise. A block's shared memory, in this order:
//   2 stages of {query [T x D], key [T x D], value [T x J], g [T], delta [T]},
//   scratch [T x max(D, L J)], constant [T x J], row factor [T].
template <ScanOperation kOperationOf, int kHeadDimOf, int kSlicesOf, int kColumnsOf, int kTokensOf,
          bool kSplitSumsOf>
struct ScanPlan {
  static constexpr ScanOperation kOperation = kOperationOf;
  static constexpr int kHeadDim = kHeadDimOf;
  static constexpr int kSlices = kSlicesOf;
  static constexpr int kColumns = kColumnsOf;
  static constexpr int kTokens = kTokensOf;
  static constexpr bool kSplitSums = kSplitSumsOf;

  static constexpr bool kIsForward = kOperation == ScanOperation::kForward;
  static constexpr bool kIsQueryGradient = kOperation == ScanOperation::kQueryGradient;
  static constexpr bool kIsKeyGradient = kOperation == ScanOperation::kKeyGradient;
  static constexpr bool kIsReverse = !kIsForward && !kIsQueryGradient;
  static constexpr bool kReadsDelta = kIsQueryGradient || kIsKeyGradient;
  static constexpr bool kCentersValues = kReadsDelta;

  static constexpr int kTiles = kHeadDim / kColumns;
  static constexpr int kActiveThreads = kColumns * kSlices;
  static constexpr int kThreads = ceil_div(kActiveThreads, kWarp) * kWarp;
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kSliceDim = kHeadDim / kSlices;
  static constexpr int kStateRegisters = kSliceDim * (kSplitSums ? 2 : 1);
  static constexpr int kPrefixesPerThread = ceil_div(kHeadDim, kThreads);
  static constexpr int kOutputsPerThread = ceil_div(kTokens * kColumns, kThreads);

  static constexpr int kKeyOffset = kTokens * kHeadDim;
  static constexpr int kValueOffset = 2 * kTokens * kHeadDim;
  static constexpr int kNormalizerOffset = kValueOffset + kTokens * kColumns;
  static constexpr int kDeltaOffset = kNormalizerOffset + kTokens;
  static constexpr int kStageElements = kDeltaOffset + kTokens;
  static constexpr int kScratchElements = kTokens * (kHeadDim > kActiveThreads ? kHeadDim : kActiveThreads);
  static constexpr int kConstantOffset = 2 * kStageElements + kScratchElements;
  static constexpr int kRowFactorOffset = kConstantOffset + kTokens * kColumns;
  static constexpr int kSharedBytes = (kRowFactorOffset + kTokens) * static_cast<int>(sizeof(float));

  static_assert(kHeadDim % 16 == 0 && kColumns % 16 == 0, "rows are copied 16 bytes at a time");
  static_assert(kHeadDim % kColumns == 0, "tiles cover the value columns exactly");
  static_assert(kHeadDim % kSlices == 0 && kSliceDim % 4 == 0, "a slice is read 16 bytes at a time");
  static_assert(kTokens % 4 == 0 && kTokens <= kWarp, "regions start at 16 bytes; a warp covers a chunk's rows");
  static_assert(kThreads <= 1024, "a block has at most 1024 threads");
  static_assert(kScratchElements * sizeof(float) >= kWarps * sizeof(double),
                "the last sums of da and db reuse the scratch");
};

// What a block works on. Pointers are at the first row of its head.
template <typename Plan>
struct Tile {
  int64_t head;
  int tile_idx;
  int first_column;
  int64_t first_row;  // head x tokens
  float a;
  float b;

  __device__ __forceinline__ explicit Tile(const ScanArguments& args)
      : head(blockIdx.x / Plan::kTiles),
        tile_idx(static_cast<int>(blockIdx.x % Plan::kTiles)),
        first_column(tile_idx * Plan::kColumns),
        first_row(head * args.tokens) {
    const int64_t coefficient_idx = head % args.heads_per_batch;
    a = args.a_per_head == nullptr ? args.a : args.a_per_head[coefficient_idx];
    b = args.b_per_head == nullptr ? args.b : args.b_per_head[coefficient_idx];
  }
};

// Starts the copies of one chunk into a stage; rows at or past `tokens` are zero.
template <typename Plan>
__device__ __forceinline__ void start_chunk(const ScanArguments& args, const Tile<Plan>& tile,
                                            int64_t first_token, float* stage_smem) {
  constexpr int kVector = 4;
  const int64_t tokens_left = args.tokens - first_token;
  const int num_rows = tokens_left < Plan::kTokens ? static_cast<int>(tokens_left) : Plan::kTokens;
  const int64_t row = tile.first_row + first_token;
  const float* query_gmem = args.query + row * Plan::kHeadDim;
  const float* key_gmem = args.key + row * Plan::kHeadDim;
  const float* value_gmem = args.value + row * Plan::kHeadDim + tile.first_column;

  for (int idx = threadIdx.x * kVector; idx < Plan::kTokens * Plan::kHeadDim; idx += Plan::kThreads * kVector) {
    const bool valid = idx < num_rows * Plan::kHeadDim;
    const int source = valid ? idx : 0;
    copy_async<16>(stage_smem + idx, query_gmem + source, valid);
    copy_async<16>(stage_smem + Plan::kKeyOffset + idx, key_gmem + source, valid);
  }
  for (int idx = threadIdx.x * kVector; idx < Plan::kTokens * Plan::kColumns; idx += Plan::kThreads * kVector) {
    const int row_idx = idx / Plan::kColumns;
    const bool valid = row_idx < num_rows;
    const int source = valid ? row_idx * Plan::kHeadDim + idx % Plan::kColumns : 0;
    copy_async<16>(stage_smem + Plan::kValueOffset + idx, value_gmem + source, valid);
  }
  if constexpr (!Plan::kIsForward) {
    if (threadIdx.x < Plan::kTokens) {
      const int row_idx = static_cast<int>(threadIdx.x);
      const bool valid = row_idx < num_rows;
      const int64_t source = row + (valid ? row_idx : 0);
      copy_async<4>(stage_smem + Plan::kNormalizerOffset + row_idx, args.normalizer + source, valid);
      if constexpr (Plan::kReadsDelta) {
        copy_async<4>(stage_smem + Plan::kDeltaOffset + row_idx, args.delta + source, valid);
      }
    }
  }
}

// Columns m, m + threads, ... of value_center, which thread m takes from v: RowSums reads no others.
template <typename Plan>
struct ValueCenter {
  static constexpr int kRowsOffset = Plan::kIsQueryGradient ? Plan::kKeyOffset : 0;  // of v in a stage
  float center_frag[Plan::kPrefixesPerThread];

  __device__ __forceinline__ ValueCenter(const ScanArguments& args, const Tile<Plan>& tile) {
#pragma unroll
    for (int i = 0; i < Plan::kPrefixesPerThread; ++i) {
      const int column = static_cast<int>(threadIdx.x) + i * Plan::kThreads;
      center_frag[i] = Plan::kCentersValues && column < Plan::kHeadDim
                           ? args.value_center[tile.head * Plan::kHeadDim + column]
                           : 0.0f;
    }
  }

  // Rows past the end become -vbar. As keys they meet zero values, as queries outputs that are not written.
  __device__ __forceinline__ void subtract_from(float* stage_smem) const {
#pragma unroll
    for (int i = 0; i < Plan::kPrefixesPerThread; ++i) {
      const int column = static_cast<int>(threadIdx.x) + i * Plan::kThreads;
      if (column < Plan::kHeadDim) {
#pragma unroll 4
        for (int t = 0; t < Plan::kTokens; ++t) {
          stage_smem[kRowsOffset + t * Plan::kHeadDim + column] -= center_frag[i];
        }
      }
    }
  }
};

// query_i . (prefix sum of the key rows, inclusive of i): q.z in the forward, dO.u (of centred
// values) in the query gradient. Thread m holds the prefix of columns m, m + threads, ...
template <typename Plan>
struct RowSums {
  RunningSum prefix_frag[Plan::kPrefixesPerThread];

  // invariant: entering a chunk, prefix_frag = initial sum + all key rows before the chunk.
  __device__ __forceinline__ void write_products(const float* stage_smem, float* scratch_smem) {
    const float* key_smem = stage_smem + Plan::kKeyOffset;
#pragma unroll
    for (int i = 0; i < Plan::kPrefixesPerThread; ++i) {
      const int column = static_cast<int>(threadIdx.x) + i * Plan::kThreads;
      if (column < Plan::kHeadDim) {
#pragma unroll 4
        for (int t = 0; t < Plan::kTokens; ++t) {
          prefix_frag[i].add(key_smem[t * Plan::kHeadDim + column]);
          scratch_smem[t * Plan::kHeadDim + column] =
              stage_smem[t * Plan::kHeadDim + column] * prefix_frag[i].total();
        }
      }
      prefix_frag[i].fold();
    }
  }

  // The sum of a row's products, in every lane of the calling warp.
  __device__ __forceinline__ static float reduce_row(const float* scratch_smem, int t) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < ceil_div(Plan::kHeadDim, kWarp); ++i) {
      const int column = static_cast<int>(threadIdx.x % kWarp) + i * kWarp;
      if (column < Plan::kHeadDim) {
        sum += scratch_smem[t * Plan::kHeadDim + column];
      }
    }
    return sum_lanes(sum);
  }
};

// Slice l of column j of the state, and the constant term of column j (kept by slice 0).
template <typename Plan>
struct State {
  // invariant: the state is linear_frag + recent_frag. With split sums a chunk is added to
  // recent_frag, which enters the chunk with what linear_frag lost to rounding; else it is zero.
  float linear_frag[Plan::kSliceDim];
  float recent_frag[Plan::kSliceDim];
  RunningSum constant_frag;

  __device__ __forceinline__ State() : constant_frag(0.0f) {
#pragma unroll
    for (int m = 0; m < Plan::kSliceDim; ++m) {
      linear_frag[m] = 0.0f;
      recent_frag[m] = 0.0f;
    }
  }

  __device__ __forceinline__ void fold() {
    constant_frag.fold();
    if constexpr (Plan::kSplitSums) {
#pragma unroll
      for (int m = 0; m < Plan::kSliceDim; ++m) {
        const float sum = __fadd_rn(linear_frag[m], recent_frag[m]);
        const float error = __fsub_rn(recent_frag[m], __fsub_rn(sum, linear_frag[m]));
        linear_frag[m] = sum;
        recent_frag[m] = isinf(sum) ? 0.0f : error;
      }
    }
  }
};

// Thread (j, l) of the active threads: j = thread % J, l = thread / J.
template <typename Plan>
struct Owner {
  int column;
  int slice;

  __device__ __forceinline__ Owner()
      : column(static_cast<int>(threadIdx.x) % Plan::kColumns),
        slice(static_cast<int>(threadIdx.x) / Plan::kColumns) {}

  __device__ __forceinline__ bool active() const { return slice < Plan::kSlices; }
};

// The state forward starts from, S[m][j]; the query gradient scans with it transposed, S[j][m], and
// centred.
template <typename Plan>
__device__ __forceinline__ void load_state(const ScanArguments& args, const Tile<Plan>& tile,
                                           const Owner<Plan>& owner, State<Plan>& state) {
  if constexpr (!Plan::kIsReverse) {
    const int column = tile.first_column + owner.column;
    const int first = owner.slice * Plan::kSliceDim;
    if (args.state_in != nullptr) {
      const float* state_gmem = args.state_in + tile.head * Plan::kHeadDim * Plan::kHeadDim;
#pragma unroll
      for (int m = 0; m < Plan::kSliceDim; ++m) {
        state.linear_frag[m] = Plan::kIsForward ? state_gmem[(first + m) * Plan::kHeadDim + column]
                                                : state_gmem[column * Plan::kHeadDim + first + m];
      }
    }
    const float* sum_gmem = Plan::kIsForward ? args.value_sum_in : args.key_sum_in;
    if (sum_gmem != nullptr) {
      const float sum = sum_gmem[tile.head * Plan::kHeadDim + column];
      state.constant_frag = RunningSum(sum);
      if constexpr (Plan::kCentersValues) {
        const float* center_gmem = args.value_center + tile.head * Plan::kHeadDim + first;
#pragma unroll
        for (int m = 0; m < Plan::kSliceDim; ++m) {
          state.linear_frag[m] = fmaf(-sum, center_gmem[m], state.linear_frag[m]);
        }
      }
    }
  }
}

template <typename Plan>
__device__ __forceinline__ void store_state(const ScanArguments& args, const Tile<Plan>& tile,
                                            const Owner<Plan>& owner, const State<Plan>& state) {
  const int column = tile.first_column + owner.column;
  const int first = owner.slice * Plan::kSliceDim;
  if (args.state_out != nullptr) {
    float* state_gmem = args.state_out + tile.head * Plan::kHeadDim * Plan::kHeadDim;
#pragma unroll
    for (int m = 0; m < Plan::kSliceDim; ++m) {
      state_gmem[(first + m) * Plan::kHeadDim + column] = state.linear_frag[m] + state.recent_frag[m];
    }
  }
  if (args.value_sum_out != nullptr && owner.slice == 0) {
    args.value_sum_out[tile.head * Plan::kHeadDim + column] = state.constant_frag.total();
  }
}

// The sums of the other side: z for the forward, u of centred values for the query gradient.
template <typename Plan>
__device__ __forceinline__ void load_row_sums(const ScanArguments& args, const Tile<Plan>& tile,
                                              const ValueCenter<Plan>& center, RowSums<Plan>& row_sums) {
  const float* sum_gmem = Plan::kIsForward ? args.key_sum_in : args.value_sum_in;
#pragma unroll
  for (int i = 0; i < Plan::kPrefixesPerThread; ++i) {
    const int column = static_cast<int>(threadIdx.x) + i * Plan::kThreads;
    if (column < Plan::kHeadDim) {
      double sum = sum_gmem == nullptr ? 0.0 : sum_gmem[tile.head * Plan::kHeadDim + column];
      if constexpr (Plan::kCentersValues) {
        sum -= static_cast<double>(args.initial_count) * center.center_frag[i];
      }
      row_sums.prefix_frag[i] = RunningSum(static_cast<float>(sum));
    }
  }
}

template <typename Plan>
__device__ __forceinline__ void store_key_sum(const ScanArguments& args, const Tile<Plan>& tile,
                                              const RowSums<Plan>& row_sums) {
  if (args.key_sum_out == nullptr || tile.tile_idx != 0) {
    return;
  }
#pragma unroll
  for (int i = 0; i < Plan::kPrefixesPerThread; ++i) {
    const int column = static_cast<int>(threadIdx.x) + i * Plan::kThreads;
    if (column < Plan::kHeadDim) {
      args.key_sum_out[tile.head * Plan::kHeadDim + column] = row_sums.prefix_frag[i].total();
    }
  }
}

// One token: the state takes key (x) value, then gives its part of query . X.
template <typename Plan>
__device__ __forceinline__ float advance(State<Plan>& state, const float* query_smem, const float* key_smem,
                                         float scaled_value) {
  auto& sum_frag = Plan::kSplitSums ? state.recent_frag : state.linear_frag;
  // Independent chains of additions, to cover the latency of FFMA with few warps.
  float dot_frag[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  float linear_dot_frag[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
  for (int m = 0; m < Plan::kSliceDim; m += 4) {
    const float4 key_vector = *reinterpret_cast<const float4*>(key_smem + m);
    const float4 query_vector = *reinterpret_cast<const float4*>(query_smem + m);
    const float key[4] = {key_vector.x, key_vector.y, key_vector.z, key_vector.w};
    const float query[4] = {query_vector.x, query_vector.y, query_vector.z, query_vector.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      sum_frag[m + i] = fmaf(key[i], scaled_value, sum_frag[m + i]);
      dot_frag[i] = fmaf(query[i], sum_frag[m + i], dot_frag[i]);
      if constexpr (Plan::kSplitSums) {
        linear_dot_frag[i] = fmaf(query[i], state.linear_frag[m + i], linear_dot_frag[i]);
      }
    }
  }
  const float dot = (dot_frag[0] + dot_frag[1]) + (dot_frag[2] + dot_frag[3]);
  const float linear_dot =
      (linear_dot_frag[0] + linear_dot_frag[1]) + (linear_dot_frag[2] + linear_dot_frag[3]);
  return linear_dot + dot;
}

// All tokens of a chunk in the order of the scan. Partial dots go to scratch [T][L][J], the
// constant term after each token to constant [T][J].
template <typename Plan>
__device__ __forceinline__ void scan_chunk(const Owner<Plan>& owner, State<Plan>& state, const float* stage_smem,
                                           const float* row_factor_smem, float* scratch_smem,
                                           float* constant_smem) {
  const int slice_offset = owner.slice * Plan::kSliceDim;
#pragma unroll 2
  for (int step = 0; step < Plan::kTokens; ++step) {
    const int t = Plan::kIsReverse ? Plan::kTokens - 1 - step : step;
    const float value = stage_smem[Plan::kValueOffset + t * Plan::kColumns + owner.column];
    const float scaled_value = Plan::kIsReverse ? value * row_factor_smem[t] : value;
    const float* query_smem = stage_smem + t * Plan::kHeadDim + slice_offset;
    scratch_smem[(t * Plan::kSlices + owner.slice) * Plan::kColumns + owner.column] =
        advance<Plan>(state, query_smem, query_smem + Plan::kKeyOffset, scaled_value);
    if (owner.slice == 0) {
      state.constant_frag.add(Plan::kIsKeyGradient ? value * stage_smem[Plan::kDeltaOffset + t] : scaled_value);
      constant_smem[t * Plan::kColumns + owner.column] = state.constant_frag.total();
    }
  }
  state.fold();
}

// Adds the slices of one output in slice order.
template <typename Plan>
__device__ __forceinline__ float add_slices(const float* scratch_smem, int t, int column) {
  float sum = 0.0f;
#pragma unroll
  for (int l = 0; l < Plan::kSlices; ++l) {
    sum += scratch_smem[(t * Plan::kSlices + l) * Plan::kColumns + column];
  }
  return sum;
}

// The sum over all threads, in thread 0, in an order that depends on the block's size alone.
template <typename Plan>
__device__ __forceinline__ double sum_block(double value, double* warp_sums_smem) {
  const double warp_sum = sum_lanes(value);
  __syncthreads();
  if (threadIdx.x % kWarp == 0) {
    warp_sums_smem[threadIdx.x / kWarp] = warp_sum;
  }
  __syncthreads();
  double sum = 0.0;
  if (threadIdx.x == 0) {
    for (int w = 0; w < Plan::kWarps; ++w) {
      sum += warp_sums_smem[w];
    }
  }
  return sum;
}

template <typename Plan>
__device__ __forceinline__ void store_coefficients(const ScanArguments& args, double a_gradient,
                                                   double b_gradient, float* scratch_smem) {
  double* warp_sums_smem = reinterpret_cast<double*>(scratch_smem);
  const double a_sum = sum_block<Plan>(a_gradient, warp_sums_smem);
  const double b_sum = sum_block<Plan>(b_gradient, warp_sums_smem);
  if (threadIdx.x == 0) {
    double* partial_gmem = args.coefficient_partials + static_cast<int64_t>(blockIdx.x) * 2;
    partial_gmem[0] = a_sum;
    partial_gmem[1] = b_sum;
  }
}

template <typename Plan>
__device__ __forceinline__ void sliced_scan(const ScanArguments& args) {
  extern __shared__ __align__(16) float shared_smem[];
  float* const scratch_smem = shared_smem + 2 * Plan::kStageElements;
  float* const constant_smem = shared_smem + Plan::kConstantOffset;
  float* const row_factor_smem = shared_smem + Plan::kRowFactorOffset;

  const Tile<Plan> tile(args);
  const Owner<Plan> owner;
  const int warp_idx = static_cast<int>(threadIdx.x) / kWarp;
  const bool wants_coefficients = Plan::kIsQueryGradient && args.coefficient_partials != nullptr;
  // Uniform over the block, so the barriers inside are reached by all of its threads.
  const bool wants_row_sums = Plan::kIsForward || (wants_coefficients && tile.tile_idx == 0);

  State<Plan> state;
  if (owner.active()) {
    load_state(args, tile, owner, state);
  }
  const ValueCenter<Plan> center(args, tile);
  RowSums<Plan> row_sums;
  if (wants_row_sums) {
    load_row_sums(args, tile, center, row_sums);
  }
  double a_gradient = 0.0;
  double b_gradient = 0.0;

  const int64_t num_chunks = (args.tokens + Plan::kTokens - 1) / Plan::kTokens;
  if (num_chunks > 0) {
    start_chunk(args, tile, (Plan::kIsReverse ? num_chunks - 1 : 0) * Plan::kTokens, shared_smem);
  }
  for (int64_t step = 0; step < num_chunks; ++step) {
    const int64_t first_token = (Plan::kIsReverse ? num_chunks - 1 - step : step) * Plan::kTokens;
    float* stage_smem = shared_smem + (step % 2) * Plan::kStageElements;
    wait_for_copies();
    __syncthreads();
    // After this barrier nobody reads the other stage, the scratch or the factors of the last chunk.
    if (step + 1 < num_chunks) {
      start_chunk(args, tile, first_token + (Plan::kIsReverse ? -Plan::kTokens : Plan::kTokens),
                  shared_smem + ((step + 1) % 2) * Plan::kStageElements);
    }

    float coefficient_query_frag[Plan::kIsQueryGradient ? Plan::kOutputsPerThread : 1];
    if constexpr (Plan::kIsQueryGradient) {
#pragma unroll
      for (int i = 0; i < Plan::kOutputsPerThread; ++i) {
        const int idx = static_cast<int>(threadIdx.x) + i * Plan::kThreads;
        const int64_t token = first_token + idx / Plan::kColumns;
        const bool valid = wants_coefficients && idx < Plan::kTokens * Plan::kColumns && token < args.tokens;
        coefficient_query_frag[i] =
            valid ? args.coefficient_query[(tile.first_row + token) * Plan::kHeadDim + tile.first_column +
                                           idx % Plan::kColumns]
                  : 0.0f;
      }
    }

    if constexpr (!Plan::kIsForward) {
      // Rows past the end get the factor 0, not 1/0: a zero row times infinity would be NaN.
      if (threadIdx.x < Plan::kTokens) {
        const bool valid = first_token + threadIdx.x < args.tokens;
        row_factor_smem[threadIdx.x] = valid ? 1.0f / stage_smem[Plan::kNormalizerOffset + threadIdx.x] : 0.0f;
      }
    }
    // Seen by this thread's row sums at once, by the scan after the barrier.
    if constexpr (Plan::kCentersValues) {
      center.subtract_from(stage_smem);
    }
    if (wants_row_sums) {
      row_sums.write_products(stage_smem, scratch_smem);
    }
    __syncthreads();
    if (wants_row_sums) {
      for (int t = warp_idx; t < Plan::kTokens; t += Plan::kWarps) {
        const float row_sum = RowSums<Plan>::reduce_row(scratch_smem, t);
        const int64_t token = first_token + t;
        const double count = static_cast<double>(args.initial_count + token + 1);
        if (threadIdx.x % kWarp == 0 && token < args.tokens) {
          if constexpr (Plan::kIsForward) {
            const float normalizer = static_cast<float>(tile.a * count + static_cast<double>(tile.b) * row_sum);
            row_factor_smem[t] = normalizer;
            if (tile.tile_idx == 0) {
              args.normalizer[tile.first_row + token] = normalizer;
            }
          } else {
            const double delta = stage_smem[Plan::kDeltaOffset + t];
            a_gradient += static_cast<double>(row_sum) * row_factor_smem[t] - delta * count;
          }
        }
      }
      // The scan overwrites the products.
      __syncthreads();
    }

    if (owner.active()) {
      scan_chunk(owner, state, stage_smem, row_factor_smem, scratch_smem, constant_smem);
    }
    __syncthreads();

#pragma unroll
    for (int i = 0; i < Plan::kOutputsPerThread; ++i) {
      const int idx = static_cast<int>(threadIdx.x) + i * Plan::kThreads;
      const int t = idx / Plan::kColumns;
      const int column = idx % Plan::kColumns;
      const int64_t token = first_token + t;
      if (t < Plan::kTokens && token < args.tokens) {
        const float linear = add_slices<Plan>(scratch_smem, t, column);
        const float constant = constant_smem[t * Plan::kColumns + column];
        float out;
        if constexpr (Plan::kIsForward) {
          out = fmaf(tile.b, linear, tile.a * constant) / row_factor_smem[t];
        } else if constexpr (Plan::kIsQueryGradient) {
          const float inner = fmaf(row_factor_smem[t], linear, -stage_smem[Plan::kDeltaOffset + t] * constant);
          b_gradient += static_cast<double>(coefficient_query_frag[i]) * inner;
          out = tile.b * inner;
        } else if constexpr (Plan::kIsKeyGradient) {
          out = tile.b * (linear - constant);
        } else {
          out = fmaf(tile.b, linear, tile.a * constant);
        }
        args.out[(tile.first_row + token) * Plan::kHeadDim + tile.first_column + column] = out;
      }
    }
  }

  if constexpr (Plan::kIsForward) {
    if (owner.active()) {
      store_state(args, tile, owner, state);
    }
    store_key_sum(args, tile, row_sums);
  }
  if constexpr (Plan::kIsQueryGradient) {
    if (wants_coefficients) {
      store_coefficients<Plan>(args, a_gradient, b_gradient, scratch_smem);
    }
  }
}

}  // namespace linattn
