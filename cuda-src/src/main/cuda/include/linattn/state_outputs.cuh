// What is read from a state alone, on the tensor cores of sm_80 and newer: chunked_arguments.h has the vocabulary,
// docs/decisions/0004-chunked-family.md the formulas.
#pragma once

#include "linattn/chunk_items.cuh"
#include "linattn/chunk_rows.cuh"
#include "linattn/dependent_launch.cuh"
#include "linattn/mma.cuh"

namespace linattn {

// A block has 64 value columns of an item of a head, as in the forward. Where all tokens see one state,
// o = (b Q S + a 1 u^T) / g, and item.count is the number of tokens in that state.
template <typename ElementOf, bool kAccurateOf>
struct StateOutputsPlan {
  using Element = ElementOf;
  static constexpr bool kAccurate = kAccurateOf;
  static constexpr MmaKind kKind = MmaKindOf<Element, kAccurate>::kKind;
  static constexpr int kThreads = 256;
  static constexpr int kMinBlocks = kAccurate ? 1 : 2;
  static constexpr int kDepth = 64;  // key columns of a step
  static constexpr int kTokens = sizeof(Element) == 2 ? 64 : 32;
  static constexpr int kStages = kKind == MmaKind::kBf16 ? 4 : 2;
  using StateElement = typename WeightElement<kKind>::Type;
  using QueryLayout = TileLayout<Element, kTokens, kDepth>;
  using StateLayout = TileLayout<StateElement, kValueColumns, kDepth>;  // S^T
  static constexpr int kLanesPerRow = kThreads / kTokens;
  static constexpr int kStrips = kTokens / 16;
  static constexpr int kGroups = kThreads / kWarp / kStrips;
  static constexpr int kColumnBlocks = kValueColumns / kGroups / 16;
  static constexpr int kFixedBytes = kStages * QueryLayout::kBytes + (kValueColumns + 2 * kTokens) * 4;

  // 256 key columns fit every architecture.
  __host__ __device__ static constexpr int shared_bytes(int key_dim) {
    return kFixedBytes + ceil_div(key_dim, kDepth) * (StateLayout::kBytes + kDepth * 4);
  }
};

template <class Plan>
__device__ __forceinline__ void state_outputs(const ChunkedArguments& args) {
  using Element = typename Plan::Element;
  using Operand = Operands<Element, Plan::kKind>;
  using StateElement = typename Plan::StateElement;
  using QueryLayout = typename Plan::QueryLayout;
  using StateLayout = typename Plan::StateLayout;
  using StateOperand = Operands<StateElement, Plan::kKind>;
  extern __shared__ __align__(16) unsigned char chunk_smem[];

  let_later_kernels_start();
  const ValueTile<kValueColumns> tile(args);
  wait_for_earlier_kernels();
  const int num_depths = ceil_div(args.key_dim, Plan::kDepth);
  const int num_chunks = ceil_div(tile.item.tokens, Plan::kTokens);
  if (num_chunks == 0) {
    return;
  }
  const int num_steps = num_chunks * num_depths;
  const Element* const query_gmem = tile.query<Element>(args);
  Element* const out_gmem = tile.out<Element>(args);

  Element* const stages_smem = reinterpret_cast<Element*>(chunk_smem);
  float* const value_sum_smem = reinterpret_cast<float*>(chunk_smem + Plan::kStages * QueryLayout::kBytes);
  float* const constant_smem = value_sum_smem + kValueColumns;    // a, times |q| where q is normalised
  float* const inverse_smem = constant_smem + Plan::kTokens;      // 1 / g, likewise
  float* const key_sum_smem = inverse_smem + Plan::kTokens;       // z
  StateElement* const state_smem = reinterpret_cast<StateElement*>(key_sum_smem + num_depths * Plan::kDepth);

  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp;
  const int warp = warp_of_thread();
  const int strip = warp % Plan::kStrips;
  const int first_column = warp / Plan::kStrips * (Plan::kColumnBlocks * 16);
  const int row = thread / Plan::kLanesPerRow;
  const int row_lane = thread % Plan::kLanesPerRow;

  const auto start_step = [&](int step) {
    if (step < num_steps) {
      const int64_t token = static_cast<int64_t>(step / num_depths) * Plan::kTokens;
      const int column = step % num_depths * Plan::kDepth;
      QueryLayout::template start_copy<Plan::kThreads>(
          stages_smem + step % Plan::kStages * QueryLayout::kElements,
          query_gmem + token * args.query.token_stride + column, args.query.token_stride,
          tile.item.tokens - static_cast<int>(token), args.key_dim - column);
    }
    commit_copies();
  };
#pragma unroll 1
  for (int step = 0; step < Plan::kStages - 1; ++step) {
    start_step(step);
  }

  for (int idx = thread; idx < num_depths * Plan::kDepth * kValueColumns; idx += Plan::kThreads) {
    const int key = idx / kValueColumns;
    const int column = idx % kValueColumns;
    const bool valid = args.state_in != nullptr && key < args.key_dim && column < tile.num_columns;
    const int64_t source = tile.state_offset(args) + static_cast<int64_t>(key) * args.value_dim + column;
    const int target =
        key / Plan::kDepth * StateLayout::kElements + column * StateLayout::kStride + key % Plan::kDepth;
    state_smem[target] = from_float<StateElement>(valid ? args.state_in[source] : 0.0f);
  }
  for (int key = thread; key < num_depths * Plan::kDepth; key += Plan::kThreads) {
    const bool valid = args.key_sum_in != nullptr && key < args.key_dim;
    key_sum_smem[key] = valid ? args.key_sum_in[tile.key_sum_offset(args) + key] : 0.0f;
  }
  if (thread < kValueColumns) {
    const bool valid = args.value_sum_in != nullptr && thread < tile.num_columns;
    value_sum_smem[thread] = valid ? args.value_sum_in[tile.value_sum_offset(args) + thread] : 0.0f;
  }

  float out_frag[Plan::kColumnBlocks][2][4];
  float squares = 0.0f;  // of this thread's share of row `row`
  float products = 0.0f;
  for (int step = 0; step < num_steps; ++step) {
    wait_for_groups<Plan::kStages - 2>();
    __syncthreads();
    // Nobody reads the stage of the last step, nor the factors of the last chunk, any more.
    start_step(step + Plan::kStages - 1);
    const int depth = step % num_depths;
    const int token = step / num_depths * Plan::kTokens;
    const Element* const query_smem = stages_smem + step % Plan::kStages * QueryLayout::kElements;
    if (depth == 0) {
      squares = 0.0f;
      products = 0.0f;
      clear(out_frag);
    }
    visit_row<Plan::kLanesPerRow>(query_smem + row * QueryLayout::kStride, Plan::kDepth, row_lane,
                                  [&](int column, float x, float y) {
                                    const float2 z = *reinterpret_cast<const float2*>(
                                        key_sum_smem + depth * Plan::kDepth + column);
                                    squares = fmaf(x, x, fmaf(y, y, squares));
                                    products = fmaf(x, z.x, fmaf(y, z.y, products));
                                  });
    float product_frag[Plan::kColumnBlocks][2][4];
    if constexpr (Plan::kAccurate) {
      clear(product_frag);
    }
#pragma unroll
    for (int k = 0; k < Plan::kDepth; k += 16) {
      typename Operand::A query_frag;
      Operand::template load_a<QueryLayout>(query_frag, query_smem, strip * 16, k);
#pragma unroll
      for (int j = 0; j < Plan::kColumnBlocks; ++j) {
        typename Operand::B left;
        typename Operand::B right;
        StateOperand::template load_b<StateLayout>(left, right, state_smem + depth * StateLayout::kElements,
                                                   first_column + j * 16, k);
        multiply(Plan::kAccurate ? product_frag[j][0] : out_frag[j][0], query_frag, left);
        multiply(Plan::kAccurate ? product_frag[j][1] : out_frag[j][1], query_frag, right);
      }
    }
    if constexpr (Plan::kAccurate) {
#pragma unroll
      for (int j = 0; j < Plan::kColumnBlocks; ++j) {
        add_to(out_frag[j][0], product_frag[j][0]);
        add_to(out_frag[j][1], product_frag[j][1]);
      }
    }
    if (depth < num_depths - 1) {
      continue;
    }

    const float query_key_sum = sum_lanes<Plan::kLanesPerRow>(products);
    float length = 1.0f;
    if (args.normalize != 0) {
      const Element* const row_gmem =
          query_gmem + static_cast<int64_t>(token + row) * args.query.token_stride;
      const int num_columns = token + row < tile.item.tokens ? args.key_dim : 0;
      length = row_length<Plan::kLanesPerRow>(squares, [&](auto&& visit) {
        for (int column = row_lane; column < num_columns; column += Plan::kLanesPerRow) {
          visit(column, to_float(row_gmem[column]), 0.0f);
        }
      });
    }
    if (row_lane == 0) {
      const double constant = static_cast<double>(tile.head.a) * length;
      const float normalizer = static_cast<float>(constant * static_cast<double>(tile.item.count) +
                                                  static_cast<double>(tile.head.b) * query_key_sum);
      constant_smem[row] = static_cast<float>(constant);
      inverse_smem[row] = 1.0f / normalizer;
      if (tile.block.tile_idx == 0 && token + row < tile.item.tokens) {
        tile.normalizer(args)[static_cast<int64_t>(token + row) * args.normalizer.token_stride] =
            normalizer / length;
      }
    }
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int out_row = strip * 16 + lane / 4 + half * 8;
      const float constant = constant_smem[out_row];
      const float inverse = inverse_smem[out_row];
      Element* const row_gmem = token + out_row < tile.item.tokens
                                    ? out_gmem + static_cast<int64_t>(token + out_row) * args.out.token_stride
                                    : nullptr;
#pragma unroll
      for (int j = 0; j < Plan::kColumnBlocks; ++j) {
        const int column = first_column + j * 16;
        float x_frag[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float linear = out_frag[j][i / 2][half * 2 + i % 2];
          const float value_sum = value_sum_smem[column + i / 2 * 8 + lane % 4 * 2 + i % 2];
          x_frag[i] = fmaf(tile.head.b, linear, constant * value_sum) * inverse;
        }
        store_pieces(row_gmem, tile.num_columns, column, make_float2(x_frag[0], x_frag[1]),
                     make_float2(x_frag[2], x_frag[3]));
      }
    }
  }
}

}  // namespace linattn
