// Prints "<struct> <size>" and "<struct>.<member> <offset>" of every argument struct.
#include <cstddef>
#include <cstdio>
#include <type_traits>

#include "linattn/arguments.h"

using namespace linattn;

#define SIZE(type) std::printf(#type " %zu\n", sizeof(type))
#define MEMBER(type, member) std::printf(#type "." #member " %zu\n", offsetof(type, member))

int main() {
  static_assert(std::is_trivially_copyable<ScanArguments>::value, "kernels take them by value");
  SIZE(ScanArguments);
  MEMBER(ScanArguments, query);
  MEMBER(ScanArguments, key);
  MEMBER(ScanArguments, value);
  MEMBER(ScanArguments, out);
  MEMBER(ScanArguments, normalizer);
  MEMBER(ScanArguments, delta);
  MEMBER(ScanArguments, value_center);
  MEMBER(ScanArguments, a_per_head);
  MEMBER(ScanArguments, b_per_head);
  MEMBER(ScanArguments, coefficient_query);
  MEMBER(ScanArguments, coefficient_partials);
  MEMBER(ScanArguments, state_in);
  MEMBER(ScanArguments, key_sum_in);
  MEMBER(ScanArguments, value_sum_in);
  MEMBER(ScanArguments, state_out);
  MEMBER(ScanArguments, key_sum_out);
  MEMBER(ScanArguments, value_sum_out);
  MEMBER(ScanArguments, tokens);
  MEMBER(ScanArguments, initial_count);
  MEMBER(ScanArguments, heads_per_batch);
  MEMBER(ScanArguments, a);
  MEMBER(ScanArguments, b);
  MEMBER(ScanArguments, reserved);
  SIZE(ValueCenterArguments);
  MEMBER(ValueCenterArguments, value);
  MEMBER(ValueCenterArguments, value_center);
  MEMBER(ValueCenterArguments, tokens);
  SIZE(RowDotArguments);
  MEMBER(RowDotArguments, output);
  MEMBER(RowDotArguments, output_gradient);
  MEMBER(RowDotArguments, normalizer);
  MEMBER(RowDotArguments, value_center);
  MEMBER(RowDotArguments, delta);
  MEMBER(RowDotArguments, rows);
  MEMBER(RowDotArguments, tokens);
  SIZE(NormalizeArguments);
  MEMBER(NormalizeArguments, input);
  MEMBER(NormalizeArguments, output);
  MEMBER(NormalizeArguments, rows);
  SIZE(NormalizeGradientArguments);
  MEMBER(NormalizeGradientArguments, input);
  MEMBER(NormalizeGradientArguments, gradient);
  MEMBER(NormalizeGradientArguments, rows);
  SIZE(CoefficientGradientArguments);
  MEMBER(CoefficientGradientArguments, partials);
  MEMBER(CoefficientGradientArguments, a_gradient);
  MEMBER(CoefficientGradientArguments, b_gradient);
  MEMBER(CoefficientGradientArguments, heads);
}
