// Blocks that go on where others have stopped. Where blocks of whole sequences would leave multiprocessors without work
// in their last round, sequences are cut into items, and the blocks of an item start from the state that those of the one
// before have left in memory, in the same launch. Blocks come item by item,
//
//   block = (item * heads + head) * tiles + tile,
//
// for the reverse from the last item on. A block waits for blocks with smaller numbers alone, and the GPU gives blocks
// their places in the order of their numbers: what is waited for runs, or has run.
//
// ChunkedArguments::tickets are then, for every item but the one that ends a walk, in the order of items,
//
//   words       [kv heads, items - 1, kTicketWords]  how many blocks have left their columns of its state; zero before
//                                                    the launch
//   states      [kv heads, items - 1, Dk, Dv]        S, or dS
//   key_sums    [kv heads, items - 1, Dk]
//   value_sums  [kv heads, items - 1, Dv]
//
// and state_in and state_out stand before and after all items, with one slot.
#pragma once

#include "linattn/chunk_items.cuh"
#include "linattn/hopper_plan.cuh"

namespace linattn {
namespace hopper {

template <class Plan>
__device__ __forceinline__ bool relays(const ChunkedArguments& args) {
  return Plan::kMayRelay && args.tickets != nullptr;
}

// Heads whose rows come out, over all batch rows.
template <class Plan>
__device__ __forceinline__ uint32_t output_heads(const ChunkedArguments& args) {
  return args.batches * (Plan::kWeighsRows ? args.heads / args.group : args.heads);
}

// The number of a block as chunked_arguments.h has it, (head * items + item) * tiles + tile.
template <class Plan>
__device__ __forceinline__ uint32_t number_by_head(const ChunkedArguments& args, uint32_t number) {
  if (!relays<Plan>(args)) {
    return number;
  }
  const uint32_t tiles = ceil_div(args.value_dim, Plan::kTileColumns);
  const uint32_t heads = output_heads<Plan>(args);
  const uint32_t place = number / (tiles * heads);
  const uint32_t item = Plan::kReverse ? args.num_items - 1 - place : place;
  return (number / tiles % heads * args.num_items + item) * tiles + number % tiles;
}

// What an item of a head is given by the one before, and what it leaves to the next.
template <class Plan>
struct Relay {
  const ChunkedArguments& args;
  int64_t first;  // place of the key/value head
  int item;

  __device__ __forceinline__ Relay(const ChunkedArguments& arguments, int64_t kv_head, int item_idx)
      : args(arguments), first(kv_head * (arguments.num_items - 1)), item(item_idx) {}

  __device__ __forceinline__ bool takes() const { return Plan::kReverse ? item + 1 < args.num_items : item > 0; }
  __device__ __forceinline__ bool leaves() const { return Plan::kReverse ? item > 0 : item + 1 < args.num_items; }

  // Places among the states.
  __device__ __forceinline__ int64_t taken() const { return first + item - (Plan::kReverse ? 0 : 1); }
  __device__ __forceinline__ int64_t left() const { return first + item - (Plan::kReverse ? 1 : 0); }

  __device__ __forceinline__ int64_t places() const {
    return static_cast<int64_t>(args.batches) * (args.heads / args.group) * (args.num_items - 1);
  }
  __device__ __forceinline__ uint32_t* word(int64_t place) const { return args.tickets + place * kTicketWords; }
  __device__ __forceinline__ float* states() const { return reinterpret_cast<float*>(word(places())); }
  __device__ __forceinline__ float* key_sums() const { return states() + places() * args.key_dim * args.value_dim; }
  __device__ __forceinline__ float* value_sums() const { return key_sums() + places() * args.key_dim; }
};

}  // namespace hopper
}  // namespace linattn
