// The state role where boxes of q and k stream.
#pragma once

#include "linattn/hopper_state.cuh"

namespace linattn {
namespace hopper {

// A box of columns of S is multiplied by that of the queries, takes that of the keys, and both are given back. The upper half
// of V^T is in registers, which spares readings of shared memory: that is what bounds these kernels. Products are started half
// a box at a time, so that halves of S are few and two products are always under way. S is in the unit of the chunk before
// until it takes the chunk.
template <class Plan>
struct StreamState : State<Plan> {
  using Base = State<Plan>;
  using Base::block;
  using Base::kPairs;
  using Base::kPartRegisters;
  using Base::kParts;
  using Base::kQueryParts;
  using Base::lane;
  using Base::outputs;
  using Products = typename Plan::Products;
  static constexpr int kValueWords = 16;  // of an upper half
  static_assert(Plan::kWholeParts == Plan::kParts, "every box is multiplied as a whole");

  __device__ __forceinline__ StreamState(const Block<Plan>& shared, Outputs<Plan>& outputs_of_columns)
      : Base(shared, outputs_of_columns) {}

  __device__ __forceinline__ void run() {
    this->start_all();
    if constexpr (Plan::kUneven) {
      run_uneven();
    } else {
      run_even();
    }
    this->finish_all();
  }

  __device__ __forceinline__ void run_even() {
    const bool uses_state = Plan::kReverse || block.slope() != 0.0f;
    const float constant = Plan::kGradient ? 1.0f : block.work.a * block.first_unit().value;
    float outputs_frag[36];
    float part_frag[kPartRegisters] = {};
    uint32_t upper_frag[kPairs];
    uint32_t lower_frag[kPairs];
    RingPosition<Plan::kStages> at;
    RingPosition<Plan::kPairs> pair_at;
    RingPosition<Plan::kWeightBuffers> weights_at;
    this->split_state(0, upper_frag, lower_frag);
    for (int chunk = 0; chunk < block.num_chunks; ++chunk) {
      const float ratio = this->template change_unit<false>(this->unit_of(at));
      barrier_wait(block.pair_full(pair_at.index()), pair_at.parity());
      Base::start_state_query(outputs_frag, 0, upper_frag, lower_frag, operand(block.pair_query(pair_at.index())));
      outputs.find_anew();
      uint32_t value_frag[kValueWords];
      load_upper_values(at, value_frag);
      const uint64_t lower_value = operand(block.value(at.index()) + Plan::kLower);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const uint64_t key = operand(block.pair_key(pair_at.index()), Plan::kKeyBox);
        start_tokens<0>(part_frag, value_frag, lower_value, key);
        products_wait<1>();
        Base::pin_halves(outputs_frag, upper_frag, lower_frag);
        if (2 * part + 1 < kQueryParts) {
          this->split_state(2 * part + 1, upper_frag, lower_frag);
          Base::start_state_query(outputs_frag, 2 * part + 1, upper_frag, lower_frag,
                                  operand(block.pair_query(pair_at.index())));
          products_wait<1>();
          start_tokens<1>(part_frag, value_frag, lower_value, key);
          products_wait<1>();
          Base::pin_halves(outputs_frag, upper_frag, lower_frag);
        } else {
          start_tokens<1>(part_frag, value_frag, lower_value, key);
        }
        const int place = pair_at.index();
        pair_at.advance();
        if (part + 1 < kParts) {
          this->split_state(2 * part + 2, upper_frag, lower_frag);
          barrier_wait(block.pair_full(pair_at.index()), pair_at.parity());
          Base::start_state_query(outputs_frag, 2 * part + 2, upper_frag, lower_frag,
                                  operand(block.pair_query(pair_at.index())));
        } else {
          Base::multiply_outputs(outputs_frag, ratio);
          outputs_frag[32] = outputs_frag[33] = outputs_frag[34] = outputs_frag[35] = 0.0f;
          start_weights(outputs_frag, value_frag, lower_value, weights_at, uses_state);
        }
        products_wait<1>();
        pin(part_frag);
        this->add_part(part_frag, part, ratio);
        arrive_once_a_warp(block.pair_empty(place), lane);
      }
      this->split_state(0, upper_frag, lower_frag);
      outputs.reuse_buffer();
      products_wait<0>();
      pin(value_frag);
      pin(outputs_frag);
      finish_chunk(outputs_frag, at, weights_at, chunk, constant);
      at.advance();
      weights_at.advance();
    }
  }

  // The same of uneven steps, one thing after the other.
  __device__ __forceinline__ void run_uneven() {
    float outputs_frag[36];
    float part_frag[kPartRegisters] = {};
    RingPosition<Plan::kStages> at;
    RingPosition<Plan::kPairs> pair_at;
    RingPosition<Plan::kWeightBuffers> weights_at;
    for (int chunk = 0; chunk < block.num_chunks; ++chunk) {
      const int member = block.member(chunk);
      Base::scale_outputs(outputs_frag, this->follow_unit(at));
      if (member == 0) {
        outputs_frag[32] = outputs_frag[33] = outputs_frag[34] = outputs_frag[35] = 0.0f;
      }
      outputs.find_anew();
      const uint64_t lower_value = operand(block.value(at.index()) + Plan::kLower);
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        barrier_wait(block.pair_full(pair_at.index()), pair_at.parity());
        if (member == 0) {
#pragma unroll
          for (int half = 2 * part; half < 2 * part + 2 && half < kQueryParts; ++half) {
            uint32_t upper_frag[kPairs];
            uint32_t lower_frag[kPairs];
            this->split_state(half, upper_frag, lower_frag);
            Base::start_state_query(outputs_frag, half, upper_frag, lower_frag,
                                    operand(block.pair_query(pair_at.index())));
            products_wait<0>();
            Base::pin_halves(outputs_frag, upper_frag, lower_frag);
          }
        }
        if (block.slope_of(member) != 0.0f) {
          const uint64_t key = operand(block.pair_key(pair_at.index()), Plan::kKeyBox);
          uint32_t value_frag[kValueWords];
          load_upper_values(at, value_frag);
          start_tokens<0>(part_frag, value_frag, lower_value, key);
          start_tokens<1>(part_frag, value_frag, lower_value, key);
          products_wait<0>();
          pin(value_frag);
          pin(part_frag);
          this->add_part(part_frag, part);
        }
        arrive_once_a_warp(block.pair_empty(pair_at.index()), lane);
        pair_at.advance();
      }
      uint32_t value_frag[kValueWords];
      load_upper_values(at, value_frag);
      float weights_frag[36];
      Base::clear_outputs(weights_frag);
      start_weights(weights_frag, value_frag, lower_value, weights_at, false);
      if (member == block.group() - 1) {
        outputs.reuse_buffer();
      }
      products_wait<0>();
      pin(value_frag);
      pin(weights_frag);
      Base::add_outputs(outputs_frag, weights_frag);
      finish_chunk(outputs_frag, at, weights_at, chunk, 1.0f);
      at.advance();
      weights_at.advance();
    }
  }

  // The upper half of V^T of a chunk, 16 tokens in four words.
  __device__ __forceinline__ void load_upper_values(const RingPosition<Plan::kStages>& at,
                                                    uint32_t (&value_frag)[kValueWords]) const {
    const uint32_t address = this->transposed(block.value(at.index()));
    barrier_wait(block.value_full(at.index()), at.parity());
    Base::load_transposed(address, value_frag);
    pin(value_frag);
    reads_are_used();
  }

  // V^T K in halves of a box of keys, of half of the tokens of a chunk; the first half from zero.
  template <int kHalf>
  __device__ __forceinline__ static void start_tokens(float (&part_frag)[kPartRegisters],
                                                      const uint32_t (&value_frag)[kValueWords], uint64_t lower_value,
                                                      uint64_t key) {
    if constexpr (kHalf == 0) {
      pin(part_frag);
    }
    products_fence();
#pragma unroll
    for (int step = 2 * kHalf; step < 2 * kHalf + 2; ++step) {
      const uint64_t upper_key = further(key, step * 2048);
      const uint64_t lower_key = further(upper_key, Plan::kLowerKey);
      const uint64_t lower_value_at = further(lower_value, step * 2048);
      Products::value_key(part_frag, value_frag + 4 * step, upper_key, step > 0);
      Products::value_key(part_frag, value_frag + 4 * step, lower_key, 1);
      Products::lower_value_key(part_frag, lower_value_at, upper_key, 1);
    }
    products_commit();
  }

  // O^T += V^T W^T, once the weights are there, with the upper half of V^T in registers.
  __device__ __forceinline__ void start_weights(float (&outputs_frag)[36], const uint32_t (&value_frag)[kValueWords],
                                                uint64_t lower_value,
                                                const RingPosition<Plan::kWeightBuffers>& weights_at,
                                                bool uses_state) const {
    barrier_wait(block.barrier(Plan::kWeightsFull, weights_at.index()), weights_at.parity());
    pin(outputs_frag);
    products_fence();
    const uint64_t weights = operand(block.weights(weights_at.index()));
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      const uint64_t upper_weights = further(weights, step * 32);
      Products::value_weights(outputs_frag, value_frag + 4 * step, upper_weights, step > 0 || uses_state);
      Products::lower_value_weights(outputs_frag, further(lower_value, step * 2048), upper_weights, 1);
      Products::value_lower_weights(outputs_frag, value_frag + 4 * step, further(upper_weights, Plan::kLowerWeights),
                                    1);
    }
    products_commit();
  }

  // Gives back what stays until a chunk is done, and writes its outputs once all of a group have added to them.
  __device__ __forceinline__ void finish_chunk(float (&outputs_frag)[36], const RingPosition<Plan::kStages>& at,
                                               const RingPosition<Plan::kWeightBuffers>& weights_at, int chunk,
                                               float constant) {
    barrier_arrive(block.value_empty(at.index()));  // each lane has read V
    if constexpr (Plan::kReverse) {
      arrive_once_a_warp(block.key_empty(at.index()), lane);
    }
    if (block.member(chunk) == block.group() - 1) {
      outputs.write(outputs_frag, Plan::kReverse ? this->reverse_factor() : constant, chunk, weights_at.index(), 0);
    } else {
      barrier_arrive(block.barrier(Plan::kWeightsEmpty, weights_at.index()));
    }
  }
};

}  // namespace hopper
}  // namespace linattn
