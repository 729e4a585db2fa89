// What a kernel of sm_90a is run with on the emulator: tensors, states and their items, drawn at random, and the
// arguments that lead to them. Built with -DKERNEL="file": the generated text, its products handed to the emulator.
#pragma once

#include "emulator.h"

#include <random>
#include <vector>

#include KERNEL
#include "linattn/hopper_gradient.cuh"
#include "linattn/hopper_one_sweep.cuh"

namespace kernel_test {

using namespace linattn;
using namespace linattn::hopper;

constexpr int D = Plan::kHeadDim;  // of rows x and y
template <class AnyPlan>
constexpr bool kOneSweep = false;
template <class Spec, bool kIsKey>
constexpr bool kOneSweep<OneSweepPlan<Spec, kIsKey>> = true;

constexpr int kHeads = 2;        // of a batch row
constexpr float kOffset = 0.7f;  // a
constexpr float kSlope = 0.45f;  // b of the first head
constexpr int64_t kBefore = 40;  // tokens in the states that items start from
constexpr int kZeroRow = 70;     // of q and k of the first head, where rows are divided
constexpr int kNoItem = -1;
constexpr float kOfNoItem = 8.0f;  // elements of its rows: they would show in a sum, and where they are x spoil none
constexpr bool kDivided = Plan::kNormalize || Plan::kScalesRows;
using Stored = typename Plan::Element;

inline std::mt19937 engine(11);

// As the run time makes it.
inline Divisor divisor(int value) {
  uint32_t shift = 0;
  while (1 << shift < value) {
    ++shift;
  }
  return {value, static_cast<uint32_t>(((int64_t{1} << (31 + shift)) + value - 1) / value), shift};
}

// [head, token, column], heads counted over all batch rows.
struct Tensor {
  int batches;
  int heads;  // of a batch row
  int tokens;
  int width;
  std::vector<Stored> stored;

  Tensor(int batches, int heads, int tokens, int width)
      : batches(batches),
        heads(heads),
        tokens(tokens),
        width(width),
        stored(static_cast<size_t>(batches) * heads * tokens * width) {
    fill(NAN);
  }

  Tensor& draw(float low, float high) {
    std::uniform_real_distribution<float> uniform(low, high);
    for (Stored& element : stored) {
      store(element, uniform(engine));
    }
    return *this;
  }
  void fill(float x) {
    for (Stored& element : stored) {
      store(element, x);
    }
  }
  void fill_row(int head, int token, float x) {
    for (int j = 0; j < width; ++j) {
      set(head, token, j, x);
    }
  }
  size_t index(int head, int token, int column) const {
    return (static_cast<size_t>(head) * tokens + token) * width + column;
  }
  float at(int head, int token, int column) const { return to_float(stored[index(head, token, column)]); }
  void set(int head, int token, int column, float x) { store(stored[index(head, token, column)], x); }
  double length(int head, int token) const {
    double squares = 0;
    for (int j = 0; j < width; ++j) {
      squares += static_cast<double>(at(head, token, j)) * at(head, token, j);
    }
    return std::sqrt(squares);
  }
  // As a sweep is given it.
  float scale(int head, int token) const {
    const double length = this->length(head, token);
    return length == 0 ? -1.0f : static_cast<float>(1 / length);
  }
  int64_t head_stride() const { return int64_t{tokens} * width; }
  TensorView view() { return {stored.data(), heads * head_stride(), head_stride(), width}; }
  TensorMap map() {
    const emulator::TensorMapContent content = {reinterpret_cast<char*>(stored.data()),
                                                {width, tokens, heads, batches},
                                                {1, width, head_stride(), heads * head_stride()},
                                                kRowBytes / static_cast<int>(sizeof(Stored)),
                                                Plan::kChunk,
                                                sizeof(Stored)};
    TensorMap map = {};
    std::memcpy(&map, &content, sizeof content);
    return map;
  }

 private:
  static void store(float& element, float x) { element = x; }
  template <emulator::Operand16 kType>
  static void store(Element16<kType>& element, float x) {
    element.bits = emulator::from_float(kType, x);
  }
};

// [kv head, slot]: S [Dk, Dv], z [Dk] and u [Dv]; NaN until they are set.
template <class Number>
struct States {
  int slots;
  int key_dim;
  int value_dim;
  std::vector<Number> s, z, u;

  States(int heads, int slots, int key_dim, int value_dim)
      : slots(slots),
        key_dim(key_dim),
        value_dim(value_dim),
        s(static_cast<size_t>(heads) * slots * key_dim * value_dim, NAN),
        z(static_cast<size_t>(heads) * slots * key_dim, NAN),
        u(static_cast<size_t>(heads) * slots * value_dim, NAN) {}
  template <class Other>
  explicit States(const States<Other>& other)
      : slots(other.slots),
        key_dim(other.key_dim),
        value_dim(other.value_dim),
        s(other.s.begin(), other.s.end()),
        z(other.z.begin(), other.z.end()),
        u(other.u.begin(), other.u.end()) {}

  States& draw(float largest) {
    std::uniform_real_distribution<float> uniform(-largest, largest);
    for (auto* part : {&s, &z, &u}) {
      for (Number& element : *part) {
        element = uniform(engine);
      }
    }
    return *this;
  }
  size_t slot(int head, int slot) const { return static_cast<size_t>(head) * slots + slot; }
  Number& s_at(int head, int slot, int m, int j) { return s[(this->slot(head, slot) * key_dim + m) * value_dim + j]; }
  Number& z_at(int head, int slot, int m) { return z[this->slot(head, slot) * key_dim + m]; }
  Number& u_at(int head, int slot, int j) { return u[this->slot(head, slot) * value_dim + j]; }
  Number s_at(int head, int slot, int m, int j) const { return const_cast<States*>(this)->s_at(head, slot, m, j); }
  Number z_at(int head, int slot, int m) const { return const_cast<States*>(this)->z_at(head, slot, m); }
  Number u_at(int head, int slot, int j) const { return const_cast<States*>(this)->u_at(head, slot, j); }
};

enum class Input {
  kQuery,
  kKey,
  kValue,
  kOutput,
  kOutputGradient,
  kNormalizer,
  kStateBefore,
  kValueSumBefore,
  kStateAfter
};

// An element of the last row of an item, or of its state, that is not finite.
struct Fault {
  Input input;
  int head;  // a query head; of keys, values and states the one it reads
  int item;
  float value;
};

// How rows are cut. Where items are listed there may be rows that belong to none.
struct Shape {
  const char* name;
  int batches;
  int group;
  int tokens;
  int slots;
  int item_tokens;
  bool is_listed;
  std::vector<Item> items;
  std::vector<Fault> faults;
};

// q, k are divided rows in the sums if the kernel divides them. Heads are counted over all batch rows.
struct Problem {
  const Shape& shape;
  const int key_dim;
  const int value_dim;
  const int group = shape.group;
  const int tokens = shape.tokens;
  const int items = static_cast<int>(shape.items.size());
  const int heads = shape.batches * kHeads;
  const int kv_heads = heads / group;
  Tensor q = tensor(kHeads, key_dim);
  Tensor k = tensor(kHeads / group, key_dim);
  Tensor v = tensor(kHeads / group, value_dim);
  Tensor o = tensor(kHeads, value_dim);
  Tensor dO = tensor(kHeads, value_dim);
  States<float> before = states_of_nothing();
  States<float> after = states_of_nothing();
  std::vector<float> g, delta, query_scale, key_scale;
  // b. Without it in a head that of da is the sum that is asked for.
  float slopes[kHeads] = {kSlope, group == 1 || shape.is_listed ? 0.3f * kSlope : 0.0f};
  const bool sums_slope = group > 1;
  std::vector<double> query_rows, key_rows;  // as the sums have them
  std::vector<int> item_of;                  // of a token, or kNoItem

  Problem(const Shape& of, int key_dim, int value_dim) : shape(of), key_dim(key_dim), value_dim(value_dim) {
    q.draw(-0.3f, 1.0f);
    k.draw(-0.3f, 1.0f);
    v.draw(-1.0f, 1.0f);
    o.draw(-1.0f, 1.0f);
    dO.draw(-1.0f, 1.0f);
    if (kDivided && tokens > kZeroRow) {
      q.fill_row(0, kZeroRow, 0.0f);
      k.fill_row(0, kZeroRow, 0.0f);
    }
    before.draw(4.0f);
    for (float& z : before.z) {
      z = std::fabs(z);
    }
    after.draw(0.05f);
    item_of.assign(tokens, kNoItem);
    for (int item = 0; item < items; ++item) {
      std::fill_n(item_of.begin() + shape.items[item].start, shape.items[item].tokens, item);
    }
    for (Tensor* rows : {&q, &k, &v, &o, &dO}) {
      for (int head = 0; head < rows->batches * rows->heads; ++head) {
        for (int token = 0; token < tokens; ++token) {
          if (item_of[token] == kNoItem) {
            rows->fill_row(head, token, kOfNoItem);
          }
        }
      }
    }
    prepare();
    for (int head = 0; head < heads; ++head) {
      for (int token = 0; token < tokens; ++token) {
        g.push_back(static_cast<float>(normalizer(head, token)));
      }
    }
    for (const Fault& fault : shape.faults) {
      set(fault);
    }
    prepare();
  }
  Problem(const Problem&) = delete;

  Tensor tensor(int heads_of_row, int width) const { return {shape.batches, heads_of_row, tokens, width}; }
  States<float> states_of_nothing() const { return {kv_heads, shape.slots, key_dim, value_dim}; }

  int kv(int head) const { return head / group; }
  float slope(int head) const { return slopes[head % kHeads]; }
  const Item& item_at(int token) const { return shape.items[item_of[token]]; }
  int slot(int token) const { return item_at(token).slot; }
  int start(int token) const { return item_at(token).start; }
  int end(int token) const { return item_at(token).start + item_at(token).tokens; }
  // Of the item, up to a token.
  double count(int token) const { return static_cast<double>(item_at(token).count) + token - start(token) + 1; }
  bool has_fault(int kv_head, int item) const {
    return std::any_of(shape.faults.begin(), shape.faults.end(), [&](const Fault& fault) {
      return kv(fault.head) == kv_head && fault.item == item;
    });
  }

  double query(int head, int token, int m) const {
    return query_rows[(static_cast<size_t>(head) * tokens + token) * key_dim + m];
  }
  double key(int kv_head, int token, int m) const {
    return key_rows[(static_cast<size_t>(kv_head) * tokens + token) * key_dim + m];
  }
  double g_of(int head, int token) const { return g[static_cast<size_t>(head) * tokens + token]; }
  double d_of(int head, int token) const { return delta[static_cast<size_t>(head) * tokens + token]; }
  double score(int head, int i, int n) const {
    double sum = 0;
    for (int m = 0; m < key_dim; ++m) {
      sum += query(head, i, m) * key(kv(head), n, m);
    }
    return sum;
  }
  double value_score(int head, int i, int n) const {  // dO_i . v_n
    double sum = 0;
    for (int j = 0; j < value_dim; ++j) {
      sum += static_cast<double>(dO.at(head, i, j)) * v.at(kv(head), n, j);
    }
    return sum;
  }
  double normalizer(int head, int token) const {
    if (item_of[token] == kNoItem) {
      return NAN;
    }
    double sum = kOffset * count(token);
    for (int m = 0; m < key_dim; ++m) {
      sum += slope(head) * query(head, token, m) * before.z_at(kv(head), slot(token), m);
    }
    for (int n = start(token); n <= token; ++n) {
      sum += slope(head) * score(head, token, n);
    }
    return sum;
  }

  ChunkedArguments chunked(Tensor& x, Tensor& y, Tensor& z, Tensor* out) {
    ChunkedArguments args = {};
    args.query = x.view();
    args.key = y.view();
    args.value = z.view();
    args.normalizer = {g.data(), int64_t{kHeads} * tokens, tokens, 1};
    if (out != nullptr) {
      args.out = out->view();
    }
    args.items = shape.is_listed ? shape.items.data() : nullptr;
    args.initial_count = kBefore;
    args.tokens = tokens;
    args.item_tokens = shape.item_tokens;
    args.num_items = divisor(items);
    args.slots = shape.slots;
    args.slot_step = 1;
    args.heads = divisor(kHeads);
    args.kv_heads = divisor(kHeads / group);
    args.group = divisor(group);
    args.key_dim = x.width;
    args.value_dim = z.width;
    args.a = kOffset;
    args.b_per_head = slopes;
    args.batches = shape.batches;
    args.turns = 1;
    return args;
  }

  HopperGradient gradient(GradientTask task, Tensor& x, Tensor& y, Tensor& z, Tensor* out) {
    HopperGradient args = {};
    args.query = x.map();
    args.key = y.map();
    args.value = z.map();
    args.output_rows = o.map();
    args.gradient.chunked = chunked(x, y, z, out);
    if (out != nullptr) {
      args.out = out->map();
    }
    args.gradient.delta = delta.data();
    args.gradient.query_scale = query_scale.data();
    args.gradient.key_scale = key_scale.data();
    args.gradient.task = task;
    args.gradient.tasks = 1;
    return args;
  }

 private:
  void set(const Fault& fault) {
    const Item& item = shape.items[fault.item];
    const int token = item.start + item.tokens - 1;
    const int kv_head = kv(fault.head);
    const int m = key_dim - 3;
    const int j = value_dim - 3;
    switch (fault.input) {
      case Input::kQuery: return q.set(fault.head, token, m, fault.value);
      case Input::kKey: return k.set(kv_head, token, m, fault.value);
      case Input::kValue: return v.set(kv_head, token, j, fault.value);
      case Input::kOutput: return o.set(fault.head, token, j, fault.value);
      case Input::kOutputGradient: return dO.set(fault.head, token, j, fault.value);
      case Input::kNormalizer: g[static_cast<size_t>(fault.head) * tokens + token] = fault.value; return;
      case Input::kStateBefore: before.s_at(kv_head, item.slot, m, j) = fault.value; return;
      case Input::kValueSumBefore: before.u_at(kv_head, item.slot, j) = fault.value; return;
      case Input::kStateAfter: after.s_at(kv_head, item.slot, m, j) = fault.value; return;
    }
  }

  // What follows from the tensors, but for g: the forward of a fault leaves none to go on from.
  void prepare() {
    query_rows = rows_in_sums(q);
    key_rows = rows_in_sums(k);
    query_scale = scales(q);
    key_scale = scales(k);
    delta.clear();
    for (int head = 0; head < heads; ++head) {
      for (int token = 0; token < tokens; ++token) {
        double d = item_of[token] == kNoItem ? NAN : 0;
        for (int j = 0; j < value_dim; ++j) {
          d += static_cast<double>(o.at(head, token, j)) * dO.at(head, token, j);
        }
        delta.push_back(static_cast<float>(d));
      }
    }
  }
  std::vector<double> rows_in_sums(const Tensor& tensor) const {
    std::vector<double> rows;
    for (int head = 0; head < tensor.batches * tensor.heads; ++head) {
      for (int token = 0; token < tokens; ++token) {
        const double length = kDivided ? tensor.length(head, token) : 1;
        for (int m = 0; m < tensor.width; ++m) {
          rows.push_back(length == 0 ? 0 : tensor.at(head, token, m) / length);
        }
      }
    }
    return rows;
  }
  std::vector<float> scales(const Tensor& tensor) const {
    std::vector<float> scales;
    for (int head = 0; head < tensor.batches * tensor.heads; ++head) {
      for (int token = 0; token < tokens; ++token) {
        scales.push_back(tensor.scale(head, token));
      }
    }
    return scales;
  }
};

}  // namespace kernel_test
