// What is read from a state alone by products of warpgroups, on sm_90a.
//
// S^T stands in shared memory as a sum of kParts operands, and so does each row of x in registers: one part of 16-bit rows, two
// of fp32, of whose products that of the last parts is left out. bf16 has the range of fp32. fp16 has not: a block knows the
// largest element of its S, and scales by it; of fp32, whose digits two fp16 nearly have, a row is scaled box by box. Elements
// below 2^-17 of the largest that share their scale lose digits.
//
// A launch has one warpgroup in a block or two, which take chunks of 64 rows in turn: of one a multiprocessor has several
// blocks, some of which multiply while others begin; of two, S is read once for twice the rows. Each warp brings its own 16
// rows of a chunk and writes what comes of them: once S^T is there no warp waits for another but in products.
#pragma once

#include <type_traits>

#include "linattn/hopper.cuh"
#include "linattn/hopper_output_rows.cuh"
#include "linattn/state_outputs.cuh"

namespace linattn {

struct OutputsByWarpgroups;

// kStages boxes of 64 columns of a warp's rows are on their way. Products has the instructions:
// wide(d, a, b, add) of kTileColumns and 8 columns, narrow of 64 and 8. kFinishes: whether outputs are gradients of rows over
// their length and become those of the rows; then two tiles of a row, if it has two, are a cluster.
template <typename ElementOf, typename HalfOf, int kPartsOf, int kTileColumnsOf, int kStagesOf, class ProductsOf,
          int kRowFloatsOf, bool kFinishesOf>
struct HopperOutputsPlan {
  using Element = ElementOf;
  using Half = HalfOf;  // of the operands
  using Outputs = OutputsByWarpgroups;
  using Products = ProductsOf;
  static constexpr int kParts = kPartsOf;
  static constexpr bool kScaled = std::is_same_v<Half, F16>;
  static constexpr bool kScalesRows = kScaled && sizeof(Element) == 4;
  // Of the scale of S, what is taken off with that of a row, so that sums of large rows stay in the range of fp32.
  static constexpr float kSharedScale = kScalesRows ? 0x1p15f : 1.0f;
  static constexpr bool kFormsDots = true;
  static constexpr bool kFinishes = kFinishesOf;
  static constexpr int kTileColumns = kTileColumnsOf;
  static constexpr int kMostWarpgroups = 2;
  static constexpr int kThreads = kMostWarpgroups * hopper::kWarpgroup;  // at most
  static constexpr int kTokens = 64;  // of a chunk
  static constexpr int kWarpTokens = 16;
  static constexpr int kBoxColumns = 64;  // of x, and of the contraction
  static constexpr int kSteps = kBoxColumns / 16;
  static constexpr int kExtraRows = 8;  // of S^T: the first three have parts of the sum that rows of x are multiplied by
  static constexpr int kStages = kStagesOf;
  static constexpr int kRowFloats = kRowFloatsOf;
  static constexpr int kPartBytes = (kTileColumns + kExtraRows) * hopper::kRowBytes;
  static constexpr int kRowBytes = kBoxColumns * static_cast<int>(sizeof(Element));
  static constexpr int kStageBytes = kWarpTokens * kRowBytes;  // of a warp
  static constexpr int kAlignment = 1024;
  // Of a warp: sums of its rows from the other tile, of two chunks, and a barrier for each of these.
  static constexpr int kRowSumBytes = kWarpTokens / 2 * hopper::kUnitBytes;
  static constexpr int kExchangeBytes = kFinishes ? 2 * (kRowSumBytes + 8) : 0;
  static constexpr int kWarpgroupBytes =
      hopper::kWarpgroup / kWarp * (kStages * kStageBytes + kExchangeBytes) + kRowFloats * kTokens * 4;
  static constexpr int kFixedFloats = kTileColumns + 4;  // u, and what takes off the scale of z
  static constexpr int kFixedBytes = kAlignment + kFixedFloats * 4;

  __host__ __device__ static constexpr int shared_bytes(int key_dim, int warpgroups) {
    return kFixedBytes + warpgroups * kWarpgroupBytes + ceil_div(key_dim, kBoxColumns) * kParts * kPartBytes;
  }

  __device__ __forceinline__ static int threads() { return static_cast<int>(blockDim.x); }
  // Of all warpgroups, a chunk of each.
  __device__ __forceinline__ static int tokens_at_once() { return threads() / (hopper::kWarpgroup / kTokens); }
};

namespace hopper {

// S^T of a tile of kColumns columns, parts of boxes of 64 key columns. The order along these is free as long as rows of x
// have the same: of 16 columns of fp32 a lane has four neighbours, so that it loads them at once.
template <class Plan, int kColumns>
struct StateOperand {
  using Half = typename Plan::Half;
  static constexpr int kPartBytes = (kColumns + Plan::kExtraRows) * hopper::kRowBytes;
  static constexpr int kBoxBytes = Plan::kParts * kPartBytes;
  static constexpr int kSumParts = 3;
  static constexpr int kMostKeys = 512;  // of any row
  static constexpr int kSumPairs = kMostKeys / 2 / hopper::kWarpgroup;

  uint32_t base;
  float scale = 1.0f;  // of S, a power of two
  float sum_scale = 1.0f;

  // Of an even key column of a box and the next.
  __device__ __forceinline__ static uint32_t place(int row, int key) {
    const int position =
        sizeof(typename Plan::Element) == 2 ? key : key / 16 * 16 + key % 16 / 4 * 2 + key % 4 * 4;
    return swizzled(row, position / 8) + position % 8 * 2;
  }

  // visit(column, key, values) for pairs along the key columns. A thread reads eight elements at once, as they stand in memory:
  // of two keys and four columns, or of eight keys and one column, four of which begin at a multiple of 16 bytes as states do;
  // neighbours among the threads neighbours of them. kBatch times as many are on their way, since a block begins with this and
  // has nothing else to do meanwhile. From one time to the next a thread moves on along the keys alone, or along the columns of a
  // box and then to the next one.
  template <int kBatch = 4, typename Visit>
  __device__ __forceinline__ static void visit_pairs(const StateColumns& state, int key_dim, int num_values,
                                                     Visit&& visit) {
    static_assert(kWarpgroup % kColumns == 0, "threads that have all columns of some keys");
    const bool along_columns = state.column_stride == 1;
    const int thread = static_cast<int>(threadIdx.x);
    const int key_stride = static_cast<int>(state.key_stride);  // those of a state, which has 512 x 512 elements at most
    const int column_stride = static_cast<int>(state.column_stride);
    const int first_key = along_columns ? thread / kColumns * 8 + thread / 8 % 4 * 2 : thread % 8 * 8;
    const int first_column = along_columns ? thread / 32 % (kColumns / 32) * 32 + thread % 8 * 4 : thread / 8;
    const int step = along_columns ? Plan::threads() / kColumns * 8 : Plan::threads() / 8;
    const auto key_of = [&](int moved) { return first_key + (along_columns ? moved : moved / kColumns * Plan::kBoxColumns); };
    const auto column_of = [&](int moved) { return first_column + (along_columns ? 0 : moved % kColumns); };
    const int num_boxes = ceil_div(key_dim, Plan::kBoxColumns);
    const int end = num_boxes * (along_columns ? Plan::kBoxColumns : kColumns);
    const int to_second_half = along_columns ? key_stride : 4;
#pragma unroll 1
    for (int first = 0; first < end; first += kBatch * step) {
      float4 values[kBatch][2];
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int moved = first + i * step;
        const bool valid = state.state_gmem != nullptr && key_of(moved) < key_dim && column_of(moved) < num_values;
        const float* const eight_gmem =
            state.state_gmem + (key_of(moved) * key_stride + column_of(moved) * column_stride);
        values[i][0] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        values[i][1] = values[i][0];
        if (valid) {
          values[i][0] = *reinterpret_cast<const float4*>(eight_gmem);
          values[i][1] = *reinterpret_cast<const float4*>(eight_gmem + to_second_half);
        }
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int moved = first + i * step;
        if (moved >= end) {
          continue;
        }
        const int key = key_of(moved);
        const int column = column_of(moved);
        const float4 low = values[i][0];
        const float4 high = values[i][1];
        if (along_columns) {
          visit(column, key, make_float2(low.x, high.x));
          visit(column + 1, key, make_float2(low.y, high.y));
          visit(column + 2, key, make_float2(low.z, high.z));
          visit(column + 3, key, make_float2(low.w, high.w));
        } else {
          visit(column, key, make_float2(low.x, low.y));
          visit(column, key + 2, make_float2(low.z, low.w));
          visit(column, key + 4, make_float2(high.x, high.y));
          visit(column, key + 6, make_float2(high.z, high.w));
        }
      }
    }
  }

  // Of all threads; scratch_smem has a word for each warp.
  __device__ __forceinline__ static float largest_of_block(float largest, float* scratch_smem) {
    largest = max_lanes<kWarp>(largest);
    __syncthreads();
    if (threadIdx.x % kWarp == 0) {
      scratch_smem[threadIdx.x / kWarp] = largest;
    }
    __syncthreads();
    for (int warp = 0; warp < Plan::threads() / kWarp; ++warp) {
      largest = fmaxf(largest, scratch_smem[warp]);
    }
    return largest;
  }

  // The largest element of the block's part of S that is finite. Elements are asked one by one only where some is infinite.
  __device__ __forceinline__ static float largest_of(const StateColumns& state, int key_dim, int num_values,
                                                     float* scratch_smem) {
    float largest = 0.0f;
    visit_pairs(state, key_dim, num_values, [&](int, int, float2 values) {
      largest = fmaxf(largest, fmaxf(fabsf(values.x), fabsf(values.y)));  // NaN is passed over
    });
    largest = largest_of_block(largest, scratch_smem);
    if (largest < INFINITY) {
      return largest;
    }
    largest = 0.0f;
    visit_pairs<1>(state, key_dim, num_values, [&](int, int, float2 values) {
      largest = fmaxf(largest, fmaxf(finite_size(values.x), finite_size(values.y)));
    });
    return largest_of_block(largest, scratch_smem);
  }

  __device__ __forceinline__ void fill(const StateColumns& state, int key_dim, int num_values, float* scratch_smem) {
    const int first_key = 2 * static_cast<int>(threadIdx.x);
    const auto key_of_pair = [&](int i) { return first_key + i * 2 * Plan::threads(); };
    float2 sums[kSumPairs];  // asked for before S
#pragma unroll
    for (int i = 0; i < kSumPairs; ++i) {
      const float* const pair_gmem = state.key_sum_gmem + key_of_pair(i);
      const bool valid = state.key_sum_gmem != nullptr && key_of_pair(i) < key_dim;
      sums[i] = valid ? make_float2(pair_gmem[0], pair_gmem[1]) : make_float2(0.0f, 0.0f);
    }
    if constexpr (Plan::kScaled) {
      scale = half_scale_for(largest_of(state, key_dim, num_values, scratch_smem));
      float largest = 0.0f;
#pragma unroll
      for (int i = 0; i < kSumPairs; ++i) {
        largest = fmaxf(largest, fmaxf(finite_size(sums[i].x), finite_size(sums[i].y)));
      }
      sum_scale = half_scale_for(largest_of_block(largest, scratch_smem));
    }
    visit_pairs(state, key_dim, num_values, [&](int column, int key, float2 values) {
      const uint32_t word = base + key / Plan::kBoxColumns * kBoxBytes + place(column, key % Plan::kBoxColumns);
      values = make_float2(values.x * scale, values.y * scale);
#pragma unroll
      for (int part = 0; part < Plan::kParts; ++part) {
        store_word(word + part * kPartBytes, next_part<Half>(values));
      }
    });
#pragma unroll
    for (int i = 0; i < kSumPairs; ++i) {
      if (key_of_pair(i) < ceil_div(key_dim, Plan::kBoxColumns) * Plan::kBoxColumns) {
        fill_sums(key_of_pair(i), make_float2(sums[i].x * sum_scale, sums[i].y * sum_scale));
      }
    }
  }

  __device__ __forceinline__ void fill_sums(int key, float2 values) const {
    const uint32_t box = base + key / Plan::kBoxColumns * kBoxBytes;
#pragma unroll
    for (int part = 0; part < Plan::kParts; ++part) {
#pragma unroll
      for (int row = 0; row < Plan::kExtraRows; ++row) {
        const bool has_sums = part == 0 && row < kSumParts;
        store_word(box + part * kPartBytes + place(kColumns + row, key % Plan::kBoxColumns),
                   has_sums ? next_part<Half>(values) : 0u);
      }
    }
  }

  __device__ __forceinline__ uint64_t part(int box, int part_idx) const {
    return operand(base + box * kBoxBytes + part_idx * kPartBytes);
  }
};

// The products of a box, the small terms first.
template <class Plan, int kColumns, int kRegisters>
__device__ __forceinline__ void multiply_box(float (&sums_frag)[kRegisters],
                                             uint32_t (&rows_frag)[Plan::kParts][Plan::kSteps][4],
                                             const StateOperand<Plan, kColumns>& state, int box, bool adds) {
  pin(sums_frag);
  products_fence();
#pragma unroll
  for (int order = Plan::kParts - 1; order >= 0; --order) {
#pragma unroll
    for (int part = order; part >= 0; --part) {
      const uint64_t state_part = state.part(box, order - part);
#pragma unroll
      for (int step = 0; step < Plan::kSteps; ++step) {
        const bool is_first = order == Plan::kParts - 1 && part == order && step == 0;
        if constexpr (kColumns == Plan::kTileColumns) {
          Plan::Products::wide(sums_frag, rows_frag[part][step], further(state_part, step * 32), adds || !is_first);
        } else {
          Plan::Products::narrow(sums_frag, rows_frag[part][step], further(state_part, step * 32), adds || !is_first);
        }
      }
    }
  }
  products_commit();
  products_wait<0>();
  pin(sums_frag);
#pragma unroll
  for (int part = 0; part < Plan::kParts; ++part) {
#pragma unroll
    for (int step = 0; step < Plan::kSteps; ++step) {
      pin(rows_frag[part][step]);
    }
  }
}

// Where a lane stores its share of 16 columns of a row, of which it has 2 t, 2 t + 1 and 8 more: 8 bytes at a time, four lanes
// neighbours.
template <typename Element>
__device__ __forceinline__ int column_of_lane(int lane) {
  const int t = lane % 4;
  return sizeof(Element) == 2 ? t % 2 * 8 + t / 2 * 4 : 2 * t;
}

template <typename Element>
__device__ __forceinline__ void store_share(Element* share_gmem, bool stores, bool is_odd, float2 left, float2 right) {
  if constexpr (sizeof(Element) == 2) {
    const uint32_t left_pair = pack<Element>(left.x, left.y);
    const uint32_t right_pair = pack<Element>(right.x, right.y);
    const uint32_t received = __shfl_xor_sync(kAllLanes, is_odd ? left_pair : right_pair, 1);
    if (stores) {
      *reinterpret_cast<uint2*>(share_gmem) =
          is_odd ? make_uint2(received, right_pair) : make_uint2(left_pair, received);
    }
  } else if (stores) {
    *reinterpret_cast<float2*>(share_gmem) = left;
    *reinterpret_cast<float2*>(share_gmem + 8) = right;
  }
}

// The outputs of a chunk, of whose rows a lane has two. kVisits: whether rows are told of them.
template <class Plan, int kColumns, bool kVisits, class Rows, int kRegisters>
__device__ __forceinline__ void store_outputs(const float (&sums_frag)[kRegisters], const float* value_sum_smem,
                                              const float* row_smem, int first_row, int token, const Item& item,
                                              int num_values, float inverse_scale, typename Plan::Element* out_gmem,
                                              int64_t token_stride, Rows& rows) {
  using Element = typename Plan::Element;
  const int lane = lane_of_thread();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + half * 8;
    const OutputFactors factors = rows.factors(row_smem, row);
    const float linear = inverse_scale * (kVisits ? factors.linear : factors.linear * factors.factor);
    const float constant = kVisits ? factors.constant : factors.constant * factors.factor;
    const bool is_valid = token + row < item.tokens;
    Element* const share_gmem =
        out_gmem + static_cast<int64_t>(token + row) * token_stride + column_of_lane<Element>(lane);
#pragma unroll
    for (int column = 0; column < kColumns; column += 16) {
      float2 x_frag[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int value = column + i * 8 + lane % 4 * 2;
        const float* const pair_frag = sums_frag + column / 2 + i * 4 + half * 2;
        x_frag[i] = make_float2(fmaf(linear, pair_frag[0], constant * value_sum_smem[value]),
                                fmaf(linear, pair_frag[1], constant * value_sum_smem[value + 1]));
        if constexpr (kVisits) {
          rows.visit(row_smem, row, token, value, x_frag[i]);
          x_frag[i] = make_float2(x_frag[i].x * factors.factor, x_frag[i].y * factors.factor);
        }
      }
      store_share(share_gmem + column, is_valid && column < num_values, lane % 2 == 1, x_frag[0], x_frag[1]);
    }
  }
}

// Sums over the columns of the tiles of a row, of which a warp has 16 rows, from the blocks of its cluster: each sends its own
// sums to the other. Sums of two chunks have places, and the other warp sends those of a chunk once it has read those of the one
// before, so that none is overwritten unread.
template <class Plan>
struct RowExchange {
  uint32_t sums;      // of this warp
  uint32_t barriers;  // likewise
  uint32_t other_rank;
  bool has_other;
  int lane;
  RingPosition<2> at;

  // All threads of the cluster take part.
  __device__ __forceinline__ RowExchange(uint32_t place, int rank, bool has_two_tiles)
      : sums(place + warp_of_thread() * 2 * Plan::kRowSumBytes),
        barriers(place + (Plan::threads() / kWarp * Plan::kRowSumBytes + warp_of_thread() * 8) * 2),
        other_rank(1 - rank),
        has_other(has_two_tiles),
        lane(lane_of_thread()) {
    if (has_other) {
      if (lane == 0) {
        barrier_init(barriers, 1);
        barrier_init(barriers + 8, 1);
        barrier_init_fence();
      }
      __syncwarp();
      cluster_sync();
    }
  }

  // Adds what the other tile has of this lane's two rows, as the four lanes of each row do.
  __device__ __forceinline__ void add_others(float (&sums_frag)[2]) {
    if (!has_other) {
      return;
    }
    const uint32_t barrier = barriers + at.index() * 8;
    const uint32_t unit = sums + at.index() * Plan::kRowSumBytes + lane / 4 * kUnitBytes;
    if (lane == 0) {
      barrier_expect(barrier, Plan::kRowSumBytes);
    }
    __syncwarp();
    if (lane % 4 == 0) {
      store_unit_async(address_in_block(unit, other_rank),
                       make_uint4(__float_as_uint(sums_frag[0]), __float_as_uint(sums_frag[1]), 0, 0),
                       address_in_block(barrier, other_rank));
    }
    barrier_wait(barrier, at.parity());
    const uint4 others = load_unit(unit);
    sums_frag[0] += __uint_as_float(others.x);
    sums_frag[1] += __uint_as_float(others.y);
    reads_are_used();
    __syncwarp();
    at.advance();
  }

  // No block ends while the other sends.
  __device__ __forceinline__ void end() const {
    if (has_other) {
      cluster_sync();
    }
  }
};

// What a lane has of its two rows of a tensor of as many columns as a tile: those of its outputs.
template <class Plan, int kColumns>
struct OwnRows {
  using Element = typename Plan::Element;
  static constexpr int kWords = sizeof(Element) == 2 ? 4 : 8;  // of 16 columns
  uint32_t words_frag[kColumns / 16][kWords];

  // A box of 64 columns from a stage.
  __device__ __forceinline__ void load(uint32_t stage, int first_column) {
    const int lane = lane_of_thread();
    using Cursor = RowCursor<Plan>;
#pragma unroll
    for (int step = 0; step < Plan::kSteps; ++step) {
      uint32_t(&words)[kWords] = words_frag[first_column / 16 + step];
      if constexpr (sizeof(Element) == 2) {
        load_matrices(stage + Cursor::place(lane % 16, step * 2 + lane / 16), words);
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int unit = step * 4 + i / 2 * 2 + lane % 4 / 2;
          const float2 x = load_float2(stage + Cursor::place(lane / 4 + i % 2 * 8, unit) + lane % 2 * 8);
          words[2 * i] = __float_as_uint(x.x);
          words[2 * i + 1] = __float_as_uint(x.y);
        }
      }
    }
  }

  // Of the lane's row `half`, pair i of 16 columns.
  __device__ __forceinline__ float2 pair(int column, int half, int i) const {
    const uint32_t(&words)[kWords] = words_frag[column / 16];
    if constexpr (sizeof(Element) == 2) {
      return unpack<Element>(words[2 * i + half]);
    } else {
      return make_float2(__uint_as_float(words[4 * i + 2 * half]), __uint_as_float(words[4 * i + 2 * half + 1]));
    }
  }
};

// Gradients dy of rows y = s x of length 1, made into those of x: s (dy - y (y . dy)).
template <class Plan, int kColumns, class Rows, int kRegisters>
__device__ __forceinline__ void store_finished(float (&sums_frag)[kRegisters], const OwnRows<Plan, kColumns>& own,
                                               const float* value_sum_smem, const float* row_smem, int first_row,
                                               int token, const Item& item, int num_values, float inverse_scale,
                                               typename Plan::Element* out_gmem, int64_t token_stride, Rows& rows,
                                               RowExchange<Plan>& exchange) {
  using Element = typename Plan::Element;
  const int lane = lane_of_thread();
  float along[2] = {0.0f, 0.0f};
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const OutputFactors factors = rows.factors(row_smem, first_row + half * 8);
    const float scale = rows.scale(row_smem, first_row + half * 8);
    const float linear = inverse_scale * factors.linear;
#pragma unroll
    for (int column = 0; column < kColumns; column += 16) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int value = column + i * 8 + lane % 4 * 2;
        float* const pair_frag = sums_frag + column / 2 + i * 4 + half * 2;
        const float2 x = own.pair(column, half, i);
        pair_frag[0] = fmaf(linear, pair_frag[0], factors.constant * value_sum_smem[value]);
        pair_frag[1] = fmaf(linear, pair_frag[1], factors.constant * value_sum_smem[value + 1]);
        along[half] = fmaf(scale * x.x, pair_frag[0], fmaf(scale * x.y, pair_frag[1], along[half]));
      }
    }
    along[half] = sum_lanes<4>(along[half]);
    rows.pass(along[half], token + first_row + half * 8 < item.tokens && lane % 4 == 0);
  }
  exchange.add_others(along);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = first_row + half * 8;
    const float scale = rows.scale(row_smem, row);
    const float factor = rows.factors(row_smem, row).factor;
    const float of_row = -scale * along[half];
    const bool is_valid = token + row < item.tokens;
    Element* const share_gmem =
        out_gmem + static_cast<int64_t>(token + row) * token_stride + column_of_lane<Element>(lane);
#pragma unroll
    for (int column = 0; column < kColumns; column += 16) {
      float2 x_frag[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float* const pair_frag = sums_frag + column / 2 + i * 4 + half * 2;
        const float2 x = own.pair(column, half, i);
        x_frag[i] = make_float2(fmaf(of_row, x.x, pair_frag[0]) * factor * scale,
                                fmaf(of_row, x.y, pair_frag[1]) * factor * scale);
      }
      store_share(share_gmem + column, is_valid && column < num_values, lane % 2 == 1, x_frag[0], x_frag[1]);
    }
  }
}

// kColumns: of the tile, or 64 where there are no more. kDots: whether rows are multiplied by others, which share the stages.
template <class Plan, int kColumns, bool kDots, class Rows>
__device__ __forceinline__ void write_outputs(const ChunkedArguments& args, const Item& item, int num_values,
                                              const typename Plan::Element* query_gmem,
                                              typename Plan::Element* out_gmem, const StateColumns& state,
                                              Rows& rows) {
  constexpr int kRegisters = (kColumns + Plan::kExtraRows) / 2;
  constexpr int kSum = kColumns / 2;  // the first register of the extra columns
  extern __shared__ __align__(16) unsigned char chunk_smem[];

  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp;
  const int warp = warp_of_thread();
  const int num_boxes = ceil_div(args.key_dim, Plan::kBoxColumns);
  const int warpgroup = warp / 4;
  const int first_row = warp % 4 * Plan::kWarpTokens;  // of the warp
  const uint32_t start = shared_address(chunk_smem);
  StateOperand<Plan, kColumns> operands{(start + Plan::kAlignment - 1) & ~static_cast<uint32_t>(Plan::kAlignment - 1)};
  // Behind the operands of a whole tile, so that what two tiles exchange has one place in both blocks.
  const uint32_t stages = operands.base + num_boxes * Plan::kParts * Plan::kPartBytes;
  const uint32_t floats = stages + Plan::threads() / kWarp * Plan::kStages * Plan::kStageBytes;
  float* const value_sum_smem = reinterpret_cast<float*>(chunk_smem + (floats - start));
  float* const inverse_sum_scale_smem = value_sum_smem + Plan::kTileColumns;
  float* const row_smem = value_sum_smem + Plan::kFixedFloats + warpgroup * Plan::kRowFloats * Plan::kTokens;

  const int first_row_of_item = warpgroup * Plan::kTokens + first_row;
  const RowSource<typename Plan::Element> x = {query_gmem, args.query.token_stride, args.key_dim};
  RowSource<typename Plan::Element> others = x;
  RowSource<typename Plan::Element> own_rows = x;
  if constexpr (kDots) {
    others = rows.others();
  }
  if constexpr (Plan::kFinishes) {
    own_rows = rows.own(num_values);
  }
  BoxOrder<Plan, kDots> order{{x, item, first_row_of_item},
                              {others, item, first_row_of_item},
                              {own_rows, item, first_row_of_item}};
  RowsOnTheirWay<Plan> way(stages + warp * Plan::kStages * Plan::kStageBytes);
#pragma unroll
  for (int i = 0; i < Plan::kStages; ++i) {
    order.start(way);
  }
  const bool has_value_sum = state.value_sum_gmem != nullptr && thread < num_values;
  const float value_sum = has_value_sum ? state.value_sum_gmem[thread] : 0.0f;
  operands.fill(state, args.key_dim, num_values, value_sum_smem + Plan::kFixedFloats);
  if (thread < kColumns) {
    value_sum_smem[thread] = value_sum;
  }
  if (thread == 0) {  // a register would be one too many
    *inverse_sum_scale_smem = Plan::kSharedScale / operands.sum_scale;
  }
  publish_to_async_proxy();
  __syncthreads();
  RowExchange<Plan> exchange(floats + (Plan::kFixedFloats + Plan::kRowFloats * Plan::tokens_at_once()) * 4,
                         rows.tile.block.tile_idx, Plan::kFinishes && args.value_dim > Plan::kTileColumns);
  const float inverse_scale = Plan::kSharedScale / operands.scale;

  float sums_frag[kRegisters];
  for (int token = warpgroup * Plan::kTokens; token < item.tokens; token += Plan::tokens_at_once()) {
    const int lane_row = first_row + lane / 4;  // and eight further
    const int measured_row = lane_row + lane % 2 * 8;
    auto fetched = rows.fetch(token + measured_row, token + measured_row < item.tokens);
    float squares[2] = {0.0f, 0.0f};
    float dots[2] = {0.0f, 0.0f};
#pragma unroll 1
    for (int box = 0; box < num_boxes; ++box) {
      uint32_t rows_frag[Plan::kParts][Plan::kSteps][4];
      constexpr int kBoxes = kDots ? 2 : 1;
      wait_for_groups<Plan::kStages - kBoxes>();
      __syncwarp();  // the oldest are there, for all lanes
      float inverses[2] = {1.0f, 1.0f};  // of rows that are not scaled
      if constexpr (kDots) {
        add_dots<Plan>(way.stage(), way.second_stage(), dots);
      }
      way.load(rows_frag, inverses, rows.wants_lengths(), squares);
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kBoxes; ++i) {
        way.release();
        order.start(way);
      }
      if constexpr (Plan::kScalesRows) {  // and sums of boxes are rounded to nearest, not truncated
        float box_frag[kRegisters];
        multiply_box<Plan, kColumns>(box_frag, rows_frag, operands, box, false);
#pragma unroll
        for (int i = 0; i < kRegisters; ++i) {
          sums_frag[i] = fmaf(box_frag[i], inverses[i / 2 % 2], box == 0 ? 0.0f : sums_frag[i]);
        }
      } else {
        multiply_box<Plan, kColumns>(sums_frag, rows_frag, operands, box, box > 0);
      }
    }

    float products[2];
    float lengths[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = token + lane_row + half * 8;
      products[half] = *inverse_sum_scale_smem * sum_lanes<4>(sums_frag[kSum + 2 * half] + sums_frag[kSum + 2 * half + 1]);
      lengths[half] = rows.template length<4>(squares[half], row, lane % 4, row < item.tokens);
      if constexpr (kDots) {
        dots[half] = sum_lanes<4>(dots[half]);
      }
    }
    if (lane % 4 < 2) {
      const bool is_first = lane % 2 == 0;
      const bool is_valid = token + measured_row < item.tokens;
      if constexpr (kDots) {
        fetched = rows.measured(fetched, token + measured_row, is_valid, is_first ? dots[0] : dots[1]);
      }
      rows.measure(row_smem, measured_row, token, is_valid, is_first ? lengths[0] : lengths[1],
                   is_first ? products[0] : products[1], fetched);
    }
    __syncwarp();
    if constexpr (Plan::kFinishes) {
      OwnRows<Plan, kColumns> own;
#pragma unroll
      for (int column = 0; column < kColumns; column += Plan::kBoxColumns) {
        wait_for_groups<Plan::kStages - 1>();
        __syncwarp();
        own.load(way.stage(), column);
        __syncwarp();
        way.release();
        order.start(way);
      }
      store_finished<Plan, kColumns>(sums_frag, own, value_sum_smem, row_smem, lane_row, token, item, num_values,
                                     inverse_scale, out_gmem, args.out.token_stride, rows, exchange);
    } else if (rows.wants_outputs()) {
      store_outputs<Plan, kColumns, true>(sums_frag, value_sum_smem, row_smem, lane_row, token, item, num_values, inverse_scale,
                                          out_gmem, args.out.token_stride, rows);
    } else {
      store_outputs<Plan, kColumns, false>(sums_frag, value_sum_smem, row_smem, lane_row, token, item, num_values,
                                           inverse_scale, out_gmem, args.out.token_stride, rows);
    }
    __syncwarp();  // the factors of this chunk have been read
  }
  wait_for_copies();  // of zeros past the last row
  exchange.end();
}

}  // namespace hopper

struct OutputsByWarpgroups {
  template <class Plan, class Rows>
  __device__ __forceinline__ static void write(const ChunkedArguments& args, const Item& item, int num_values,
                                               const typename Plan::Element* query_gmem,
                                               typename Plan::Element* out_gmem, const StateColumns& state,
                                               Rows& rows) {
    const auto write_tile = [&](auto columns) {
      constexpr int kColumns = decltype(columns)::value;
      if constexpr (Rows::kHasOthers) {
        if (rows.others().rows_gmem != nullptr) {
          hopper::write_outputs<Plan, kColumns, true>(args, item, num_values, query_gmem, out_gmem, state, rows);
          return;
        }
      }
      hopper::write_outputs<Plan, kColumns, false>(args, item, num_values, query_gmem, out_gmem, state, rows);
    };
    if (num_values <= kValueColumns) {
      write_tile(std::integral_constant<int, kValueColumns>());
    } else {
      write_tile(std::integral_constant<int, Plan::kTileColumns>());
    }
  }
};

}  // namespace linattn
