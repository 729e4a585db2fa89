// Prints "<struct> <size>" and "<struct>.<member> <offset>" of every argument struct.
#include <cstddef>
#include <cstdio>
#include <type_traits>

#include "linattn/arguments.h"
#include "linattn/chunked_arguments.h"

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
  SIZE(TensorView);
  MEMBER(TensorView, address);
  MEMBER(TensorView, batch_stride);
  MEMBER(TensorView, head_stride);
  MEMBER(TensorView, token_stride);
  SIZE(Item);
  MEMBER(Item, start);
  MEMBER(Item, tokens);
  MEMBER(Item, slot);
  MEMBER(Item, reserved);
  MEMBER(Item, count);
  SIZE(ChunkedArguments);
  MEMBER(ChunkedArguments, query);
  MEMBER(ChunkedArguments, key);
  MEMBER(ChunkedArguments, value);
  MEMBER(ChunkedArguments, out);
  MEMBER(ChunkedArguments, normalizer);
  MEMBER(ChunkedArguments, items);
  MEMBER(ChunkedArguments, a_per_head);
  MEMBER(ChunkedArguments, b_per_head);
  MEMBER(ChunkedArguments, state_in);
  MEMBER(ChunkedArguments, key_sum_in);
  MEMBER(ChunkedArguments, value_sum_in);
  MEMBER(ChunkedArguments, state_out);
  MEMBER(ChunkedArguments, key_sum_out);
  MEMBER(ChunkedArguments, value_sum_out);
  MEMBER(ChunkedArguments, marks);
  MEMBER(ChunkedArguments, initial_count);
  MEMBER(ChunkedArguments, tokens);
  MEMBER(ChunkedArguments, item_tokens);
  MEMBER(ChunkedArguments, num_items);
  MEMBER(ChunkedArguments, slots);
  MEMBER(ChunkedArguments, heads);
  MEMBER(ChunkedArguments, group);
  MEMBER(ChunkedArguments, key_dim);
  MEMBER(ChunkedArguments, value_dim);
  MEMBER(ChunkedArguments, normalize);
  MEMBER(ChunkedArguments, a);
  MEMBER(ChunkedArguments, b);
  MEMBER(ChunkedArguments, batches);
  MEMBER(ChunkedArguments, turns);
  MEMBER(ChunkedArguments, slot_step);
  MEMBER(ChunkedArguments, tickets);
  SIZE(Span);
  MEMBER(Span, first);
  MEMBER(Span, num_items);
  SIZE(StateScanArguments);
  MEMBER(StateScanArguments, state);
  MEMBER(StateScanArguments, key_sum);
  MEMBER(StateScanArguments, value_sum);
  MEMBER(StateScanArguments, state_in);
  MEMBER(StateScanArguments, key_sum_in);
  MEMBER(StateScanArguments, value_sum_in);
  MEMBER(StateScanArguments, state_out);
  MEMBER(StateScanArguments, key_sum_out);
  MEMBER(StateScanArguments, value_sum_out);
  MEMBER(StateScanArguments, spans);
  MEMBER(StateScanArguments, num_items);
  MEMBER(StateScanArguments, num_sequences);
  MEMBER(StateScanArguments, key_dim);
  MEMBER(StateScanArguments, value_dim);
}
