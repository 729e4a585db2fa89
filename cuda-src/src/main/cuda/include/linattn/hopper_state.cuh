// The state role.
#pragma once

#include "linattn/hopper_block.cuh"
#include "linattn/hopper_outputs.cuh"

namespace linattn {
namespace hopper {

// kPutsBy: of items of more chunks than kPutByChunks.
template <class Plan, bool kPutsBy = false>
struct State {
  static constexpr int kSteps = (Plan::kHeadDim + 15) / 16;
  static constexpr int kColumns8 = Plan::kHeadDim / 8;
  static constexpr int kParts = Plan::kParts;
  static constexpr int kWholeParts = Plan::kWholeParts;
  static constexpr int kPartRegisters = Plan::kPartRegisters;
  // Operands are made of the whole state at once, because converting between products makes the compiler wait
  // after each of them; of as many key columns as registers allow where these are short.
  static constexpr int kOperandColumns = Plan::kMerged          ? (Plan::kScoresProduce ? 32 : 16)
                                         : Plan::kStreams       ? Plan::kPartColumns / 2
                                         : Plan::kInParts       ? Plan::kPartColumns
                                         : Plan::kHeadDim > 192 ? Plan::kPartColumns
                                                                : Plan::kHeadDim;
  static constexpr int kQueryParts = (Plan::kHeadDim + kOperandColumns - 1) / kOperandColumns;
  static constexpr int kAllPairs = Plan::kHeadDim / 4;
  static constexpr int kPairs = kOperandColumns / 4;
  // Whether S is multiplied in the unit of the chunk before, and in that of the first chunk there.
  static constexpr bool kFollowsProduct =
      Plan::kReverse && Plan::kScaled && (Plan::kSplit || (Plan::kWeighsInState && !Plan::kMerged));
  using Half = typename Plan::Half;
  using Products = typename Plan::Products;
  // V^T of a chunk for the outputs and for S: where it landed; or weighed in registers, in parts because these are few, 16
  // tokens in four words.
  static constexpr bool kWeighsValues = Plan::kWeighsInState || Plan::kWeighsKeys;
  using Values = std::conditional_t<Plan::kWeighsInState, const uint32_t*, uint64_t>;
  using StateValues = std::conditional_t<kWeighsValues, const uint32_t*, uint64_t>;
  static constexpr int kValueParts = !Plan::kWeighsInState ? 1
                                     : Plan::kReverse      ? (Plan::kMerged || Plan::kScalesRows ? 2 : 1)
                                     : !Plan::kMerged      ? 1
                                     : Plan::kDeltaBeside  ? 2
                                                           : 4;
  static constexpr int kValueSteps = 4 / kValueParts;
  static constexpr int kValueWords = kWeighsValues ? 4 * kValueSteps : 1;

  static_assert(!kPutsBy || !(kWeighsValues || Plan::kAddsChunks || Plan::kSplit || Plan::kSums || Plan::kStreams),
                "S is put by where one product adds to it");
  static_assert(!Plan::kAddsChunks || !(kWeighsValues || Plan::kTurns || Plan::kSplit), "S would start anew");

  const Block<Plan>& block;
  Outputs<Plan>& outputs;  // of the same columns
  int warp;
  int lane;
  float state_frag[kParts][kPartRegisters];  // S^T: rows are value columns, columns are key columns
  // What was put by of S, whose accumulators truncate the more the larger it is.
  float put_by_frag[kPutsBy ? kParts : 1][kPutsBy ? kPartRegisters : 1];
  float value_unit = 1.0f;  // of weighed rows: in which S and u are kept

  __device__ __forceinline__ State(const Block<Plan>& shared, Outputs<Plan>& outputs_of_columns)
      : block(shared),
        outputs(outputs_of_columns),
        warp(outputs_of_columns.warp),
        lane(outputs_of_columns.lane) {}

  static constexpr int kPart8 = Plan::kPartColumns / 8;

  // Of the eight key columns j.
  __device__ __forceinline__ static float& element(float (&frag)[kParts][kPartRegisters], int j, int i) {
    return frag[j / kPart8][4 * (j % kPart8) + i];
  }

  __device__ __forceinline__ static void pin_parts(float (&frag)[kParts][kPartRegisters]) {
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      pin(frag[part]);
    }
  }

  // Pair i of elements, as the product with the queries takes them.
  __device__ __forceinline__ float2 pair(int i) const {
    const int j = i / 2;
    const int first = 4 * (j % kPart8) + 2 * (i % 2);
    float2 pair = make_float2(state_frag[j / kPart8][first], state_frag[j / kPart8][first + 1]);
    if constexpr (kPutsBy) {
      pair.x += put_by_frag[j / kPart8][first];
      pair.y += put_by_frag[j / kPart8][first + 1];
    }
    return pair;
  }

  // sum^T += V^T K for 16 tokens.
  __device__ __forceinline__ static void add_value_key(float (&frag)[kParts][kPartRegisters], StateValues value,
                                                       uint64_t key, int accumulate) {
    constexpr int kPartBytes = Plan::kPartColumns / Plan::kBoxColumns * Plan::kKeyBox;
#pragma unroll
    for (int part = 0; part < kWholeParts; ++part) {
      Products::value_key(frag[part], value, further(key, part * kPartBytes), accumulate);
    }
    if constexpr (kParts > kWholeParts) {
      Products::value_key_rest(frag[kWholeParts], value, further(key, kWholeParts * kPartBytes), accumulate);
    }
  }

  __device__ __forceinline__ float state_scale() const {
    return (Plan::kNormalize ? block.length_scale() : block.scale(kKeyScale)) * block.scale(kValueScale);
  }

  // Columns of S are in the order in which boxes come: the first of this lane, and from eight to the next eight.
  __device__ __forceinline__ int first_key_column() const {
    return (Plan::kSharesScores ? block.box_at(0) * Plan::kBoxColumns : 0) + 2 * (lane & 3);
  }
  __device__ __forceinline__ int to_next_columns(int eight) const {
    constexpr int kEights = Plan::kBoxColumns / 8;
    const bool goes_back = Plan::kSharesScores && eight % kEights == kEights - 1 && block.begins_with_last_box();
    return goes_back ? 8 - 2 * Plan::kBoxColumns : 8;
  }

  __device__ __forceinline__ void start() {
    const StateAddress<Plan> address(block, outputs.box * Plan::kBoxColumns);
    if (address.state_in == nullptr) {
#pragma unroll
      for (int i = 0; i < kParts * kPartRegisters; ++i) {
        state_frag[i / kPartRegisters][i % kPartRegisters] = 0.0f;
      }
      return;
    }
    const int column = outputs.value_column();
    const bool first = column < outputs.num_columns();
    const bool second = column + 8 < outputs.num_columns();
    const int64_t stride = address.key_stride;
    const int64_t eight = 8 * address.column_stride;
    const float scale = state_scale();
    const float* entry_gmem =
        address.state_in + first_key_column() * stride + column * address.column_stride;
#pragma unroll
    for (int j = 0; j < kColumns8; ++j) {
      element(state_frag, j, 0) = first ? entry_gmem[0] * scale : 0.0f;
      element(state_frag, j, 1) = first ? entry_gmem[stride] * scale : 0.0f;
      element(state_frag, j, 2) = second ? entry_gmem[eight] * scale : 0.0f;
      element(state_frag, j, 3) = second ? entry_gmem[stride + eight] * scale : 0.0f;
      entry_gmem = after(entry_gmem, to_next_columns(j) * stride);
    }
  }

  __device__ __forceinline__ void finish() {
    const StateAddress<Plan> address(block, outputs.box * Plan::kBoxColumns);
    if (address.state_out == nullptr) {
      return;
    }
    const int column = outputs.value_column();
    const bool first = column < outputs.num_columns();
    const bool second = column + 8 < outputs.num_columns();
    const int64_t stride = address.key_stride;
    const int64_t eight = 8 * address.column_stride;
    const float scale = 1.0f / state_scale();
    float* entry_gmem = address.state_out + first_key_column() * stride + column * address.column_stride;
    float marks = 0.0f;  // NaN once an element was not finite
    const auto write = [&](int64_t place, float entry) {
      entry_gmem[place] = entry;
      if constexpr (Plan::kSums) {
        marks = fmaf(entry, 0.0f, marks);
      }
    };
#pragma unroll
    for (int j = 0; j < kColumns8; ++j) {
      if (first) {
        write(0, element(state_frag, j, 0) * scale);
        write(stride, element(state_frag, j, 1) * scale);
      }
      if (second) {
        write(eight, element(state_frag, j, 2) * scale);
        write(stride + eight, element(state_frag, j, 3) * scale);
      }
      entry_gmem = after(entry_gmem, to_next_columns(j) * stride);
    }
    mark_unless_finite(block, marks);
  }

  // One address at a time: many together cost registers, of which the state leaves few.
  template <typename T>
  __device__ __forceinline__ static T* after(T* pointer, int64_t distance) {
    pointer += distance;
    asm volatile("" : "+l"(pointer)::"memory");
    return pointer;
  }

  __device__ __forceinline__ void run() {
    start_all();
    if constexpr (Plan::kInParts) {
      run_three_products_in_parts();
    } else if constexpr (Plan::kUneven) {
      run_uneven();
    } else if constexpr (Plan::kSplit) {
      run_three_products();
    } else {
      run_one_product();
    }
    finish_all();
  }

  // S and u.
  __device__ __forceinline__ void start_all() {
    start();
    outputs.start();
    if constexpr (kFollowsProduct) {
      if (block.num_chunks > 0) {
        follow_unit(RingPosition<Plan::kStages>());
      }
    }
  }

  __device__ __forceinline__ void finish_all() {
    change_unit(1.0f);
    outputs.finish();
    finish();
  }

  // From where this lane loads a tile transposed.
  __device__ __forceinline__ uint32_t transposed(uint32_t tile) const {
    return tile + swizzled((outputs.lane & 7) + (outputs.lane >> 4 & 1) * 8, outputs.warp * 2 + (outputs.lane >> 3 & 1));
  }

  // Of this warp 16 columns, 16 tokens in four words.
  template <int kWords>
  __device__ __forceinline__ static void load_transposed(uint32_t address, uint32_t (&frag)[kWords]) {
#pragma unroll
    for (int step = 0; step < kWords / 4; ++step) {
      load_matrices_transposed(address + step * 16 * kRowBytes, frag + 4 * step);
    }
  }

  // S^T += V^T K, or V^T K from zero where S takes it in afterwards.
  __device__ __forceinline__ static void add_chunk(float (&sum_frag)[kParts][kPartRegisters], StateValues value,
                                                   uint64_t key) {
#pragma unroll
    for (int step = 0; step < kValueSteps; ++step) {
      add_value_key(sum_frag, rows_further(value, step), rows_further(key, step), !Plan::kAddsChunks || step > 0);
    }
  }

  // V^T K of a chunk in halves, from zero.
  __device__ __forceinline__ static void multiply_chunk(float (&chunk_frag)[kParts][kPartRegisters], uint64_t value,
                                                        uint64_t key) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const uint64_t upper_value = further(value, step * 2048);
      const uint64_t upper_key = further(key, step * 2048);
      add_value_key(chunk_frag, upper_value, upper_key, step > 0);
      add_value_key(chunk_frag, further(upper_value, Plan::kLower), upper_key, 1);
      add_value_key(chunk_frag, upper_value, further(upper_key, Plan::kLowerKey), 1);
    }
  }

  __device__ __forceinline__ void add_to_state(const float (&chunk_frag)[kParts][kPartRegisters]) {
#pragma unroll
    for (int i = 0; i < kParts * kPartRegisters; ++i) {
      state_frag[i / kPartRegisters][i % kPartRegisters] += chunk_frag[i / kPartRegisters][i % kPartRegisters];
    }
  }

  __device__ __forceinline__ void scale_state(float ratio) {
#pragma unroll
    for (int i = 0; i < kParts * kPartRegisters; ++i) {
      state_frag[i / kPartRegisters][i % kPartRegisters] *= ratio;
    }
  }
  // u of its columns.
  __device__ __forceinline__ void scale_value_sums(float ratio) {
    outputs.first_sum *= ratio;
    outputs.second_sum *= ratio;
  }
  // Both.
  __device__ __forceinline__ void scale_sums(float ratio) {
    scale_state(ratio);
    scale_value_sums(ratio);
  }

  // Where rows of z are weighed they come in units that follow 1 / g: of S and of u, or of u alone where S is multiplied
  // later by what is returned.
  template <bool kOfState = true>
  __device__ __forceinline__ float change_unit(float unit) {
    if constexpr (Plan::kWeighsRows && Plan::kScaled) {
      if (unit != value_unit) {
        const float ratio = unit * inverse_of_power(value_unit);
        if constexpr (kOfState) {
          scale_state(ratio);
        }
        scale_value_sums(ratio);
        value_unit = unit;
        return ratio;
      }
    }
    return 1.0f;
  }

  // A part of V^T of a chunk to registers, each token times its weight.
  __device__ __forceinline__ void load_values(const RingPosition<Plan::kStages>& at, int chunk, int part,
                                              uint32_t (&value_frag)[kValueWords]) const {
    const int num_rows = block.rows(chunk);
    const int first_row = part * kValueSteps * 16;
    const uint32_t address = transposed(block.value(at.index(), outputs.box) + first_row * kRowBytes);
    barrier_wait(block.value_full(at.index()), at.parity());
    load_transposed(address, value_frag);
    if (Plan::kWeighsInState && Plan::kApart && part == kValueParts - 1) {
      finish_reads();
      arrive_once_a_warp(block.value_empty(at.index()), lane);
    }
    uint32_t weights = block.lengths(at.index());
    float scale = 1.0f;
    if constexpr (Plan::kWeighsKeys) {
      block.wait_for_lengths(at.index(), at.parity());
      weights = block.key_weights(at.index());
      scale = block.length_scale();
    } else if constexpr (Plan::kQueryGradient) {
      weights = block.scales(block.wait_for_rows(chunk));
    } else {
      barrier_wait(block.barrier(Plan::kReady, at.index()), at.parity());
    }
#pragma unroll
    for (int i = 0; i < 2 * kValueSteps; ++i) {  // tokens `row` and the next, of two columns
      const int row = first_row + 8 * i + 2 * (lane & 3);
      float2 weight = load_float2(weights + row * 4);
      if constexpr (Plan::kWeighsKeys && Plan::kScaled) {
        weight = make_float2(weight.x * scale, weight.y * scale);
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        uint32_t& pair = value_frag[2 * i + j];
        if constexpr (Plan::kReverse) {  // rows past the end are still what they were
          pair = row + 1 < num_rows ? pair : row < num_rows ? pair & 0xffffu : 0u;
        }
        pair = Half::weigh(pair, weight);
      }
    }
    pin(value_frag);
    reads_are_used();
  }

  // Of a stage K, and V where it is not in registers since; all products have read them.
  __device__ __forceinline__ void give_back(const RingPosition<Plan::kStages>& at) const {
    if constexpr (kWeighsValues) {  // the weights of its rows too
      barrier_arrive(block.key_empty(at.index()));
      if constexpr (Plan::kWeighsKeys && Plan::kApart) {
        arrive_once_a_warp(block.value_empty(at.index()), lane);
      }
    } else if (lane == 0) {
      barrier_arrive(block.key_empty(at.index()));
      if constexpr (Plan::kApart) {
        barrier_arrive(block.value_empty(at.index()));
      }
    }
  }

  // The unit of a chunk, where units follow.
  __device__ __forceinline__ float unit_of(const RingPosition<Plan::kStages>& at) const {
    if constexpr (Plan::kWeighsRows && Plan::kScaled) {
      barrier_wait(block.barrier(Plan::kReady, at.index()), at.parity());
      const float unit = lane == 0 ? load_float(block.unit_address(at.index())) : 0.0f;  // who reads gives back
      return __shfl_sync(kAllLanes, unit, 0);
    }
    return 1.0f;
  }

  // Takes the unit of a chunk; returns what it is to the one before.
  __device__ __forceinline__ float follow_unit(const RingPosition<Plan::kStages>& at) { return change_unit(unit_of(at)); }

  // The outputs of the reverse, in the units of the tensors.
  __device__ __forceinline__ float reverse_factor() const {
    return inverse_of_power(value_unit * outputs.sum_scale());
  }

  __device__ __forceinline__ void run_one_product() {
    const bool uses_state = block.slope() != 0.0f;
    float outputs_frag[36];
    float count = block.work.count + Plan::kChunk;  // after the chunk
    const float plain_tokens = block.plain_tokens();
    Unit unit = block.first_unit();
    block.follow(count, plain_tokens, unit);
    RingPosition<Plan::kStages> at;
    RingPosition<Plan::kWeightBuffers> weights_at;
    RingPosition<Plan::kOutputBuffers> outputs_at;
    if constexpr (kPutsBy) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        clear(put_by_frag[part]);
      }
    }
    for (int chunk = 0; chunk < block.num_chunks; ++chunk) {
      if constexpr (kPutsBy) {
        if (chunk % Plan::kPutByChunks == 0) {
          put_by();
        }
      }
      if (!block.writes(chunk)) {
        add_unwritten(at, chunk);
        count += Plan::kChunk;
        block.follow(count, plain_tokens, unit);
        at.advance();
        continue;
      }
      if constexpr (!kFollowsProduct) {
        follow_unit(at);
      }
      const float scale = Plan::kReverse ? block.scale(kWeightScale) : unit.slope * block.inverse_length_scale();
      outputs_frag[32] = outputs_frag[33] = outputs_frag[34] = outputs_frag[35] = 0.0f;
      if constexpr (kQueryParts == 1) {
        uint32_t half_frag[kPairs];
        make_operands(scale, 0, half_frag);
        barrier_wait(block.query_full(at.index()), at.parity());
        add_state_query(outputs_frag, half_frag, operand(block.query(at.index(), 0)), 0);
      } else {
        barrier_wait(block.query_full(at.index()), at.parity());
#pragma unroll
        for (int part = 0; part < kQueryParts; ++part) {
          uint32_t half_frag[kPairs];
          make_operands(scale, part, half_frag);
          add_state_query(outputs_frag, half_frag, operand(block.query(at.index(), 0)), part);
          if (part + 1 < kQueryParts) {
            products_commit();
            products_wait<0>();
            pin(half_frag);
            pin(outputs_frag);
          }
        }
      }
      products_commit();
      if constexpr (kFollowsProduct) {  // S was in the unit of the chunk before
        products_wait<0>();
        pin(outputs_frag);
        scale_outputs(outputs_frag, follow_unit(at));
      }
      [[maybe_unused]] float chunk_frag[kParts][kPartRegisters];
      [[maybe_unused]] uint32_t value_frag[kValueWords];
      if constexpr (kWeighsValues && !Plan::kReverse) {
        if (block.rows(chunk) < Plan::kChunk) {  // values past the end are zero then
          barrier_wait(block.barrier(Plan::kWeighsKeys ? Plan::kLengthsFull : Plan::kReady, at.index()), at.parity());
        }
      }
      if constexpr (kWeighsValues) {  // under the product of S
        load_values(at, chunk, 0, value_frag);
      }
      barrier_wait(block.barrier(Plan::kWeightsFull, weights_at.index()), weights_at.parity());
      if constexpr ((Plan::kConverted || Plan::kApart) && !Plan::kWeighsInState) {
        barrier_wait(block.value_full(at.index()), at.parity());
      }
      if constexpr (Plan::kApart) {  // the weights come later than the product of S
        products_wait<0>();
        if (lane == 0) {
          barrier_arrive(block.query_empty(at.index()));
        }
      }
      pin(outputs_frag);
      if constexpr (Plan::kWeighsInState) {
        const uint64_t weights = operand(block.weights(weights_at.index()));
        const uint64_t key = operand(block.key(at.index(), 0), Plan::kKeyBox);
#pragma unroll
        for (int part = 0; part < kValueParts; ++part) {
          if (part > 0) {
            finish_products();
            pin(outputs_frag);
            pin(value_frag);
            load_values(at, chunk, part, value_frag);
          }
          products_fence();
          outputs.template add_value_weights<kValueSteps>(
              outputs_frag, value_frag, further(weights, part * kValueSteps * 32), part > 0 || uses_state);
          products_commit();
          add_chunk(state_frag, value_frag, rows_further(key, part * kValueSteps));
          products_commit();
        }
      } else {
        if constexpr (Plan::kAddsChunks) {
          pin_parts(chunk_frag);
        }
        products_fence();
        const uint64_t value = operand(block.value(at.index(), outputs.box));
        outputs.template add_value_weights<kValueSteps>(outputs_frag, value,
                                                        operand(block.weights(weights_at.index())), uses_state);
        products_commit();
        const uint64_t key = operand(block.key(at.index(), 0), Plan::kKeyBox);
        if constexpr (Plan::kWeighsKeys) {
          add_chunk(state_frag, value_frag, key);
        } else if constexpr (Plan::kAddsChunks) {
          add_chunk(chunk_frag, value, key);
        } else {
          add_chunk(state_frag, value, key);
        }
        products_commit();
      }
      const float constant = Plan::kReverse ? reverse_factor() : block.work.a * unit.value;
      count += Plan::kChunk;
      block.follow(count, plain_tokens, unit);
      if constexpr (Plan::kOutputBuffers == 1) {
        outputs.reuse_buffer();
      }
      products_wait<1>();
      pin(outputs_frag);
      outputs.write(outputs_frag, constant, chunk, weights_at.index(), outputs_at.index());
      if constexpr (Plan::kAddsChunks) {
        products_wait<0>();
        pin_parts(chunk_frag);
        add_to_state(chunk_frag);
      } else {
        finish_products();
      }
      if constexpr (kWeighsValues) {
        pin(value_frag);
      }
      give_back(at);
      at.advance();
      weights_at.advance();
      outputs_at.advance();
    }
    if constexpr (kPutsBy) {
      add_to_state(put_by_frag);
    }
  }

  // S starts from zero beside what was put by.
  __device__ __forceinline__ void put_by() {
#pragma unroll
    for (int i = 0; i < kParts * kPartRegisters; ++i) {
      float& state = state_frag[i / kPartRegisters][i % kPartRegisters];
      put_by_frag[i / kPartRegisters][i % kPartRegisters] += state;
      state = 0.0f;
    }
  }

  // S and u of a chunk whose outputs another block writes.
  __device__ __forceinline__ void add_unwritten(const RingPosition<Plan::kStages>& at, int chunk) {
    if constexpr (Plan::kTurns) {
      static_assert(kValueParts == 1, "V^T as a whole");
      barrier_wait(block.key_full(at.index()), at.parity());
      [[maybe_unused]] uint32_t value_frag[kValueWords];
      Values value;
      if constexpr (kWeighsValues) {
        load_values(at, chunk, 0, value_frag);
        value = value_frag;
      } else {
        value = operand(block.value(at.index(), outputs.box));
      }
      float sums_frag[4] = {};
      pin(sums_frag);
      pin_parts(state_frag);
      products_fence();
      outputs.sum_values(sums_frag, value);
      add_chunk(state_frag, value, operand(block.key(at.index(), 0), Plan::kKeyBox));
      products_commit();
      finish_products();
      pin(sums_frag);
      if constexpr (kWeighsValues) {
        pin(value_frag);
      }
      outputs.add_value_sums(sums_frag[0], sums_frag[2]);
      give_back(at);
    }
  }

  __device__ __forceinline__ void finish_products() {
    products_wait<0>();
    pin_parts(state_frag);
  }

  // S is added chunk by chunk in fp32: the products of a chunk start from zero, because an accumulator of
  // the tensor cores truncates what it adds.
  __device__ __forceinline__ void run_three_products() {
    float outputs_frag[36];
    uint32_t upper_frag[kPairs];
    uint32_t lower_frag[kPairs];
    const float constant = block.work.a * block.first_unit().value;
    split_state(0, upper_frag, lower_frag);
    const bool uses_state = block.slope() != 0.0f;
    RingPosition<Plan::kStages> at;
    RingPosition<Plan::kWeightBuffers> weights_at;
    for (int chunk = 0; chunk < block.num_chunks; ++chunk) {
      outputs_frag[32] = outputs_frag[33] = outputs_frag[34] = outputs_frag[35] = 0.0f;
      barrier_wait(block.query_full(at.index()), at.parity());
      barrier_wait(block.key_full(at.index()), at.parity());
      barrier_wait(block.value_full(at.index()), at.parity());
      pin(upper_frag);
      pin(lower_frag);
      pin(outputs_frag);
      products_fence();
      multiply_halves(outputs_frag, upper_frag, lower_frag, operand(block.query(at.index(), 0)));
      products_commit();
      products_wait<0>();
      pin(upper_frag);
      pin(lower_frag);
      pin(outputs_frag);
      if (lane == 0) {
        barrier_arrive(block.query_empty(at.index()));
      }
      barrier_wait(block.barrier(Plan::kReady, at.index()), at.parity());
      if constexpr (Plan::kReverse && Plan::kScaled) {  // S was in the unit of the chunk before
        scale_outputs(outputs_frag, follow_unit(at));
      }
      float chunk_frag[kParts][kPartRegisters] = {};
      pin_parts(chunk_frag);
      products_fence();
      const uint64_t value = operand(block.value(at.index()));
      const uint64_t key = operand(block.key(at.index(), 0), Plan::kKeyBox);
      multiply_chunk(chunk_frag, value, key);
      products_commit();
      barrier_wait(block.barrier(Plan::kWeightsFull, weights_at.index()), weights_at.parity());
      pin(outputs_frag);
      products_fence();
      add_weight_halves(outputs_frag, value, operand(block.weights(weights_at.index())), uses_state);
      products_commit();
      products_wait<1>();
      pin_parts(chunk_frag);
      add_to_state(chunk_frag);
      if (lane == 0) {
        barrier_arrive(block.key_empty(at.index()));
      }
      split_state(0, upper_frag, lower_frag);
      pin(upper_frag);
      pin(lower_frag);
      outputs.reuse_buffer();
      products_wait<0>();
      pin(outputs_frag);
      if (lane == 0) {
        barrier_arrive(block.value_empty(at.index()));
      }
      outputs.write(outputs_frag, Plan::kReverse ? reverse_factor() : constant, chunk, weights_at.index(), 0);
      at.advance();
      weights_at.advance();
    }
  }

  // The same where registers are short, a part of the columns of S at a time. Outputs may leave from the place of the
  // queries. Steps may be uneven, as in run_uneven().
  __device__ __forceinline__ void run_three_products_in_parts() {
    const bool uses_state = Plan::kReverse || block.slope() != 0.0f;
    float outputs_frag[36];
    // Zeros for each part take registers of their own where S has many, but let ptxas know where it has few.
    float part_frag[kPartRegisters] = {};
    RingPosition<Plan::kStages> at;
    RingPosition<Plan::kStages> given_back_at;
    RingPosition<Plan::kWeightBuffers> weights_at;
    for (int chunk = 0; chunk < block.num_chunks; ++chunk) {
      const int member = block.member(chunk);
      if (Plan::kUneven) {
        if (Plan::kOutputsInQueries && chunk > 0) {
          outputs.give_back_queries(given_back_at);
          given_back_at.advance();
        }
        scale_outputs(outputs_frag, follow_unit(at));
      }
      barrier_wait(block.query_full(at.index()), at.parity());
      if (member == 0) {
        outputs_frag[32] = outputs_frag[33] = outputs_frag[34] = outputs_frag[35] = 0.0f;
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          uint32_t upper_frag[kPairs];
          uint32_t lower_frag[kPairs];
          split_state(part, upper_frag, lower_frag);
          start_state_query(outputs_frag, part, upper_frag, lower_frag, operand(block.query(at.index(), part)));
          if (Plan::kOutputsInQueries && !Plan::kUneven && part == 0 && chunk > 0) {
            outputs.give_back_queries(given_back_at);
            given_back_at.advance();
          }
          products_wait<0>();
          pin_halves(outputs_frag, upper_frag, lower_frag);
        }
      }
      if (lane == 0) {
        barrier_arrive(block.query_read(at.index()));
      }
      barrier_wait(block.barrier(Plan::kReady, at.index()), at.parity());
      if (!Plan::kUneven) {  // S was in the unit of the chunk before
        scale_outputs(outputs_frag, follow_unit(at));
      }
      barrier_wait(block.key_full(at.index()), at.parity());
      barrier_wait(block.value_full(at.index()), at.parity());
      const uint64_t value = operand(block.value(at.index(), outputs.box));
      const uint64_t key = operand(block.key(at.index(), 0), Plan::kKeyBox);
      if (!Plan::kUneven || block.slope_of(member) != 0.0f) {
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          if constexpr (Plan::kOutputsInQueries) {
            clear(part_frag);
          }
          pin(part_frag);
          products_fence();
          multiply_part(part_frag, part, value, further(value, Plan::kLower), further(key, part * Plan::kKeyBox));
          products_commit();
          if (!Plan::kUneven && part == kParts - 1) {
            start_weights(outputs_frag, value, weights_at, uses_state);
            products_wait<1>();
          } else {
            products_wait<0>();
          }
          pin(part_frag);
          add_part(part_frag, part);
        }
      }
      float weights_frag[36];
      if (Plan::kUneven) {
        clear_outputs(weights_frag);
        start_weights(weights_frag, value, weights_at, false);
      }
      if (lane == 0) {
        barrier_arrive(block.key_empty(at.index()));
      }
      products_wait<0>();
      if (Plan::kUneven) {
        pin(weights_frag);
        add_outputs(outputs_frag, weights_frag);
      } else {
        pin(outputs_frag);
      }
      if (lane == 0) {
        barrier_arrive(block.value_empty(at.index()));
      }
      if (member == block.group() - 1) {
        if constexpr (Plan::kOutputsInQueries) {
          barrier_wait(block.query_read(at.index()), at.parity());
        } else {
          outputs.reuse_buffer();
        }
        const float constant = Plan::kReverse ? reverse_factor() : block.work.a * block.first_unit().value;
        outputs.write(outputs_frag, constant, chunk, weights_at.index(), Plan::kOutputsInQueries ? at.index() : 0);
      } else {
        barrier_arrive(block.barrier(Plan::kWeightsEmpty, weights_at.index()));
      }
      at.advance();
      weights_at.advance();
    }
  }

  // O^T += V^T W^T, once the weights are there.
  __device__ __forceinline__ void start_weights(float (&outputs_frag)[36], uint64_t value,
                                                const RingPosition<Plan::kWeightBuffers>& weights_at,
                                                bool uses_state) const {
    barrier_wait(block.barrier(Plan::kWeightsFull, weights_at.index()), weights_at.parity());
    pin(outputs_frag);
    products_fence();
    add_weight_halves(outputs_frag, value, operand(block.weights(weights_at.index())), uses_state);
    products_commit();
  }

  // Halves of a part of S, as the product with the queries takes them.
  __device__ __forceinline__ void split_state(int part, uint32_t (&upper_frag)[kPairs],
                                              uint32_t (&lower_frag)[kPairs]) const {
#pragma unroll
    for (int i = 0; i < kPairs && part * kPairs + i < kAllPairs; ++i) {
      const float2 x = pair(part * kPairs + i);
      split<Half>(x.x, x.y, upper_frag[i], lower_frag[i]);
    }
  }

  // O^T (+)= S^T Q^T over the key columns of a part: of a box, or of its first or second half.
  __device__ __forceinline__ static void start_state_query(float (&outputs_frag)[36], int part,
                                                           uint32_t (&upper_frag)[kPairs],
                                                           uint32_t (&lower_frag)[kPairs], uint64_t query) {
    pin_halves(outputs_frag, upper_frag, lower_frag);
    products_fence();
#pragma unroll
    for (int i = 0; i < kPairs / 4 && part * (kPairs / 4) + i < kSteps; ++i) {
      const uint64_t upper_query = further(query, (part * (kPairs / 4) + i) % 4 * 32);
      Products::state_query(outputs_frag, upper_frag + 4 * i, upper_query, part + i > 0);
      Products::state_query(outputs_frag, lower_frag + 4 * i, upper_query, 1);
      Products::state_query(outputs_frag, upper_frag + 4 * i, further(upper_query, Plan::kLower), 1);
    }
    products_commit();
  }

  __device__ __forceinline__ static void pin_halves(float (&outputs_frag)[36], uint32_t (&upper_frag)[kPairs],
                                                    uint32_t (&lower_frag)[kPairs]) {
    pin(upper_frag);
    pin(lower_frag);
    if constexpr (Plan::kStreams) {  // the others are zero until W comes
      pin_first<32>(outputs_frag);
    } else {
      pin(outputs_frag);
    }
  }

  // V^T K of a chunk in halves, from zero, of a part of the key columns, a box, which `key_part` begins.
  template <typename HalfOfValues>
  __device__ __forceinline__ static void multiply_part(float (&part_frag)[kPartRegisters], int part, HalfOfValues upper,
                                                       HalfOfValues lower, uint64_t key_part) {
    const auto multiply = [&](HalfOfValues value, uint64_t key, int accumulate) {
      if constexpr (kParts > kWholeParts) {
        if (part == kWholeParts) {
          Products::value_key_rest(part_frag, value, key, accumulate);
          return;
        }
      }
      Products::value_key(part_frag, value, key, accumulate);
    };
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const uint64_t upper_key = rows_further(key_part, step);
      multiply(rows_further(upper, step), upper_key, step > 0);
      multiply(rows_further(lower, step), upper_key, 1);
      multiply(rows_further(upper, step), further(upper_key, Plan::kLowerKey), 1);
    }
  }

  __device__ __forceinline__ static void clear(float (&part_frag)[kPartRegisters]) {
#pragma unroll
    for (int i = 0; i < kPartRegisters; ++i) {
      part_frag[i] = 0.0f;
    }
  }

  // S of a part comes in a unit that is so many times that of the sum.
  __device__ __forceinline__ void add_part(const float (&part_frag)[kPartRegisters], int part, float ratio = 1.0f) {
    constexpr bool kFollows = Plan::kWeighsRows && Plan::kScaled;
#pragma unroll
    for (int i = 0; i < kPartRegisters && part * kPartRegisters + i < Plan::kStateRegisters; ++i) {
      float& element = state_frag[part][i];
      element = kFollows ? fmaf(element, ratio, part_frag[i]) : element + part_frag[i];
    }
  }

  __device__ __forceinline__ static void scale_outputs(float (&outputs_frag)[36], float ratio) {
    if (ratio != 1.0f) {
      multiply_outputs(outputs_frag, ratio);
    }
  }

  // Of a query head of a group, rounded to nearest: an accumulator that took in all of them would truncate each time.
  __device__ __forceinline__ static void add_outputs(float (&outputs_frag)[36], const float (&weights_frag)[36]) {
#pragma unroll
    for (int i = 0; i < 36; ++i) {
      outputs_frag[i] += weights_frag[i];
    }
  }

  __device__ __forceinline__ static void clear_outputs(float (&outputs_frag)[36]) {
#pragma unroll
    for (int i = 0; i < 36; ++i) {
      outputs_frag[i] = 0.0f;
    }
  }

  // Without a branch, around which products under way would be moved.
  __device__ __forceinline__ static void multiply_outputs(float (&outputs_frag)[36], float ratio) {
#pragma unroll
    for (int i = 0; i < 36; ++i) {
      outputs_frag[i] *= ratio;
    }
  }

  // The reverse where a group of query heads adds to the outputs of a chunk, or a head without b to the outputs
  // alone. One thing after the other.
  __device__ __forceinline__ void run_uneven() {
    float outputs_frag[36];
    RingPosition<Plan::kStages> at;
    RingPosition<Plan::kWeightBuffers> weights_at;
    for (int chunk = 0; chunk < block.num_chunks; ++chunk) {
      const int member = block.member(chunk);
      const float ratio = follow_unit(at);
      barrier_wait(block.query_full(at.index()), at.parity());
      barrier_wait(block.key_full(at.index()), at.parity());
      barrier_wait(block.value_full(at.index()), at.parity());
      if (member == 0) {
        outputs_frag[32] = outputs_frag[33] = outputs_frag[34] = outputs_frag[35] = 0.0f;
        multiply_state(outputs_frag, at.index());
      } else {
        scale_outputs(outputs_frag, ratio);
      }
      if constexpr (Plan::kApart) {
        arrive_once_a_warp(block.query_empty(at.index()), lane);
      }
      barrier_wait(block.barrier(Plan::kReady, at.index()), at.parity());
      barrier_wait(block.barrier(Plan::kWeightsFull, weights_at.index()), weights_at.parity());
      if constexpr (Plan::kWeighsInState) {
        uint32_t value_frag[kValueWords];
#pragma unroll
        for (int part = 0; part < kValueParts; ++part) {
          load_values(at, chunk, part, value_frag);
          add_part(outputs_frag, value_frag, at, weights_at.index(), part, member);
          pin(value_frag);
        }
      } else {
        add_part(outputs_frag, operand(block.value(at.index(), outputs.box)), at, weights_at.index(), 0, member);
      }
      give_back(at);
      if (member == block.group() - 1) {
        if constexpr (Plan::kOutputBuffers == 1) {
          outputs.reuse_buffer();
        }
        outputs.write(outputs_frag, reverse_factor(), chunk, weights_at.index(),
                      block.item_chunk(chunk) % Plan::kOutputBuffers);
      } else {
        barrier_arrive(block.barrier(Plan::kWeightsEmpty, weights_at.index()));
      }
      at.advance();
      weights_at.advance();
    }
  }

  // A part of V^T to the outputs, and to the state of a head that has one. One after the other.
  __device__ __forceinline__ void add_part(float (&outputs_frag)[36], Values value,
                                           const RingPosition<Plan::kStages>& at, int weights_idx, int part,
                                           int member) {
    const uint64_t weights = further(operand(block.weights(weights_idx)), part * kValueSteps * 32);
    if constexpr (Plan::kSplit) {
      float weights_frag[36];
      clear_outputs(weights_frag);
      pin(weights_frag);
      products_fence();
      add_weight_halves(weights_frag, value, weights, false);
      products_commit();
      products_wait<0>();
      pin(weights_frag);
      add_outputs(outputs_frag, weights_frag);
    } else {
      pin(outputs_frag);
      products_fence();
      Outputs<Plan>::template add_value_weights<kValueSteps>(outputs_frag, value, weights, true);
      products_commit();
      products_wait<0>();
      pin(outputs_frag);
    }
    if (block.slope_of(member) != 0.0f) {
      add_values(value, rows_further(operand(block.key(at.index(), 0), Plan::kKeyBox), part * kValueSteps));
    }
  }

  // O^T = S^T Q^T.
  __device__ __forceinline__ void multiply_state(float (&outputs_frag)[36], int stage_idx) {
    if constexpr (Plan::kSplit) {
      uint32_t upper_frag[kPairs];
      uint32_t lower_frag[kPairs];
      split_state(0, upper_frag, lower_frag);
      pin(upper_frag);
      pin(lower_frag);
      pin(outputs_frag);
      products_fence();
      multiply_halves(outputs_frag, upper_frag, lower_frag, operand(block.query(stage_idx, 0)));
      products_commit();
      products_wait<0>();
      pin(upper_frag);
      pin(lower_frag);
      pin(outputs_frag);
    } else {
#pragma unroll
      for (int part = 0; part < kQueryParts; ++part) {
        uint32_t half_frag[kPairs];
        make_operands(block.scale(kWeightScale), part, half_frag);
        add_state_query(outputs_frag, half_frag, operand(block.query(stage_idx, 0)), part);
        products_commit();
        products_wait<0>();
        pin(half_frag);
        pin(outputs_frag);
      }
    }
  }

  // S^T += V^T K.
  __device__ __forceinline__ void add_values(StateValues value, uint64_t key) {
    if constexpr (Plan::kSplit) {
      float chunk_frag[kParts][kPartRegisters] = {};
      pin_parts(chunk_frag);
      products_fence();
      multiply_chunk(chunk_frag, value, key);
      products_commit();
      products_wait<0>();
      pin_parts(chunk_frag);
      add_to_state(chunk_frag);
    } else {
      pin_parts(state_frag);
      products_fence();
      add_chunk(state_frag, value, key);
      products_commit();
      finish_products();
    }
  }

  __device__ __forceinline__ static void multiply_halves(float (&outputs_frag)[36], uint32_t (&upper_frag)[kPairs],
                                                         uint32_t (&lower_frag)[kPairs], uint64_t query) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint64_t upper_query = further(query, step / 4 * Plan::kQueryBox + step % 4 * 32);
      Products::state_query(outputs_frag, upper_frag + 4 * step, upper_query, step > 0);
      Products::state_query(outputs_frag, lower_frag + 4 * step, upper_query, 1);
      Products::state_query(outputs_frag, upper_frag + 4 * step, further(upper_query, Plan::kLower), 1);
    }
  }

  __device__ __forceinline__ static void add_weight_halves(float (&outputs_frag)[36], uint64_t value, uint64_t weights,
                                                           bool uses_state) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const uint64_t upper_value = further(value, step * 2048);
      const uint64_t upper_weights = further(weights, step * 32);
      Products::value_weights(outputs_frag, upper_value, upper_weights, step > 0 || uses_state);
      Products::value_weights(outputs_frag, further(upper_value, Plan::kLower), upper_weights, 1);
      Products::value_lower_weights(outputs_frag, upper_value, further(upper_weights, Plan::kLowerWeights), 1);
    }
  }

  __device__ __forceinline__ void make_operands(float scale, int part, uint32_t (&half_frag)[kPairs]) const {
    constexpr bool kAlwaysScales = Plan::kGradient && Plan::kMerged;  // a way around costs registers
    if (!Plan::kFollows || (!kAlwaysScales && (scale == 1.0f || scale == 0.0f))) {
#pragma unroll
      for (int i = 0; i < kPairs && part * kPairs + i < kAllPairs; ++i) {
        const float2 x = pair(part * kPairs + i);
        half_frag[i] = Half::pack(x.x, x.y);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kPairs && part * kPairs + i < kAllPairs; ++i) {
        const float2 x = pair(part * kPairs + i);
        half_frag[i] = Half::pack(x.x * scale, x.y * scale);
      }
    }
  }

  // O^T (+)= S^T Q^T over the key columns of a part; the first product of part 0 starts O^T.
  __device__ __forceinline__ void add_state_query(float (&outputs_frag)[36], uint32_t (&half_frag)[kPairs],
                                                  uint64_t query, int part) {
    pin(half_frag);
    pin(outputs_frag);
    pin_parts(state_frag);
    products_fence();
#pragma unroll
    for (int i = 0; i < kPairs / 4 && part * (kPairs / 4) + i < kSteps; ++i) {
      const int step = part * (kPairs / 4) + i;
      Products::state_query(outputs_frag, half_frag + 4 * i,
                            further(query, step / 4 * Plan::kQueryBox + step % 4 * 32), step > 0);
    }
  }

};

}  // namespace hopper
}  // namespace linattn
