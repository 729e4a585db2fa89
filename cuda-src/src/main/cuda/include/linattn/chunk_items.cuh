// What a block of the chunked family works on: chunked_arguments.h has the vocabulary.
#pragma once

#include "linattn/arithmetic.h"
#include "linattn/chunked_arguments.h"

namespace linattn {

constexpr int kValueColumns = 64;       // value columns of a block of a forward, hence of a mark
constexpr int kRecurrenceColumns = 32;  // of a tile of the recurrence

// n / tiles: tiles of a row are mostly three or a power of two.
__device__ __forceinline__ uint32_t quotient_by_tiles(uint32_t n, uint32_t tiles) {
  if (tiles == 3) {
    return n / 3;
  }
  return (tiles & (tiles - 1)) == 0 ? n >> (__ffs(static_cast<int>(tiles)) - 1) : n / tiles;
}

// Item `item_idx`, from the list or computed.
__device__ __forceinline__ Item load_item(const ChunkedArguments& args, int item_idx) {
  if (args.items != nullptr) {
    return args.items[item_idx];
  }
  Item item;
  const int64_t start = static_cast<int64_t>(item_idx) * args.item_tokens;
  const int64_t tokens_left = args.tokens - start;
  item.start = static_cast<int32_t>(start);
  item.tokens = tokens_left < args.item_tokens ? static_cast<int32_t>(tokens_left < 0 ? 0 : tokens_left)
                                               : args.item_tokens;
  const int slot = item_idx * args.slot_step;
  item.slot = slot < args.slots ? slot : args.slots - 1;
  item.reserved = 0;
  item.count = args.initial_count + start;
  return item;
}

// A head of the query, and the key/value head it reads. `index` and `kv_index` count over all batch rows.
struct Head {
  int64_t index;
  int64_t kv_index;
  int batch_idx;
  int head_idx;
  int kv_head_idx;
  float a;
  float b;

  // Every number of a block fits 31 bits, and so does a head's. Where key/value heads are counted this is one of these.
  __device__ __forceinline__ Head(const ChunkedArguments& args, int64_t index_of, bool is_kv = false)
      : index(index_of) {
    const Divisor& heads = is_kv ? args.kv_heads : args.heads;
    batch_idx = static_cast<int>(heads.quotient(index));
    head_idx = static_cast<int>(index) - batch_idx * heads.value;
    kv_head_idx = is_kv ? head_idx : static_cast<int>(args.group.quotient(head_idx));
    kv_index = static_cast<int64_t>(batch_idx) * args.kv_heads.value + kv_head_idx;
    a = args.a_per_head == nullptr ? args.a : args.a_per_head[head_idx];
    b = args.b_per_head == nullptr ? args.b : args.b_per_head[head_idx];
  }

  // The query heads of a group share a state; this one writes it.
  __device__ __forceinline__ bool writes_state(const ChunkedArguments& args) const {
    return head_idx == kv_head_idx * args.group.value;
  }
};

// The row of `token` of a head. Tokens are counted along the token axis of the tensor.
template <typename Element>
__device__ __forceinline__ Element* row_address(const TensorView& view, int batch_idx, int head_idx,
                                                int64_t token) {
  return static_cast<Element*>(view.address) + batch_idx * view.batch_stride + head_idx * view.head_stride +
         token * view.token_stride;
}

// Which of the [batch, kv head, slot] states an item starts from, and where its sums go.
__device__ __forceinline__ int64_t state_index(const ChunkedArguments& args, int64_t kv_index, int slot) {
  return kv_index * args.slots + slot;
}

// block = (head * num_items + item) * tiles + tile, heads counted over all batch rows.
struct BlockIndex {
  int64_t head;
  int item_idx;
  int tile_idx;

  __device__ __forceinline__ BlockIndex(int64_t block, const Divisor& num_items, int num_tiles) {
    const uint32_t item_of_head = quotient_by_tiles(block, num_tiles);
    tile_idx = static_cast<int>(block - static_cast<int64_t>(item_of_head) * num_tiles);
    head = num_items.quotient(item_of_head);
    item_idx = static_cast<int>(item_of_head - head * num_items.value);
  }
};

// A block of a kernel that has one for each tile of `kColumns` value columns of an item of a query head.
template <int kColumns>
struct ValueTile {
  BlockIndex block;
  Head head;
  Item item;
  int first_column;
  int num_columns;  // 1 <= num_columns <= kColumns
  int64_t state;

  __device__ __forceinline__ explicit ValueTile(const ChunkedArguments& args) : ValueTile(args, blockIdx.x) {}

  // Of a key/value head, where these are counted.
  __device__ __forceinline__ ValueTile(const ChunkedArguments& args, int64_t block_number, bool is_kv = false)
      : block(block_number, args.num_items, ceil_div(args.value_dim, kColumns)),
        head(args, block.head, is_kv),
        item(load_item(args, block.item_idx)),
        first_column(block.tile_idx * kColumns) {
    const int columns_left = args.value_dim - first_column;
    num_columns = columns_left < kColumns ? columns_left : kColumns;
    state = state_index(args, head.kv_index, item.slot);
  }

  template <typename Element>
  __device__ __forceinline__ const Element* query(const ChunkedArguments& args) const {
    return row_address<Element>(args.query, head.batch_idx, head.head_idx, item.start);
  }

  template <typename Element>
  __device__ __forceinline__ const Element* key(const ChunkedArguments& args) const {
    return row_address<Element>(args.key, head.batch_idx, head.kv_head_idx, item.start);
  }

  template <typename Element>
  __device__ __forceinline__ const Element* value(const ChunkedArguments& args) const {
    return row_address<Element>(args.value, head.batch_idx, head.kv_head_idx, item.start) + first_column;
  }

  template <typename Element>
  __device__ __forceinline__ Element* out(const ChunkedArguments& args) const {
    return row_address<Element>(args.out, head.batch_idx, head.head_idx, item.start) + first_column;
  }

  // [batch, head, token]: its rows have one column.
  __device__ __forceinline__ float* normalizer(const ChunkedArguments& args) const {
    return row_address<float>(args.normalizer, head.batch_idx, head.head_idx, item.start);
  }

  // Offsets of its first column in an array of S and of u; S's next row is value_dim further.
  __device__ __forceinline__ int64_t state_offset(const ChunkedArguments& args) const {
    return state * args.key_dim * args.value_dim + first_column;
  }

  __device__ __forceinline__ int64_t key_sum_offset(const ChunkedArguments& args) const {
    return state * args.key_dim;
  }

  __device__ __forceinline__ int64_t value_sum_offset(const ChunkedArguments& args) const {
    return state * args.value_dim + first_column;
  }
};

}  // namespace linattn
