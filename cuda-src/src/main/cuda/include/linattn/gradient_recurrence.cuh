// What is left to do after the sweeps. The causal gradients token by token in fp32, where they are marked: a value that
// is not finite reaches the rows that depend on it and no others, and the range of the operands is that of fp32. Then
// the gradients of the coefficients.
#pragma once

#include "linattn/coefficient_sums.cuh"
#include "linattn/gradient_items.cuh"
#include "linattn/recurrence.cuh"

namespace linattn {

// A tile is 32 columns of out of an item of a head of x; x, y and z stand where q, k and v of the forward do.
template <typename Element>
struct GradientRecurrencePlan : RecurrencePlan<Element> {};

// What the rows of a step are multiplied by:
//   state += (y_factor y) (z_factor z)^T, sum += offset (z_factor z),
//   out = out_factor ((x_factor x) . state + sum_factor sum).
struct StepFactors {
  float x_factor = 1.0f;
  float y_factor = 1.0f;
  float z_factor = 1.0f;
  float offset = 1.0f;
  float out_factor = 1.0f;
  float sum_factor = 1.0f;

  // Those that this lane of the warp has. All lanes take part.
  __device__ __forceinline__ StepFactors of_lane(int lane) const {
    StepFactors factors;
    factors.x_factor = __shfl_sync(kAllLanes, x_factor, lane);
    factors.y_factor = __shfl_sync(kAllLanes, y_factor, lane);
    factors.z_factor = __shfl_sync(kAllLanes, z_factor, lane);
    factors.offset = __shfl_sync(kAllLanes, offset, lane);
    factors.out_factor = __shfl_sync(kAllLanes, out_factor, lane);
    factors.sum_factor = __shfl_sync(kAllLanes, sum_factor, lane);
    return factors;
  }
};

// The tokens of an item in the order of the task, and the query heads of a group for each of them.
struct RecurrenceSteps {
  const GradientArguments& args;
  const GradientTile& tile;
  bool is_query;
  int count;

  __device__ __forceinline__ RecurrenceSteps(const GradientArguments& all, const GradientTile& of)
      : args(all), tile(of), is_query(all.task == kQueryGradient), count(of.item.tokens * of.members) {}

  __device__ __forceinline__ int token(int step) const {
    return is_query ? step : tile.item.tokens - 1 - step / tile.members;
  }
  __device__ __forceinline__ int member(int step) const { return is_query ? 0 : step % tile.members; }
  // Whether all heads of the group have added to the sums of the token.
  __device__ __forceinline__ bool writes(int step) const { return member(step) == tile.members - 1; }

  // Row `token` of [batch, head, token] without gaps.
  __device__ __forceinline__ float of_row(const float* rows_gmem, int heads, int head_idx, int token) const {
    return rows_gmem[(static_cast<int64_t>(tile.batch_idx) * heads + head_idx) * args.chunked.tokens +
                     tile.item.start + token];
  }
  __device__ __forceinline__ float normalizer(int step) const {
    return *row_address<float>(args.chunked.normalizer, tile.batch_idx, query_head(step), tile.item.start + token(step));
  }
  __device__ __forceinline__ float delta(int step) const {
    return of_row(args.delta, args.chunked.heads.value, query_head(step), token(step));
  }
  __device__ __forceinline__ float query_scale(int step) const {
    return args.query_scale == nullptr ? 1.0f
                                       : of_row(args.query_scale, args.chunked.heads.value, query_head(step), token(step));
  }
  __device__ __forceinline__ float key_scale(int step) const {
    return args.key_scale == nullptr
               ? 1.0f
               : of_row(args.key_scale, args.chunked.kv_heads.value, tile.kv_head_idx, token(step));
  }
  __device__ __forceinline__ int query_head(int step) const { return tile.query_head(is_query, member(step)); }
  __device__ __forceinline__ float a(int step) const {
    return coefficient(args.chunked.a_per_head, args.chunked.a, query_head(step));
  }
  __device__ __forceinline__ float b(int step) const {
    return coefficient(args.chunked.b_per_head, args.chunked.b, query_head(step));
  }

  __device__ __forceinline__ StepFactors factors(int step) const {
    StepFactors factors;
    const float slope = b(step) / normalizer(step);
    if (is_query) {
      factors.z_factor = key_scale(step);
      factors.out_factor = slope;
      factors.sum_factor = -delta(step);
    } else if (args.task == kKeyGradient) {
      factors.y_factor = slope;
      factors.z_factor = query_scale(step);
      factors.offset = -delta(step) * slope;
    } else {
      factors.x_factor = key_scale(step);
      factors.y_factor = slope * query_scale(step);
      factors.offset = a(step) / normalizer(step);
    }
    return factors;
  }
};

// The terms of da and db of an item.
struct CoefficientTerms {
  double weights = 0.0;  // m / g
  double slopes = 0.0;   // q . dq / b
};

// Returns this thread's part of the terms, of kQueryGradient.
template <class Plan>
__device__ __forceinline__ CoefficientTerms gradient_recurrence_tile(const GradientArguments& args,
                                                                     const GradientTile& tile, int first_column) {
  using Element = typename Plan::Element;
  constexpr int kTokens = Plan::kTokens;
  constexpr int kColumns = Plan::kColumns;
  extern __shared__ __align__(16) unsigned char chunk_smem[];

  const ChunkedArguments& chunked = args.chunked;
  const RecurrenceSteps steps(args, tile);
  const int dim = chunked.key_dim;  // of x and y
  const int stride = Plan::row_stride(dim);
  float* const linear_smem = reinterpret_cast<float*>(chunk_smem);
  float* const recent_smem = Plan::keeps_errors(dim) ? linear_smem + dim * kColumns : nullptr;
  float* const x_smem = linear_smem + (recent_smem == nullptr ? 1 : 2) * dim * kColumns;
  float* const y_smem = x_smem + kTokens * stride;
  float* const z_smem = y_smem + kTokens * stride;
  float* const sum_smem = z_smem + kTokens * kColumns;
  float* const partial_smem = sum_smem + kTokens * kColumns;
  float* const product_smem = partial_smem + Plan::kSlices * kTokens * kColumns;

  const int thread = static_cast<int>(threadIdx.x);
  const int column = thread % kColumns;
  const int slice = thread / kColumns;
  const int out_column = first_column + column;  // of the tensors
  const bool column_valid = out_column < chunked.value_dim;
  const StateStrides strides(chunked, args.task);
  const int64_t state_offset = tile.state_offset(chunked) + out_column * strides.z;
  const int64_t sum_offset = tile.state * chunked.value_dim + out_column;

  for (int m = slice; m < dim; m += Plan::kSlices) {
    const bool valid = chunked.state_in != nullptr && column_valid;
    linear_smem[m * kColumns + column] = valid ? chunked.state_in[state_offset + m * strides.y] : 0.0f;
    if (recent_smem != nullptr) {
      recent_smem[m * kColumns + column] = 0.0f;
    }
  }
  RunningSum sum_frag(chunked.value_sum_in != nullptr && column_valid ? chunked.value_sum_in[sum_offset] : 0.0f);
  RunningSum y_sum_frag[Plan::kPrefixesPerThread];
#pragma unroll
  for (int i = 0; i < Plan::kPrefixesPerThread; ++i) {
    const int m = thread + i * Plan::kThreads;
    y_sum_frag[i] = RunningSum(chunked.key_sum_in != nullptr && m < dim
                                   ? chunked.key_sum_in[tile.key_sum_offset(chunked) + m]
                                   : 0.0f);
  }
  CoefficientTerms terms;

  for (int first_step = 0; first_step < steps.count; first_step += kTokens) {
    const int num_steps = min(steps.count - first_step, kTokens);
    const StepFactors own_factors = steps.factors(first_step + min(thread % kWarp, num_steps - 1));
    __syncthreads();  // the last rows are no longer read
    for (int t = 0; t < kTokens; ++t) {
      const bool valid = t < num_steps;
      const int step = first_step + (valid ? t : 0);
      const StepFactors factors = own_factors.of_lane(t);
      const int64_t token = tile.item.start + steps.token(step);
      const int source_head = tile.source_head(steps.is_query, steps.member(step));
      const Element* const x_gmem = row_address<Element>(chunked.query, tile.batch_idx, tile.head_idx, token);
      const Element* const y_gmem = row_address<Element>(chunked.key, tile.batch_idx, source_head, token);
      for (int m = thread; m < stride; m += Plan::kThreads) {
        const bool m_valid = valid && m < dim;
        x_smem[t * stride + m] = m_valid ? to_float(x_gmem[m]) * factors.x_factor : 0.0f;
        y_smem[t * stride + m] = m_valid ? to_float(y_gmem[m]) * factors.y_factor : 0.0f;
      }
      if (slice == t % Plan::kSlices) {
        const Element* const z_gmem = row_address<Element>(chunked.value, tile.batch_idx, source_head, token);
        z_smem[t * kColumns + column] =
            valid && column_valid ? to_float(z_gmem[out_column]) * factors.z_factor : 0.0f;
      }
    }
    __syncthreads();

    if (steps.is_query) {
      float product_frag[kTokens] = {};
#pragma unroll
      for (int i = 0; i < Plan::kPrefixesPerThread; ++i) {
        const int m = thread + i * Plan::kThreads;
        if (m < dim) {
#pragma unroll
          for (int t = 0; t < kTokens; ++t) {
            y_sum_frag[i].add(y_smem[t * stride + m]);
            product_frag[t] = fmaf(x_smem[t * stride + m], y_sum_frag[i].total(), product_frag[t]);
          }
          y_sum_frag[i].fold();
        }
      }
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        const float sum = sum_lanes(product_frag[t]);
        if (thread % kWarp == 0) {
          product_smem[t * Plan::kSlices + thread / kWarp] = sum;
        }
      }
    }
    if (slice == 0) {
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        const float offset = own_factors.of_lane(t).offset;
        sum_frag.add(t < num_steps ? offset * z_smem[t * kColumns + column] : 0.0f);
        sum_smem[t * kColumns + column] = sum_frag.total();
      }
      sum_frag.fold();
    }
    float out_frag[kTokens];
    scan_tokens<Plan>(linear_smem, recent_smem, x_smem, y_smem, z_smem, dim, num_steps, out_frag);
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      partial_smem[(slice * kTokens + t) * kColumns + column] = out_frag[t];
    }
    __syncthreads();

    if (steps.is_query && thread < num_steps) {
      float product = 0.0f;  // x . sum of y
#pragma unroll
      for (int warp = 0; warp < Plan::kSlices; ++warp) {
        product += product_smem[thread * Plan::kSlices + warp];
      }
      const double count = static_cast<double>(tile.item.count + first_step + thread + 1);
      const double delta = steps.delta(first_step + thread);
      terms.weights += (product - delta * count) / steps.normalizer(first_step + thread);
    }
    for (int t = slice; t < num_steps; t += Plan::kSlices) {
      const int step = first_step + t;
      const StepFactors factors = own_factors.of_lane(t);
      if (column_valid && steps.writes(step)) {
        float linear = 0.0f;
#pragma unroll
        for (int l = 0; l < Plan::kSlices; ++l) {
          linear += partial_smem[(l * kTokens + t) * kColumns + column];
        }
        const float sum = fmaf(factors.sum_factor, sum_smem[t * kColumns + column], linear);
        const int64_t token = tile.item.start + steps.token(step);
        Element* const out_gmem = row_address<Element>(chunked.out, tile.batch_idx, tile.head_idx, token);
        out_gmem[out_column] = from_float<Element>(factors.out_factor * sum);
        if (args.slope_query.address != nullptr) {
          const Element* const query_gmem =
              row_address<Element>(args.slope_query, tile.batch_idx, tile.head_idx, token);
          const float query = to_float(query_gmem[out_column]) * steps.query_scale(step);
          terms.slopes += static_cast<double>(query) * sum / steps.normalizer(step);
        }
      }
    }
  }

  if (chunked.state_out != nullptr && column_valid) {
    for (int m = slice; m < dim; m += Plan::kSlices) {
      const float error = recent_smem == nullptr ? 0.0f : recent_smem[m * kColumns + column];
      chunked.state_out[state_offset + m * strides.y] = linear_smem[m * kColumns + column] + error;
    }
  }
  if (chunked.value_sum_out != nullptr && column_valid && slice == 0) {
    chunked.value_sum_out[sum_offset] = sum_frag.total();
  }
  return terms;
}

// Tile `tile_number` of 64 columns of a task, with its partial sums; those of other turns are part of them.
template <class Plan>
__device__ __forceinline__ void repair_gradient(const GradientArguments& args, int64_t tile_number) {
  const GradientTile tile(args.chunked, tile_number, args.task == kQueryGradient);
  CoefficientTerms terms;
  for (int column = 0; column < tile.num_columns; column += Plan::kColumns) {
    __syncthreads();  // the tile before has been read
    const CoefficientTerms more = gradient_recurrence_tile<Plan>(args, tile, tile.first_column + column);
    terms.weights = more.weights;  // each tile has seen them
    terms.slopes += more.slopes;
  }
  if (args.task != kQueryGradient) {
    return;
  }
  extern __shared__ __align__(16) unsigned char chunk_smem[];
  const int tiles = ceil_div(args.chunked.value_dim, kValueColumns);
  const int turns = args.chunked.turns;
  const int64_t place = (tile_number / tiles * turns) * tiles + tile.block.tile_idx;
  store_partials(args, place, tile.block.tile_idx == 0 ? terms.weights : 0.0, terms.slopes,
                 reinterpret_cast<double*>(chunk_smem), Plan::kThreads, [] { __syncthreads(); });
  for (int turn = 1 + static_cast<int>(threadIdx.x) / 2; turn < turns; turn += Plan::kThreads / 2) {
    args.partials[2 * (place + static_cast<int64_t>(turn) * tiles) + threadIdx.x % 2] = 0.0;
  }
}

__device__ __forceinline__ int64_t tiles_of_head(const GradientArguments& args) {
  return static_cast<int64_t>(args.chunked.num_items.value) * ceil_div(args.chunked.value_dim, kValueColumns);
}

__device__ __forceinline__ int64_t tiles_of(const GradientArguments& args) {
  const ChunkedArguments& chunked = args.chunked;
  const int heads = (args.task == kQueryGradient ? chunked.heads : chunked.kv_heads).value;
  return static_cast<int64_t>(chunked.batches) * heads * tiles_of_head(args);
}

// Whether a sweep marked a tile of a task, which fits a grid.
__device__ __forceinline__ bool is_marked_tile(const GradientArguments& args, int64_t number) {
  const uint32_t tile = static_cast<uint32_t>(number);
  const uint32_t tiles = ceil_div(args.chunked.value_dim, kValueColumns);
  const uint32_t item_of_head = quotient_by_tiles(tile, tiles);
  return is_marked(args.chunked, item_of_head, tile - item_of_head * tiles);
}

// The tiles of a task from `begin` to `end`, `step` apart, that a sweep marked.
template <class Plan>
__device__ __forceinline__ void repair_tiles(const GradientArguments& args, int64_t begin, int64_t end, int64_t step) {
  walk_marked_tiles<Plan::kThreads>(
      begin, end, step, [&](int64_t number) { return is_marked_tile(args, number); },
      [&](int64_t number) { repair_gradient<Plan>(args, number); });
}

// Whether it marked any of those from `begin` to `end`. All threads of the block ask.
template <class Plan>
__device__ __forceinline__ bool has_marks(const GradientArguments& args, int64_t begin, int64_t end) {
  int is_any = 0;
  for (int64_t number = begin + threadIdx.x; number < end; number += Plan::kThreads) {
    is_any |= is_marked_tile(args, number) ? 1 : 0;
  }
  return __syncthreads_or(is_any) != 0;
}

// The grid walks heads, whose coefficients are summed once their dq is repaired, then the tiles of the other tasks.
template <class Plan>
__device__ __forceinline__ void gradient_recurrence(const GradientRecurrenceArguments& args) {
  using Element = typename Plan::Element;
  static_assert(Plan::kThreads == CoefficientPlan::kThreads, "they sum as a block");
  extern __shared__ __align__(16) unsigned char chunk_smem[];
  let_later_kernels_start();
  const CoefficientSumsArguments& coefficients = args.coefficients;
  const uint32_t grid = gridDim.x;
  uint32_t first = blockIdx.x;  // that this block walks
  const auto walked = [&](int64_t count) { first = (first + grid - static_cast<uint32_t>(count) % grid) % grid; };
  const bool sums_coefficients = coefficients.partials != nullptr;
  const uint32_t parts = coefficients.parts;
  const uint32_t heads_and_parts = sums_coefficients ? coefficients.batches * coefficients.heads * parts : 0;  // fit a grid
  int task = args.first;
  wait_for_earlier_kernels();
  if (sums_coefficients) {
    const bool repairs_query = task == 0;
    for (uint32_t number = first; number < heads_and_parts; number += grid) {
      const uint32_t head = number / parts;
      const int part = static_cast<int>(number - head * parts);
      bool is_alone = false;  // as long as dq is repaired nobody else may read it
      if (repairs_query) {
        const int64_t tiles = tiles_of_head(args.tasks[0]);
        is_alone = has_marks<Plan>(args.tasks[0], head * tiles, (head + 1) * tiles);
        if (is_alone && part > 0) {
          continue;
        }
        if (is_alone) {
          repair_tiles<Plan>(args.tasks[0], head * tiles, (head + 1) * tiles, 1);
          __syncthreads();  // partial sums are written
        }
      }
      sum_coefficients<Element>(args.tasks[0], coefficients, args.adds != 0, head, part,
                                is_alone ? 1 : static_cast<int>(parts), reinterpret_cast<double*>(chunk_smem));
    }
    walked(heads_and_parts);
    task = 1;
  }
  for (; task < args.count; ++task) {
    const int64_t tiles = tiles_of(args.tasks[task]);
    repair_tiles<Plan>(args.tasks[task], first, tiles, grid);
    walked(tiles);
  }
}

}  // namespace linattn
