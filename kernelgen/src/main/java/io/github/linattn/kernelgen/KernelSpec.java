package io.github.linattn.kernelgen;

import java.util.Collections;
import java.util.Comparator;
import java.util.EnumSet;
import java.util.Locale;
import java.util.Set;

/**
 * One kernel: what it computes, for which head dimension, how it is cut, what it is compiled for.
 *
 * @param headDim D, columns of q and k, and of v in the family {@code paper}; a multiple of 16 from
 *     16 to 512, or 0: any
 * @param slices L, parts of the key dimension. In the family {@code paper} it divides D, and D/L is
 *     a multiple of 4 up to 64; in the family {@code chunked} these are boxes of 64 columns
 * @param architectures in the order of the enum, at least one
 */
public record KernelSpec(
    Operation operation,
    Family family,
    Technique technique,
    int headDim,
    int slices,
    ElementType elementType,
    Precision precision,
    Set<Architecture> architectures)
    implements Comparable<KernelSpec> {

  /** Smallest head dimension, and the step between head dimensions. */
  public static final int HEAD_DIM_STEP = 16;

  /** Largest head dimension. */
  public static final int MAX_HEAD_DIM = 512;

  /** Largest head dimension of a forward and of a gradient of the family {@code chunked}. */
  public static final int MAX_CHUNKED_HEAD_DIM = 256;

  /** Most registers of a thread that hold state; more would leave too few to work with. */
  public static final int MAX_STATE_REGISTERS = 64;

  /** Tokens of a chunk of the family {@code chunked} by wgmma. */
  public static final int CHUNK = 64;

  /** Columns of a box of the family {@code chunked}: 128 bytes of 16-bit operands. */
  static final int BOX_COLUMNS = 64;

  private static final Comparator<KernelSpec> ORDER =
      Comparator.comparing(KernelSpec::family)
          .thenComparing(KernelSpec::elementType)
          .thenComparingInt(KernelSpec::headDim)
          .thenComparingInt(KernelSpec::slices)
          .thenComparing(KernelSpec::operation)
          .thenComparing(KernelSpec::technique)
          .thenComparing(KernelSpec::precision)
          .thenComparing(spec -> spec.architectures().toString());

  /**
   * Checks every rule and budget.
   *
   * @throws IllegalArgumentException if one is broken; the message says which
   */
  public KernelSpec {
    if (architectures.isEmpty()) {
      throw new IllegalArgumentException("a kernel is compiled for at least one architecture");
    }
    architectures = Collections.unmodifiableSet(EnumSet.copyOf(architectures));
    switch (family) {
      case PAPER -> {
        requireHeadDim(headDim);
        requireSlices(headDim, slices);
        require(operation.isOfPaper(), operation, family);
        require(technique == Technique.SIMT && precision == Precision.ACCURATE, technique, family);
        require(elementType == ElementType.F32, elementType, family);
        if (operation.isScan()) {
          ScanPlan.of(headDim, slices);
        }
      }
      case CHUNKED -> {
        requireChunked(operation, technique, elementType, precision);
        requireChunkedHeadDim(operation, technique, headDim);
        requireWgmma(technique, architectures);
        if (operation == Operation.ONE_SWEEP) {
          OneSweepPlan.of(headDim, elementType);
        } else if (technique == Technique.WGMMA && !OutputsPlan.isOutputs(operation)) {
          HopperPlan.of(operation, headDim, elementType, precision);
        } else if (operation.keepsState()) {
          TilePlan.sweep(operation, headDim, elementType, precision);
        }
      }
    }
  }

  /** A kernel of the family {@code paper}. */
  public static KernelSpec paper(
      Operation operation, int headDim, int slices, Set<Architecture> architectures) {
    return new KernelSpec(
        operation,
        Family.PAPER,
        Technique.SIMT,
        headDim,
        slices,
        ElementType.F32,
        Precision.ACCURATE,
        architectures);
  }

  /**
   * A kernel of the family {@code chunked}.
   *
   * @param headDim D of a forward or of a causal gradient on tensor cores, and of sums by wgmma,
   *     else 0
   */
  public static KernelSpec chunked(
      Operation operation,
      Technique technique,
      int headDim,
      ElementType elementType,
      Precision precision,
      Set<Architecture> architectures) {
    return new KernelSpec(
        operation,
        Family.CHUNKED,
        technique,
        headDim,
        Math.ceilDiv(headDim, BOX_COLUMNS),
        elementType,
        precision,
        architectures);
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

  /**
   * The name of the kernel, of its file and of its image: {@code la_paper_forward_d128_l4_f32},
   * {@code la_chunked_forward_wgmma_d128_f32_tf32}, {@code la_chunked_decode_simt_bf16}.
   */
  public String symbol() {
    if (family == Family.PAPER) {
      return String.format(
          Locale.ROOT,
          "la_%s_%s_d%d_l%d_%s",
          family.id(),
          operation.id(),
          headDim,
          slices,
          elementType.id());
    }
    boolean choice = technique != Technique.SIMT && elementType == ElementType.F32;
    return String.format(
        Locale.ROOT,
        "la_%s_%s_%s%s_%s%s",
        family.id(),
        operation.id(),
        technique.id(),
        headDim == 0 ? "" : "_d" + headDim,
        elementType.id(),
        choice ? "_" + precision.id() : "");
  }

  @Override
  public int compareTo(KernelSpec other) {
    return ORDER.compare(this, other);
  }

  private static void require(boolean condition, Object what, Family family) {
    if (!condition) {
      throw new IllegalArgumentException("the family " + family.id() + " has no " + what);
    }
  }

  private static void requireChunked(
      Operation operation, Technique technique, ElementType elementType, Precision precision) {
    boolean built =
        switch (operation) {
          case FORWARD, STATE_SUMS, QUERY_GRADIENT, KEY_VALUE_GRADIENT, GRADIENT_SUMS ->
              technique != Technique.SIMT;
          case NORMALIZED_FORWARD,
              NORMALIZED_STATE_SUMS,
              NORMALIZED_QUERY_GRADIENT,
              NORMALIZED_KEY_VALUE_GRADIENT,
              NORMALIZED_GRADIENT_SUMS,
              ONE_SWEEP ->
              technique == Technique.WGMMA; // others ask at run time
          case NORMALIZED_GRADIENT_OUTPUTS ->
              technique == Technique.WGMMA && OutputsPlan.exists(operation, precision);
          case STATE_OUTPUTS, GRADIENT_OUTPUTS ->
              technique == Technique.MMA
                  || (technique == Technique.WGMMA && OutputsPlan.exists(operation, precision));
          case STATE_SCAN -> technique == Technique.SIMT && elementType == ElementType.F32;
          case DECODE, RECURRENCE, GRADIENT_ROWS, GRADIENT_RECURRENCE, NORMALIZE_ROWS_GRADIENT ->
              technique == Technique.SIMT;
          default -> false;
        };
    require(built, operation + " by " + technique.id(), Family.CHUNKED);
    if (!precision.fits(elementType)) {
      throw new IllegalArgumentException(
          elementType.id() + " tensors know no precision " + precision.id());
    }
    if (technique == Technique.MMA && precision == Precision.DEFAULT) {
      throw new IllegalArgumentException("mma has no precision default: accurate serves it too");
    }
    if (technique == Technique.SIMT && elementType == ElementType.F32) {
      require(precision == Precision.ACCURATE, operation + " " + precision.id(), Family.CHUNKED);
    }
  }

  private static void requireChunkedHeadDim(Operation operation, Technique technique, int headDim) {
    boolean isForAny = technique != Technique.WGMMA || OutputsPlan.isOutputs(operation);
    if (operation.keepsState() || !isForAny) {
      requireHeadDim(headDim);
      if (headDim > MAX_CHUNKED_HEAD_DIM) {
        throw new IllegalArgumentException(
            String.format(
                Locale.ROOT,
                "a %s by %s has a head dimension of at most %d, not %d",
                operation.id(),
                technique.id(),
                MAX_CHUNKED_HEAD_DIM,
                headDim));
      }
    } else if (headDim != 0) {
      throw new IllegalArgumentException(
          operation.id() + " is one kernel for every head dimension: 0, not " + headDim);
    }
  }

  private static void requireWgmma(Technique technique, Set<Architecture> architectures) {
    boolean only = architectures.equals(Set.of(Architecture.SM_90A));
    if (only != (technique == Technique.WGMMA)) {
      throw new IllegalArgumentException(
          "wgmma is for sm_90a alone, and sm_90a for wgmma: "
              + technique.id()
              + " for "
              + architectures);
    }
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
