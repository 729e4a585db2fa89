package io.github.linattn.kernelgen;

import java.util.Collections;
import java.util.Comparator;
import java.util.EnumSet;
import java.util.Locale;
import java.util.Set;

/**
 * One kernel: what it computes, for which head dimension, how it is cut, what it is compiled for.
 *
 * @param headDim D, columns of q, k and v; a multiple of 16 from 16 to 512
 * @param slices L, parts of the key dimension; divides D, and D/L is a multiple of 4 up to 64
 * @param architectures in the order of the enum, at least one
 */
public record KernelSpec(
    Operation operation,
    Family family,
    int headDim,
    int slices,
    ElementType elementType,
    Set<Architecture> architectures)
    implements Comparable<KernelSpec> {

  /** Smallest head dimension, and the step between head dimensions. */
  public static final int HEAD_DIM_STEP = 16;

  /** Largest head dimension. */
  public static final int MAX_HEAD_DIM = 512;

  /** Most registers of a thread that hold state; more would leave too few to work with. */
  public static final int MAX_STATE_REGISTERS = 64;

  private static final Comparator<KernelSpec> ORDER =
      Comparator.comparing(KernelSpec::family)
          .thenComparing(KernelSpec::elementType)
          .thenComparingInt(KernelSpec::headDim)
          .thenComparingInt(KernelSpec::slices)
          .thenComparing(KernelSpec::operation)
          .thenComparing(spec -> spec.architectures().toString());

  /**
   * Checks every rule and budget.
   *
   * @throws IllegalArgumentException if one is broken; the message says which
   */
  public KernelSpec {
    requireHeadDim(headDim);
    requireSlices(headDim, slices);
    if (architectures.isEmpty()) {
      throw new IllegalArgumentException("a kernel is compiled for at least one architecture");
    }
    architectures = Collections.unmodifiableSet(EnumSet.copyOf(architectures));
    if (operation.isScan()) {
      ScanPlan.of(headDim, slices);
    }
  }

  /**
   * L where nobody chose one: D/32 where 32 divides D, else D/16.
   *
   * @throws IllegalArgumentException if D is not a multiple of 16 from 16 to 512
   */
  public static int defaultSlices(int headDim) {
    requireHeadDim(headDim);
    return headDim % 32 == 0 ? headDim / 32 : headDim / 16;
  }

  /** The name of the kernel, of its file and of its image: {@code la_paper_forward_d128_l4_f32}. */
  public String symbol() {
    return String.format(
        Locale.ROOT,
        "la_%s_%s_d%d_l%d_%s",
        family.id(),
        operation.id(),
        headDim,
        slices,
        elementType.id());
  }

  @Override
  public int compareTo(KernelSpec other) {
    return ORDER.compare(this, other);
  }

  private static void requireHeadDim(int headDim) {
    if (headDim < HEAD_DIM_STEP || headDim > MAX_HEAD_DIM || headDim % HEAD_DIM_STEP != 0) {
      throw new IllegalArgumentException(
          String.format(
              Locale.ROOT,
              "the head dimension is a multiple of %d from %d to %d, not %d",
              HEAD_DIM_STEP,
              HEAD_DIM_STEP,
              MAX_HEAD_DIM,
              headDim));
    }
  }

  private static void requireSlices(int headDim, int slices) {
    if (slices < 1 || headDim % slices != 0) {
      throw new IllegalArgumentException(
          String.format(
              Locale.ROOT, "the slices divide the head dimension: %d into %d", headDim, slices));
    }
    int registers = headDim / slices;
    if (registers > MAX_STATE_REGISTERS) {
      throw new IllegalArgumentException(
          String.format(
              Locale.ROOT,
              "a thread keeps at most %d registers of state: head dimension %d with %d slices needs"
                  + " %d; use at least %d slices",
              MAX_STATE_REGISTERS,
              headDim,
              slices,
              registers,
              Math.ceilDiv(headDim, MAX_STATE_REGISTERS)));
    }
    if (registers % 4 != 0) {
      throw new IllegalArgumentException(
          String.format(
              Locale.ROOT,
              "a slice is read 4 columns at a time: head dimension %d with %d slices gives %d"
                  + " columns each",
              headDim,
              slices,
              registers));
    }
  }
}
