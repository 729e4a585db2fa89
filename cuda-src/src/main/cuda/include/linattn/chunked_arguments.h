// Arguments of the kernels of the family `chunked`, passed by value. Plain C++, so that a host compiler
// can check the layout.
//
// Work is cut into items: an item is a run of tokens of one head that starts from one state. A whole
// sequence is an item, and so is a segment of one. Where `items` is null, item i of every head is
//   start = i * item_tokens, tokens = min(item_tokens, tokens - start), count = initial_count + start,
// slot = min(i * slot_step, slots - 1).
//
// A block computes a tile of columns of the values of one item of one head:
//   block = (head * num_items + item) * tiles + tile.
//
// Where there are fewer items than the GPU has room for, blocks of the forward may take turns: `turns` of
// them walk the same chunks and keep the same state, and block `turn` writes the outputs of the chunks
// turn, turn + turns, ... of the item. Then
//   block = ((head * num_items + item) * turns + turn) * tiles + tile.
//
// What is read from sums alone reads no k: of state_outputs `key` is where 1 / |q| is kept, or null. Sums by warpgroups that may
// want a repair have `marks` [kv heads, items, tiles of 64 value columns], 1 where something that a block wrote is not finite; those
// by warps take `marks` that are not null for a sign that sums are there and only to be repaired, and walk what is marked.
#pragma once

#include <cstdint>

#include "linattn/arithmetic.h"

namespace linattn {

// A [batch, head, token, column] tensor; the columns are neighbours. Strides in elements, address and
// strides multiples of 16 bytes.
//
// offset  bytes  member
//      0      8  address
//      8      8  batch_stride
//     16      8  head_stride
//     24      8  token_stride
struct TensorView {
  void* address;
  int64_t batch_stride;
  int64_t head_stride;
  int64_t token_stride;
};

// offset  bytes  member
//      0      4  start     first token, counted along the token axis of the tensors
//      4      4  tokens    >= 0
//      8      4  slot      its state among the `slots` states of a head
//     12      4  reserved  0
//     16      8  count     tokens that its initial state holds
struct Item {
  int32_t start;
  int32_t tokens;
  int32_t slot;
  int32_t reserved;
  int64_t count;
};

// A state is S [Dk, Dv], z [Dk], u [Dv], fp32; each lies in an array [batch, kv head, slot] of its own,
// without gaps. A null input means zero, a null output means not wanted.
//
// offset  bytes  member
//      0     32  query
//     32     32  key
//     64     32  value
//     96     32  out
//    128     32  normalizer     g, fp32
//    160      8  items          [num_items], or null
//    168      8  a_per_head     [heads], or null: the scalar a
//    176      8  b_per_head     [heads], or null: the scalar b
//    184      8  state_in       S
//    192      8  key_sum_in     z
//    200      8  value_sum_in   u
//    208      8  state_out      S
//    216      8  key_sum_out    z
//    224      8  value_sum_out  u
//    232      8  marks          [blocks of the forward]: 1 where a block met a value that is not finite
//    240      8  initial_count  tokens in the initial state
//    248      4  tokens         extent of the token axis
//    252      4  item_tokens    see above
//    256      4  slots          states per head in state_in and state_out
//    260      4  key_dim        Dk
//    264      4  value_dim      Dv
//    268      4  normalize      1: rows of q and k are divided by their length first
//    272     12  num_items
//    284     12  heads          query heads of a batch row
//    296     12  kv_heads       key/value heads of a batch row: heads / group
//    308     12  group          query heads that share a key/value head
//    320      4  a
//    324      4  b
//    328      4  batches        batch rows
//    332      4  turns          a power of two; 1 where a kernel knows no turns
//    336      4  slot_step      see above
//    340      4  reserved       0
//    344      8  tickets        [kv heads, items, kTicketWords] of decode: zero before and after each launch; words of a
//                               relay, hopper_relay.cuh; null of all else
struct ChunkedArguments {
  TensorView query;
  TensorView key;
  TensorView value;
  TensorView out;
  TensorView normalizer;
  const Item* items;
  const float* a_per_head;
  const float* b_per_head;
  const float* state_in;
  const float* key_sum_in;
  const float* value_sum_in;
  float* state_out;
  float* key_sum_out;
  float* value_sum_out;
  uint32_t* marks;
  int64_t initial_count;
  int32_t tokens;
  int32_t item_tokens;
  int32_t slots;
  int32_t key_dim;
  int32_t value_dim;
  int32_t normalize;
  Divisor num_items;
  Divisor heads;
  Divisor kv_heads;
  Divisor group;
  float a;
  float b;
  int32_t batches;
  int32_t turns;
  int32_t slot_step;
  int32_t reserved;
  uint32_t* tickets;
};

// Neighbours in memory would wait for one another.
constexpr int kTicketWords = 32;

// The items of one sequence, for state_scan.
//
// offset  bytes  member
//      0      4  first      its first item
//      4      4  num_items
struct Span {
  int32_t first;
  int32_t num_items;
};

// Turns the sums of each item into the state before it: state[i] = initial + sum of the items of its
// sequence before i, in order; the total goes to the final state. In place. A sequence without items
// passes its initial state on. Without state_out and spans the last sum is not read. Backwards, the sum is over
// the items of the sequence after i, added from the last one on. With totals alone the sums stay what they are.
//
// offset  bytes  member
//      0      8  state          S [kv heads, num_items, Dk, Dv], sums on entry, states on return
//      8      8  key_sum        z [kv heads, num_items, Dk]
//     16      8  value_sum      u [kv heads, num_items, Dv]
//     24      8  state_in       S [kv heads, num_sequences, Dk, Dv], or null: zero
//     32      8  key_sum_in     z
//     40      8  value_sum_in   u
//     48      8  state_out      S [kv heads, num_sequences, Dk, Dv], or null: not wanted; may be state_in
//     56      8  key_sum_out    z
//     64      8  value_sum_out  u
//     72      8  spans          [num_sequences], or null: one sequence of all items
//     80      4  num_items
//     84      4  num_sequences
//     88      4  key_dim        Dk
//     92      4  value_dim      Dv
//     96      4  backwards      1 or 0
//    100      4  totals_only    1 or 0
struct StateScanArguments {
  float* state;
  float* key_sum;
  float* value_sum;
  const float* state_in;
  const float* key_sum_in;
  const float* value_sum_in;
  float* state_out;
  float* key_sum_out;
  float* value_sum_out;
  const Span* spans;
  int32_t num_items;
  int32_t num_sequences;
  int32_t key_dim;
  int32_t value_dim;
  int32_t backwards;
  int32_t totals_only;
};

}  // namespace linattn
