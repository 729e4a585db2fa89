// The state role of sums, which have no outputs.
#pragma once

#include "linattn/hopper_state.cuh"

namespace linattn {
namespace hopper {

template <class Plan>
struct SumsState : State<Plan> {
  using Base = State<Plan>;
  using Base::block;
  using Base::kParts;
  using Base::kPartRegisters;
  using Base::kValueWords;
  using Base::lane;
  using Base::outputs;

  __device__ __forceinline__ SumsState(const Block<Plan>& shared, Outputs<Plan>& outputs_of_columns)
      : Base(shared, outputs_of_columns) {}

  __device__ __forceinline__ void run() {
    this->start();
    if constexpr (Plan::kWeighsKeys) {
      run_weighed();
    } else {
      run_even();
    }
    this->change_unit(1.0f);
    this->finish();
  }

  // S alone.
  __device__ __forceinline__ void run_even() {
    RingPosition<Plan::kStages> at;
    for (int chunk = 0; chunk < block.num_chunks; ++chunk) {
      wait_for_sums(at, chunk);
      this->follow_unit(at);
      const uint64_t key = operand(block.key(at.index(), 0), Plan::kKeyBox);
      if constexpr (Plan::kInParts) {
        add_boxes(at.index(), key);
      } else {
        this->add_values(operand(block.value(at.index(), outputs.box)), key);
      }
      if (lane == 0) {
        if constexpr (!Plan::kBoxesApart) {
          barrier_arrive(block.key_empty(at.index()));
        }
        if constexpr (Plan::kSplit && !Plan::kInParts) {
          barrier_arrive(block.value_empty(at.index()));
        }
      }
      at.advance();
    }
  }

  // The same of weighed keys.
  __device__ __forceinline__ void run_weighed() {
    RingPosition<Plan::kStages> at;
    uint32_t value_frag[2][kValueWords];
    if (block.num_chunks > 0) {
      load_values_for_sums(at, 0, value_frag[0]);
    }
    for (int chunk = 0; chunk < block.num_chunks; chunk += 2) {
      add_weighed(at, chunk, value_frag[0], value_frag[1]);
      if (chunk + 1 < block.num_chunks) {
        add_weighed(at, chunk + 1, value_frag[1], value_frag[0]);
      }
    }
  }

  __device__ __forceinline__ void wait_for_sums(const RingPosition<Plan::kStages>& at, int chunk) const {
    barrier_wait(block.key_full(at.index()), at.parity());
    if constexpr (Plan::kConverted) {
      barrier_wait(block.value_full(at.index()), at.parity());
    }
    if (Plan::kAlwaysReady) {
      barrier_wait(block.barrier(Plan::kReady, at.index()), at.parity());
    } else if (!Plan::kSumsOnTheWay && block.rows(chunk) < Plan::kChunk) {
      if constexpr (Plan::kWeighsKeys) {
        block.wait_for_lengths(at.index(), at.parity());
      } else {
        barrier_wait(block.barrier(Plan::kReady, at.index()), 0);  // its only phase
      }
    }
  }

  __device__ __forceinline__ void load_values_for_sums(const RingPosition<Plan::kStages>& at, int chunk,
                                                       uint32_t (&value_frag)[kValueWords]) const {
    wait_for_sums(at, chunk);
    this->load_values(at, chunk, 0, value_frag);
  }

  // A chunk whose values are in registers; under its products come those of the next one.
  __device__ __forceinline__ void add_weighed(RingPosition<Plan::kStages>& at, int chunk,
                                              uint32_t (&value_frag)[kValueWords],
                                              uint32_t (&next_frag)[kValueWords]) {
    const RingPosition<Plan::kStages> chunk_at = at;
    at.advance();
    pin(value_frag);
    Base::pin_parts(this->state_frag);
    products_fence();
    this->add_chunk(this->state_frag, value_frag, operand(block.key(chunk_at.index(), 0), Plan::kKeyBox));
    products_commit();
    if (chunk + 1 < block.num_chunks) {
      load_values_for_sums(at, chunk + 1, next_frag);
    }
    this->finish_products();
    pin(value_frag);
    barrier_arrive(block.key_empty(chunk_at.index()));
  }

  // S^T += V^T K, box by box, with V^T in registers, so that its place is free before: while a box is added the products of
  // the next are under way.
  __device__ __forceinline__ void add_boxes(int stage_idx, uint64_t key) {
    uint32_t upper_frag[16];
    uint32_t lower_frag[16];
    const uint32_t value = block.value(stage_idx, outputs.box);
    Base::load_transposed(this->transposed(value), upper_frag);
    pin(upper_frag);
    Base::load_transposed(this->transposed(value + Plan::kLower), lower_frag);
    pin(lower_frag);
    finish_reads();
    arrive_once_a_warp(block.value_empty(stage_idx), lane);
    float parts_frag[2][kPartRegisters] = {};
    start_box(parts_frag[0], 0, upper_frag, lower_frag, key);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      float(&part_frag)[kPartRegisters] = parts_frag[part % 2];
      if (part + 1 < kParts) {
        start_box(parts_frag[(part + 1) % 2], part + 1, upper_frag, lower_frag, key);
        products_wait<1>();
      } else {
        products_wait<0>();
      }
      pin(part_frag);
      pin(upper_frag);
      pin(lower_frag);
      if (Plan::kBoxesApart && lane == 0) {
        barrier_arrive(block.box_empty(stage_idx, part));
      }
      this->add_part(part_frag, part);
    }
  }

  // V^T K in halves of a box of keys, from zero.
  __device__ __forceinline__ static void start_box(float (&part_frag)[kPartRegisters], int part,
                                                   uint32_t (&upper_frag)[16], uint32_t (&lower_frag)[16],
                                                   uint64_t key) {
    pin(part_frag);
    pin(upper_frag);
    pin(lower_frag);
    products_fence();
    Base::template multiply_part<const uint32_t*>(part_frag, part, upper_frag, lower_frag,
                                                  further(key, part * Plan::kKeyBox));
    products_commit();
  }
};

}  // namespace hopper
}  // namespace linattn
