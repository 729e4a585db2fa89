// What is read from a state alone: chunked_arguments.h has the vocabulary, docs/decisions/0004-chunked-family.md the formulas.
// The products are those of warps here, on the tensor cores of sm_80 and newer; those of warpgroups stand in
// hopper_state_outputs.cuh.
#pragma once

#include "linattn/chunk_items.cuh"
#include "linattn/chunk_rows.cuh"
#include "linattn/dependent_launch.cuh"
#include "linattn/mma.cuh"

namespace linattn {

struct OutputsByWarps;

// A block has kTileColumns value columns of an item of a head. Where all tokens see one state,
// o = (b Q S + a 1 u^T) / g, and item.count is the number of tokens in that state.
//
// kRowFloats: what a row of a chunk has beside its elements.
template <typename ElementOf, bool kAccurateOf, int kRowFloatsOf = 2>
struct StateOutputsPlan {
  using Element = ElementOf;
  using Outputs = OutputsByWarps;
  static constexpr bool kFormsDots = false;
  static constexpr bool kFinishes = false;
  static constexpr int kTileColumns = kValueColumns;
  static constexpr bool kAccurate = kAccurateOf;
  static constexpr MmaKind kKind = MmaKindOf<Element, kAccurate>::kKind;
  static constexpr int kThreads = 256;
  __device__ __forceinline__ static constexpr int threads() { return kThreads; }
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
  static constexpr int kRowFloats = kRowFloatsOf;
  static constexpr int kFixedBytes =
      kStages * QueryLayout::kBytes + (kValueColumns + kRowFloats * kTokens) * 4;

  // 256 key columns fit every architecture.
  __host__ __device__ static constexpr int shared_bytes(int key_dim) {
    return kFixedBytes + ceil_div(key_dim, kDepth) * (StateLayout::kBytes + kDepth * 4);
  }
};

// What an output is made of: (linear (q . S) + constant u) * factor.
struct OutputFactors {
  float linear;
  float constant;
  float factor;
};

// Rows of a tensor, from the first one of an item on.
template <typename Element>
struct RowSource {
  const Element* rows_gmem;  // or null
  int64_t token_stride;
  int num_columns;
};

// The part of a state and of its sums that a block reads; null: zero.
struct StateColumns {
  const float* state_gmem;
  int64_t key_stride;
  int64_t column_stride;
  const float* key_sum_gmem;
  const float* value_sum_gmem;
};

// The rows of an item of a head as they pass: `rows` says what becomes of them.
//   rows.fetch(token, is_valid): what a row has in memory, asked for before it is wanted.
//   rows.tile: what the block works on.
//   Rows::kHasOthers, rows.others(): rows as wide that each row of q is multiplied by, or none, of a plan that kFormsDots; where
//     they are there, rows.measured(fetched, token, is_valid, dot) takes what comes of it.
//   Of a plan that kFinishes, rows.own(num_columns): those whose gradients outputs are, once they are finished; rows.scale(row_smem,
//     row): 1 / length of such a row, 0 of a row of zeros; rows.pass(along, is_first): its product over the length with its
//     output before the factor, over the columns of the tile.
//   rows.wants_lengths(), rows.length<kLanes>(squares, token, row_lane, is_valid): of a row of q, in each of its lanes, of which
//     `squares` is one's share of q.q.
//   rows.measure(row_smem, row, token, is_valid, length, product, fetched): at the end of a row of q, given q.z; it may write
//     kRowFloats arrays of kTokens floats.
//   rows.factors(row_smem, row) of those arrays, behind a barrier.
//   rows.wants_outputs(), rows.visit(row_smem, row, token, column, x): of two neighbouring outputs before their factor.
// `token` is that of row 0 of the chunk.
struct OutputsByWarps {
  template <class Plan, class Rows>
  __device__ __forceinline__ static void write(const ChunkedArguments& args, const Item& item, int num_values,
                                               const typename Plan::Element* query_gmem,
                                               typename Plan::Element* out_gmem, const StateColumns& state, Rows& rows) {
    using Element = typename Plan::Element;
    using Operand = Operands<Element, Plan::kKind>;
    using StateElement = typename Plan::StateElement;
    using QueryLayout = typename Plan::QueryLayout;
    using StateLayout = typename Plan::StateLayout;
    using StateOperand = Operands<StateElement, Plan::kKind>;
    extern __shared__ __align__(16) unsigned char chunk_smem[];

    const int num_depths = ceil_div(args.key_dim, Plan::kDepth);
    const int num_chunks = ceil_div(item.tokens, Plan::kTokens);
    const int num_steps = num_chunks * num_depths;

    Element* const stages_smem = reinterpret_cast<Element*>(chunk_smem);
    float* const value_sum_smem = reinterpret_cast<float*>(chunk_smem + Plan::kStages * QueryLayout::kBytes);
    float* const row_smem = value_sum_smem + kValueColumns;
    float* const key_sum_smem = row_smem + Plan::kRowFloats * Plan::kTokens;  // z
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
            item.tokens - static_cast<int>(token), args.key_dim - column);
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
      const bool valid = state.state_gmem != nullptr && key < args.key_dim && column < num_values;
      const int64_t source = key * state.key_stride + column * state.column_stride;
      const int target =
          key / Plan::kDepth * StateLayout::kElements + column * StateLayout::kStride + key % Plan::kDepth;
      state_smem[target] = from_float<StateElement>(valid ? state.state_gmem[source] : 0.0f);
    }
    for (int key = thread; key < num_depths * Plan::kDepth; key += Plan::kThreads) {
      const bool valid = state.key_sum_gmem != nullptr && key < args.key_dim;
      key_sum_smem[key] = valid ? state.key_sum_gmem[key] : 0.0f;
    }
    if (thread < kValueColumns) {
      const bool valid = state.value_sum_gmem != nullptr && thread < num_values;
      value_sum_smem[thread] = valid ? state.value_sum_gmem[thread] : 0.0f;
    }

    float out_frag[Plan::kColumnBlocks][2][4];
    typename Rows::Fetched fetched;
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
        fetched = rows.fetch(token + row, token + row < item.tokens);
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

      const bool is_valid = token + row < item.tokens;
      const float product = sum_lanes<Plan::kLanesPerRow>(products);
      const float length = rows.template length<Plan::kLanesPerRow>(squares, token + row, row_lane, is_valid);
      if (row_lane == 0) {
        rows.measure(row_smem, row, token, is_valid, length, product, fetched);
      }
      __syncthreads();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int out_row = strip * 16 + lane / 4 + half * 8;
        const OutputFactors factors = rows.factors(row_smem, out_row);
        Element* const out_row_gmem = token + out_row < item.tokens
                                      ? out_gmem + static_cast<int64_t>(token + out_row) * args.out.token_stride
                                      : nullptr;
#pragma unroll
        for (int j = 0; j < Plan::kColumnBlocks; ++j) {
          const int column = first_column + j * 16;
          float2 x_frag[2];
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const int value = column + i * 8 + lane % 4 * 2;
            const float* const pair_frag = out_frag[j][i] + half * 2;
            x_frag[i] = make_float2(
                fmaf(factors.linear, pair_frag[0], factors.constant * value_sum_smem[value]),
                fmaf(factors.linear, pair_frag[1], factors.constant * value_sum_smem[value + 1]));
            rows.visit(row_smem, out_row, token, value, x_frag[i]);
            x_frag[i] = make_float2(x_frag[i].x * factors.factor, x_frag[i].y * factors.factor);
          }
          store_pieces(out_row_gmem, num_values, column, x_frag[0], x_frag[1]);
        }
      }
    }
  }
};

// Rows of the forward.
template <class Plan>
struct ForwardOutputRows {
  using Element = typename Plan::Element;
  const ChunkedArguments& args;
  const ValueTile<Plan::kTileColumns>& tile;
  const Element* query_gmem;
  static constexpr bool kHasOthers = false;
  struct Fetched {};

  __device__ __forceinline__ Fetched fetch(int, bool) const { return {}; }

  __device__ __forceinline__ bool wants_lengths() const { return args.normalize != 0; }

  template <int kLanes>
  __device__ __forceinline__ float length(float squares, int token, int row_lane, bool is_valid) const {
    if (!wants_lengths()) {
      return 1.0f;
    }
    const Element* const row_gmem = query_gmem + static_cast<int64_t>(token) * args.query.token_stride;
    const int num_columns = is_valid ? args.key_dim : 0;
    const float length = row_length<kLanes>(squares, [&](auto&& visit) {
      for (int column = row_lane; column < num_columns; column += kLanes) {
        visit(column, to_float(row_gmem[column]), 0.0f);
      }
    });
    return is_plain(sum_lanes<kLanes>(squares)) ? length : -length;
  }

  // a and 1 / g, times |q| where q is normalised. `signed_length` is -|q|, and -1 of zeros, where squares were not plain: a
  // backward measures such rows itself.
  __device__ __forceinline__ void measure(float* row_smem, int row, int token, bool is_valid, float signed_length,
                                          float query_key_sum, Fetched) const {
    const float length = fabsf(signed_length);
    const double constant = static_cast<double>(tile.head.a) * length;
    const float normalizer = static_cast<float>(constant * static_cast<double>(tile.item.count) +
                                                static_cast<double>(tile.head.b) * query_key_sum);
    row_smem[row] = static_cast<float>(constant);
    row_smem[Plan::kTokens + row] = 1.0f / normalizer;
    if (tile.block.tile_idx == 0 && is_valid) {
      tile.normalizer(args)[static_cast<int64_t>(token + row) * args.normalizer.token_stride] = normalizer / length;
      keep_scale(token + row, signed_length > 0.0f ? 1.0f / length : 0.0f);
    }
  }

  // 1 / |q| for a backward, 0 where that was not measured: [batch, heads, tokens] in the place of k, which nobody reads; or null.
  __device__ __forceinline__ void keep_scale(int token, float scale) const {
    if (args.key.address != nullptr) {
      static_cast<float*>(args.key.address)[tile.head.index * args.tokens + tile.item.start + token] = scale;
    }
  }

  __device__ __forceinline__ OutputFactors factors(const float* row_smem, int row) const {
    return {tile.head.b, row_smem[row], row_smem[Plan::kTokens + row]};
  }

  __device__ __forceinline__ bool wants_outputs() const { return false; }
  __device__ __forceinline__ void visit(const float*, int, int, int, float2) const {}
};

template <class Plan>
__device__ __forceinline__ void state_outputs(const ChunkedArguments& args) {
  using Element = typename Plan::Element;
  let_later_kernels_start();
  const ValueTile<Plan::kTileColumns> tile(args);
  wait_for_earlier_kernels();
  if (tile.item.tokens == 0) {
    return;
  }
  const auto at = [](const float* array_gmem, int64_t offset) {
    return array_gmem == nullptr ? nullptr : array_gmem + offset;
  };
  const StateColumns state = {at(args.state_in, tile.state_offset(args)), args.value_dim, 1,
                              at(args.key_sum_in, tile.key_sum_offset(args)),
                              at(args.value_sum_in, tile.value_sum_offset(args))};
  const Element* const query_gmem = tile.template query<Element>(args);
  ForwardOutputRows<Plan> rows = {args, tile, query_gmem};
  Plan::Outputs::template write<Plan>(args, tile.item, tile.num_columns, query_gmem, tile.template out<Element>(args), state,
                                      rows);
}

}  // namespace linattn
