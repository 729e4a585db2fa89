// Sums of items on the tensor cores of sm_80 and newer: chunked_arguments.h has the vocabulary,
// docs/decisions/0004-chunked-family.md the formulas.
#pragma once

#include "linattn/chunk_items.cuh"
#include "linattn/chunk_rows.cuh"
#include "linattn/dependent_launch.cuh"
#include "linattn/mma.cuh"

namespace linattn {

// z and u of a block's tiles. Elements of 16 bits are multiplied by ones, exactly; of a block of 16 key
// columns or value rows, which several warps hold, one warp does.
template <class Plan, bool kIsPacked = sizeof(typename Plan::Element) == 2>
struct TileSums {
  using Element = typename Plan::Element;
  int key_block;
  int value_block;
  int warp_row;
  int warp_column;
  float key_frag[2][4];
  float value_frag[4];
  float key_sum_frag[4];
  float value_sum_frag[2];

  __device__ __forceinline__ explicit TileSums(int warp)
      : key_block(warp % 4),
        value_block(warp / 4),
        warp_row(warp % 4 * (Plan::kValueTile / 4)),
        warp_column(warp / 4 * (Plan::kKeyTile / 2)),
        key_sum_frag{0.0f, 0.0f, 0.0f, 0.0f},
        value_sum_frag{0.0f, 0.0f} {}

  __device__ __forceinline__ void read_tiles(const Element*, const Element*) {
    clear(key_frag[0]);
    clear(key_frag[1]);
    clear(value_frag);
  }

  template <typename Operand>
  __device__ __forceinline__ void add_keys(const typename Operand::B& left, const typename Operand::B& right,
                                           int block, bool wanted) {
    if (wanted && block == key_block) {
      typename Operand::A ones;
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        ones.set(pair, 1.0f, 1.0f);
      }
      multiply(key_frag[0], ones, left);
      multiply(key_frag[1], ones, right);
    }
  }

  template <typename Operand>
  __device__ __forceinline__ void add_values(const typename Operand::A& rows, int block, bool wanted) {
    if (wanted && block == value_block) {
      typename Operand::B ones;
      ones.set(0, 1.0f, 1.0f);
      ones.set(1, 1.0f, 1.0f);
      multiply(value_frag, rows, ones);
    }
  }

  // All rows of key_frag and all columns of value_frag are equal.
  __device__ __forceinline__ void fold() {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      key_sum_frag[i] += key_frag[i / 2][i % 2];
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      value_sum_frag[i] += value_frag[2 * i];
    }
  }

  __device__ __forceinline__ void store(float*, float* keys_gmem, int num_keys, float* values_gmem,
                                        int num_values) const {
    const int lane = lane_of_thread();
    if (keys_gmem != nullptr && key_block < Plan::kColumnBlocks && lane < 4) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = warp_column + key_block * 16 + i / 2 * 8 + lane * 2 + i % 2;
        if (column < num_keys) {
          keys_gmem[column] = key_sum_frag[i];
        }
      }
    }
    if (values_gmem != nullptr && value_block < Plan::kRowBlocks && lane % 4 == 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = warp_row + value_block * 16 + lane / 4 + i * 8;
        if (row < num_values) {
          values_gmem[row] = value_sum_frag[i];
        }
      }
    }
  }
};

// Those of 32 bits would be rounded: a thread adds its share of the rows of a column of K, then of V.
template <class Plan>
struct TileSums<Plan, false> {
  using Element = typename Plan::Element;
  static constexpr int kSumThreads = Plan::kKeyTile + Plan::kValueTile;
  static constexpr int kParts = Plan::kThreads / kSumThreads;
  static constexpr int kRows = Plan::kTokens / kParts;
  int column;
  int first_row;
  RunningSum sum_frag;

  __device__ __forceinline__ explicit TileSums(int)
      : column(static_cast<int>(threadIdx.x) % kSumThreads),
        first_row(static_cast<int>(threadIdx.x) / kSumThreads * kRows) {}

  __device__ __forceinline__ void read_tiles(const Element* key_smem, const Element* value_smem) {
    ColumnSums<Element> sums;
    if (column < Plan::kKeyTile) {
      sums.template of_rows<kRows>(key_smem + first_row * Plan::KeyLayout::kStride + column,
                                   Plan::KeyLayout::kStride);
    } else {
      const Element* const row_smem = value_smem + first_row * Plan::ValueLayout::kStride;
      sums.template of_rows<kRows>(row_smem + column - Plan::kKeyTile, Plan::ValueLayout::kStride);
    }
    sum_frag.add(sums.sum_frag[0]);
    sum_frag.fold();
  }

  template <typename Operand>
  __device__ __forceinline__ void add_keys(const typename Operand::B&, const typename Operand::B&, int,
                                           bool) {}

  template <typename Operand>
  __device__ __forceinline__ void add_values(const typename Operand::A&, int, bool) {}

  __device__ __forceinline__ void fold() {}

  __device__ __forceinline__ void store(float* sums_smem, float* keys_gmem, int num_keys, float* values_gmem,
                                        int num_values) const {
    const int thread = static_cast<int>(threadIdx.x);
    sums_smem[thread] = sum_frag.total();
    __syncthreads();
    if (thread < kSumThreads) {
      float sum = 0.0f;
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        sum += sums_smem[part * kSumThreads + thread];
      }
      const int value_column = column - Plan::kKeyTile;
      if (column < Plan::kKeyTile) {
        if (keys_gmem != nullptr && column < num_keys) {
          keys_gmem[column] = sum;
        }
      } else if (values_gmem != nullptr && value_column < num_values) {
        values_gmem[value_column] = sum;
      }
    }
  }
};

// A block has kKeyTile x kValueTile of S of an item of a key/value head: of S^T, a warp has a quarter of the
// rows (value columns) and a half of the columns (key columns). With
//   tile = key_tile * ceil(Dv / kValueTile) + value_tile,
//   block = (kv_head * num_items + item) * tiles + tile, kv heads counted over all batch rows.
// Sums go to the item's slot of state_out, z by the blocks of value_tile 0, u by those of key_tile 0. S is
// summed inside the tensor core unless kAccurate: its sums truncate, by 8e-5 after 16384 tokens, so items
// should not be much longer.
//
// kStageFloats: what a stage holds beside K and V of a token. kSharedLimit: what a block may ask for; 99 KB suits
// every architecture.
template <typename ElementOf, bool kAccurateOf, int kSharedLimit = 99 * 1024, int kStageFloats = 0>
struct StateSumsPlan {
  using Element = ElementOf;
  static constexpr bool kAccurate = kAccurateOf;
  static constexpr MmaKind kKind = MmaKindOf<Element, kAccurate>::kKind;
  static constexpr int kKeyTile = 64;
  static constexpr int kValueTile = 64;
  static constexpr int kThreads = 256;

  static constexpr int kTokenBytes = (kKeyTile + kValueTile) * static_cast<int>(sizeof(Element));
  // Products of f16 take operands of twice the registers.
  static constexpr int kOperandBytes = kTokenBytes * (sizeof(Element) == 2 && kKind != MmaKind::kBf16 ? 2 : 1);
  static constexpr int kStepTokens = kOperandBytes <= 256 ? 64 : 32;

  __host__ __device__ static constexpr int stage_bytes(int tokens) {
    return tokens * ((kKeyTile + kValueTile + 16) * static_cast<int>(sizeof(Element)) + 4 * kStageFloats);
  }

  static constexpr int kTokens =
      kStepTokens < 64 && 3 * stage_bytes(2 * kStepTokens) <= kSharedLimit ? 2 * kStepTokens : kStepTokens;
  using KeyLayout = TileLayout<Element, kTokens, kKeyTile>;
  using ValueLayout = TileLayout<Element, kTokens, kValueTile>;
  static constexpr int kStageBytes = stage_bytes(kTokens);
  static constexpr int kStages = kSharedLimit / kStageBytes < 5 ? kSharedLimit / kStageBytes : 5;
  static constexpr int kSharedBytes = kStages * kStageBytes;

  static constexpr int kRowBlocks = kValueTile / 64;     // 16 rows of S^T each
  static constexpr int kColumnBlocks = kKeyTile / 32;    // 16 columns of S^T each
  static constexpr int kTokenSteps = kStepTokens / 16;
  static constexpr int kLanesPerRow = kThreads / kTokens;
  using Sums = TileSums<StateSumsPlan>;

  static_assert(kStageBytes == KeyLayout::kBytes + ValueLayout::kBytes + 4 * kStageFloats * kTokens,
                "the stage as laid out");
  static_assert(kStages >= 3, "copies take longer than a chunk");

  __host__ __device__ static constexpr int tiles(int key_dim, int value_dim) {
    return ceil_div(key_dim, kKeyTile) * ceil_div(value_dim, kValueTile);
  }
};

// What a warp adds to its part of S^T: its rows of V^T times its columns of K. visit_values(rows, block, token)
// sees each operand of V before it is multiplied and may change it, visit_keys(left, right, block) those of K.
template <class Plan, typename VisitValues, typename VisitKeys>
__device__ __forceinline__ void add_tile_products(
    float (&state_frag)[Plan::kRowBlocks][Plan::kColumnBlocks][2][4], const typename Plan::Element* key_smem,
    const typename Plan::Element* value_smem, int warp_row, int warp_column, VisitValues&& visit_values,
    VisitKeys&& visit_keys) {
  using Operand = Operands<typename Plan::Element, Plan::kKind>;
  using KeyLayout = typename Plan::KeyLayout;
  using ValueLayout = typename Plan::ValueLayout;
#pragma unroll 1
  for (int first = 0; first < Plan::kTokens; first += Plan::kStepTokens) {
    typename Operand::A value_frag[Plan::kRowBlocks][Plan::kTokenSteps];
#pragma unroll
    for (int r = 0; r < Plan::kRowBlocks; ++r) {
#pragma unroll
      for (int step = 0; step < Plan::kTokenSteps; ++step) {
        Operand::template load_a_transposed<ValueLayout>(value_frag[r][step], value_smem, first + step * 16,
                                                         warp_row + r * 16);
        visit_values(value_frag[r][step], r, first + step * 16);
      }
    }
#pragma unroll
    for (int j = 0; j < Plan::kColumnBlocks; ++j) {
      // The sums inside the tensor core truncate. Where that counts, a chunk's product is formed apart.
      float product_frag[Plan::kRowBlocks][2][4];
      if constexpr (Plan::kAccurate) {
        clear(product_frag);
      }
#pragma unroll
      for (int step = 0; step < Plan::kTokenSteps; ++step) {
        typename Operand::B left;
        typename Operand::B right;
        Operand::template load_b_transposed<KeyLayout>(left, right, key_smem, first + step * 16,
                                                       warp_column + j * 16);
        visit_keys(left, right, j);
#pragma unroll
        for (int r = 0; r < Plan::kRowBlocks; ++r) {
          float(&left_frag)[4] = Plan::kAccurate ? product_frag[r][0] : state_frag[r][j][0];
          float(&right_frag)[4] = Plan::kAccurate ? product_frag[r][1] : state_frag[r][j][1];
          multiply(left_frag, value_frag[r][step], left);
          multiply(right_frag, value_frag[r][step], right);
        }
      }
      if constexpr (Plan::kAccurate) {
#pragma unroll
        for (int r = 0; r < Plan::kRowBlocks; ++r) {
          add_to(state_frag[r][j][0], product_frag[r][0]);
          add_to(state_frag[r][j][1], product_frag[r][1]);
        }
      }
    }
  }
}

template <class Plan>
__device__ __forceinline__ void store_tile(
    const float (&state_frag)[Plan::kRowBlocks][Plan::kColumnBlocks][2][4], float* state_gmem, int value_dim,
    int num_keys, int num_values, int warp_row, int warp_column) {
  const int lane = lane_of_thread();
#pragma unroll
  for (int r = 0; r < Plan::kRowBlocks; ++r) {
#pragma unroll
    for (int j = 0; j < Plan::kColumnBlocks; ++j) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int value = warp_row + r * 16 + lane / 4 + i % 4 / 2 * 8;
        const int key = warp_column + j * 16 + i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (value < num_values && key < num_keys) {
          state_gmem[static_cast<int64_t>(key) * value_dim + value] = state_frag[r][j][i / 4][i % 4];
        }
      }
    }
  }
}

// Whether something of a part of sums is marked. z is of the parts of value tile 0, whichever marked it.
template <class Plan>
__device__ __forceinline__ bool is_marked_part(const ChunkedArguments& args, uint32_t part) {
  static_assert(Plan::kValueTile == kValueColumns, "a mark is of so many");
  const uint32_t value_tiles = ceil_div(args.value_dim, Plan::kValueTile);
  const uint32_t parts = Plan::tiles(args.key_dim, args.value_dim);
  const uint32_t item_of_head = quotient_by_tiles(part, parts);
  const uint32_t value_tile = (part - item_of_head * parts) % value_tiles;
  const uint32_t* const marks_gmem = args.marks + static_cast<int64_t>(item_of_head) * value_tiles;
  uint32_t marked = marks_gmem[value_tile];
  for (uint32_t tile = 1; value_tile == 0 && tile < value_tiles; ++tile) {
    marked |= marks_gmem[tile];
  }
  return marked != 0;
}

// The first marked one of the parts of sums `part`, `part` + grid, ... before `end`, or one past them. All threads call, once
// earlier kernels have ended.
template <class Plan>
__device__ __forceinline__ uint32_t marked_part(const ChunkedArguments& args, uint32_t part, uint32_t end) {
  for (; part < end; part += Plan::kThreads * gridDim.x) {
    const uint32_t own = part + threadIdx.x * gridDim.x;
    if (__syncthreads_or(own < end && is_marked_part<Plan>(args, own)) != 0) {
      while (!is_marked_part<Plan>(args, part)) {
        part += gridDim.x;
      }
      return part;
    }
  }
  return part;
}

// Calls sum(part) for the part of the sums that a block has. Where args.marks is not null sums are there already, by warpgroups,
// and it calls for those parts of the block's that are marked: what fp16 cannot hold, or a row of k whose length was out of range,
// leaves what is not finite.
template <class Plan, typename Sum>
__device__ __forceinline__ void visit_sums(const ChunkedArguments& args, Sum&& sum) {
  __shared__ uint32_t part_smem;  // meanwhile: a register would be one too many
  uint32_t part = blockIdx.x;
  while (true) {
    if (args.marks != nullptr) {
      const uint32_t end = static_cast<uint32_t>(args.batches * args.kv_heads.value * args.num_items.value) *
                           Plan::tiles(args.key_dim, args.value_dim);
      part = marked_part<Plan>(args, part, end);
      if (part >= end) {
        return;
      }
      if (threadIdx.x == 0) {
        part_smem = part;
      }
    }
    sum(part);
    if (args.marks == nullptr) {
      return;
    }
    part = part_smem + gridDim.x;
  }
}

// Those of a part: as a block, where a block has one.
template <class Plan>
__device__ __forceinline__ void sum_part(const ChunkedArguments& args, uint32_t part) {
  using Element = typename Plan::Element;
  using Operand = Operands<Element, Plan::kKind>;
  using KeyLayout = typename Plan::KeyLayout;
  using ValueLayout = typename Plan::ValueLayout;
  extern __shared__ __align__(16) unsigned char chunk_smem[];

  const int value_tiles = ceil_div(args.value_dim, Plan::kValueTile);
  const BlockIndex block(part, args.num_items, Plan::tiles(args.key_dim, args.value_dim));
  const int batch_idx = static_cast<int>(args.kv_heads.quotient(block.head));
  const int head_idx = static_cast<int>(args.kv_heads.remainder(block.head));
  const int first_key = block.tile_idx / value_tiles * Plan::kKeyTile;
  const int first_value = block.tile_idx % value_tiles * Plan::kValueTile;
  const Item item = load_item(args, block.item_idx);
  const Element* const key_row_gmem = row_address<Element>(args.key, batch_idx, head_idx, item.start);
  const Element* const key_gmem = key_row_gmem + first_key;
  const Element* const value_gmem =
      row_address<Element>(args.value, batch_idx, head_idx, item.start) + first_value;
  const int num_keys = args.key_dim - first_key;
  const int num_values = args.value_dim - first_value;
  const int num_chunks = ceil_div(item.tokens, Plan::kTokens);

  const int thread = static_cast<int>(threadIdx.x);
  const int warp = warp_of_thread();
  const int warp_row = warp % 4 * (Plan::kValueTile / 4);
  const int warp_column = warp / 4 * (Plan::kKeyTile / 2);

  const auto key_tile = [&](int chunk) {
    return reinterpret_cast<Element*>(chunk_smem + chunk % Plan::kStages * Plan::kStageBytes);
  };
  const auto value_tile = [&](int chunk) { return key_tile(chunk) + KeyLayout::kElements; };
  const auto start_chunk = [&](int chunk) {
    if (chunk < num_chunks) {
      const int64_t token = static_cast<int64_t>(chunk) * Plan::kTokens;
      const int rows = item.tokens - static_cast<int>(token);
      KeyLayout::template start_copy<Plan::kThreads>(key_tile(chunk),
                                                     key_gmem + token * args.key.token_stride,
                                                     args.key.token_stride, rows, num_keys);
      ValueLayout::template start_copy<Plan::kThreads>(value_tile(chunk),
                                                       value_gmem + token * args.value.token_stride,
                                                       args.value.token_stride, rows, num_values);
    }
    commit_copies();
  };

  const bool sums_keys = first_value == 0 && args.key_sum_out != nullptr;
  const bool sums_values = first_key == 0 && args.value_sum_out != nullptr;
  typename Plan::Sums sums(warp);
  float state_frag[Plan::kRowBlocks][Plan::kColumnBlocks][2][4];
#pragma unroll
  for (int r = 0; r < Plan::kRowBlocks; ++r) {
    clear(state_frag[r]);
  }

  const int64_t state = state_index(args, block.head, item.slot);
  __syncthreads();  // the part before has been stored
#pragma unroll 1
  for (int chunk = 0; chunk < Plan::kStages - 1; ++chunk) {
    start_chunk(chunk);
  }
  for (int chunk = 0; chunk < num_chunks; ++chunk) {
    wait_for_groups<Plan::kStages - 2>();
    __syncthreads();
    // Nobody reads the stage of the last chunk any more.
    start_chunk(chunk + Plan::kStages - 1);
    Element* const key_smem = key_tile(chunk);
    const Element* const value_smem = value_tile(chunk);

    if (args.normalize != 0) {
      const int row = thread / Plan::kLanesPerRow;
      const int lane = thread % Plan::kLanesPerRow;
      const int token = chunk * Plan::kTokens + row;
      Element* const row_smem = key_smem + row * KeyLayout::kStride;
      float length;
      if (args.key_dim <= Plan::kKeyTile) {
        length = row_length<Plan::kLanesPerRow>(row_smem, Plan::kKeyTile, lane);
      } else {
        const Element* const row_gmem = key_row_gmem + token * args.key.token_stride;
        const int num_columns = token < item.tokens ? args.key_dim : 0;
        const auto visit_columns = [&](auto&& visit) {
          for (int column = lane; column < num_columns; column += Plan::kLanesPerRow) {
            visit(column, to_float(row_gmem[column]), 0.0f);
          }
        };
        float squares = 0.0f;
        visit_columns([&](int, float x, float) { squares = fmaf(x, x, squares); });
        length = row_length<Plan::kLanesPerRow>(squares, visit_columns);
      }
      scale_row<Plan::kLanesPerRow>(row_smem, Plan::kKeyTile, lane, inverse_length(length));
      __syncthreads();
    }

    sums.read_tiles(key_smem, value_smem);

    add_tile_products<Plan>(
        state_frag, key_smem, value_smem, warp_row, warp_column,
        [&](const typename Operand::A& rows, int block, int) {
          sums.template add_values<Operand>(rows, block, sums_values);
        },
        [&](const typename Operand::B& left, const typename Operand::B& right, int block) {
          sums.template add_keys<Operand>(left, right, block, sums_keys);
        });
    sums.fold();
  }
  wait_for_groups<0>();
  __syncthreads();

  sums.store(reinterpret_cast<float*>(chunk_smem),
             sums_keys ? args.key_sum_out + state * args.key_dim + first_key : nullptr, num_keys,
             sums_values ? args.value_sum_out + state * args.value_dim + first_value : nullptr, num_values);

  if (args.state_out != nullptr) {
    store_tile<Plan>(state_frag, args.state_out + (state * args.key_dim + first_key) * args.value_dim + first_value,
                     args.value_dim, num_keys, num_values, warp_row, warp_column);
  }
}

template <class Plan>
__device__ __forceinline__ void state_sums(const ChunkedArguments& args) {
  let_later_kernels_start();
  wait_for_earlier_kernels();
  visit_sums<Plan>(args, [&](uint32_t part) { sum_part<Plan>(args, part); });
}

}  // namespace linattn
