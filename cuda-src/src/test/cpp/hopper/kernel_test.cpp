// Runs a kernel of sm_90a on the emulator, under several schedules, and compares what it writes with sums over rows in
// double. Built as problem.h says. Arguments: the error that is allowed, the schedules to try, the first of them. Exit
// status 0: agrees.
#include <algorithm>
#include <cstdio>

#include "reference.h"

using namespace kernel_test;

namespace {

constexpr int kMostTurns = Plan::kMayTakeTurns ? 8 : 1;
constexpr int kRelayTokens = 2 * Plan::kChunk;  // of an item

double allowed_error;
int failures = 0;

// The root mean square error against that of the expected values.
struct Comparison {
  const char* what;
  double error = 0;
  double norm = 0;
  size_t count = 0;

  void add(double expected, double got) {
    ++count;
    error += (got - expected) * (got - expected);
    norm += expected * expected;
  }
  ~Comparison() {
    const double ratio = std::sqrt(error / std::max(norm, 1e-300));
    const bool agrees = count > 0 && ratio <= allowed_error;
    std::printf("%s%s %.2e", agrees ? " " : " WRONG: ", what, ratio);
    failures += !agrees;
  }
};

template <typename... Values>
void expect(bool holds, const char* format, Values... values) {
  if (!holds) {
    std::printf(" WRONG: ");
    std::printf(format, values...);
    ++failures;
  }
}

int boxes_of(int width) { return ceil_div(width, Plan::kBoxColumns); }
int tiles_of(int width) { return ceil_div(width, Plan::kTileColumns); }

struct Marks {
  int turns;
  int boxes;
  int turn_tokens;              // of one turn after the other
  std::vector<uint32_t> marks;  // [head, item, turn, box]

  Marks(int heads, const Problem& p, int width, int turns = 1, int turn_tokens = Plan::kChunk)
      : turns(turns),
        boxes(boxes_of(width)),
        turn_tokens(turn_tokens),
        marks(static_cast<size_t>(heads) * p.items * turns * boxes, 7) {}
  uint32_t at(int head, int item, int items, int turn, int box) const {
    return marks[((static_cast<size_t>(head) * items + item) * turns + turn) * boxes + box];
  }
};

// Tensors of which a row decides about that row of the outputs alone: x, and o where d is formed of it.
using OwnRows = std::vector<const Tensor*>;

// Whether a mark may be false: the one sweep marks more of an item than its faults reach, and all kernels mark an item
// with such rows behind its end that are not finite, which are in its last chunk.
bool may_be_marked_falsely(const Problem& p, const OwnRows& own_rows, int head, int kv, int item) {
  const Item& of = p.shape.items[item];
  const int end = std::min(p.tokens, of.start + (of.tokens + Plan::kChunk - 1) / Plan::kChunk * Plan::kChunk);
  bool finite = true;
  for (const Tensor* rows : own_rows) {
    for (int token = of.start + of.tokens; token < end; ++token) {
      for (int j = 0; j < rows->width; ++j) {
        finite &= std::isfinite(rows->at(head, token, j));
      }
    }
  }
  return !finite || (kOneSweep<Plan> && p.has_fault(kv, item));
}

// Rows of `out` by tiles: 64 columns of the chunks of an item that one block writes. A tile is marked if one of its
// elements is not finite, else it is as expected; a term of a row that is not finite marks the first tile, which has
// the sums of terms, and others perhaps; of a relay of one sweep the first item has those of the tokens before it.
// Nothing is written to rows of no item.
void compare_rows(const char* what, const Problem& p, const OwnRows& own_rows, const Rows& expected,
                  const Tensor& out, const Marks& marks, const Rows* terms = nullptr) {
  const int width = out.width;
  const int heads = out.batches * out.heads;
  Comparison comparison{what};
  const auto each_element = [&](int head, int item, int turn, int box, auto visit) {
    for (int token = 0; token < p.shape.items[item].tokens; ++token) {
      if (token / marks.turn_tokens % marks.turns == turn) {
        const size_t row = static_cast<size_t>(head) * p.tokens + p.shape.items[item].start + token;
        for (int j = box * Plan::kBoxColumns; j < std::min(width, (box + 1) * Plan::kBoxColumns); ++j) {
          visit(row * width + j);
        }
      }
    }
  };
  for (int head = 0; head < heads; ++head) {
    const int kv = heads == p.heads ? p.kv(head) : head;
    for (int item = 0; item < p.items; ++item) {
      for (int turn = 0; turn < marks.turns; ++turn) {
        for (int box = 0; box < marks.boxes; ++box) {
          bool must = false;
          bool may = may_be_marked_falsely(p, own_rows, head, kv, item);
          each_element(head, item, turn, box, [&](size_t i) {
            must |= !std::isfinite(expected[i]);
            if (terms != nullptr && !std::isfinite((*terms)[i / width])) {
              const bool has_sums = box == 0 && (turn == 0 || !kOneSweep<Plan>);
              (has_sums ? must : may) = true;
            }
          });
          const uint32_t mark = marks.at(head, item, p.items, turn, box);
          expect(mark == 0 ? !must : mark == 1 && (must || may),
                 "%s of head %d, item %d, turn %d, box %d has mark %u", what, head, item, turn, box, mark);
          if (mark == 0) {
            each_element(head, item, turn, box, [&](size_t i) { comparison.add(expected[i], to_float(out.stored[i])); });
          }
        }
      }
    }
    for (int token = 0; token < p.tokens; ++token) {
      for (int j = 0; j < width && p.item_of[token] == kNoItem; ++j) {
        expect(std::isnan(out.at(head, token, j)), "%s of no item, head %d, token %d", what, head, token);
      }
    }
  }
}

// g or d, which have no marks. Nothing is written to rows of no item.
void compare_column(const char* what, const Problem& p, const Rows& expected, const std::vector<float>& got) {
  Comparison comparison{what};
  for (size_t i = 0; i < expected.size(); ++i) {
    expect(p.item_of[i % p.tokens] != kNoItem || std::isnan(got[i]), "%s of no item, row %zu", what, i);
    if (std::isfinite(expected[i])) {
      comparison.add(expected[i], got[i]);
    }
  }
}

// A part of states, of so many numbers each. Nothing is written to slots of no item.
void compare_states(const char* what, const Problem& p, int size, const std::vector<double>& expected,
                    const std::vector<float>& got) {
  Comparison comparison{what};
  for (int kv = 0; kv < p.kv_heads; ++kv) {
    std::vector<bool> compares(p.shape.slots), is_free(p.shape.slots, true);
    for (int item = 0; item < p.items; ++item) {
      is_free[p.shape.items[item].slot] = false;
      compares[p.shape.items[item].slot] = !p.has_fault(kv, item);
    }
    for (int slot = 0; slot < p.shape.slots; ++slot) {
      for (int i = 0; i < size; ++i) {
        const size_t at = (static_cast<size_t>(kv) * p.shape.slots + slot) * size + i;
        expect(!is_free[slot] || std::isnan(got[at]), "%s of no item, head %d, slot %d", what, kv, slot);
        if (compares[slot]) {
          comparison.add(expected[at], got[at]);
        }
      }
    }
  }
}

// Of sums: a tile of columns is marked if something there is not finite, an item if its z is not, by any tile. Blocks of
// several tiles mark all of them.
void compare_sum_marks(const Problem& p, const Marks& marks, const States<float>& got) {
  for (int kv = 0; kv < p.kv_heads; ++kv) {
    for (int item = 0; item < p.items; ++item) {
      const int slot = p.shape.items[item].slot;
      bool is_key_finite = true;
      for (int m = 0; m < p.key_dim; ++m) {
        is_key_finite &= std::isfinite(got.z_at(kv, slot, m));
      }
      std::vector<bool> is_finite(marks.boxes, true);
      for (int j = 0; j < p.value_dim; ++j) {
        const int box = j / Plan::kBoxColumns;
        is_finite[box] = is_finite[box] && std::isfinite(got.u_at(kv, slot, j));
        for (int m = 0; m < p.key_dim; ++m) {
          is_finite[box] = is_finite[box] && std::isfinite(got.s_at(kv, slot, m, j));
        }
      }
      bool is_any_marked = false;
      for (int box = 0; box < marks.boxes; ++box) {
        const int first = box / Plan::kBeside * Plan::kBeside;
        bool may = !is_key_finite;
        for (int other = first; other < std::min(first + Plan::kBeside, marks.boxes); ++other) {
          may |= !is_finite[other];
        }
        const uint32_t mark = marks.at(kv, item, p.items, 0, box);
        expect(mark == 0 ? static_cast<bool>(is_finite[box]) : mark == 1 && may,
               "sums of head %d, item %d, columns %d have mark %u", kv, item, box, mark);
        is_any_marked |= mark != 0;
      }
      expect(is_key_finite || is_any_marked, "z of head %d, item %d is not finite, and no mark tells", kv, item);
    }
  }
}

void compare_states(const char* s, const char* z, const char* u, const Problem& p, const States<double>& expected,
                    const States<float>& got) {
  compare_states(s, p, p.key_dim * p.value_dim, expected.s, got.s);
  compare_states(z, p, p.key_dim, expected.z, got.z);
  compare_states(u, p, p.value_dim, expected.u, got.u);
}

// Member 0 is da, 1 is db; `partials` are [head, item, turn, box, member].
void compare_partials(const char* what, const Problem& p, int member, const std::vector<double>& expected,
                      const std::vector<double>& partials) {
  Comparison comparison{what};
  const size_t parts = partials.size() / expected.size();
  for (size_t i = 0; i < expected.size(); ++i) {
    const int head = static_cast<int>(i) / p.items;
    const int item = static_cast<int>(i) % p.items;
    if (!p.has_fault(p.kv(head), item)) {
      double sum = 0;
      for (size_t part = member; part < parts; part += 2) {
        sum += partials[i * parts + part];
      }
      comparison.add(expected[i], sum);
    }
  }
}

// The blocks of a cluster together, one cluster after the other.
template <typename Arguments, typename Kernel>
void launch(int items, int blocks_of_item, unsigned seed, const Arguments& args, Kernel kernel) {
  const int size = blocks_of_item % 2 == 0 ? 2 : 1;
  const int clusters = items * blocks_of_item / size;
  for (int cluster = 0; cluster < clusters; ++cluster) {
    emulator::run_cluster(static_cast<unsigned>(cluster * size), size, Plan::kThreads,
                          seed + 1000u * static_cast<unsigned>(cluster), [&] { kernel(args); });
  }
}

template <class Plan>
void run_gradient(const HopperGradientArguments& args) {
  gradient<Plan>(args);
}

void set_states_out(ChunkedArguments& args, States<float>& states) {
  args.state_out = states.s.data();
  args.key_sum_out = states.z.data();
  args.value_sum_out = states.u.data();
}

// Of a problem with one item: the items of a relay over it, and what they hand on in the order of the walk.
struct Handover {
  std::vector<Item> items;
  std::vector<uint32_t> words;
  States<float> states;  // [items + 1, kv heads]

  explicit Handover(const Problem& p, bool backwards)
      : words(static_cast<size_t>(count(p)) * p.kv_heads * kTicketWords),
        states(count(p) + 1, p.kv_heads, p.key_dim, p.value_dim) {
    for (int i = 0; i < count(p); ++i) {
      const int start = i * kRelayTokens;
      const int place = backwards ? count(p) - 1 - i : i;
      items.push_back({start, std::min(kRelayTokens, p.tokens - start), place * p.kv_heads, 0, kBefore + start});
    }
  }
  static int count(const Problem& p) { return ceil_div(p.tokens, kRelayTokens); }

  // Puts states where the walk starts, or after all of it, or reads those there.
  void put_first(const States<float>& from) { put(0, from); }
  void put_last(const States<float>& from) { put(static_cast<int>(items.size()), from); }
  void get_last(States<float>& to) {
    copy(static_cast<int>(items.size()), to, [](float& own, float& other) { other = own; });
  }

  void set(ChunkedArguments& args) {
    args.items = items.data();
    args.num_items = divisor(static_cast<int>(items.size()));
    args.item_tokens = kRelayTokens;
    args.slots = 1;
    args.tickets = words.data();
  }

  // For a walk from the last item on, which starts from `after`.
  void set_backwards(ChunkedArguments& args, const States<float>& after, bool is_key) {
    put_first(after);
    set(args);
    args.state_in = states.s.data();
    args.value_sum_in = is_key ? states.z.data() : states.u.data();
    args.state_out = &states.s_at(1, 0, 0, 0);
    args.value_sum_out = is_key ? &states.z_at(1, 0, 0) : &states.u_at(1, 0, 0);
  }

  // For a walk from the first item on, which starts from `before`; of dq u stands where z does in the forward.
  void set_forwards(ChunkedArguments& args, const States<float>& before, bool is_query_gradient) {
    put_first(before);
    set(args);
    args.state_in = states.s.data();
    args.key_sum_in = is_query_gradient ? states.u.data() : states.z.data();
    args.value_sum_in = is_query_gradient ? states.z.data() : states.u.data();
    args.state_out = &states.s_at(1, 0, 0, 0);
    args.key_sum_out = is_query_gradient ? &states.u_at(1, 0, 0) : &states.z_at(1, 0, 0);
    args.value_sum_out = is_query_gradient ? &states.z_at(1, 0, 0) : &states.u_at(1, 0, 0);
  }

 private:
  void put(int place, const States<float>& from) {
    copy(place, from, [](float& own, const float& other) { own = other; });
  }
  template <class Other, class Function>
  void copy(int place, Other& other, Function function) {
    const auto each = [&](std::vector<float>& own, auto& of_other) {
      for (size_t i = 0; i < of_other.size(); ++i) {
        function(own[place * of_other.size() + i], of_other[i]);
      }
    };
    each(states.s, other.s);
    each(states.z, other.z);
    each(states.u, other.u);
  }
};

Marks marks_of(int heads, const Problem& p, int width, int turns, const Handover* relay) {
  return relay == nullptr ? Marks(heads, p, width, turns)
                          : Marks(heads, p, width, static_cast<int>(relay->items.size()), kRelayTokens);
}

// Of rows of q, and behind them of k, as a forward tells them a backward: 0 of a row of zeros.
void compare_lengths(const Problem& p, const std::vector<float>& got) {
  const auto first_key = got.begin() + static_cast<std::ptrdiff_t>(p.query_scale.size());
  const auto compare = [&](const char* what, const std::vector<float>& scales, const std::vector<float>& kept) {
    Rows expected(scales.begin(), scales.end());
    std::replace(expected.begin(), expected.end(), -1.0, 0.0);
    for (size_t row = 0; row < expected.size(); ++row) {
      expected[row] = p.item_of[row % p.tokens] == kNoItem ? NAN : expected[row];
    }
    compare_column(what, p, expected, kept);
  };
  compare("1/|q|", p.query_scale, {got.begin(), first_key});
  compare("1/|k|", p.key_scale, {first_key, got.end()});
}

template <class Plan>
void run_forward(Problem& p, const ForwardSums& expected, const States<double>& last, unsigned seed, int turns,
                 Handover* relay) {
  Tensor out = p.tensor(kHeads, p.value_dim);
  States<float> states = p.states_of_nothing();
  std::vector<float> g(p.g.size(), NAN);
  std::swap(g, p.g);
  Marks marks = marks_of(p.heads, p, p.value_dim, turns, relay);
  HopperArguments args = {p.q.map(), p.k.map(), p.v.map(), out.map(), p.chunked(p.q, p.k, p.v, &out)};
  args.chunked.state_in = p.before.s.data();
  args.chunked.key_sum_in = p.before.z.data();
  args.chunked.value_sum_in = p.before.u.data();
  set_states_out(args.chunked, states);
  args.chunked.marks = marks.marks.data();
  args.chunked.turns = turns;
  if (relay != nullptr) {
    relay->set_forwards(args.chunked, p.before, false);
  }
  std::vector<float> lengths(p.query_scale.size() + p.key_scale.size(), NAN);
  args.row_scales = Plan::kNormalize ? lengths.data() : nullptr;
  launch(p.heads * args.chunked.num_items.value * turns, tiles_of(p.value_dim), seed, args,
         [](const HopperArguments& all) { forward<Plan>(all); });
  if (relay != nullptr) {
    relay->get_last(states);
  }
  if constexpr (Plan::kNormalize) {
    compare_lengths(p, lengths);
  }
  std::swap(g, p.g);
  compare_column("g", p, expected.g, g);
  compare_rows("o", p, {&p.q}, expected.o, out, marks);
  compare_states("S", "z", "u", p, last, states);
}

// Blocks in as many turns as there are, or one that goes on where another stopped; what is expected is the same each time.
template <class Plan>
void run_forwards(Problem& p, unsigned seed, Handover* relay = nullptr) {
  if constexpr (!Plan::kGradient && !Plan::kSums) {
    const ForwardSums expected(p);
    const States<double> last = states_after(p, &p.before);
    for (int turns = 1; turns <= (relay == nullptr ? kMostTurns : 1); turns *= 2) {
      run_forward<Plan>(p, expected, last, seed, turns, relay);
    }
  }
}

template <class Plan>
void run_state_sums(Problem& p, unsigned seed) {
  if constexpr (Plan::kSums && !Plan::kGradientSums) {
    States<float> sums = p.states_of_nothing();
    HopperArguments args = {p.k.map(), p.k.map(), p.v.map(), {}, p.chunked(p.k, p.k, p.v, nullptr)};
    args.chunked.heads = divisor(kHeads / p.group);
    args.chunked.group = divisor(1);
    set_states_out(args.chunked, sums);
    Marks marks(p.kv_heads, p, p.value_dim);
    args.chunked.marks = marks.marks.data();
    launch(p.kv_heads * p.items, tiles_of(p.value_dim), seed, args,
           [](const HopperArguments& all) { forward<Plan>(all); });
    compare_states("S", "z", "u", p, states_after(p, nullptr), sums);
    compare_sum_marks(p, marks, sums);
  }
}

template <class Plan>
void run_gradient_sums(Problem& p, unsigned seed) {
  if constexpr (Plan::kGradientSums) {
    States<float> sums = p.states_of_nothing();
    HopperGradientArguments args = {};
    args.tasks[0] = p.gradient(linattn::kValueGradient, p.k, p.q, p.dO, nullptr);
    set_states_out(args.tasks[0].gradient.chunked, sums);
    Marks marks(p.kv_heads, p, p.value_dim);
    args.tasks[0].gradient.chunked.marks = marks.marks.data();
    launch(p.kv_heads * p.items, tiles_of(p.value_dim), seed, args, run_gradient<Plan>);
    compare_states("dS", "dz", "du", p, gradients_before(p, nullptr), sums);
    compare_sum_marks(p, marks, sums);
  }
}

template <class Plan>
void run_query_gradient(Problem& p, const QueryGradientSums& expected, unsigned seed, int turns, Handover* relay) {
  Tensor dq = p.tensor(kHeads, p.key_dim);
  const Rows delta(p.delta.begin(), p.delta.end());
  if (Plan::kFormsDelta) {
    std::fill(p.delta.begin(), p.delta.end(), NAN);
  }
  Marks marks = marks_of(p.heads, p, p.key_dim, turns, relay);
  std::vector<double> partials(2 * marks.marks.size(), NAN);
  HopperGradientArguments args = {};
  args.tasks[0] = p.gradient(linattn::kQueryGradient, p.dO, p.v, p.k, &dq);
  GradientArguments& gradient_args = args.tasks[0].gradient;
  gradient_args.partials = partials.data();
  if (p.sums_slope) {
    gradient_args.slope_query = p.q.view();
  }
  gradient_args.chunked.state_in = p.before.s.data();
  gradient_args.chunked.key_sum_in = p.before.u.data();
  gradient_args.chunked.value_sum_in = p.before.z.data();
  gradient_args.chunked.marks = marks.marks.data();
  gradient_args.chunked.turns = turns;
  if (relay != nullptr) {
    relay->set_forwards(gradient_args.chunked, p.before, true);
  }
  launch(p.heads * gradient_args.chunked.num_items.value * turns, tiles_of(p.key_dim), seed, args, run_gradient<Plan>);
  compare_column("d", p, delta, p.delta);
  p.delta.assign(delta.begin(), delta.end());
  const OwnRows own_rows = Plan::kFormsDelta ? OwnRows{&p.dO, &p.o} : OwnRows{&p.dO};
  compare_rows("dq", p, own_rows, expected.dq, dq, marks, &expected.da_terms);
  compare_partials("da", p, 0, expected.da, partials);
  compare_partials("db", p, 1, expected.db, partials);
}

template <class Plan>
void run_query_gradients(Problem& p, unsigned seed, Handover* relay = nullptr) {
  if constexpr (Plan::kQueryGradient) {
    const QueryGradientSums expected(p);
    for (int turns = 1; turns <= (relay == nullptr ? kMostTurns : 1); turns *= 2) {
      run_query_gradient<Plan>(p, expected, seed, turns, relay);
    }
  }
}

// A column of v that is zero in a relay of one sweep.
constexpr int kQuietHead = 1;
constexpr int kQuietColumn = 5;

// What the blocks of dk and of dv have left before the first item: dz, and dS and du.
void get_before(Handover& of_key, Handover& of_value, States<float>& before) {
  States<float> key_before = before;
  of_key.get_last(key_before);
  of_value.get_last(before);
  before.z = key_before.z;
}

// The gradients whose rows x and y are as wide as those of the kernel: by one launch where both are, or by one each.
template <class Plan>
void run_key_value_gradient(Problem& p, unsigned seed, bool relays = false) {
  if constexpr (Plan::kReverse && !kOneSweep<Plan>) {
    const bool has_key = p.value_dim == D;
    const bool has_value = p.key_dim == D;
    Tensor dk = p.tensor(kHeads / p.group, p.key_dim);
    Tensor dv = p.tensor(kHeads / p.group, p.value_dim);
    States<float> before = p.states_of_nothing();
    Handover of_key(p, true), of_value(p, true);
    const Handover* relay = relays ? &of_key : nullptr;
    Marks key_marks = marks_of(p.kv_heads, p, p.key_dim, 1, relay);
    Marks value_marks = marks_of(p.kv_heads, p, p.value_dim, 1, relay);
    HopperGradientArguments args = {};
    int tasks = 0;
    if (has_key) {
      HopperGradient& task = args.tasks[tasks++];
      task = p.gradient(linattn::kKeyGradient, p.v, p.dO, p.q, &dk);
      task.gradient.chunked.value_sum_in = p.after.z.data();
      task.gradient.chunked.value_sum_out = before.z.data();
      task.gradient.chunked.marks = key_marks.marks.data();
    }
    if (has_value) {
      HopperGradient& task = args.tasks[tasks++];
      task = p.gradient(linattn::kValueGradient, p.k, p.q, p.dO, &dv);
      task.gradient.chunked.value_sum_in = p.after.u.data();
      task.gradient.chunked.value_sum_out = before.u.data();
      task.gradient.chunked.state_out = before.s.data();
      task.gradient.chunked.marks = value_marks.marks.data();
    }
    for (int task = 0; task < tasks; ++task) {
      args.tasks[task].gradient.tasks = tasks;
      ChunkedArguments& chunked = args.tasks[task].gradient.chunked;
      chunked.state_in = p.after.s.data();
      if (relays) {
        const bool is_key = args.tasks[task].gradient.task == linattn::kKeyGradient;
        (is_key ? of_key : of_value).set_backwards(chunked, p.after, is_key);
      }
    }
    launch(p.kv_heads * args.tasks[0].gradient.chunked.num_items.value,
           tasks * tiles_of(has_key ? p.key_dim : p.value_dim), seed, args, run_gradient<Plan>);
    if (relays) {
      get_before(of_key, of_value, before);
    }
    const KeyValueGradientSums expected(p);
    const States<double> expected_before = gradients_before(p, &p.after);
    if (has_key) {
      compare_rows("dk", p, {&p.v}, expected.dk, dk, key_marks);
      compare_states("dz", p, p.key_dim, expected_before.z, before.z);
    }
    if (has_value) {
      compare_rows("dv", p, {&p.k}, expected.dv, dv, value_marks);
      compare_states("dS", p, p.key_dim * p.value_dim, expected_before.s, before.s);
      compare_states("du", p, p.value_dim, expected_before.u, before.u);
    }
  }
}

// S and z of a slot, of which nothing is left there.
States<float> set_apart(States<float>& states, int kv_heads, int slot) {
  States<float> apart(kv_heads, 1, states.key_dim, states.value_dim);
  for (auto part : {&States<float>::s, &States<float>::z}) {
    const size_t size = (apart.*part).size() / kv_heads;
    for (int head = 0; head < kv_heads; ++head) {
      const auto from = (states.*part).begin() + states.slot(head, slot) * size;
      std::copy_n(from, size, (apart.*part).begin() + head * size);
      std::fill_n(from, size, NAN);
    }
  }
  return apart;
}

template <class Plan>
void run_one_sweep(Problem& p, unsigned seed, bool relays = false) {
  if constexpr (kOneSweep<Plan>) {
    States<float> last(states_after(p, &p.before));
    const Rows delta(p.delta.begin(), p.delta.end());
    std::fill(p.delta.begin(), p.delta.end(), NAN);
    Tensor dq = p.tensor(kHeads, D), dk = p.tensor(kHeads, D), dv = p.tensor(kHeads, D);
    States<float> before = p.states_of_nothing();
    Handover of_query(p, true), of_key(p, true), of_value(p, true);
    const Handover* relay = relays ? &of_query : nullptr;
    Marks query_marks = marks_of(p.heads, p, D, 1, relay);
    Marks key_marks = query_marks, value_marks = query_marks;
    std::vector<double> partials(2 * query_marks.marks.size(), NAN);
    HopperOneSweepArguments args = {};
    args.gradients.tasks[0] = p.gradient(linattn::kKeyGradient, p.v, p.dO, p.q, &dk);
    args.gradients.tasks[1] = p.gradient(linattn::kValueGradient, p.k, p.q, p.dO, &dv);
    for (HopperGradient& task : args.gradients.tasks) {
      task.gradient.tasks = 2;
      task.gradient.partials = partials.data();
      task.gradient.chunked.state_in = p.after.s.data();
    }
    ChunkedArguments& key_args = args.gradients.tasks[0].gradient.chunked;
    ChunkedArguments& value_args = args.gradients.tasks[1].gradient.chunked;
    key_args.value_sum_in = p.after.z.data();
    key_args.value_sum_out = before.z.data();
    key_args.marks = key_marks.marks.data();
    value_args.value_sum_in = p.after.u.data();
    value_args.value_sum_out = before.u.data();
    value_args.state_out = before.s.data();
    value_args.marks = value_marks.marks.data();
    args.query_gradient = dq.map();
    args.query_marks = query_marks.marks.data();
    args.last_state = last.s.data();
    args.last_key_sum = last.z.data();
    args.first_state = p.before.s.data();
    args.first_key_sum = p.before.z.data();
    args.first_value_sum = p.before.u.data();
    States<float> end = p.states_of_nothing();
    if (!relays && p.items > 1) {
      end = set_apart(last, p.kv_heads, p.shape.items.back().slot);
      args.end_state = end.s.data();
      args.end_key_sum = end.z.data();
    }
    if (relays) {
      of_key.set_backwards(key_args, p.after, true);
      // By which dk is no other, but of fp16 the unit that both blocks have to find.
      of_key.states.s_at(0, kQuietHead, 0, kQuietColumn) = 512.0f;
      States<float> after = p.after;
      std::fill(after.z.begin(), after.z.end(), 0.0f);  // no rows of z
      of_value.set_backwards(value_args, after, false);
      value_args.key_sum_in = of_value.states.z.data();
      value_args.key_sum_out = &of_value.states.z_at(1, 0, 0);
      States<float>& states = of_query.states;
      of_query.put_first(last);
      of_query.put_last(p.before);
      args.last_state = states.s.data();
      args.last_key_sum = states.z.data();
      args.first_state = &states.s_at(1, 0, 0, 0);
      args.first_key_sum = &states.z_at(1, 0, 0);
      args.first_value_sum = &states.u_at(1, 0, 0);
    }
    launch(p.heads * key_args.num_items.value, 2, seed, args,
           [](const HopperOneSweepArguments& all) { one_sweep<Plan>(all); });
    if (relays) {
      get_before(of_key, of_value, before);
    }
    compare_column("d", p, delta, p.delta);
    p.delta.assign(delta.begin(), delta.end());
    const QueryGradientSums queries(p);
    const KeyValueGradientSums expected(p);
    compare_rows("dq", p, {&p.dO, &p.o}, queries.dq, dq, query_marks, &queries.da_terms);
    compare_partials("da", p, 0, queries.da, partials);
    compare_rows("dk", p, {&p.v}, expected.dk, dk, key_marks);
    compare_rows("dv", p, {&p.k}, expected.dv, dv, value_marks);
    compare_states("dS", "dz", "du", p, gradients_before(p, &p.after), before);
  }
}

// So many tokens that all places are used again. Behind the first item's last chunk stand rows of the second, which has
// one of 8 rows at the end of the tensor; who takes only whole batch rows has whole chunks.
Shape two_items(int group) {
  constexpr int kItemTokens = (Plan::kStages + 5) * Plan::kChunk - (kOneSweep<Plan> ? 0 : 24);
  return {group == 1 ? "two items" : "two items, groups of 2",
          1,
          group,
          kItemTokens + 72,
          2,
          kItemTokens,
          false,
          {{0, kItemTokens, 0, 0, kBefore}, {kItemTokens, 72, 1, 0, kBefore + kItemTokens}},
          {}};
}

// One item, which blocks of a relay have in three parts. What one sweep takes out of S is there before each of them, so
// that a key that is not finite spoils all.
Shape relay() {
  constexpr int kTokens = 2 * kRelayTokens + 44;
  Shape shape = {"a relay", 2, 2, kTokens, 1, kTokens, false, {{0, kTokens, 0, 0, kBefore}},
                 {{Input::kValueSumBefore, 2, 0, NAN}, {Input::kStateAfter, 2, 0, NAN}}};
  if constexpr (kOneSweep<Plan>) {
    shape.group = 1;
    shape.faults.push_back({Input::kKey, 0, 0, NAN});
  }
  return shape;
}

// Sequences of two batch rows, among them a short one and an empty one, and rows of none. In the last chunk of a
// sequence are rows of the next one, some of which are not finite. The state after has a NaN: by an infinity operands
// of fp16 would be scaled, which takes the digits of the block's other columns, and no mark tells.
Shape packed() {
  return {"packed",
          2,
          2,
          172,
          6,
          0,
          true,
          {{0, 70, 4, 0, 40}, {70, 5, 3, 0, 7}, {75, 0, 2, 0, 9}, {75, 66, 1, 0, 0}, {146, 20, 0, 0, 3}},
          {{Input::kKey, 0, 1, NAN},
           {Input::kValue, 0, 3, INFINITY},
           {Input::kNormalizer, 1, 3, NAN},
           {Input::kStateBefore, 0, 4, NAN},
           {Input::kStateAfter, 0, 4, NAN},
           {Input::kOutputGradient, 2, 1, INFINITY},
           {Input::kValueSumBefore, 2, 1, NAN},
           {Input::kOutput, 2, 4, NAN},
           {Input::kQuery, 3, 4, NAN}}};
}

// The same of who takes whole batch rows.
Shape batch_rows() {
  return {"batch rows",
          2,
          1,
          70,
          1,
          128,
          false,
          {{0, 70, 0, 0, kBefore}},
          {{Input::kKey, 1, 0, NAN}, {Input::kOutputGradient, 2, 0, INFINITY}, {Input::kValueSumBefore, 3, 0, NAN}}};
}

void run_all(const Shape& shape, int key_dim, int value_dim, int first, int schedules) {
  Problem problem(shape, key_dim, value_dim);
  for (int i = first; i < first + schedules; ++i) {
    const auto seed = static_cast<unsigned>(i);
    std::printf("%s, Dk=%d, Dv=%d, seed %d:", shape.name, key_dim, value_dim, i);
    run_forwards<Plan>(problem, seed);
    run_query_gradients<Plan>(problem, seed);
    run_state_sums<Plan>(problem, seed);
    run_gradient_sums<Plan>(problem, seed);
    run_key_value_gradient<Plan>(problem, seed);
    run_one_sweep<Plan>(problem, seed);
    std::printf("\n");
    std::fflush(stdout);
  }
}

void run_relay(int key_dim, int value_dim, int first, int schedules) {
  const Shape shape = relay();
  Problem problem(shape, key_dim, value_dim);
  if constexpr (kOneSweep<Plan>) {
    for (int token = 0; token < problem.tokens; ++token) {
      problem.v.set(kQuietHead, token, kQuietColumn, 0.0f);
    }
  }
  for (int i = first; i < first + schedules; ++i) {
    const auto seed = static_cast<unsigned>(i);
    std::printf("%s, Dk=%d, Dv=%d, seed %d:", shape.name, key_dim, value_dim, i);
    Handover forward(problem, false), of_query(problem, false);
    run_forwards<Plan>(problem, seed, &forward);
    run_query_gradients<Plan>(problem, seed, &of_query);
    run_key_value_gradient<Plan>(problem, seed, true);
    run_one_sweep<Plan>(problem, seed, true);
    std::printf("\n");
    std::fflush(stdout);
  }
}

}  // namespace

int main(int count, char** values) {
  allowed_error = std::atof(count > 1 ? values[1] : "1e-2");
  const int schedules = count > 2 ? std::atoi(values[2]) : 2;
  const int first = count > 3 ? std::atoi(values[3]) : 0;
  run_all(two_items(1), D, D, first, schedules);
  if constexpr (Plan::kMayRelay) {
    run_relay(D, D, first, schedules);
  }
  if constexpr (kOneSweep<Plan>) {
    run_all(batch_rows(), D, D, first, schedules);
  } else {
    run_all(two_items(2), D, D, first, schedules);
    // More blocks than D takes, or fewer, the last with a part of its columns.
    constexpr int kOther = D > 64 && (Plan::kSplit || D % 32 != 0) ? 48 : 80;
    if constexpr (Plan::kReverse || Plan::kQueryGradient) {
      run_all(packed(), kOther, D, first, schedules);
    }
    if constexpr (!Plan::kQueryGradient) {
      run_all(packed(), D, kOther, first, schedules);
    }
    if constexpr (Plan::kSharesScores) {  // two tiles, the second with a part of its columns
      run_all(packed(), Plan::kReverse || Plan::kQueryGradient ? 80 : D, Plan::kQueryGradient ? D : 80, first, schedules);
    }
  }
  return failures == 0 ? 0 : 1;
}
