package io.github.linattn.internal.cuda;

import static java.lang.foreign.ValueLayout.JAVA_FLOAT;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemoryLayout.PathElement;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.StructLayout;

/**
 * The kernels' arguments, laid out as in {@code linattn/arguments.h} and named as there. One struct
 * of each kind per stream, filled in again for every launch.
 */
public final class ArgumentStructs {

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

  private static final long TOKENS = offset("tokens");
  private static final long INITIAL_COUNT = offset("initial_count");
  private static final long HEADS_PER_BATCH = offset("heads_per_batch");
  private static final long A = offset("a");
  private static final long B = offset("b");

  private final MemorySegment scan;
  private final MemorySegment valueCenter;
  private final MemorySegment rowDot;
  private final MemorySegment normalize;
  private final MemorySegment normalizeGradient;
  private final MemorySegment coefficientGradient;

  ArgumentStructs(Arena owner) {
    this.scan = owner.allocate(SCAN);
    this.valueCenter = owner.allocate(VALUE_CENTER);
    this.rowDot = owner.allocate(ROW_DOT);
    this.normalize = owner.allocate(NORMALIZE);
    this.normalizeGradient = owner.allocate(NORMALIZE_GRADIENT);
    this.coefficientGradient = owner.allocate(COEFFICIENT_GRADIENT);
  }

  private static long offset(String member) {
    return SCAN.byteOffset(PathElement.groupElement(member));
  }

  /** Members of {@link #SCAN} that are pointers, in its order. 0 is null. */
  enum ScanPointer {
    QUERY,
    KEY,
    VALUE,
    OUT,
    NORMALIZER,
    DELTA,
    VALUE_CENTER,
    A_PER_HEAD,
    B_PER_HEAD,
    COEFFICIENT_QUERY,
    COEFFICIENT_PARTIALS,
    STATE_IN,
    KEY_SUM_IN,
    VALUE_SUM_IN,
    STATE_OUT,
    KEY_SUM_OUT,
    VALUE_SUM_OUT
  }

  /** The scan struct with null pointers and these numbers. */
  MemorySegment scan(long tokens, long initialCount, int headsPerBatch, float a, float b) {
    scan.fill((byte) 0);
    scan.set(JAVA_LONG, TOKENS, tokens);
    scan.set(JAVA_LONG, INITIAL_COUNT, initialCount);
    scan.set(JAVA_INT, HEADS_PER_BATCH, headsPerBatch);
    scan.set(JAVA_FLOAT, A, a);
    scan.set(JAVA_FLOAT, B, b);
    return scan;
  }

  static void set(MemorySegment scan, ScanPointer member, long address) {
    scan.setAtIndex(JAVA_LONG, member.ordinal(), address);
  }

  MemorySegment valueCenter(long value, long center, long tokens) {
    return fill(valueCenter, value, center, tokens);
  }

  MemorySegment rowDot(
      long output,
      long outputGradient,
      long normalizer,
      long valueCenter,
      long delta,
      long rows,
      long tokens) {
    return fill(rowDot, output, outputGradient, normalizer, valueCenter, delta, rows, tokens);
  }

  MemorySegment normalize(long input, long output, long rows) {
    return fill(normalize, input, output, rows);
  }

  MemorySegment normalizeGradient(long input, long gradient, long rows) {
    return fill(normalizeGradient, input, gradient, rows);
  }

  MemorySegment coefficientGradient(long partials, long aGradient, long bGradient, long heads) {
    return fill(coefficientGradient, partials, aGradient, bGradient, heads);
  }

  private static MemorySegment fill(MemorySegment struct, long... members) {
    for (int i = 0; i < members.length; i++) {
      struct.setAtIndex(JAVA_LONG, i, members[i]);
    }
    return struct;
  }
}
