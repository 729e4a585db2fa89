// Runs a kernel of sm_90a that reads outputs or gradients from a state alone on the emulator, under several schedules, and
// compares what it writes with sums in double. Built with -DKERNEL="file": the generated text, its products handed to the
// emulator. Arguments: the error that is allowed, the schedules to try, the first of them. Exit status 0: agrees.
#include "emulator.h"

#include <cstdio>
#include <random>
#include <vector>

// The shared memory of a block, by the name that these kernels have for it.
namespace linattn {
extern unsigned char chunk_smem[] asm("_ZN7linattn6hopper6sharedE");
namespace hopper {
extern unsigned char chunk_smem[] asm("_ZN7linattn6hopper6sharedE");
}
}  // namespace linattn

#include KERNEL
#include "linattn/gradient_outputs.cuh"

using namespace linattn;

namespace {

using Element = typename Plan::Element;
constexpr int kHeads = 4;
constexpr int kGroup = 2;
constexpr int kKeyHeads = kHeads / kGroup;
constexpr int kTokens = 335;
constexpr int kItemTokens[] = {200, 0, 130};  // the last rows are of no item
constexpr int kItems = 3;
constexpr float kOffset = 0.7f;
constexpr float kSlopes[kHeads] = {0.45f, -0.3f, 0.0f, 1.0f};
constexpr float kOffsets[kHeads] = {kOffset, 2 * kOffset, kOffset, 3 * kOffset};
constexpr int64_t kCount = 10'000'000;  // so many that no g vanishes
constexpr float kLarge = 2e5f;     // elements of a state whose outputs are divided by a count: more than fp16 holds
constexpr float kOrdinary = 20.0f;  // of others

constexpr int kWide = sizeof(Element) == 2 ? 272 : 192;  // more boxes than stages

double allowed_error;
int num_warpgroups;  // of a block
int failures = 0;
std::mt19937 engine(7);

Divisor divisor(int value) {
  uint32_t shift = 0;
  while (1 << shift < value) {
    ++shift;
  }
  return {value, static_cast<uint32_t>(((int64_t{1} << (31 + shift)) + value - 1) / value), shift};
}

std::vector<float> draw(size_t size, float low, float high) {
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<float> values(size);
  for (float& value : values) {
    value = uniform(engine);
  }
  return values;
}

// [head, token, column]
struct Tensor {
  int heads;
  int width;
  std::vector<Element> stored;

  Tensor(int heads, int width, float low, float high) : heads(heads), width(width) {
    for (float value : draw(static_cast<size_t>(heads) * kTokens * width, low, high)) {
      stored.push_back(from_float<Element>(value));
    }
  }
  size_t index(int head, int token, int column) const {
    return (static_cast<size_t>(head) * kTokens + token) * width + column;
  }
  double at(int head, int token, int column) const { return to_float(stored[index(head, token, column)]); }
  double length(int head, int token) const {
    double squares = 0;
    for (int j = 0; j < width; ++j) {
      squares += at(head, token, j) * at(head, token, j);
    }
    return std::sqrt(squares);
  }
  TensorView view() { return {stored.data(), int64_t{heads} * kTokens * width, int64_t{kTokens} * width, width}; }
};

// The root mean square error against that of the expected values, or of the terms they are sums of.
struct Comparison {
  const char* what;
  double allowed = allowed_error;
  double error = 0;
  double norm = 0;
  int count = 0;

  void add(double expected, double got) {
    ++count;
    error += (got - expected) * (got - expected);
    norm += expected * expected;
  }
  ~Comparison() {
    if (count == 0) {
      return;
    }
    const double ratio = std::sqrt(error / std::max(norm, 1e-300));
    const bool agrees = ratio <= allowed;
    std::printf("%s%s %.2e", agrees ? " " : " WRONG: ", what, ratio);
    failures += !agrees;
  }
};

// Of what a sum of keys or values is multiplied into, which has all digits of the rows.
double allowed_of_sums() { return Plan::kParts == 2 && !Plan::kScaled ? allowed_error : 1e-6; }

void expect(bool holds, const char* what) {
  if (!holds) {
    std::printf(" WRONG: %s", what);
    ++failures;
  }
}

std::vector<Item> items() {
  std::vector<Item> all;
  int start = 0;
  for (int tokens : kItemTokens) {
    all.push_back({start, tokens, 0, 0, kCount});
    start += tokens;
  }
  return all;
}

bool is_of_no_item(int token) { return token >= kItemTokens[0] + kItemTokens[1] + kItemTokens[2]; }

template <typename Run>
void launch(int heads, int value_dim, unsigned seed, Run run) {
  const int tiles = ceil_div(value_dim, Plan::kTileColumns);
  const int size = Plan::kFinishes && tiles == 2 ? 2 : 1;
  for (int block = 0; block < heads * kItems * tiles; block += size) {
    const unsigned number = static_cast<unsigned>(block);
    emulator::run_cluster(number, size, num_warpgroups * hopper::kWarpgroup, seed + number, [&] {
      run();
      end_copies();
    });
  }
}

// S [Dk, Dv] of each key/value head, and what belongs to its rows and columns.
struct States {
  std::vector<float> s, of_keys, of_values;

  States(int key_dim, int value_dim, float largest)
      : s(draw(static_cast<size_t>(kKeyHeads) * key_dim * value_dim, -largest, largest)),
        of_keys(draw(static_cast<size_t>(kKeyHeads) * key_dim, -largest, largest)),
        of_values(draw(static_cast<size_t>(kKeyHeads) * value_dim, -largest, largest)) {}
};

ChunkedArguments arguments(const std::vector<Item>& all, int key_dim, int value_dim) {
  ChunkedArguments args{};
  args.items = all.data();
  args.a_per_head = kOffsets;
  args.b_per_head = kSlopes;
  args.tokens = kTokens;
  args.slots = 1;
  args.key_dim = key_dim;
  args.value_dim = value_dim;
  args.num_items = divisor(kItems);
  args.heads = divisor(kHeads);
  args.kv_heads = divisor(kKeyHeads);
  args.group = divisor(kGroup);
  args.batches = 1;
  args.turns = 1;
  return args;
}

template <class AnyPlan>
void run_forward(int key_dim, int value_dim, bool normalize, unsigned seed) {
  if constexpr (AnyPlan::kRowFloats == 2) {
    Tensor q(kHeads, key_dim, -1, 1), o(kHeads, value_dim, NAN, NAN);
    std::vector<float> g(static_cast<size_t>(kHeads) * kTokens, NAN);
    States state(key_dim, value_dim, kLarge);
    const std::vector<Item> all = items();
    ChunkedArguments args = arguments(all, key_dim, value_dim);
    args.query = q.view();
    args.out = o.view();
    args.normalizer = {g.data(), int64_t{kHeads} * kTokens, kTokens, 1};
    args.state_in = state.s.data();
    args.key_sum_in = state.of_keys.data();
    args.value_sum_in = state.of_values.data();
    args.normalize = normalize;
    std::vector<float> scales(static_cast<size_t>(kHeads) * kTokens, NAN);
    if (normalize) {
      args.key.address = scales.data();
    }
    launch(kHeads, value_dim, seed, [args] { state_outputs<AnyPlan>(args); });
    Comparison of_o{"o"}, of_g{"g", allowed_of_sums()}, of_scales{"1 / |q|", allowed_of_sums()};
    for (int head = 0; head < kHeads; ++head) {
      const int kv = head / kGroup;
      for (int token = 0; token < kTokens; ++token) {
        const double length = normalize ? q.length(head, token) : 1;
        double normalizer = kOffsets[head] * length * kCount;
        for (int m = 0; m < key_dim; ++m) {
          normalizer += kSlopes[head] * q.at(head, token, m) * state.of_keys[kv * key_dim + m];
        }
        const float got = g[static_cast<size_t>(head) * kTokens + token];
        if (is_of_no_item(token)) {
          expect(std::isnan(got) && std::isnan(o.at(head, token, 0)), "a row of no item");
          continue;
        }
        if (normalize) {
          of_scales.add(1 / length, scales[static_cast<size_t>(head) * kTokens + token]);
        }
        of_g.add(normalizer / length, got);
        for (int j = 0; j < value_dim; ++j) {
          double sum = kOffsets[head] * length * state.of_values[kv * value_dim + j];
          for (int m = 0; m < key_dim; ++m) {
            sum += kSlopes[head] * q.at(head, token, m) * state.s[(kv * key_dim + m) * value_dim + j];
          }
          of_o.add(sum / normalizer, o.at(head, token, j));
        }
      }
    }
  }
}

// x is dO, v or k, and its width that of the contraction. Where dq has scales it forms d of o itself. A plan that finishes dq and
// dk makes them gradients of rows that were not divided.
template <class AnyPlan>
void run_gradient(GradientTask task, int width, int out_width, bool scaled, unsigned seed) {
  if constexpr (AnyPlan::kRowFloats == 3) {
    const bool is_query = task == kQueryGradient;
    const bool is_value = task == kValueGradient;
    const int heads = is_query ? kHeads : kKeyHeads;
    Tensor x(heads, width, -1, 1), out(heads, out_width, NAN, NAN), q(kHeads, out_width, -1, 1);
    States state(is_value ? width : out_width, is_value ? out_width : width, is_query ? kLarge : kOrdinary);
    const auto element = [&](int kv, int i, int j) {
      return static_cast<double>(state.s[is_value ? (kv * width + i) * out_width + j : (kv * out_width + j) * width + i]);
    };
    const std::vector<float>& of_out = is_value ? state.of_values : state.of_keys;
    const std::vector<float> g = draw(static_cast<size_t>(kHeads) * kTokens, 5e5f, 1e6f);
    const bool forms = is_query && scaled && AnyPlan::kFormsDots;
    const bool finishes = AnyPlan::kFinishes;
    Tensor o(heads, width, -0.1f, 0.1f), k(kKeyHeads, out_width, -1, 1);
    Tensor& own = is_query ? q : k;
    std::vector<float> delta = draw(static_cast<size_t>(kHeads) * kTokens, -1, 1);
    if (forms) {
      std::fill(delta.begin(), delta.end(), NAN);
    }
    std::vector<float> query_scale = draw(static_cast<size_t>(kHeads) * kTokens, 0.5f, 2);
    std::vector<float> key_scale = draw(static_cast<size_t>(kKeyHeads) * kTokens, 0.5f, 2);
    std::vector<float>& own_scale = is_query ? query_scale : key_scale;
    if (finishes) {
      own_scale[5] = -1;  // which says that the row has zeros
    }
    const int boxes = ceil_div(out_width, 64);
    std::vector<double> partials(static_cast<size_t>(kHeads) * kItems * boxes * 2, NAN);
    const std::vector<Item> all = items();
    GradientArguments args{};
    args.chunked = arguments(all, width, out_width);
    args.chunked.query = x.view();
    if (forms) {
      args.chunked.key = o.view();
    }
    if (finishes) {
      args.chunked.value = own.view();
    }
    args.chunked.out = out.view();
    args.chunked.normalizer = {const_cast<float*>(g.data()), int64_t{kHeads} * kTokens, kTokens, 1};
    args.chunked.state_in = state.s.data();
    args.chunked.key_sum_in = state.of_values.data();
    args.chunked.value_sum_in = of_out.data();
    args.delta = delta.data();
    args.query_scale = scaled ? query_scale.data() : nullptr;
    args.key_scale = scaled ? key_scale.data() : nullptr;
    args.partials = partials.data();
    args.slope_query = q.view();
    args.task = task;
    args.tasks = 1;
    launch(heads, out_width, seed, [args] { gradient_outputs<AnyPlan>(args); });
    Comparison of_out_rows{is_query ? "dq" : is_value ? "dv" : "dk"}, of_da{"da", allowed_of_sums()}, of_db{"db"}, of_delta{"d", 1e-6};
    for (int head = 0; head < heads; ++head) {
      const int kv = is_query ? head / kGroup : head;
      double da = 0, db = 0;
      for (int token = 0; token < kTokens; ++token) {
        const size_t row = static_cast<size_t>(head) * kTokens + token;
        if (is_of_no_item(token)) {
          expect(std::isnan(out.at(head, token, 0)), "a row of no item");
          expect(!forms || std::isnan(delta[row]), "d of no item");
          continue;
        }
        double product = 0;
        for (int i = 0; forms && i < width; ++i) {
          product += x.at(head, token, i) * o.at(head, token, i);
        }
        if (forms) {
          of_delta.add(product, delta[row]);
        }
        const double linear = is_query ? 1 / g[row] : is_value && scaled ? key_scale[row] : 1;
        const double constant = is_query ? -delta[row] / g[row] : 1;
        if (is_query) {
          double along = -delta[row] * kCount;
          for (int i = 0; i < width; ++i) {
            along += x.at(head, token, i) * state.of_values[kv * width + i];
          }
          da += along / g[row];
          of_da.norm += along / g[row] * along / g[row];
        }
        const double scale = !scaled ? 1 : finishes ? std::max(own_scale[row], 0.0f) : query_scale[row];
        std::vector<double> gradients(out_width);
        double along = 0;
        for (int j = 0; j < out_width; ++j) {
          double sum = constant * of_out[kv * out_width + j];
          for (int i = 0; i < width; ++i) {
            sum += linear * x.at(head, token, i) * element(kv, i, j);
          }
          gradients[j] = sum;
          const double term = own.at(is_query ? head : kv, token, j) * scale * sum;
          along += term;
          of_db.norm += term * term;
        }
        db += along;
        for (int j = 0; j < out_width; ++j) {
          const double of_length = finishes ? own.at(head, token, j) * scale * along : 0;
          const double gradient = (finishes ? scale : 1) * (gradients[j] - of_length);
          of_out_rows.add(is_query ? kSlopes[head] * gradient : gradient, out.at(head, token, j));
        }
      }
      double got_da = 0, got_db = 0;
      for (int place = 0; is_query && place < kItems * boxes; ++place) {
        got_da += partials[2 * (static_cast<size_t>(head) * kItems * boxes + place)];
        got_db += partials[2 * (static_cast<size_t>(head) * kItems * boxes + place) + 1];
      }
      if (is_query) {
        of_da.add(da, got_da);
        of_db.add(db, got_db);
      }
    }
  }
}

}  // namespace

int main(int count, char** values) {
  allowed_error = std::atof(count > 1 ? values[1] : "1e-2");
  const int schedules = count > 2 ? std::atoi(values[2]) : 1;
  const int first = count > 3 ? std::atoi(values[3]) : 0;
  // One box of columns in part, several of which the last is in part; tiles of 64 columns and less, of more, and of both.
  for (const auto& [width, out_width] : {std::pair{48, 64}, {144, 208}, {kWide, 80}, {80, 160}}) {
    for (int i = first; i < first + schedules; ++i) {
      const auto seed = static_cast<unsigned>(i);
      for (num_warpgroups = 1; num_warpgroups <= Plan::kMostWarpgroups; ++num_warpgroups) {
        std::printf("%d to %d columns, %d warpgroups, seed %d:", width, out_width, num_warpgroups, i);
        for (const bool divided : {false, true}) {
          run_forward<Plan>(width, out_width, divided, seed);
          for (const GradientTask task : {kQueryGradient, kKeyGradient, kValueGradient}) {
            if (!Plan::kFinishes || (divided && task != kValueGradient)) {
              run_gradient<Plan>(task, width, out_width, divided, seed);
            }
          }
        }
        std::printf("\n");
        std::fflush(stdout);
      }
    }
  }
  return failures == 0 ? 0 : 1;
}
