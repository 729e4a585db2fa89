// Runs the device code of one plan on the host and compares it with the quadratic form in double.
// Built with -DHEAD_DIM, -DSLICES, -DCOLUMNS, -DTOKENS (of a chunk), -DSPLIT_SUMS, -DLANES. Exit status 0: agrees.
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

void check_attention(int64_t n, bool with_state) {
  const size_t size = kHeads * n * D, rows = kHeads * n;
  const auto q = random(size, 1), k = random(size, 2), v = random(size, 3), d_o = random(size, 4);
  std::vector<float> s0(kHeads * D * D), z0(kHeads * D), u0(kHeads * D);
  const int64_t c0 = with_state ? 5 : 0;
  if (with_state) {
    s0 = random(s0.size(), 5);
    z0 = random(z0.size(), 6);
    u0 = random(u0.size(), 7);
  }
  const float a[kHeads] = {3.0f * D, 2.0f * D};
  const float b[kHeads] = {0.75f, -0.5f};
  Reference r;
  r.o.resize(size), r.dq.resize(size), r.dk.resize(size), r.dv.resize(size);
  r.g.resize(rows), r.delta.resize(rows), r.da.resize(kHeads), r.db.resize(kHeads);
  r.s.resize(s0.size()), r.z.resize(z0.size()), r.u.resize(u0.size());
  for (int h = 0; h < kHeads; ++h) add_head(r, h, n, a[h], b[h], q, k, v, d_o, s0, z0, u0, c0);

  auto o = unset(size), g = unset(rows), delta = unset(rows), dq = unset(size), dk = unset(size), dv = unset(size);
  auto s = unset(s0.size()), z = unset(z0.size()), u = unset(u0.size()), da = unset(kHeads), db = unset(kHeads);
  std::vector<double> partials(kHeads * kTiles * 2, NAN);

  ScanArguments args{};
  args.normalizer = g.data();
  args.a_per_head = a;
  args.b_per_head = b;
  args.heads_per_batch = kHeads;
  args.tokens = n;
  args.initial_count = c0;
  if (with_state) {
    args.state_in = s0.data();
    args.key_sum_in = z0.data();
    args.value_sum_in = u0.data();
  }
  ScanArguments forward = args;
  forward.query = q.data(), forward.key = k.data(), forward.value = v.data(), forward.out = o.data();
  forward.state_out = s.data(), forward.key_sum_out = z.data(), forward.value_sum_out = u.data();
  scan<Operation::kForward>(forward);

  const RowDotArguments row_args{o.data(), d_o.data(), g.data(), delta.data(), static_cast<int64_t>(rows)};
  launch(row_blocks(rows), kRowThreads, [row_args] { row_dot<D, LANES, kRowThreads>(row_args); });

  args.delta = delta.data();
  ScanArguments query = args;
  query.query = d_o.data(), query.key = v.data(), query.value = k.data(), query.out = dq.data();
  query.coefficient_query = q.data(), query.coefficient_partials = partials.data();
  scan<Operation::kQueryGradient>(query);
  ScanArguments key = args;
  key.query = v.data(), key.key = d_o.data(), key.value = q.data(), key.out = dk.data();
  scan<Operation::kKeyGradient>(key);
  ScanArguments value = args;
  value.query = k.data(), value.key = q.data(), value.value = d_o.data(), value.out = dv.data();
  scan<Operation::kValueGradient>(value);
  const CoefficientGradientArguments sums{partials.data(), da.data(), db.data(), kHeads};
  launch(1, kRowThreads, [sums] { coefficient_gradient<kTiles, kRowThreads>(sums); });

  compare("o", n, r.o, o), compare("g", n, r.g, g), compare("delta", n, r.delta, delta);
  compare("dq", n, r.dq, dq), compare("dk", n, r.dk, dk), compare("dv", n, r.dv, dv);
  compare("da", n, r.da, da, r.da_terms), compare("db", n, r.db, db, r.db_terms);
  compare("S", n, r.s, s), compare("z", n, r.z, z), compare("u", n, r.u, u);
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
    check_attention(tokens, tokens != TOKENS);
  }
  if (failures == 0) std::printf("D=%d L=%d agrees\n", D, SLICES);
  return failures == 0 ? 0 : 1;
}
