package io.github.linattn.internal.cuda;

import static java.lang.foreign.ValueLayout.JAVA_FLOAT;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.MemoryLayout;
import java.lang.foreign.StructLayout;

/**
 * The arguments of the kernels of the family {@code paper}, laid out as in {@code
 * linattn/arguments.h} and named as there.
 */
public final class PaperStructs {
  /** {@code linattn::ScanArguments}. */
  public static final StructLayout SCAN =
      MemoryLayout.structLayout(
          JAVA_LONG.withName("query"),
          JAVA_LONG.withName("key"),
          JAVA_LONG.withName("value"),
          JAVA_LONG.withName("out"),
          JAVA_LONG.withName("normalizer"),
          JAVA_LONG.withName("delta"),
          JAVA_LONG.withName("value_center"),
          JAVA_LONG.withName("a_per_head"),
          JAVA_LONG.withName("b_per_head"),
          JAVA_LONG.withName("coefficient_query"),
          JAVA_LONG.withName("coefficient_partials"),
          JAVA_LONG.withName("state_in"),
          JAVA_LONG.withName("key_sum_in"),
          JAVA_LONG.withName("value_sum_in"),
          JAVA_LONG.withName("state_out"),
          JAVA_LONG.withName("key_sum_out"),
          JAVA_LONG.withName("value_sum_out"),
          JAVA_LONG.withName("tokens"),
          JAVA_LONG.withName("initial_count"),
          JAVA_INT.withName("heads_per_batch"),
          JAVA_FLOAT.withName("a"),
          JAVA_FLOAT.withName("b"),
          JAVA_INT.withName("reserved"));

  /** {@code linattn::ValueCenterArguments}. */
  public static final StructLayout VALUE_CENTER =
      MemoryLayout.structLayout(
          JAVA_LONG.withName("value"),
          JAVA_LONG.withName("value_center"),
          JAVA_LONG.withName("tokens"));

  /** {@code linattn::RowDotArguments}. */
  public static final StructLayout ROW_DOT =
      MemoryLayout.structLayout(
          JAVA_LONG.withName("output"),
          JAVA_LONG.withName("output_gradient"),
          JAVA_LONG.withName("normalizer"),
          JAVA_LONG.withName("value_center"),
          JAVA_LONG.withName("delta"),
          JAVA_LONG.withName("rows"),
          JAVA_LONG.withName("tokens"));

  /** {@code linattn::NormalizeArguments}. */
  public static final StructLayout NORMALIZE =
      MemoryLayout.structLayout(
          JAVA_LONG.withName("input"), JAVA_LONG.withName("output"), JAVA_LONG.withName("rows"));

  /** {@code linattn::NormalizeGradientArguments}. */
  public static final StructLayout NORMALIZE_GRADIENT =
      MemoryLayout.structLayout(
          JAVA_LONG.withName("input"), JAVA_LONG.withName("gradient"), JAVA_LONG.withName("rows"));

  /** {@code linattn::CoefficientGradientArguments}. */
  public static final StructLayout COEFFICIENT_GRADIENT =
      MemoryLayout.structLayout(
          JAVA_LONG.withName("partials"),
          JAVA_LONG.withName("a_gradient"),
          JAVA_LONG.withName("b_gradient"),
          JAVA_LONG.withName("heads"));

  private PaperStructs() {}
}
