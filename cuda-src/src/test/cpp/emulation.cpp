// Runs the device code of one plan on the host and compares it with the quadratic form in double.
// Built with -DHEAD_DIM, -DSLICES, -DCOLUMNS, -DTOKENS (of a chunk), -DSPLIT_SUMS, -DLANES, -DCENTER_THREADS.
// Exit status 0: agrees.
#include "cuda_on_host.h"

#include <cstdio>
#include <random>

#include "linattn/row_kernels.cuh"
#include "linattn/sliced_scan.cuh"

using namespace linattn;

namespace {

constexpr int D = HEAD_DIM;
constexpr int kHeads = 2;
constexpr int kRowThreads = 256;
using Operation = ScanOperation;
template <Operation kOperation>
using PlanOf = ScanPlan<kOperation, HEAD_DIM, SLICES, COLUMNS, TOKENS, SPLIT_SUMS>;
constexpr int kTiles = PlanOf<Operation::kForward>::kTiles;

int failures = 0;

// The root mean square error against that of the expected values, or against `terms` where these cancel.
void compare(const char* what, int64_t tokens, const std::vector<double>& expected, const std::vector<float>& got,
             double terms = 0) {
  double error = 0, norm = terms * terms;
  for (size_t i = 0; i < expected.size(); ++i) {
    error += (got[i] - expected[i]) * (got[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  const double ratio = std::sqrt(error / std::max(norm, 1e-300));
  if (!(ratio <= 2e-6)) {
    std::printf("D=%d L=%d tokens=%lld: %s is off by %g\n", D, SLICES, static_cast<long long>(tokens), what, ratio);
    ++failures;
  }
}

std::vector<float> random(size_t size, unsigned seed) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<float> uniform(0.1f, 1.0f);
  std::vector<float> values(size);
  for (auto& value : values) value = uniform(engine) * (engine() % 3 == 0 ? -1.0f : 1.0f);
  return values;
}

std::vector<float> random_around(float mean, float deviation, size_t size, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(mean, deviation);
  std::vector<float> values(size);
  for (auto& value : values) value = normal(engine);
  return values;
}

std::vector<float> unset(size_t size) { return std::vector<float>(size, NAN); }

template <Operation kOperation>
void scan(const ScanArguments& args) {
  using Plan = PlanOf<kOperation>;
  launch(kHeads * Plan::kTiles, Plan::kThreads, [args] { sliced_scan<Plan>(args); });
}

unsigned row_blocks(int64_t rows) { return (rows + kRowThreads / LANES - 1) / (kRowThreads / LANES); }

struct Reference {
  std::vector<double> o, g, delta, dq, dk, dv, da, db, s, z, u;
  double da_terms = 0, db_terms = 0;  // da and db are what is left of these
};

// One head by its N x N matrices; the initial state is one more, summed, token.
void add_head(Reference& r, int h, int64_t n, double a, double b, const std::vector<float>& q,
              const std::vector<float>& k, const std::vector<float>& v, const std::vector<float>& d_o,
              const std::vector<float>& s0, const std::vector<float>& z0, const std::vector<float>& u0, int64_t c0) {
  const int64_t at = h * n * D, st = static_cast<int64_t>(h) * D * D, ve = static_cast<int64_t>(h) * D;
  std::vector<double> w(n * n), e(n * n), dot(n * n);
  for (int64_t i = 0; i < n; ++i) {
    double g = a * (c0 + i + 1);
    for (int m = 0; m < D; ++m) g += b * q[at + i * D + m] * z0[ve + m];
    for (int64_t p = 0; p <= i; ++p) {
      for (int m = 0; m < D; ++m) dot[i * n + p] += double(q[at + i * D + m]) * k[at + p * D + m];
      w[i * n + p] = a + b * dot[i * n + p];
      g += b * dot[i * n + p];
    }
    r.g[h * n + i] = g;
    double delta = 0;
    for (int j = 0; j < D; ++j) {
      double f = a * u0[ve + j];
      for (int m = 0; m < D; ++m) f += b * q[at + i * D + m] * s0[st + m * D + j];
      for (int64_t p = 0; p <= i; ++p) f += w[i * n + p] * v[at + p * D + j];
      r.o[at + i * D + j] = f / g;
      delta += f / g * d_o[at + i * D + j] / g;
    }
    r.delta[h * n + i] = delta;
    double along_u0 = 0;
    for (int j = 0; j < D; ++j) along_u0 += d_o[at + i * D + j] / g * u0[ve + j];
    r.da[h] += along_u0 - delta * c0;
    r.da_terms += std::abs(along_u0) + std::abs(delta * (c0 + i + 1));
    for (int m = 0; m < D; ++m) {
      double inner = -delta * z0[ve + m];
      for (int j = 0; j < D; ++j) inner += s0[st + m * D + j] * d_o[at + i * D + j] / g;
      r.dq[at + i * D + m] += b * inner;
      r.db[h] += q[at + i * D + m] * inner;
    }
    double along_query = 0, query_sum = 0;
    for (int64_t p = 0; p <= i; ++p) {
      double along = -delta;
      for (int j = 0; j < D; ++j) along += d_o[at + i * D + j] / g * v[at + p * D + j];
      r.da[h] += along;
      r.db[h] += along * dot[i * n + p];
      along_query += (along + delta) * dot[i * n + p];
      query_sum += dot[i * n + p];
      for (int m = 0; m < D; ++m) {
        r.dq[at + i * D + m] += b * along * k[at + p * D + m];
        r.dk[at + p * D + m] += b * along * q[at + i * D + m];
        r.dv[at + p * D + m] += w[i * n + p] * d_o[at + i * D + m] / g;
      }
    }
    r.db_terms += std::abs(along_query) + std::abs(delta * query_sum);
  }
  for (int m = 0; m < D; ++m) {
    r.z[ve + m] = z0[ve + m];
    r.u[ve + m] = u0[ve + m];
    for (int64_t p = 0; p < n; ++p) {
      r.z[ve + m] += k[at + p * D + m];
      r.u[ve + m] += v[at + p * D + m];
    }
    for (int j = 0; j < D; ++j) {
      r.s[st + m * D + j] = s0[st + m * D + j];
      for (int64_t p = 0; p < n; ++p) {
        r.s[st + m * D + j] += double(k[at + p * D + m]) * v[at + p * D + j];
      }
    }
  }
}

enum class Data { kMixedSigns, kBiased };

// q, k, v, dO of both heads, and what came before them.
struct Inputs {
  int64_t tokens;
  std::vector<float> q, k, v, d_o;
  bool with_state;
  std::vector<float> s0, z0, u0;
  int64_t c0;

  Inputs(int64_t n, bool state, Data data) : tokens(n), with_state(state), c0(state ? 5 : 0) {
    const size_t size = kHeads * n * D;
    const bool biased = data == Data::kBiased;
    q = biased ? random_around(0.5f, 1, size, 1) : random(size, 1);
    k = biased ? random_around(0.5f, 1, size, 2) : random(size, 2);
    v = biased ? random_around(3, 1, size, 3) : random(size, 3);
    d_o = random(size, 4);
    s0 = state ? random(kHeads * D * D, 5) : std::vector<float>(kHeads * D * D);
    z0 = state ? random(kHeads * D, 6) : std::vector<float>(kHeads * D);
    u0 = state ? random(kHeads * D, 7) : std::vector<float>(kHeads * D);
    if (state && biased) {  // as large as sums of c0 such rows
      for (auto& value : s0) value = c0 * (1.5f + 0.1f * value);
      for (auto& value : z0) value = c0 * (0.5f + 0.1f * value);
      for (auto& value : u0) value = c0 * (3.0f + 0.4f * value);
    }
  }
};

constexpr float kA[kHeads] = {3.0f * D, 2.0f * D};
constexpr float kB[kHeads] = {0.75f, -0.5f};

std::vector<float> value_centers(int64_t n, const std::vector<float>& v) {
  auto center = unset(kHeads * D);
  const ValueCenterArguments args{v.data(), center.data(), n};
  launch(kHeads, CENTER_THREADS, [args] { value_center<D>(args); });
  return center;
}

// What the kernels make of the inputs.
struct Results {
  std::vector<float> o, g, s, z, u, center, delta, dq, dk, dv, da, db;

  explicit Results(const Inputs& in) {
    const int64_t n = in.tokens;
    const size_t size = kHeads * n * D, rows = kHeads * n;
    o = unset(size), g = unset(rows), delta = unset(rows), dq = unset(size), dk = unset(size), dv = unset(size);
    s = unset(in.s0.size()), z = unset(in.z0.size()), u = unset(in.u0.size()), da = unset(kHeads), db = unset(kHeads);
    std::vector<double> partials(kHeads * kTiles * 2, NAN);

    ScanArguments args{};
    args.normalizer = g.data();
    args.a_per_head = kA;
    args.b_per_head = kB;
    args.heads_per_batch = kHeads;
    args.tokens = n;
    args.initial_count = in.c0;
    if (in.with_state) {
      args.state_in = in.s0.data();
      args.key_sum_in = in.z0.data();
      args.value_sum_in = in.u0.data();
    }
    ScanArguments forward = args;
    forward.query = in.q.data(), forward.key = in.k.data(), forward.value = in.v.data(), forward.out = o.data();
    forward.state_out = s.data(), forward.key_sum_out = z.data(), forward.value_sum_out = u.data();
    scan<Operation::kForward>(forward);

    center = value_centers(n, in.v);
    const RowDotArguments row_args{o.data(),      in.d_o.data(), g.data(),
                                   center.data(), delta.data(),  static_cast<int64_t>(rows), n};
    launch(row_blocks(rows), kRowThreads, [row_args] { row_dot<D, LANES, kRowThreads>(row_args); });

    args.delta = delta.data();
    args.value_center = center.data();
    ScanArguments query = args;
    query.query = in.d_o.data(), query.key = in.v.data(), query.value = in.k.data(), query.out = dq.data();
    query.coefficient_query = in.q.data(), query.coefficient_partials = partials.data();
    scan<Operation::kQueryGradient>(query);
    ScanArguments key = args;
    key.query = in.v.data(), key.key = in.d_o.data(), key.value = in.q.data(), key.out = dk.data();
    scan<Operation::kKeyGradient>(key);
    ScanArguments value = args;
    value.query = in.k.data(), value.key = in.q.data(), value.value = in.d_o.data(), value.out = dv.data();
    scan<Operation::kValueGradient>(value);
    const CoefficientGradientArguments sums{partials.data(), da.data(), db.data(), kHeads};
    launch(1, kRowThreads, [sums] { coefficient_gradient<kTiles, kRowThreads>(sums); });
  }
};

void check_attention(int64_t n, bool with_state, Data data) {
  const Inputs in(n, with_state, data);
  const size_t size = kHeads * n * D, rows = kHeads * n;
  Reference r;
  r.o.resize(size), r.dq.resize(size), r.dk.resize(size), r.dv.resize(size);
  r.g.resize(rows), r.delta.resize(rows), r.da.resize(kHeads), r.db.resize(kHeads);
  r.s.resize(in.s0.size()), r.z.resize(in.z0.size()), r.u.resize(in.u0.size());
  for (int h = 0; h < kHeads; ++h) {
    add_head(r, h, n, kA[h], kB[h], in.q, in.k, in.v, in.d_o, in.s0, in.z0, in.u0, in.c0);
  }
  const Results got(in);

  // The reference knows no center; without it, delta is what cancels.
  std::vector<double> centered_delta(rows);
  double delta_terms = 0;
  for (size_t i = 0; i < rows; ++i) {
    centered_delta[i] = r.delta[i];
    delta_terms += r.delta[i] * r.delta[i];
    for (int j = 0; j < D; ++j) centered_delta[i] -= double(got.center[i / n * D + j]) * in.d_o[i * D + j] / r.g[i];
  }
  compare("o", n, r.o, got.o), compare("g", n, r.g, got.g);
  compare("delta", n, centered_delta, got.delta, std::sqrt(delta_terms));
  compare("dq", n, r.dq, got.dq), compare("dk", n, r.dk, got.dk), compare("dv", n, r.dv, got.dv);
  compare("da", n, r.da, got.da, r.da_terms), compare("db", n, r.db, got.db, r.db_terms);
  compare("S", n, r.s, got.s), compare("z", n, r.z, got.z), compare("u", n, r.u, got.u);
}

// What is not finite in v reaches o and dq from its token on, through o all of dk, and no other head.
void check_reach(float what) {
  constexpr int64_t kTokens = 2 * TOKENS + 3, kAt = TOKENS + 1;
  Inputs in(kTokens, true, Data::kBiased);
  in.v[kAt * D + D / 2] = what;
  const Results got(in);
  const auto is_finite = [](const std::vector<float>& rows, int64_t row_idx) {
    const float* row = rows.data() + row_idx * D;
    return std::all_of(row, row + D, [](float value) { return std::isfinite(value); });
  };
  for (int64_t i = 0; i < kHeads * kTokens; ++i) {
    const bool other_head = i >= kTokens;
    if (is_finite(got.dq, i) != (i < kAt || other_head) || is_finite(got.dk, i) != other_head ||
        !is_finite(got.dv, i)) {
      std::printf("D=%d L=%d: %g of token %d in v has the wrong reach at row %d\n", D, SLICES, what,
                  static_cast<int>(kAt), static_cast<int>(i));
      ++failures;
    }
  }
}

// Of few and of many rows; the last one is not finite, which must not matter past the first 64.
void check_value_center(int64_t n) {
  constexpr int64_t kMostRows = 64;
  auto v = random_around(3, 1, kHeads * n * D, 10);
  v[(n - 1) * D + 1] = NAN, v[(n - 1) * D + 2] = -INFINITY;
  std::vector<double> expected(kHeads * D);
  for (int i = 0; i < kHeads * D; ++i) {
    const int64_t num_rows = std::min(n, kMostRows);
    for (int64_t t = 0; t < num_rows; ++t) expected[i] += v[(i / D * n + t) * D + i % D] / double(num_rows);
    if (!std::isfinite(expected[i])) expected[i] = 0;
  }
  compare("value center", n, expected, value_centers(n, v));
}

// Rows of ordinary, huge, tiny and zero length.
void check_normalize() {
  constexpr int64_t kRows = 37;
  auto x = random(kRows * D, 8), gradient = random(kRows * D, 9);
  for (int m = 0; m < D; ++m) {
    x[1 * D + m] *= 1e30f, x[2 * D + m] *= 1e-30f, x[3 * D + m] = 0.0f, x[4 * D + m] *= 1e-40f;
  }
  std::vector<double> y(kRows * D), dx(kRows * D);
  for (int64_t i = 0; i < kRows; ++i) {
    double length = 0, dot = 0;
    for (int m = 0; m < D; ++m) length += double(x[i * D + m]) * x[i * D + m];
    length = std::sqrt(length);
    for (int m = 0; m < D; ++m) {
      y[i * D + m] = length == 0 ? 0 : x[i * D + m] / length;
      dot += y[i * D + m] * gradient[i * D + m];
    }
    for (int m = 0; m < D; ++m) {
      dx[i * D + m] = length == 0 ? 0 : (gradient[i * D + m] - y[i * D + m] * dot) / length;
    }
  }
  auto got = unset(kRows * D);
  const NormalizeArguments args{x.data(), got.data(), kRows};
  launch(row_blocks(kRows), kRowThreads, [args] { normalize<D, LANES, kRowThreads>(args); });
  compare("normalize", kRows, y, got);
  const NormalizeGradientArguments gradient_args{x.data(), gradient.data(), kRows};
  launch(row_blocks(kRows), kRowThreads, [gradient_args] {
    normalize_gradient<D, LANES, kRowThreads>(gradient_args);
  });
  // Each row on its own: the tiny ones have gradients that would drown the others.
  for (int64_t i = 0; i < kRows; ++i) {
    if (i == 4) continue;  // its gradient exceeds fp32
    compare("normalize gradient", i, std::vector<double>(dx.begin() + i * D, dx.begin() + (i + 1) * D),
            std::vector<float>(gradient.begin() + i * D, gradient.begin() + (i + 1) * D));
  }
}

}  // namespace

int main() {
  check_normalize();
  for (const int64_t tokens : {1, TOKENS, 2 * TOKENS + 3}) {
    check_attention(tokens, tokens != TOKENS, Data::kMixedSigns);
  }
  check_attention(2 * TOKENS + 3, true, Data::kBiased);
  check_attention(70, false, Data::kBiased);  // more than the center is a mean of
  check_reach(NAN);
  check_reach(INFINITY);
  for (const int64_t tokens : {1, 63, 64, 65}) {
    check_value_center(tokens);
  }
  if (failures == 0) std::printf("D=%d L=%d agrees\n", D, SLICES);
  return failures == 0 ? 0 : 1;
}
