// Runs the scan of states on the host, over arrays that end where their last state does, and compares it with sums in
// double. Exit status 0: agrees.
#include "cuda_on_host.h"
#include "uncalled_names.h"

#include <cstdio>
#include <random>

#include "linattn/state_scan.cuh"

using namespace linattn;

namespace {

constexpr int kHeads = 2;

struct Problem {
  int key_dim;
  int value_dim;
  std::vector<int> items;  // of each sequence
  bool has_spans;
  bool backwards;
  bool starts;       // from states
  bool ends;         // with states
  bool in_place;     // the ends where the starts were
  bool totals_only;

  int num_items() const {
    int total = 0;
    for (int count : items) total += count;
    return total;
  }
};

// S, z and u of so many states, each an allocation of its own.
struct States {
  std::unique_ptr<float[]> part[3];
  size_t extent[3];

  States(const Problem& problem, int count, unsigned seed)
      : extent{size_t(problem.key_dim) * problem.value_dim, size_t(problem.key_dim), size_t(problem.value_dim)} {
    std::mt19937 engine(seed);
    std::normal_distribution<float> normal;
    for (int i = 0; i < 3; ++i) {
      part[i] = std::make_unique<float[]>(extent[i] * count);
      std::generate_n(part[i].get(), extent[i] * count, [&] { return normal(engine); });
    }
  }

  float* at(int i, int state) const { return part[i].get() + extent[i] * state; }
  void spoil(int state) {
    for (int i = 0; i < 3; ++i) std::fill_n(at(i, state), extent[i], NAN);
  }
};

int failures = 0;

bool is_close(double expected, float got) {
  return std::abs(got - expected) <= 1e-6 * std::max(1.0, std::abs(expected));
}

void check(const Problem& problem, const char* what, double expected, float got) {
  if (!is_close(expected, got) && failures++ < 10) {
    std::printf("Dk=%d Dv=%d items=%d spans=%d backwards=%d starts=%d ends=%d in place=%d totals only=%d: ",
                problem.key_dim, problem.value_dim, problem.num_items(), problem.has_spans, problem.backwards,
                problem.starts, problem.ends, problem.in_place, problem.totals_only);
    std::printf("%s is %g, not %g\n", what, got, expected);
  }
}

void run(const Problem& problem) {
  const int num_items = problem.num_items();
  const int num_sequences = static_cast<int>(problem.items.size());
  States sums(problem, kHeads * num_items, 1);
  States starts(problem, kHeads * num_sequences, 2);
  States ends(problem, kHeads * num_sequences, 3);
  std::vector<Span> spans;
  for (int first = 0, i = 0; i < num_sequences; first += problem.items[i++]) {
    spans.push_back({first, problem.items[i]});
  }
  const bool reads_all = problem.ends || problem.has_spans;
  if (!reads_all) {  // the last one that the scan comes to has not been computed
    for (int head = 0; head < kHeads; ++head) sums.spoil(head * num_items + (problem.backwards ? 0 : num_items - 1));
  }
  States before(problem, kHeads * num_items, 1);
  States first(problem, kHeads * num_sequences, 2);

  StateScanArguments args{};
  float** places[] = {&args.state, &args.key_sum, &args.value_sum};
  const float** in[] = {&args.state_in, &args.key_sum_in, &args.value_sum_in};
  float** out[] = {&args.state_out, &args.key_sum_out, &args.value_sum_out};
  const States& left = problem.in_place ? starts : ends;
  for (int i = 0; i < 3; ++i) {
    *places[i] = sums.at(i, 0);
    *in[i] = problem.starts ? starts.at(i, 0) : nullptr;
    *out[i] = problem.ends ? left.at(i, 0) : nullptr;
  }
  args.spans = problem.has_spans ? spans.data() : nullptr;
  args.num_items = num_items;
  args.num_sequences = num_sequences;
  args.key_dim = problem.key_dim;
  args.value_dim = problem.value_dim;
  args.backwards = problem.backwards;
  args.totals_only = problem.totals_only;
  const unsigned blocks = kHeads * num_sequences * StateScanPlan::tiles(problem.key_dim, problem.value_dim);
  launch(blocks, StateScanPlan::kThreads, [args] { state_scan<StateScanPlan>(args); });

  for (int head = 0; head < kHeads; ++head) {
    for (int sequence = 0; sequence < num_sequences; ++sequence) {
      const int end = head * num_sequences + sequence;
      for (int i = 0; i < 3; ++i) {
        for (size_t j = 0; j < sums.extent[i]; ++j) {
          double sum = problem.starts ? first.at(i, end)[j] : 0;
          for (int step = 0; step < problem.items[sequence]; ++step) {
            const int item = problem.backwards ? problem.items[sequence] - 1 - step : step;
            const int place = head * num_items + spans[sequence].first + item;
            const float term = before.at(i, place)[j];
            check(problem, "a state", problem.totals_only ? term : sum, sums.at(i, place)[j]);
            sum += term;
          }
          if (problem.ends) check(problem, "a total", sum, left.at(i, end)[j]);
        }
      }
    }
  }
}

}  // namespace

int main() {
  const std::vector<std::vector<int>> one = {{1}, {2}, {15}, {16}, {17}, {40}};
  const std::vector<std::vector<int>> several = {{0, 5, 18}, {1, 1}, {16, 0}};
  for (const auto& [key_dim, value_dim] : {std::pair{16, 16}, {48, 32}, {32, 80}}) {
    for (bool has_spans : {false, true}) {
      for (const auto& items : has_spans ? several : one) {
        for (int flags = 0; flags < 32; ++flags) {
          const Problem problem{key_dim,          value_dim,        items,            has_spans,       (flags & 1) != 0,
                                (flags & 2) != 0, (flags & 4) != 0, (flags & 8) != 0, (flags & 16) != 0};
          const bool in_place_of_nothing = problem.in_place && !(problem.starts && problem.ends);
          if (!in_place_of_nothing && (problem.ends || !problem.totals_only)) run(problem);
        }
      }
    }
  }
  std::printf("%d differ\n", failures);
  return failures == 0 ? 0 : 1;
}
