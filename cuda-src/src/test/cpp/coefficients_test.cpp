// Runs the sums of da and db of the last kernel of a backward on the host, on rows that are made up, so that it is known
// which way is to be taken. Exit status 0: it is, and the sums are right.
#include "cuda_on_host.h"
#include "uncalled_names.h"

#include <cstdio>
#include <random>

#include "linattn/coefficient_sums.cuh"

using namespace linattn;

namespace {

constexpr int kHeads = 3;
constexpr double kA = 2.0;
constexpr double kB = 0.5;
constexpr int kPartials = 2;
constexpr double kSummed = 11.0;  // of head 0; one more of each other

enum class Rows {
  kFlat,     // d has all of the error
  kOrdinary,
  kSparse,   // flat, and no sample has a dO
  kAlike,    // q . dq has most of the error
  kSummed    // flat, and db is there
};

struct Problem {
  Rows rows;
  int dim;
  int tokens;
  int parts;
  std::vector<float> q, dq, o, d_o, g;

  Problem(Rows of, int columns, int num_tokens, int num_parts)
      : rows(of), dim(columns), tokens(num_tokens), parts(num_parts), g(kHeads * num_tokens) {
    std::mt19937 engine(columns + num_tokens);
    std::normal_distribution<float> normal;
    for (auto* values : {&q, &dq, &o, &d_o}) {
      values->resize(size_t(kHeads) * tokens * dim);
      for (auto& value : *values) value = normal(engine);
    }
    for (size_t i = 0; i < q.size(); ++i) {
      const int token = static_cast<int>(i / dim % tokens);
      const double share = rows == Rows::kAlike ? 0.1 : 0.99;
      g[i / dim] = static_cast<float>(kA * (token + 1) / share);
      dq[i] *= rows == Rows::kOrdinary ? 1.0f : 1e-4f;
      if (rows == Rows::kSparse && (is_sampled(token) || token % 50 != 7)) d_o[i] = dq[i] = 0;
    }
  }

  bool is_sampled(int token) const {
    for (int i = 0; i < CoefficientPlan::kSamples; ++i) {
      if (sampled_token(tokens, i) == token) return true;
    }
    return false;
  }

  double products(int head) const {
    double sum = 0;
    for (size_t i = 0, of_head = size_t(tokens) * dim; i < of_head; ++i) {
      sum += double(q[head * of_head + i]) * dq[head * of_head + i];
    }
    return sum;
  }

  TensorView view(const std::vector<float>& values) const {
    return {const_cast<float*>(values.data()), int64_t(kHeads) * tokens * dim, int64_t(tokens) * dim, dim};
  }

  int failures() const {
    GradientArguments task{};
    ChunkedArguments& chunked = task.chunked;
    chunked.query = view(d_o), chunked.out = view(dq);
    chunked.normalizer = {const_cast<float*>(g.data()), kHeads * tokens, tokens, 1};
    chunked.tokens = chunked.item_tokens = tokens;
    chunked.key_dim = chunked.value_dim = dim;
    chunked.num_items.value = chunked.slots = 1;
    std::vector<double> partials, products_of_parts(kHeads * parts, NAN);
    for (int head = 0; head < kHeads; ++head) {
      partials.insert(partials.end(), {kSummed, kSummed + head, double(head), 0.0});
    }
    std::vector<uint32_t> tickets(kHeads);
    std::vector<float> da(kHeads, NAN), db(kHeads, NAN);
    CoefficientSumsArguments args{};
    args.query = view(q), args.out = view(o), args.partials = partials.data();
    args.products = products_of_parts.data(), args.tickets = tickets.data();
    args.a_gradient = da.data(), args.b_gradient = db.data();
    args.count = kPartials, args.heads = kHeads, args.batches = 1, args.parts = parts;
    args.slope_is_summed = rows == Rows::kSummed, args.a = kA, args.b = kB;
    int failed = 0;
    for (int round = 0; round < 2; ++round) {  // the second finds the tickets as the first left them
      std::fill(da.begin(), da.end(), NAN), std::fill(db.begin(), db.end(), NAN);
      launch(kHeads * parts, CoefficientPlan::kThreads, [&] {
        sum_coefficients<float>(task, args, false, blockIdx.x / parts, static_cast<int>(blockIdx.x % parts), parts,
                                reinterpret_cast<double*>(shared_smem));
      });
      for (int head = 0; head < kHeads; ++head) {
        const bool is_direct = rows == Rows::kOrdinary || rows == Rows::kAlike;
        const double constant = kSummed + head;
        const double slope = is_direct                ? -kA * constant / kB
                             : rows == Rows::kSummed ? constant
                                                     : products(head) / kB;
        failed += differ("da", head, da[head], is_direct ? constant : -kB * slope / kA);
        failed += differ("db", head, db[head], slope) + (tickets[head] != 0);
      }
    }
    return failed;
  }

  int differ(const char* what, int head, double got, double expected) const {
    const double scale = std::sqrt(double(tokens) * dim) * 1e-4;  // of the terms of q . dq
    if (std::abs(got - expected) <= 1e-6 * std::max(std::abs(expected), scale)) return 0;
    std::printf("rows %d, D=%d, %d tokens in %d parts: %s of head %d is %g, not %g\n", static_cast<int>(rows), dim,
                tokens, parts, what, head, got, expected);
    return 1;
  }
};

}  // namespace

int main() {
  int failures = 0;
  for (const Rows rows : {Rows::kFlat, Rows::kOrdinary, Rows::kSparse, Rows::kAlike, Rows::kSummed}) {
    for (const int dim : {16, 128, 512}) {
      for (const int tokens : {1, 5, 700}) {
        for (const int parts : {1, 3}) failures += Problem(rows, dim, tokens, parts).failures();
      }
    }
  }
  return failures == 0 ? 0 : 1;
}
