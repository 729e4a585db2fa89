package io.github.linattn.test.harness;

import static org.assertj.core.api.Assertions.assertThat;

import io.github.linattn.DType;
import io.github.linattn.Mode;
import io.github.linattn.reference.ErrorBudget;
import io.github.linattn.reference.Reference;

/**
 * The one table of bounds. A quantity is right where |got − expected| ≤ bound · |expected| +
 * quantum · √count in the Euclidean norm over the whole tensor; a NaN makes the comparison false.
 *
 * <p>Expected is the reference in double on inputs already rounded to the type, so no rounding of
 * inputs is in it. What is left:
 *
 * <ul>
 *   <li>fp32 arithmetic, 2e-6 for up to 10,000 tokens. On a GPU a sum over a chunk of 64 tokens
 *       errs by at most 64 · 2^-24 = 3.8e-6 and by about 8 · 2^-24 = 5e-7 in practice, and chunks
 *       add in double or compensated. The CPU adds up to 64 D tokens one by one, in mode ACCURATE
 *       64, which in a product with the sum comes to some 2^-24 · √64 = 5e-7, and compensated
 *       beyond. A running fp32 sum may grow in error with its length, so the bound does beyond
 *       10,000 tokens.
 *   <li>products on tensor cores: what the mode promises, and for 16-bit tensors the rounding of
 *       states and weights to their type.
 *   <li>rounding of stored results: half a unit in the last place, 2^-9 for bf16 and 2^-11 for
 *       fp16; below 2^-14 fp16 has a fixed step of 2^-24, half of which is the quantum.
 *   <li>da and db are sums over tokens of differences that nearly cancel: fifty times the bound.
 *       Their terms have either sign, so that |expected| is no smaller than the root of the sum of
 *       their squares, which is what such a sum comes to unless it vanishes by chance.
 * </ul>
 *
 * <p>Where the exact result is 0, as dq, dk, da and db of a lone token are, no bound relative to it
 * makes sense: an absolute one, of the size of the terms that cancel, takes its place.
 */
public final class Tolerance {
  private static final double FP32 = ErrorBudget.of(DType.F32, Mode.ACCURATE);
  private static final double TOKENS_OF_FP32 = 10_000;
  private static final double CANCELLING =
      ErrorBudget.ofCoefficients(DType.F32, Mode.ACCURATE) / FP32;

  private Tolerance() {}

  /**
   * Bounds of one problem's results.
   *
   * @param stored of o, which has the type of the inputs
   * @param gradient of dq, dk and dv, likewise
   * @param computed of g and the state, which are fp32
   * @param coefficient of da and db
   */
  public record Bounds(double stored, double gradient, double computed, double coefficient) {}

  /** Bounds against an answer for the inputs as the backend reads them. */
  public static Bounds of(Case problem) {
    double computed = computed(problem.shape.tokens());
    double stored = stored(problem.dtype, problem.shape.tokens());
    return new Bounds(stored, stored, computed, CANCELLING * computed);
  }

  /**
   * Bounds that the mode promises, as a backend by tensor cores needs them, for inputs as it reads
   * them.
   */
  public static Bounds ofMode(Case problem) {
    double growth = Math.max(1, problem.shape.tokens() / TOKENS_OF_FP32);
    double bound = growth * ErrorBudget.of(problem.dtype, problem.mode);
    double gradient = growth * ErrorBudget.ofGradients(problem.dtype, problem.mode);
    return new Bounds(bound, gradient, bound, CANCELLING * bound);
  }

  /**
   * Bounds against an answer for inputs that were not yet rounded to 16 bits: each of q, k, v and
   * dO then brings an error of up to half a unit in the last place of its own, and so does the
   * result.
   */
  public static Bounds unrounded(Case problem) {
    Mode exact = problem.dtype == DType.F32 ? Mode.ACCURATE : Mode.DEFAULT;
    double bound = ErrorBudget.of(problem.dtype, exact);
    double gradient = ErrorBudget.ofGradients(problem.dtype, exact);
    return new Bounds(bound, gradient, bound, CANCELLING * bound);
  }

  /** Bound of a quantity that is stored as {@code dtype}. */
  public static double stored(DType dtype, int tokens) {
    double halfUnit =
        switch (dtype) {
          case F32 -> 0;
          case BF16 -> 0x1p-9;
          case F16 -> 0x1p-11;
        };
    return halfUnit + computed(tokens);
  }

  /** Bound of a quantity that is stored as fp32, whatever the type of the inputs. */
  public static double computed(int tokens) {
    return FP32 * Math.max(1, tokens / TOKENS_OF_FP32);
  }

  private static double quantum(DType dtype) {
    return dtype == DType.F16 ? 0x1p-25 : 0;
  }

  /**
   * Asserts that {@code got} is {@code expected} within {@code bound}.
   *
   * @param scale norm that terms of the result have before they cancel, or 0
   */
  public static void assertClose(
      String what, double[] expected, float[] got, DType dtype, double bound, double scale) {
    assertClose(what, expected, got, dtype, bound, scale, 0);
  }

  /**
   * Asserts that sums {@code got} are {@code expected} within {@code bound}.
   *
   * @param scale as above
   * @param spread root of the sum of the squares of the terms
   */
  static void assertClose(
      String what,
      double[] expected,
      float[] got,
      DType dtype,
      double bound,
      double scale,
      double spread) {
    assertThat(got).as(what + Seeds.replay()).hasSameSizeAs(expected);
    double size = Reference.norm(expected);
    double error = Reference.error(expected, got) * (size == 0 ? 1 : size);
    double allowed =
        bound * Math.max(Math.max(size, spread), isZero(size, scale) ? scale : 0)
            + quantum(dtype) * Math.sqrt(expected.length);
    assertThat(error <= allowed)
        .as(
            "%s: error %.3g, allowed %.3g, size %.3g, in %s%s",
            what, error, allowed, size, dtype, Seeds.replay())
        .isTrue();
  }

  /** Whether nothing but the rounding of double is left of terms of this scale. */
  private static boolean isZero(double size, double scale) {
    return size <= 1e-12 * scale;
  }
}
