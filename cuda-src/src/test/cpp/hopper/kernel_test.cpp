// Runs a kernel of sm_90a on the emulator, under several schedules, and compares what it writes with sums over rows in
// double. Built with -DKERNEL="file": the generated text, its products handed to the emulator. Arguments: the error that
// is allowed, the schedules to try, the first of them. Exit status 0: agrees.
#include "emulator.h"

#include <cstdio>
#include <random>
#include <vector>

#include KERNEL
#include "linattn/hopper_gradient.cuh"
#include "linattn/hopper_one_sweep.cuh"

using namespace linattn;
using namespace linattn::hopper;

namespace {

constexpr int D = Plan::kHeadDim;
template <class AnyPlan>
constexpr bool kOneSweep = false;
template <class Spec, bool kIsKey>
constexpr bool kOneSweep<OneSweepPlan<Spec, kIsKey>> = true;

// So many that all places are used again. Behind the first item's last chunk stand rows of the second, which has one of 8
// rows at the end of the tensor; who takes only whole batch rows has whole chunks.
constexpr int kItemTokens = (Plan::kStages + 5) * Plan::kChunk - (kOneSweep<Plan> ? 0 : 24);
constexpr int kTokens = kItemTokens + 72;
constexpr int kItems = 2;
constexpr int kHeads = 2;
constexpr float kOffset = 0.7f;    // a
constexpr float kSlope = 0.45f;    // b of the first head
constexpr int64_t kBefore = 40;    // tokens in the states that items start from
constexpr int kZeroRow = 70;        // of q and k of the first head, where rows are divided
constexpr bool kDivided = Plan::kNormalize || Plan::kScalesRows;
using Stored = std::conditional_t<Plan::kConverted, float, typename Plan::Half::Type>;

double allowed_error;
int failures = 0;
std::mt19937 engine(11);

// [head, token, column] of one batch row.
struct Tensor {
  int heads;
  std::vector<Stored> stored;

  explicit Tensor(int heads) : heads(heads), stored(static_cast<size_t>(heads) * kTokens * D) {}

  Tensor& draw(float low, float high) {
    std::uniform_real_distribution<float> uniform(low, high);
    for (Stored& element : stored) {
      set(element, uniform(engine));
    }
    return *this;
  }
  void spoil() {
    for (Stored& element : stored) {
      set(element, NAN);
    }
  }
  static void set(float& element, float x) { element = x; }
  template <emulator::Operand16 kType>
  static void set(Element16<kType>& element, float x) {
    element.bits = emulator::from_float(kType, x);
  }
  float at(int head, int token, int column) const {
    return stored[(static_cast<size_t>(head) * kTokens + token) * D + column];
  }
  void clear(int head, int token) {
    for (int j = 0; j < D; ++j) {
      set(stored[(static_cast<size_t>(head) * kTokens + token) * D + j], 0.0f);
    }
  }
  double length(int head, int token) const {
    double squares = 0;
    for (int j = 0; j < D; ++j) {
      squares += static_cast<double>(at(head, token, j)) * at(head, token, j);
    }
    return std::sqrt(squares);
  }
  // As a sweep is given it.
  float scale(int head, int token) const {
    const double length = this->length(head, token);
    return length == 0 ? -1.0f : static_cast<float>(1 / length);
  }
  TensorView view() { return {stored.data(), int64_t{heads} * kTokens * D, int64_t{kTokens} * D, D}; }
  TensorMap map() {
    const emulator::TensorMapContent content = {reinterpret_cast<char*>(stored.data()),
                                                {D, kTokens, heads, 1},
                                                {1, D, int64_t{kTokens} * D, int64_t{heads} * kTokens * D},
                                                kRowBytes / static_cast<int>(sizeof(Stored)),
                                                Plan::kChunk,
                                                sizeof(Stored)};
    TensorMap map = {};
    std::memcpy(&map, &content, sizeof content);
    return map;
  }
};

// [kv head, item]: S [D, D], z and u [D].
struct States {
  std::vector<float> s, z, u;

  explicit States(int heads)
      : s(static_cast<size_t>(heads) * kItems * D * D),
        z(static_cast<size_t>(heads) * kItems * D),
        u(static_cast<size_t>(heads) * kItems * D) {}
  States& draw(float largest) {
    std::uniform_real_distribution<float> uniform(-largest, largest);
    for (auto* part : {&s, &z, &u}) {
      for (float& element : *part) {
        element = uniform(engine);
      }
    }
    return *this;
  }
  void spoil() {
    for (auto* part : {&s, &z, &u}) {
      std::fill(part->begin(), part->end(), NAN);
    }
  }
  static size_t slot(int head, int item) { return static_cast<size_t>(head) * kItems + item; }
  float s_at(int head, int item, int m, int j) const { return s[(slot(head, item) * D + m) * D + j]; }
  float z_at(int head, int item, int m) const { return z[slot(head, item) * D + m]; }
  float u_at(int head, int item, int j) const { return u[slot(head, item) * D + j]; }
};

// The root mean square error against that of the expected values.
struct Comparison {
  const char* what;
  double error = 0;
  double norm = 0;

  void add(double expected, double got) {
    error += (got - expected) * (got - expected);
    norm += expected * expected;
  }
  ~Comparison() {
    const double ratio = std::sqrt(error / std::max(norm, 1e-300));
    const bool agrees = ratio <= allowed_error;
    std::printf("%s%s %.2e", agrees ? " " : " WRONG: ", what, ratio);
    failures += !agrees;
  }
};

// What all kernels read. q, k are divided rows in the sums if the kernel divides them.
struct Problem {
  int group;
  int kv_heads = kHeads / group;
  Tensor q{kHeads}, k{kv_heads}, v{kv_heads}, o{kHeads}, dO{kHeads};
  States before{kv_heads}, after{kv_heads};
  std::vector<float> g, delta, query_scale, key_scale;
  float slopes[kHeads] = {kSlope, group == 1 ? 0.3f * kSlope : 0.0f};  // b
  std::vector<double> query_rows, key_rows;  // as the sums have them

  explicit Problem(int query_heads_of_one) : group(query_heads_of_one) {
    q.draw(-0.3f, 1.0f);
    k.draw(-0.3f, 1.0f);
    v.draw(-1.0f, 1.0f);
    o.draw(-1.0f, 1.0f);
    dO.draw(-1.0f, 1.0f);
    if (kDivided) {
      q.clear(0, kZeroRow);
      k.clear(0, kZeroRow);
    }
    before.draw(4.0f);
    for (float& z : before.z) {
      z = std::fabs(z);
    }
    after.draw(0.05f);
    query_rows = rows_in_sums(q);
    key_rows = rows_in_sums(k);
    for (int head = 0; head < kHeads; ++head) {
      for (int token = 0; token < kTokens; ++token) {
        g.push_back(static_cast<float>(normalizer(head, token)));
        double d = 0;
        for (int j = 0; j < D; ++j) {
          d += static_cast<double>(o.at(head, token, j)) * dO.at(head, token, j);
        }
        delta.push_back(static_cast<float>(d));
        query_scale.push_back(q.scale(head, token));
      }
    }
    for (int head = 0; head < kv_heads; ++head) {
      for (int token = 0; token < kTokens; ++token) {
        key_scale.push_back(k.scale(head, token));
      }
    }
  }

  static int start(int token) { return token / kItemTokens * kItemTokens; }
  static int end(int token) { return std::min(kTokens, start(token) + kItemTokens); }
  int kv(int head) const { return head / group; }
  static std::vector<double> rows_in_sums(const Tensor& tensor) {
    std::vector<double> rows;
    for (int head = 0; head < tensor.heads; ++head) {
      for (int token = 0; token < kTokens; ++token) {
        const double length = kDivided ? tensor.length(head, token) : 1;
        for (int m = 0; m < D; ++m) {
          rows.push_back(length == 0 ? 0 : tensor.at(head, token, m) / length);
        }
      }
    }
    return rows;
  }
  double query(int head, int token, int m) const {
    return query_rows[(static_cast<size_t>(head) * kTokens + token) * D + m];
  }
  double key(int kv_head, int token, int m) const {
    return key_rows[(static_cast<size_t>(kv_head) * kTokens + token) * D + m];
  }
  double g_of(int head, int token) const { return g[static_cast<size_t>(head) * kTokens + token]; }
  double d_of(int head, int token) const { return delta[static_cast<size_t>(head) * kTokens + token]; }
  double score(int head, int i, int n) const {
    double sum = 0;
    for (int m = 0; m < D; ++m) {
      sum += query(head, i, m) * key(kv(head), n, m);
    }
    return sum;
  }
  double value_score(int head, int i, int n) const {  // dO_i . v_n
    double sum = 0;
    for (int j = 0; j < D; ++j) {
      sum += static_cast<double>(dO.at(head, i, j)) * v.at(kv(head), n, j);
    }
    return sum;
  }
  double normalizer(int head, int token) const {
    double sum = kOffset * (kBefore + token + 1);
    for (int m = 0; m < D; ++m) {
      sum += slopes[head] * query(head, token, m) * before.z_at(kv(head), token / kItemTokens, m);
    }
    for (int n = start(token); n <= token; ++n) {
      sum += slopes[head] * score(head, token, n);
    }
    return sum;
  }

  ChunkedArguments chunked(Tensor& x, Tensor& y, Tensor& z, Tensor* out) {
    ChunkedArguments args = {};
    args.query = x.view();
    args.key = y.view();
    args.value = z.view();
    args.normalizer = {g.data(), int64_t{kHeads} * kTokens, kTokens, 1};
    if (out != nullptr) {
      out->spoil();
      args.out = out->view();
    }
    args.initial_count = kBefore;
    args.tokens = kTokens;
    args.item_tokens = kItemTokens;
    args.num_items = kItems;
    args.slots = kItems;
    args.slot_step = 1;
    args.heads = kHeads;
    args.group = group;
    args.key_dim = D;
    args.value_dim = D;
    args.a = kOffset;
    args.b_per_head = slopes;
    args.batches = 1;
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
};

constexpr int kTiles = (D + Plan::kTileColumns - 1) / Plan::kTileColumns;
constexpr int kMostTurns = Plan::kMayTakeTurns ? 2 : 1;

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

void expect_no_marks(const std::vector<uint32_t>& marks) {
  for (uint32_t mark : marks) {
    if (mark != 0) {
      std::printf(" WRONG: a mark of %u", mark);
      ++failures;
      return;
    }
  }
}

template <class Plan>
void run_forward(Problem& p, unsigned seed, int turns) {
  if constexpr (!Plan::kGradient && !Plan::kSums) {
    Tensor out(kHeads);
    std::vector<float> g = p.g;
    std::fill(p.g.begin(), p.g.end(), NAN);
    std::vector<uint32_t> marks(kHeads * kItems * turns * kTiles * Plan::kBeside, 7);
    HopperArguments args = {p.q.map(), p.k.map(), p.v.map(), out.map(), p.chunked(p.q, p.k, p.v, &out)};
    args.chunked.state_in = p.before.s.data();
    args.chunked.key_sum_in = p.before.z.data();
    args.chunked.value_sum_in = p.before.u.data();
    args.chunked.marks = marks.data();
    args.chunked.turns = turns;
    launch(kHeads * kItems * turns, kTiles, seed, args, [](const HopperArguments& all) { forward<Plan>(all); });
    Comparison of_g{"g"};
    Comparison of_o{"o"};
    for (int head = 0; head < kHeads; ++head) {
      for (int i = 0; i < kTokens; ++i) {
        of_g.add(g[static_cast<size_t>(head) * kTokens + i], p.g_of(head, i));
        std::vector<double> sum(D);
        for (int j = 0; j < D; ++j) {
          sum[j] = kOffset * p.before.u_at(p.kv(head), i / kItemTokens, j);
          for (int m = 0; m < D; ++m) {
            sum[j] += p.slopes[head] * p.before.s_at(p.kv(head), i / kItemTokens, m, j) * p.query(head, i, m);
          }
        }
        for (int n = Problem::start(i); n <= i; ++n) {
          const double weight = kOffset + p.slopes[head] * p.score(head, i, n);
          for (int j = 0; j < D; ++j) {
            sum[j] += weight * p.v.at(p.kv(head), n, j);
          }
        }
        for (int j = 0; j < D; ++j) {
          of_o.add(sum[j] / g[static_cast<size_t>(head) * kTokens + i], out.at(head, i, j));
        }
      }
    }
    p.g = g;
    expect_no_marks(marks);
  }
}

template <class Plan>
void run_state_sums(Problem& p, unsigned seed) {
  if constexpr (Plan::kSums && !Plan::kGradientSums) {
    States sums(p.kv_heads);
    sums.spoil();
    HopperArguments args = {p.k.map(), p.k.map(), p.v.map(), {}, p.chunked(p.k, p.k, p.v, nullptr)};
    args.chunked.heads = p.kv_heads;
    args.chunked.group = 1;
    args.chunked.state_out = sums.s.data();
    args.chunked.key_sum_out = sums.z.data();
    args.chunked.value_sum_out = sums.u.data();
    launch(p.kv_heads * kItems, kTiles, seed, args, [](const HopperArguments& all) { forward<Plan>(all); });
    Comparison of_s{"S"};
    Comparison of_z{"z"};
    Comparison of_u{"u"};
    for (int head = 0; head < p.kv_heads; ++head) {
      for (int item = 0; item < kItems; ++item) {
        const int start = item * kItemTokens;
        for (int m = 0; m < D; ++m) {
          double z = 0;
          double u = 0;
          for (int n = start; n < Problem::end(start); ++n) {
            z += p.key(head, n, m);
            u += p.v.at(head, n, m);
          }
          of_z.add(z, sums.z_at(head, item, m));
          of_u.add(u, sums.u_at(head, item, m));
          for (int j = 0; j < D; ++j) {
            double s = 0;
            for (int n = start; n < Problem::end(start); ++n) {
              s += p.key(head, n, m) * p.v.at(head, n, j);
            }
            of_s.add(s, sums.s_at(head, item, m, j));
          }
        }
      }
    }
  }
}

template <class Plan>
void run_gradient_sums(Problem& p, unsigned seed) {
  if constexpr (Plan::kGradientSums) {
    States sums(p.kv_heads);
    sums.spoil();
    HopperGradientArguments args = {};
    args.tasks[0] = p.gradient(linattn::kValueGradient, p.k, p.q, p.dO, nullptr);
    ChunkedArguments& chunked = args.tasks[0].gradient.chunked;
    chunked.state_out = sums.s.data();
    chunked.key_sum_out = sums.z.data();
    chunked.value_sum_out = sums.u.data();
    launch(p.kv_heads * kItems, kTiles, seed, args, run_gradient<Plan>);
    Comparison of_s{"dS"};
    Comparison of_z{"dz"};
    Comparison of_u{"du"};
    for (int kv = 0; kv < p.kv_heads; ++kv) {
      for (int item = 0; item < kItems; ++item) {
        std::vector<double> s(D * D), z(D), u(D);
        const int start = item * kItemTokens;
        for (int head = kv * p.group; head < (kv + 1) * p.group; ++head) {
          for (int i = start; i < Problem::end(start); ++i) {
            for (int m = 0; m < D; ++m) {
              const double slope = p.slopes[head] * p.query(head, i, m) / p.g_of(head, i);
              z[m] -= slope * p.d_of(head, i);
              u[m] += kOffset * p.dO.at(head, i, m) / p.g_of(head, i);
              for (int j = 0; j < D; ++j) {
                s[m * D + j] += slope * p.dO.at(head, i, j);
              }
            }
          }
        }
        for (int m = 0; m < D; ++m) {
          of_z.add(z[m], sums.z_at(kv, item, m));
          of_u.add(u[m], sums.u_at(kv, item, m));
          for (int j = 0; j < D; ++j) {
            of_s.add(s[m * D + j], sums.s_at(kv, item, m, j));
          }
        }
      }
    }
  }
}

// What is left of d, dq and the partial sums of da; `delta` is d as it was.
void compare_query_gradient(Problem& p, const std::vector<float>& delta, const Tensor& dq,
                            const std::vector<double>& partials, int turns) {
  Comparison of_delta{"d"};
  for (size_t i = 0; i < delta.size(); ++i) {
    of_delta.add(delta[i], p.delta[i]);
  }
  p.delta = delta;
  Comparison of_dq{"dq"};
  Comparison of_da{"da"};
  std::vector<double> weights(kHeads * kItems);
  for (int head = 0; head < kHeads; ++head) {
    const int kv = p.kv(head);
    for (int i = 0; i < kTokens; ++i) {
      const int item = i / kItemTokens;
      const double slope = p.slopes[head] / p.g_of(head, i);
      double weight = -p.d_of(head, i) * (kBefore + i + 1);
      std::vector<double> sum(D);
      for (int j = 0; j < D; ++j) {
        weight += p.before.u_at(kv, item, j) * p.dO.at(head, i, j);
      }
      for (int m = 0; m < D; ++m) {
        sum[m] = -p.d_of(head, i) * p.before.z_at(kv, item, m);
        for (int j = 0; j < D; ++j) {
          sum[m] += p.before.s_at(kv, item, m, j) * p.dO.at(head, i, j);
        }
      }
      for (int n = Problem::start(i); n <= i; ++n) {
        const double product = p.value_score(head, i, n);
        weight += product;
        for (int m = 0; m < D; ++m) {
          sum[m] += (product - p.d_of(head, i)) * p.key(kv, n, m);
        }
      }
      weights[head * kItems + item] += weight / p.g_of(head, i);
      for (double& element : sum) {
        element *= slope;
      }
      for (int m = 0; m < D; ++m) {
        of_dq.add(sum[m], dq.at(head, i, m));
      }
    }
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    double sum = 0;
    for (int turn = 0; turn < turns; ++turn) {
      sum += partials[2 * Plan::kBoxes * (i * turns + turn)];
    }
    of_da.add(weights[i], sum);
  }
}

template <class Plan>
void run_query_gradient(Problem& p, unsigned seed, int turns) {
  if constexpr (Plan::kQueryGradient) {
    Tensor dq(kHeads);
    const std::vector<float> delta = p.delta;
    if (Plan::kFormsDelta) {
      std::fill(p.delta.begin(), p.delta.end(), NAN);
    }
    std::vector<uint32_t> marks(kHeads * kItems * turns * Plan::kBoxes, 7);
    std::vector<double> partials(2 * marks.size(), NAN);
    HopperGradientArguments args = {};
    args.tasks[0] = p.gradient(linattn::kQueryGradient, p.dO, p.v, p.k, &dq);
    GradientArguments& gradient_args = args.tasks[0].gradient;
    gradient_args.partials = partials.data();
    gradient_args.chunked.state_in = p.before.s.data();
    gradient_args.chunked.key_sum_in = p.before.u.data();
    gradient_args.chunked.value_sum_in = p.before.z.data();
    gradient_args.chunked.marks = marks.data();
    gradient_args.chunked.turns = turns;
    launch(kHeads * kItems * turns, kTiles, seed, args, run_gradient<Plan>);
    compare_query_gradient(p, delta, dq, partials, turns);
    expect_no_marks(marks);
  }
}

void compare_key_value_gradient(const Problem& p, const Tensor& dk, const Tensor& dv) {
  Comparison of_dk{"dk"};
  Comparison of_dv{"dv"};
  for (int kv = 0; kv < p.kv_heads; ++kv) {
    for (int n = 0; n < kTokens; ++n) {
      const int item = n / kItemTokens;
      std::vector<double> key_sum(D), value_sum(D);
      for (int m = 0; m < D; ++m) {
        key_sum[m] = p.after.z_at(kv, item, m);
        for (int j = 0; j < D; ++j) {
          key_sum[m] += static_cast<double>(p.after.s_at(kv, item, m, j)) * p.v.at(kv, n, j);
        }
      }
      for (int j = 0; j < D; ++j) {
        value_sum[j] = p.after.u_at(kv, item, j);
        for (int m = 0; m < D; ++m) {
          value_sum[j] += p.after.s_at(kv, item, m, j) * p.key(kv, n, m);
        }
      }
      for (int head = kv * p.group; head < (kv + 1) * p.group; ++head) {
        for (int i = n; i < Problem::end(n); ++i) {
          const double slope = p.slopes[head] * (p.value_score(head, i, n) - p.d_of(head, i)) / p.g_of(head, i);
          const double weight = (kOffset + p.slopes[head] * p.score(head, i, n)) / p.g_of(head, i);
          for (int m = 0; m < D; ++m) {
            key_sum[m] += slope * p.query(head, i, m);
          }
          for (int j = 0; j < D; ++j) {
            value_sum[j] += weight * p.dO.at(head, i, j);
          }
        }
      }
      for (int m = 0; m < D; ++m) {
        of_dk.add(key_sum[m], dk.at(kv, n, m));
      }
      for (int j = 0; j < D; ++j) {
        of_dv.add(value_sum[j], dv.at(kv, n, j));
      }
    }
  }
}

template <class Plan>
void run_key_value_gradient(Problem& p, unsigned seed) {
  if constexpr (Plan::kReverse && !kOneSweep<Plan>) {
    Tensor dk(p.kv_heads);
    Tensor dv(p.kv_heads);
    std::vector<uint32_t> marks(2 * p.kv_heads * kItems * Plan::kBoxes, 7);
    HopperGradientArguments args = {};
    args.tasks[0] = p.gradient(linattn::kKeyGradient, p.v, p.dO, p.q, &dk);
    args.tasks[1] = p.gradient(linattn::kValueGradient, p.k, p.q, p.dO, &dv);
    for (int task = 0; task < 2; ++task) {
      GradientArguments& gradient_args = args.tasks[task].gradient;
      gradient_args.tasks = 2;
      gradient_args.chunked.state_in = p.after.s.data();
      gradient_args.chunked.value_sum_in = task == 0 ? p.after.z.data() : p.after.u.data();
      gradient_args.chunked.marks = marks.data() + task * marks.size() / 2;
    }
    launch(p.kv_heads * kItems, 2 * kTiles, seed, args, run_gradient<Plan>);
    compare_key_value_gradient(p, dk, dv);
    expect_no_marks(marks);
  }
}

// The states after items, of those before them.
States after_items(const Problem& p) {
  States states = p.before;
  for (int head = 0; head < p.kv_heads; ++head) {
    for (int n = 0; n < kTokens; ++n) {
      const size_t slot = States::slot(head, n / kItemTokens);
      for (int m = 0; m < D; ++m) {
        const float key = p.k.at(head, n, m);
        states.z[slot * D + m] += key;
        for (int j = 0; j < D; ++j) {
          states.s[(slot * D + m) * D + j] += key * p.v.at(head, n, j);
        }
      }
    }
  }
  return states;
}

template <class Plan>
void run_one_sweep(Problem& p, unsigned seed) {
  if constexpr (kOneSweep<Plan>) {
    if (p.group > 1) {
      return;
    }
    const States last = after_items(p);
    const std::vector<float> delta = p.delta;
    std::fill(p.delta.begin(), p.delta.end(), NAN);
    Tensor dq(kHeads), dk(kHeads), dv(kHeads);
    dq.spoil();
    std::vector<uint32_t> marks(3 * kHeads * kItems * Plan::kBoxes, 7);
    std::vector<double> partials(2 * kHeads * kItems * Plan::kBoxes, NAN);
    HopperOneSweepArguments args = {};
    args.gradients.tasks[0] = p.gradient(linattn::kKeyGradient, p.v, p.dO, p.q, &dk);
    args.gradients.tasks[1] = p.gradient(linattn::kValueGradient, p.k, p.q, p.dO, &dv);
    for (int task = 0; task < 2; ++task) {
      GradientArguments& gradient_args = args.gradients.tasks[task].gradient;
      gradient_args.tasks = 2;
      gradient_args.partials = partials.data();
      gradient_args.chunked.state_in = p.after.s.data();
      gradient_args.chunked.value_sum_in = task == 0 ? p.after.z.data() : p.after.u.data();
      gradient_args.chunked.marks = marks.data() + task * marks.size() / 3;
    }
    args.query_gradient = dq.map();
    args.query_marks = marks.data() + 2 * marks.size() / 3;
    args.last_state = last.s.data();
    args.last_key_sum = last.z.data();
    args.first_state = p.before.s.data();
    args.first_key_sum = p.before.z.data();
    args.first_value_sum = p.before.u.data();
    launch(kHeads * kItems, 2, seed, args, [](const HopperOneSweepArguments& all) { one_sweep<Plan>(all); });
    compare_query_gradient(p, delta, dq, partials, 1);
    compare_key_value_gradient(p, dk, dv);
    expect_no_marks(marks);
  }
}

}  // namespace

int main(int count, char** values) {
  allowed_error = std::atof(count > 1 ? values[1] : "1e-2");
  const int schedules = count > 2 ? std::atoi(values[2]) : 2;
  const int first = count > 3 ? std::atoi(values[3]) : 0;
  for (int group : {1, 2}) {
    Problem problem(group);
    for (int seed = first; seed < first + schedules; ++seed) {
      std::printf("D=%d, groups of %d, seed %d:", D, group, seed);
      for (int turns = 1; turns <= kMostTurns; turns *= 2) {
        run_forward<Plan>(problem, static_cast<unsigned>(seed), turns);
        run_query_gradient<Plan>(problem, static_cast<unsigned>(seed), turns);
      }
      run_state_sums<Plan>(problem, static_cast<unsigned>(seed));
      run_gradient_sums<Plan>(problem, static_cast<unsigned>(seed));
      run_key_value_gradient<Plan>(problem, static_cast<unsigned>(seed));
      run_one_sweep<Plan>(problem, static_cast<unsigned>(seed));
      std::printf("\n");
      std::fflush(stdout);
    }
  }
  return failures == 0 ? 0 : 1;
}
