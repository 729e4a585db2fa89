// Blocks that go on where others have stopped. Where blocks of whole sequences would leave multiprocessors without work
// in their last round, sequences are cut into items, and the blocks of an item start from the state that those of the one
// before have left in memory, in the same launch. Blocks come item by item,
//
//   block = (item * heads + head) * tiles + tile,
//
// for the reverse from the last item on. A block waits for blocks with smaller numbers alone, and the GPU gives blocks
// their places in the order of their numbers: what is waited for runs, or has run.
//
// ChunkedArguments::tickets are then words [items, kv heads, kTicketWords], which tell how many blocks have left their
// columns of the state of an item; zero before the launch. States are [items + 1, kv heads] in the order of the walk:
// state_out is the place after state_in, and the list of items tells slots.
#pragma once

#include "linattn/chunk_items.cuh"
#include "linattn/hopper_plan.cuh"

namespace linattn {
namespace hopper {

template <class Plan>
__device__ __forceinline__ bool relays(const ChunkedArguments& args) {
  return Plan::kMayRelay && args.tickets != nullptr;
}

// The number of a block as chunked_arguments.h has it, (head * items + item) * tiles + tile.
template <class Plan>
__device__ __forceinline__ uint32_t number_by_head(const ChunkedArguments& args, uint32_t number) {
  if (!relays<Plan>(args)) {
    return number;
  }
  const uint32_t tiles = ceil_div(args.value_dim, Plan::kTileColumns);
  const uint32_t heads = args.batches * (Plan::kWeighsRows ? args.kv_heads : args.heads).value;
  const uint32_t head_of_place = quotient_by_tiles(number, tiles);
  const uint32_t place = head_of_place / heads;
  const uint32_t item = Plan::kReverse ? args.num_items.value - 1 - place : place;
  return ((head_of_place - place * heads) * args.num_items.value + item) * tiles + number - head_of_place * tiles;
}

// An item of a key/value head between the one before and the next.
template <class Plan>
struct Relay {
  const ChunkedArguments& args;
  int64_t kv_head;
  int item;

  __device__ __forceinline__ Relay(const ChunkedArguments& arguments, int64_t kv_index, int item_idx)
      : args(arguments), kv_head(kv_index), item(item_idx) {}

  __device__ __forceinline__ bool takes() const { return Plan::kReverse ? item + 1 < args.num_items.value : item > 0; }
  __device__ __forceinline__ bool leaves() const { return Plan::kReverse ? item > 0 : item + 1 < args.num_items.value; }

  __device__ __forceinline__ uint32_t* word() const { return word_of(item); }
  __device__ __forceinline__ uint32_t* word_before() const { return word_of(Plan::kReverse ? item + 1 : item - 1); }

 private:
  __device__ __forceinline__ uint32_t* word_of(int of_item) const {
    const int64_t kv_heads = static_cast<int64_t>(args.batches) * args.kv_heads.value;
    return args.tickets + kTicketWords * (of_item * kv_heads + kv_head);
  }
};

}  // namespace hopper
}  // namespace linattn
