// The causal forward on the tensor cores of sm_80 and newer: chunked_arguments.h has the vocabulary,
// docs/decisions/0004-chunked-family.md the formulas.
//
// A block has 64 value columns of an item of a head. Four warps keep S^T in registers, 16 value columns each,
// and form O^T = S^T Q^T + V^T W^T and S^T += V^T K; its accumulators become their own operands. Four other
// warps are a chunk ahead and form W, g and z. One barrier per chunk hands W over and frees the oldest stage.
#pragma once

#include <type_traits>

#include "linattn/chunk_items.cuh"
#include "linattn/chunk_rows.cuh"
#include "linattn/dependent_launch.cuh"
#include "linattn/mma.cuh"

namespace linattn {

// A barrier of the threads of one role.
constexpr int kScoreBarrier = 1;

template <int kBarrier, int kThreads>
__device__ __forceinline__ void wait_for_threads() {
  asm volatile("bar.sync %0, %1;\n" ::"n"(kBarrier), "n"(kThreads) : "memory");
}

// Where the roles meet. They do so in loops of their own, and a barrier by number of all threads wants them at one
// instruction.
template <int kThreads>
class MeetingPlace {
 public:
  // All threads of the block call it.
  __device__ __forceinline__ explicit MeetingPlace(uint64_t* barrier_smem)
      : barrier(static_cast<uint32_t>(__cvta_generic_to_shared(barrier_smem))) {
    if (threadIdx.x == 0) {
      asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "n"(kThreads) : "memory");
    }
    __syncthreads();
  }

  // What any thread wrote before is seen by all after.
  __device__ __forceinline__ void meet() {
    asm volatile(
        "{\n"
        ".reg .b64 state;\n"
        ".reg .pred done;\n"
        "mbarrier.arrive.shared.b64 state, [%0];\n"
        "again:\n"
#if LINATTN_DEPENDENT_LAUNCHES  // sm_90 sleeps while it waits
        "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
#else
        "mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
#endif
        "@!done bra again;\n"
        "}\n" ::"r"(barrier),
        "r"(parity)
        : "memory");
    parity ^= 1;
  }

 private:
  uint32_t barrier;
  uint32_t parity = 0;
};

// Shared memory: kStages of {Q [C x D], K [C x D], V [C x 64]}, 2 x W [C x C], and in floats 2 x z [D],
// partial sums of z [kSumParts x D], q.z [C], |q| [C], sums of W's rows [kGroups x C],
// 2 x {1 / g, a |q|} [C].
//
// kSharedLimit: what a block may ask for. 99 KB suits every architecture; more gives longer chunks and more
// stages.
template <typename ElementOf, bool kAccurateOf, int kHeadDimOf, int kSharedLimit = 99 * 1024>
struct MmaForwardPlan {
  using Element = ElementOf;
  static constexpr bool kAccurate = kAccurateOf;
  static constexpr MmaKind kKind = MmaKindOf<Element, kAccurate>::kKind;
  using Weight = typename WeightElement<kKind>::Type;
  static constexpr int kHeadDim = kHeadDimOf;
  static constexpr int kScoreThreads = 128;
  static constexpr int kStateThreads = 128;
  static constexpr int kThreads = kScoreThreads + kStateThreads;

  static constexpr int kElementBytes = static_cast<int>(sizeof(Element));
  static constexpr int kWeightBytes = static_cast<int>(sizeof(Weight));

  __host__ __device__ static constexpr int stage_bytes(int tokens) {
    return tokens * (2 * (kHeadDim + 8) + kValueColumns + 8) * kElementBytes;
  }

  __host__ __device__ static constexpr int sum_parts(int tokens) {
    const int columns = kHeadDim / ColumnSums<Element>::kColumns;
    int parts = 1;
    while (parts * 2 * columns <= kScoreThreads && parts * 4 <= tokens) {
      parts *= 2;
    }
    return parts;
  }

  __host__ __device__ static constexpr int fixed_bytes(int tokens) {
    const int groups = tokens == 32 ? 2 : 1;
    return 2 * tokens * (tokens + 8) * kWeightBytes +
           4 * ((2 + sum_parts(tokens)) * kHeadDim + (6 + groups) * tokens);
  }

  __host__ __device__ static constexpr int bytes(int tokens, int stages) {
    return stages * stage_bytes(tokens) + fixed_bytes(tokens);
  }

  static constexpr int kTokens = bytes(64, 3) <= kSharedLimit   ? 64
                                 : bytes(32, 3) <= kSharedLimit ? 32
                                                                : 16;
  static constexpr int kStages = bytes(kTokens, 4) <= kSharedLimit   ? 4
                                 : bytes(kTokens, 3) <= kSharedLimit ? 3
                                                                     : 2;
  static constexpr int kSharedBytes = bytes(kTokens, kStages);
  // Two blocks hide each other's waits, where the state leaves registers for that.
  static constexpr int kMinBlocks = !kAccurate && kHeadDim * kElementBytes <= 128 ? 2 : 1;
  // Where the state leaves its warps few registers, they load in turn and the other warps start all copies.
  static constexpr bool kLoadsInTurn = kHeadDim > (std::is_same_v<Element, __half> ? 64 : 128);
  static constexpr int kCopyThreads = kHeadDim > 128 ? kScoreThreads : kThreads;

  using QueryLayout = TileLayout<Element, kTokens, kHeadDim>;
  using ValueLayout = TileLayout<Element, kTokens, kValueColumns>;
  using WeightLayout = TileLayout<Weight, kTokens, kTokens>;
  static constexpr int kStageElements = 2 * QueryLayout::kElements + ValueLayout::kElements;
  static constexpr int kSteps = kTokens / 16;
  static constexpr int kDepthSteps = kHeadDim / 16;
  static constexpr int kFlushSteps = kAccurate ? 4 : kDepthSteps;  // see add_in_fp32
  static constexpr int kScoreSteps = kDepthSteps % 4 == 0   ? 4
                                     : kDepthSteps % 3 == 0 ? 3
                                                            : 2 - kDepthSteps % 2;

  // Of W, a warp has 16 rows and kColumnBlocks blocks of 16 columns.
  static constexpr int kGroups = kTokens == 32 ? 2 : 1;
  static constexpr int kColumnBlocks = kSteps / kGroups;

  static constexpr int kLanesPerRow = kScoreThreads / kTokens;
  static constexpr int kSumParts = sum_parts(kTokens);
  static constexpr int kSumColumns = kHeadDim / ColumnSums<Element>::kColumns;
  static constexpr int kColumnsPerThread = ceil_div(kHeadDim, kScoreThreads);

  static_assert(kHeadDim % 16 == 0 && kHeadDim <= 256, "S^T stays in registers");
  static_assert(kSharedBytes <= kSharedLimit, "two stages of 16 tokens must fit");
  static_assert(stage_bytes(kTokens) == kStageElements * kElementBytes, "the stage as laid out");
};

// The arrays behind the stages.
template <class Plan>
struct ForwardMemory {
  typename Plan::Element* stages_smem;
  typename Plan::Weight* weights_smem;
  float* key_sum_smem;
  float* key_sum_parts_smem;
  float* query_key_sum_smem;
  float* length_smem;
  float* weight_sum_smem;
  float* inverse_smem;   // 1 / g, times |q|^-1 where q is normalised, as is g in it
  float* constant_smem;  // a |q|

  __device__ __forceinline__ explicit ForwardMemory(unsigned char* base_smem) {
    stages_smem = reinterpret_cast<typename Plan::Element*>(base_smem);
    weights_smem =
        reinterpret_cast<typename Plan::Weight*>(stages_smem + Plan::kStages * Plan::kStageElements);
    key_sum_smem = reinterpret_cast<float*>(weights_smem + 2 * Plan::WeightLayout::kElements);
    key_sum_parts_smem = key_sum_smem + 2 * Plan::kHeadDim;
    query_key_sum_smem = key_sum_parts_smem + Plan::kSumParts * Plan::kHeadDim;
    length_smem = query_key_sum_smem + Plan::kTokens;
    weight_sum_smem = length_smem + Plan::kTokens;
    inverse_smem = weight_sum_smem + Plan::kGroups * Plan::kTokens;
    constant_smem = inverse_smem + 2 * Plan::kTokens;
  }

  __device__ __forceinline__ typename Plan::Element* query(int chunk) const {
    return stages_smem + chunk % Plan::kStages * Plan::kStageElements;
  }
  __device__ __forceinline__ typename Plan::Element* key(int chunk) const {
    return query(chunk) + Plan::QueryLayout::kElements;
  }
  __device__ __forceinline__ typename Plan::Element* value(int chunk) const {
    return query(chunk) + 2 * Plan::QueryLayout::kElements;
  }
  __device__ __forceinline__ typename Plan::Weight* weights(int chunk) const {
    return weights_smem + chunk % 2 * Plan::WeightLayout::kElements;
  }
};

// The warps that form W, g and z. Where rows are normalised they also replace K in its stage by its rows over
// their lengths, a chunk before the other warps read it.
template <class Plan>
struct ScoreRole {
  using Element = typename Plan::Element;
  using Operand = Operands<Element, Plan::kKind>;
  using QueryLayout = typename Plan::QueryLayout;
  using WeightLayout = typename Plan::WeightLayout;

  // invariant: entering chunk c, key_sum_frag and key_sum_smem[c % 2] hold the sum of the keys before it.
  RunningSum key_sum_frag[Plan::kColumnsPerThread];

  __device__ __forceinline__ static void synchronize() {
    wait_for_threads<kScoreBarrier, Plan::kScoreThreads>();
  }

  __device__ __forceinline__ void load(const ChunkedArguments& args, const ValueTile<kValueColumns>& tile,
                                       const ForwardMemory<Plan>& memory, int thread) {
#pragma unroll
    for (int i = 0; i < Plan::kColumnsPerThread; ++i) {
      const int column = thread + i * Plan::kScoreThreads;
      if (column < Plan::kHeadDim) {
        const float sum =
            args.key_sum_in == nullptr ? 0.0f : args.key_sum_in[tile.key_sum_offset(args) + column];
        key_sum_frag[i] = RunningSum(sum);
        memory.key_sum_smem[column] = sum;
      }
    }
    // Seen by the first chunk after the barrier of its iteration.
  }

  __device__ __forceinline__ void store(const ChunkedArguments& args, const ValueTile<kValueColumns>& tile,
                                        int thread) const {
    if (args.key_sum_out == nullptr || tile.block.tile_idx != 0) {
      return;
    }
#pragma unroll
    for (int i = 0; i < Plan::kColumnsPerThread; ++i) {
      const int column = thread + i * Plan::kScoreThreads;
      if (column < Plan::kHeadDim) {
        args.key_sum_out[tile.key_sum_offset(args) + column] = key_sum_frag[i].total();
      }
    }
  }

  // Returns whether it stored a g that is not finite.
  __device__ __forceinline__ bool process(const ChunkedArguments& args, const ValueTile<kValueColumns>& tile,
                                          const ForwardMemory<Plan>& memory, int chunk, int thread) {
    const Element* const query_smem = memory.query(chunk);
    Element* const key_smem = memory.key(chunk);
    measure_rows(args, tile, memory, query_smem, key_smem, chunk, thread);
    synchronize();
    sum_keys(memory, key_smem, thread);
    form_weights(tile, memory, query_smem, key_smem, chunk, thread);
    synchronize();

    bool is_bad = false;
    if (thread < Plan::kTokens) {
      float sum = memory.weight_sum_smem[thread];
#pragma unroll
      for (int group = 1; group < Plan::kGroups; ++group) {
        sum += memory.weight_sum_smem[group * Plan::kTokens + thread];
      }
      const float length = memory.length_smem[thread];
      const int64_t first_token = static_cast<int64_t>(chunk) * Plan::kTokens;
      const double constant = static_cast<double>(tile.head.a) * length;
      // W holds the constant term of the chunk's own tokens.
      const float normalizer = static_cast<float>(
          constant * static_cast<double>(tile.item.count + first_token) +
          static_cast<double>(tile.head.b) * memory.query_key_sum_smem[thread] + static_cast<double>(sum));
      const int slot = chunk % 2 * Plan::kTokens + thread;
      const bool valid = first_token + thread < tile.item.tokens;
      // Zero past the end, where g may be zero and nothing is stored: o is finite there.
      memory.inverse_smem[slot] = valid ? 1.0f / normalizer : 0.0f;
      if (tile.block.tile_idx == 0 && valid) {
        const float stored = normalizer / length;
        tile.normalizer(args)[(first_token + thread) * args.normalizer.token_stride] = stored;
        is_bad = !isfinite(stored);
      }
    }
    float* const next_sum_smem = memory.key_sum_smem + (chunk + 1) % 2 * Plan::kHeadDim;
#pragma unroll
    for (int i = 0; i < Plan::kColumnsPerThread; ++i) {
      const int column = thread + i * Plan::kScoreThreads;
      if (column < Plan::kHeadDim) {
#pragma unroll
        for (int part = 0; part < Plan::kSumParts; ++part) {
          key_sum_frag[i].add(memory.key_sum_parts_smem[part * Plan::kHeadDim + column]);
        }
        key_sum_frag[i].fold();
        next_sum_smem[column] = key_sum_frag[i].total();
      }
    }
    return is_bad;
  }

 private:
  __device__ __forceinline__ static void measure_rows(const ChunkedArguments& args,
                                                      const ValueTile<kValueColumns>& tile,
                                                      const ForwardMemory<Plan>& memory,
                                                      const Element* query_smem, Element* key_smem, int chunk,
                                                      int thread) {
    const int row = thread / Plan::kLanesPerRow;
    const int lane = thread % Plan::kLanesPerRow;
    const Element* const query_row_smem = query_smem + row * QueryLayout::kStride;
    const float* const key_sum_smem = memory.key_sum_smem + chunk % 2 * Plan::kHeadDim;
    float products = 0.0f;
    float squares = 0.0f;
    visit_row<Plan::kLanesPerRow>(query_row_smem, Plan::kHeadDim, lane, [&](int column, float x, float y) {
      const float2 z = *reinterpret_cast<const float2*>(key_sum_smem + column);
      products = fmaf(x, z.x, fmaf(y, z.y, products));
      squares = fmaf(x, x, fmaf(y, y, squares));
    });
    products = sum_lanes<Plan::kLanesPerRow>(products);
    float length = 1.0f;
    if (args.normalize != 0) {
      length = row_length<Plan::kLanesPerRow>(squares, [&](auto&& visit) {
        visit_row<Plan::kLanesPerRow, 1>(query_row_smem, Plan::kHeadDim, lane, visit);
      });
      Element* const key_row_smem = key_smem + row * QueryLayout::kStride;
      const float key_length = row_length<Plan::kLanesPerRow>(key_row_smem, Plan::kHeadDim, lane);
      scale_row<Plan::kLanesPerRow>(key_row_smem, Plan::kHeadDim, lane, 1.0f / key_length);
    }
    if (lane == 0) {
      memory.query_key_sum_smem[row] = products;
      memory.length_smem[row] = length;
      memory.constant_smem[chunk % 2 * Plan::kTokens + row] = tile.head.a * length;
    }
  }

  __device__ __forceinline__ static void sum_keys(const ForwardMemory<Plan>& memory, const Element* key_smem,
                                                  int thread) {
    constexpr int kRows = Plan::kTokens / Plan::kSumParts;
    for (int idx = thread; idx < Plan::kSumParts * Plan::kSumColumns; idx += Plan::kScoreThreads) {
      const int part = idx / Plan::kSumColumns;
      const int column = idx % Plan::kSumColumns * ColumnSums<Element>::kColumns;
      ColumnSums<Element> sums;
      sums.template of_rows<kRows>(key_smem + part * kRows * QueryLayout::kStride + column,
                                   QueryLayout::kStride);
#pragma unroll
      for (int i = 0; i < ColumnSums<Element>::kColumns; ++i) {
        memory.key_sum_parts_smem[part * Plan::kHeadDim + column + i] = sums.sum_frag[i];
      }
    }
  }

  __device__ __forceinline__ static void form_weights(const ValueTile<kValueColumns>& tile,
                                                      const ForwardMemory<Plan>& memory,
                                                      const Element* query_smem, const Element* key_smem,
                                                      int chunk, int thread) {
    const int warp = warp_of_thread();  // the scores have the first warps
    const int strip = warp % Plan::kSteps;
    const int group = warp / Plan::kSteps;
    if (group >= Plan::kGroups) {
      return;
    }
    const int first_block = group * Plan::kColumnBlocks;
    const int lane = thread % kWarp;
    typename Plan::Weight* const weights_smem = memory.weights(chunk);

    float score_frag[Plan::kColumnBlocks][2][4];
#pragma unroll
    for (int j = 0; j < Plan::kColumnBlocks; ++j) {
      clear(score_frag[j][0]);
      clear(score_frag[j][1]);
    }
    // Rolled: the code of a chunk has to stay in the instruction cache.
#pragma unroll 1
    for (int first_step = 0; first_step < Plan::kDepthSteps; first_step += Plan::kScoreSteps) {
      float product_frag[Plan::kColumnBlocks][2][4];
      float(&sum_frag)[Plan::kColumnBlocks][2][4] = Plan::kAccurate ? product_frag : score_frag;
      if constexpr (Plan::kAccurate) {
#pragma unroll
        for (int j = 0; j < Plan::kColumnBlocks; ++j) {
          clear(product_frag[j][0]);
          clear(product_frag[j][1]);
        }
      }
#pragma unroll
      for (int i = 0; i < Plan::kScoreSteps; ++i) {
        const int step = first_step + i;
        typename Operand::A query_frag;
        Operand::template load_a<QueryLayout>(query_frag, query_smem, strip * 16, step * 16);
#pragma unroll
        for (int j = 0; j < Plan::kColumnBlocks; ++j) {
          if (first_block + j <= strip) {
            typename Operand::B left;
            typename Operand::B right;
            Operand::template load_b<QueryLayout>(left, right, key_smem, (first_block + j) * 16, step * 16);
            multiply(sum_frag[j][0], query_frag, left);
            multiply(sum_frag[j][1], query_frag, right);
          }
        }
      }
      if constexpr (Plan::kAccurate) {
#pragma unroll
        for (int j = 0; j < Plan::kColumnBlocks; ++j) {
          add_to(score_frag[j][0], product_frag[j][0]);
          add_to(score_frag[j][1], product_frag[j][1]);
        }
      }
    }

    // Blocks right of the diagonal stay unwritten: nobody reads them.
    const int row = strip * 16 + lane / 4;
    const float constant_frag[2] = {tile.head.a * memory.length_smem[row],
                                    tile.head.a * memory.length_smem[row + 8]};
    float sum_frag[2] = {0.0f, 0.0f};
#pragma unroll
    for (int j = 0; j < Plan::kColumnBlocks; ++j) {
      if (first_block + j <= strip) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // left and right accumulator, upper and lower row
          const int weight_row = row + i % 2 * 8;
          const int column = (first_block + j) * 16 + i / 2 * 8 + lane % 4 * 2;
          float weight_frag[2];
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            const float weight =
                fmaf(tile.head.b, score_frag[j][i / 2][i % 2 * 2 + c], constant_frag[i % 2]);
            weight_frag[c] = column + c <= weight_row ? weight : 0.0f;
          }
          sum_frag[i % 2] += weight_frag[0] + weight_frag[1];
          typename Plan::Weight* const pair_smem = weights_smem + weight_row * WeightLayout::kStride + column;
          if constexpr (sizeof(typename Plan::Weight) == 2) {
            *reinterpret_cast<uint32_t*>(pair_smem) =
                pack<typename Plan::Weight>(weight_frag[0], weight_frag[1]);
          } else {
            *reinterpret_cast<float2*>(pair_smem) = make_float2(weight_frag[0], weight_frag[1]);
          }
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float sum = sum_lanes<4>(sum_frag[i]);
      if (lane % 4 == 0) {
        memory.weight_sum_smem[group * Plan::kTokens + row + i * 8] = sum;
      }
    }
  }
};

// The warps that keep the state and form the outputs.
template <class Plan>
struct StateRole {
  using Element = typename Plan::Element;
  using Operand = Operands<Element, Plan::kKind>;
  using QueryLayout = typename Plan::QueryLayout;
  using ValueLayout = typename Plan::ValueLayout;
  using WeightLayout = typename Plan::WeightLayout;
  // Blocks of 16 key columns whose products overlap.
  static constexpr int kBatch = sizeof(Element) == 2 && Plan::kHeadDim > 128 ? 1 : 2;

  // invariant: entering a chunk, S^T of the tokens before it, rows 16 warp + group and 8 more, and their u.
  float state_frag[2 * Plan::kDepthSteps][4];
  RunningSum value_sum_frag[2];

  __device__ __forceinline__ void load(const ChunkedArguments& args, const ValueTile<kValueColumns>& tile,
                                       int thread) {
    const int row = thread / kWarp * 16 + thread % kWarp / 4;
    const bool first = args.state_in != nullptr && row < tile.num_columns;
    const bool second = args.state_in != nullptr && row + 8 < tile.num_columns;
    const int64_t stride = args.value_dim;
    const float* entry_gmem = args.state_in + tile.state_offset(args) + thread % 4 * 2 * stride + row;
#pragma unroll
    for (int j = 0; j < 2 * Plan::kDepthSteps; ++j) {
      state_frag[j][0] = first ? entry_gmem[0] : 0.0f;
      state_frag[j][1] = first ? entry_gmem[stride] : 0.0f;
      state_frag[j][2] = second ? entry_gmem[8] : 0.0f;
      state_frag[j][3] = second ? entry_gmem[stride + 8] : 0.0f;
      entry_gmem = after(entry_gmem, 8 * stride);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int value = row + i * 8;
      const bool valid = args.value_sum_in != nullptr && value < tile.num_columns;
      value_sum_frag[i] = RunningSum(valid ? args.value_sum_in[tile.value_sum_offset(args) + value] : 0.0f);
    }
  }

  __device__ __forceinline__ void store(const ChunkedArguments& args, const ValueTile<kValueColumns>& tile,
                                        int thread) const {
    const int row = thread / kWarp * 16 + thread % kWarp / 4;
    if (args.state_out != nullptr) {
      const bool first = row < tile.num_columns;
      const bool second = row + 8 < tile.num_columns;
      const int64_t stride = args.value_dim;
      float* entry_gmem = args.state_out + tile.state_offset(args) + thread % 4 * 2 * stride + row;
#pragma unroll
      for (int j = 0; j < 2 * Plan::kDepthSteps; ++j) {
        if (first) {
          entry_gmem[0] = state_frag[j][0];
          entry_gmem[stride] = state_frag[j][1];
        }
        if (second) {
          entry_gmem[8] = state_frag[j][2];
          entry_gmem[stride + 8] = state_frag[j][3];
        }
        entry_gmem = after(entry_gmem, 8 * stride);
      }
    }
    if (args.value_sum_out != nullptr && thread % 4 == 0) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (row + i * 8 < tile.num_columns) {
          args.value_sum_out[tile.value_sum_offset(args) + row + i * 8] = value_sum_frag[i].total();
        }
      }
    }
  }

  // Returns whether it stored an o that is not finite.
  __device__ __forceinline__ bool process(const ChunkedArguments& args, const ValueTile<kValueColumns>& tile,
                                          const ForwardMemory<Plan>& memory, int chunk, int thread,
                                          bool reads_state, bool updates_state) {
    const int warp_column = thread / kWarp * 16;
    const int lane = thread % kWarp;
    const Element* const query_smem = memory.query(chunk);
    const Element* const key_smem = memory.key(chunk);
    Element* const value_smem = memory.value(chunk);
    const float* const constant_smem = memory.constant_smem + chunk % 2 * Plan::kTokens;
    const float* const inverse_smem = memory.inverse_smem + chunk % 2 * Plan::kTokens;

    typename Operand::A value_frag[Plan::kSteps];
#pragma unroll
    for (int step = 0; step < Plan::kSteps; ++step) {
      Operand::template load_a_transposed<ValueLayout>(value_frag[step], value_smem, step * 16, warp_column);
    }

    float out_frag[Plan::kSteps][2][4];  // O^T, 16 tokens a step
#pragma unroll
    for (int j = 0; j < Plan::kSteps; ++j) {
      clear(out_frag[j][0]);
      clear(out_frag[j][1]);
    }
    if (reads_state) {
      add_state_term(query_smem, out_frag);
    }
    const float value_sum_before_frag[2] = {value_sum_frag[0].total(), value_sum_frag[1].total()};
#pragma unroll
    for (int j = 0; j < Plan::kSteps; ++j) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float2 constant =
            *reinterpret_cast<const float2*>(constant_smem + j * 16 + h * 8 + lane % 4 * 2);
        float(&acc_frag)[4] = out_frag[j][h];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          acc_frag[i] = fmaf(tile.head.b, acc_frag[i],
                             (i % 2 == 0 ? constant.x : constant.y) * value_sum_before_frag[i / 2]);
        }
      }
    }
    load_in_turn();
    add_weighted_values(memory.weights(chunk), value_frag, out_frag);
    load_in_turn();
    sum_values(value_smem, value_frag, warp_column, lane);
    load_in_turn();
    if (updates_state) {
      update_state(key_smem, value_frag);
    }

    const int first_token = chunk * Plan::kTokens;
    const int num_rows = min(tile.item.tokens - first_token, Plan::kTokens);
    // NaN once a value is not finite. Columns past the last are so only in rows where others are.
    float poison = 0.0f;
    // The warp's columns of V become its columns of O; no other warp reads them.
    __syncwarp();
#pragma unroll
    for (int j = 0; j < Plan::kSteps; ++j) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = j * 16 + h * 8;
        const float2 inverse = *reinterpret_cast<const float2*>(inverse_smem + row + lane % 4 * 2);
        float(&acc_frag)[4] = out_frag[j][h];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          acc_frag[i] *= i % 2 == 0 ? inverse.x : inverse.y;
          poison = fmaf(acc_frag[i], 0.0f, poison);
        }
        if constexpr (sizeof(Element) == 2) {
          Element* const lane_smem =
              value_smem + (row + lane / 4) * ValueLayout::kStride + warp_column + lane % 4 * 2;
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const uint32_t pair = pack<Element>(acc_frag[2 * i], acc_frag[2 * i + 1]);
            *reinterpret_cast<uint32_t*>(lane_smem + i * 8) = transpose_pairs(pair);
          }
        } else {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int column = warp_column + lane / 4 + i / 2 * 8;
            value_smem[(row + lane % 4 * 2 + i % 2) * ValueLayout::kStride + column] = acc_frag[i];
          }
        }
      }
    }
    __syncwarp();
    store_outputs(args, tile, value_smem, first_token, num_rows, warp_column, lane);
    return isnan(poison);
  }

 private:
  // Loads that the compiler moves ahead cost registers, of which the state leaves few: none passes this point.
  __device__ __forceinline__ static void load_in_turn() {
    if constexpr (Plan::kLoadsInTurn) {
      __syncwarp();
    }
  }

  // One address at a time: many together cost registers, of which the state leaves few.
  template <typename T>
  __device__ __forceinline__ static T* after(T* pointer, int64_t distance) {
    pointer += distance;
    asm volatile("" : "+l"(pointer)::"memory");
    return pointer;
  }

  // The sums inside the tensor core truncate. Where that counts, short sums are formed apart and added in
  // fp32.
  __device__ __forceinline__ static void add_in_fp32(float (&sum_frag)[Plan::kSteps][2][4],
                                                     const float (&term_frag)[Plan::kSteps][2][4]) {
#pragma unroll
    for (int j = 0; j < Plan::kSteps; ++j) {
      add_to(sum_frag[j][0], term_frag[j][0]);
      add_to(sum_frag[j][1], term_frag[j][1]);
    }
  }

  // O^T = S^T Q^T.
  __device__ __forceinline__ void add_state_term(const Element* query_smem,
                                                 float (&out_frag)[Plan::kSteps][2][4]) const {
#pragma unroll
    for (int first_step = 0; first_step < Plan::kDepthSteps; first_step += Plan::kFlushSteps) {
      float product_frag[Plan::kSteps][2][4];
      float(&sum_frag)[Plan::kSteps][2][4] = Plan::kAccurate ? product_frag : out_frag;
      if constexpr (Plan::kAccurate) {
#pragma unroll
        for (int j = 0; j < Plan::kSteps; ++j) {
          clear(product_frag[j][0]);
          clear(product_frag[j][1]);
        }
      }
#pragma unroll
      for (int step = first_step; step < first_step + Plan::kFlushSteps && step < Plan::kDepthSteps; ++step) {
        const typename Operand::A state =
            operand_of<Plan::kKind>(state_frag[2 * step], state_frag[2 * step + 1]);
#pragma unroll
        for (int j = 0; j < Plan::kSteps; ++j) {
          typename Operand::B left;
          typename Operand::B right;
          Operand::template load_b<QueryLayout>(left, right, query_smem, j * 16, step * 16);
          multiply(sum_frag[j][0], state, left);
          multiply(sum_frag[j][1], state, right);
        }
        load_in_turn();
      }
      if constexpr (Plan::kAccurate) {
        add_in_fp32(out_frag, product_frag);
      }
    }
  }

  // O^T += V^T W^T.
  __device__ __forceinline__ static void add_weighted_values(
      const typename Plan::Weight* weights_smem, const typename Operand::A (&value_frag)[Plan::kSteps],
      float (&out_frag)[Plan::kSteps][2][4]) {
    float product_frag[Plan::kSteps][2][4];
    float(&sum_frag)[Plan::kSteps][2][4] = Plan::kAccurate ? product_frag : out_frag;
    if constexpr (Plan::kAccurate) {
#pragma unroll
      for (int j = 0; j < Plan::kSteps; ++j) {
        clear(product_frag[j][0]);
        clear(product_frag[j][1]);
      }
    }
#pragma unroll
    for (int j = 0; j < Plan::kSteps; ++j) {
#pragma unroll
      for (int step = 0; step <= j; ++step) {
        typename Operand::B left;
        typename Operand::B right;
        Operand::template load_weights<WeightLayout>(left, right, weights_smem, j * 16, step * 16);
        multiply(sum_frag[j][0], value_frag[step], left);
        multiply(sum_frag[j][1], value_frag[step], right);
      }
    }
    if constexpr (Plan::kAccurate) {
      add_in_fp32(out_frag, product_frag);
    }
  }

  // u += V^T 1, exact products: elements of 16 bits are their own operands, those of 32 bits are added as
  // read.
  __device__ __forceinline__ void sum_values(const Element* value_smem,
                                             const typename Operand::A (&value_frag)[Plan::kSteps],
                                             int warp_column, int lane) {
    if constexpr (sizeof(Element) == 2) {
      typename Operand::B ones;
      ones.set(0, 1.0f, 1.0f);
      ones.set(1, 1.0f, 1.0f);
      float acc_frag[4];
      clear(acc_frag);
#pragma unroll
      for (int step = 0; step < Plan::kSteps; ++step) {
        multiply(acc_frag, value_frag[step], ones);
      }
      value_sum_frag[0].add(acc_frag[0]);
      value_sum_frag[1].add(acc_frag[2]);
    } else {
      float sum = 0.0f;
#pragma unroll
      for (int row = 0; row < Plan::kTokens; row += 2) {
        sum += value_smem[(row + lane / 16) * ValueLayout::kStride + warp_column + lane % 16];
      }
      sum += __shfl_xor_sync(kAllLanes, sum, 16);
      value_sum_frag[0].add(__shfl_sync(kAllLanes, sum, lane / 4));
      value_sum_frag[1].add(__shfl_sync(kAllLanes, sum, lane / 4 + 8));
    }
    value_sum_frag[0].fold();
    value_sum_frag[1].fold();
  }

  // S^T += V^T K. bf16 rounds more than truncated sums lose; else a chunk's product is formed apart.
  __device__ __forceinline__ void update_state(const Element* key_smem,
                                               const typename Operand::A (&value_frag)[Plan::kSteps]) {
    if constexpr (Plan::kKind == MmaKind::kBf16) {
#pragma unroll
      for (int step = 0; step < Plan::kSteps; ++step) {
        load_in_turn();
#pragma unroll
        for (int j = 0; j < Plan::kDepthSteps; ++j) {
          typename Operand::B left;
          typename Operand::B right;
          Operand::template load_b_transposed<QueryLayout>(left, right, key_smem, step * 16, j * 16);
          multiply(state_frag[2 * j], value_frag[step], left);
          multiply(state_frag[2 * j + 1], value_frag[step], right);
        }
      }
    } else {
#pragma unroll
      for (int first = 0; first < Plan::kDepthSteps; first += kBatch) {
        update_batch(key_smem, value_frag, first);
        load_in_turn();
      }
    }
  }

  __device__ __forceinline__ void update_batch(const Element* key_smem,
                                               const typename Operand::A (&value_frag)[Plan::kSteps],
                                               int first) {
    float product_frag[kBatch][2][4];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      clear(product_frag[j][0]);
      clear(product_frag[j][1]);
    }
#pragma unroll
    for (int step = 0; step < Plan::kSteps; ++step) {
#pragma unroll
      for (int j = 0; j < kBatch && first + j < Plan::kDepthSteps; ++j) {
        typename Operand::B left;
        typename Operand::B right;
        Operand::template load_b_transposed<QueryLayout>(left, right, key_smem, step * 16, (first + j) * 16);
        multiply(product_frag[j][0], value_frag[step], left);
        multiply(product_frag[j][1], value_frag[step], right);
      }
    }
#pragma unroll
    for (int j = 0; j < kBatch && first + j < Plan::kDepthSteps; ++j) {
      add_to(state_frag[2 * (first + j)], product_frag[j][0]);
      add_to(state_frag[2 * (first + j) + 1], product_frag[j][1]);
    }
  }

  __device__ __forceinline__ static void store_outputs(const ChunkedArguments& args,
                                                       const ValueTile<kValueColumns>& tile,
                                                       const Element* out_smem, int first_token, int num_rows,
                                                       int warp_column, int lane) {
    constexpr int kVector = 16 / Plan::kElementBytes;
    constexpr int kPieces = 16 / kVector;
    constexpr int kRows = kWarp / kPieces;
    const int column = warp_column + lane % kPieces * kVector;
    Element* const out_gmem = tile.template out<Element>(args) + column;
#pragma unroll(Plan::kLoadsInTurn ? 1 : Plan::kTokens)
    for (int first_row = 0; first_row < Plan::kTokens; first_row += kRows) {
      const int row = first_row + lane / kPieces;
      if (row < num_rows) {
        const Element* const piece_smem = out_smem + row * ValueLayout::kStride + column;
        Element* const piece_gmem = out_gmem + (first_token + row) * args.out.token_stride;
        if (column + kVector <= tile.num_columns) {
          *reinterpret_cast<uint4*>(piece_gmem) = *reinterpret_cast<const uint4*>(piece_smem);
        } else {
#pragma unroll
          for (int i = 0; i < kVector; ++i) {
            if (column + i < tile.num_columns) {
              piece_gmem[i] = piece_smem[i];
            }
          }
        }
      }
    }
  }
};

// blockIdx.x, read where this stands.
__device__ __forceinline__ int64_t block_again() {
  uint32_t block;
  asm volatile("mov.u32 %0, %%ctaid.x;\n" : "=r"(block)::"memory");
  return block;
}

template <class Plan>
__device__ __forceinline__ void mma_forward(const ChunkedArguments& args) {
  using Element = typename Plan::Element;
  extern __shared__ __align__(16) unsigned char chunk_smem[];

  let_later_kernels_start();
  const ForwardMemory<Plan> memory(chunk_smem);
  // In the padding behind the first row, which no copy writes.
  MeetingPlace<Plan::kThreads> roles(reinterpret_cast<uint64_t*>(memory.stages_smem + Plan::kHeadDim));
  const ValueTile<kValueColumns> tile(args);
  const int thread = static_cast<int>(threadIdx.x);
  const bool is_score_role = thread < Plan::kScoreThreads;
  const int num_chunks = ceil_div(tile.item.tokens, Plan::kTokens);
  const bool writes_state = tile.head.writes_state(args) && args.state_out != nullptr;
  const Element* const query_gmem = tile.template query<Element>(args);
  const Element* const key_gmem = tile.template key<Element>(args);
  const Element* const value_gmem = tile.template value<Element>(args);

  const auto start_chunk = [&](int chunk) {
    if (chunk < num_chunks && (Plan::kCopyThreads == Plan::kThreads || is_score_role)) {
      const int64_t token = static_cast<int64_t>(chunk) * Plan::kTokens;
      const int rows = tile.item.tokens - static_cast<int>(token);
      Plan::QueryLayout::template start_copy<Plan::kCopyThreads>(
          memory.query(chunk), query_gmem + token * args.query.token_stride, args.query.token_stride, rows,
          Plan::kHeadDim);
      Plan::QueryLayout::template start_copy<Plan::kCopyThreads>(
          memory.key(chunk), key_gmem + token * args.key.token_stride, args.key.token_stride, rows,
          Plan::kHeadDim);
      Plan::ValueLayout::template start_copy<Plan::kCopyThreads>(
          memory.value(chunk), value_gmem + token * args.value.token_stride, args.value.token_stride, rows,
          tile.num_columns);
    }
    commit_copies();
  };
  wait_for_earlier_kernels();
#pragma unroll 1
  for (int chunk = 0; chunk < Plan::kStages - 2; ++chunk) {
    start_chunk(chunk);
  }

  // Waits for the tiles of chunk `chunk + 1`, and starts those of the last stage.
  const auto enter = [&](int chunk) {
    if constexpr (Plan::kStages > 2) {
      wait_for_groups<Plan::kStages - 3>();
      roles.meet();
      start_chunk(chunk + Plan::kStages - 1);
    } else {
      roles.meet();
      start_chunk(chunk + 1);
      wait_for_copies();
      roles.meet();
    }
  };
  // invariant: iteration c forms W of chunk c + 1 and the outputs of chunk c. Each role has a loop of its own:
  // the registers of one are not live in the other.
  bool is_bad = false;
  if (is_score_role) {
    ScoreRole<Plan> scores;
    scores.load(args, tile, memory, thread);
#pragma unroll 1
    for (int chunk = -1; chunk < num_chunks; ++chunk) {
      enter(chunk);
      if (chunk + 1 < num_chunks) {
        is_bad = scores.process(args, tile, memory, chunk + 1, thread) || is_bad;
      }
    }
    if (tile.head.writes_state(args)) {
      scores.store(args, tile, thread);
    }
  } else {
    StateRole<Plan> states;
    states.load(args, tile, thread - Plan::kScoreThreads);
#pragma unroll 1
    for (int chunk = -1; chunk < num_chunks; ++chunk) {
      enter(chunk);
      if (chunk >= 0) {
        const bool reads_state = chunk > 0 || args.state_in != nullptr;
        const bool updates_state = chunk < num_chunks - 1 || writes_state;
        is_bad = states.process(args, tile, memory, chunk, thread - Plan::kScoreThreads, reads_state,
                                updates_state) ||
                 is_bad;
      }
    }
    // Found again, so that what only the store needs takes no registers in the loop.
    const ValueTile<kValueColumns> store_tile(args, block_again());
    if (store_tile.head.writes_state(args)) {
      states.store(args, store_tile, static_cast<int>(threadIdx.x) - Plan::kScoreThreads);
    }
  }
  wait_for_copies();
  if (args.marks != nullptr && thread == 0) {
    args.marks[blockIdx.x] = 0;
  }
  roles.meet();
  if (args.marks != nullptr && is_bad) {
    args.marks[blockIdx.x] = 1;
  }
}

}  // namespace linattn
