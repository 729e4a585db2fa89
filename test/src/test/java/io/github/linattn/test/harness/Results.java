package io.github.linattn.test.harness;

import static org.assertj.core.api.Assertions.assertThat;

import io.github.linattn.AttentionShape;
import io.github.linattn.DType;
import io.github.linattn.reference.Reference;
import org.jspecify.annotations.Nullable;

/**
 * What a backend answered, head-major.
 *
 * @param dq null, as the other gradients, where the backend refuses them
 * @param state of a problem that is causal or keeps it, else null
 * @param initialGradient of the state, where the problem goes through states, else null
 * @param onTensorCores whether products were rounded as the mode allows
 */
public record Results(
    float[] o,
    float[] g,
    float @Nullable [] dq,
    float @Nullable [] dk,
    float @Nullable [] dv,
    float @Nullable [] da,
    float @Nullable [] db,
    @Nullable StateValues state,
    @Nullable StateGradientValues initialGradient,
    boolean onTensorCores) {

  /** Asserts that all of it is what the reference says. */
  public void assertRight(Case problem) {
    assertRight(problem, problem.expected(), bounds(problem));
  }

  private Tolerance.Bounds bounds(Case problem) {
    return onTensorCores ? Tolerance.ofMode(problem) : Tolerance.of(problem);
  }

  /** Asserts that o, g and the state are what the reference says. */
  public void assertForwardRight(Case problem) {
    assertForwardRight(problem, problem.expected(), bounds(problem));
  }

  private void assertForwardRight(
      Case problem, Reference.Result expected, Tolerance.Bounds bounds) {
    double computed = bounds.computed();
    check(problem, "o", expected.o(), o, problem.dtype, bounds.stored(), 0);
    check(problem, "g", expected.g(), g, DType.F32, computed, 0);
    if (state != null) {
      check(problem, "S", expected.state().s(), state.s(), DType.F32, computed, 0);
      check(problem, "z", expected.state().z(), state.z(), DType.F32, computed, 0);
      check(problem, "u", expected.state().u(), state.u(), DType.F32, computed, 0);
      assertThat(state.counts()).as("%s: counts", problem).isEqualTo(expected.state().counts());
    }
  }

  /** Asserts that all of it is {@code expected}. */
  public void assertRight(Case problem, Reference.Result expected, Tolerance.Bounds bounds) {
    assertForwardRight(problem, expected, bounds);
    double gradient = bounds.gradient();
    double computed = bounds.computed();
    Scales scales = Scales.of(problem, expected.g());
    check(problem, "dq", expected.dq(), dq, problem.dtype, gradient, scales.queries);
    check(problem, "dk", expected.dk(), dk, problem.dtype, gradient, scales.keys);
    check(problem, "dv", expected.dv(), dv, problem.dtype, gradient, 0);
    checkCoefficients(problem, expected, bounds.coefficient(), scales);
    if (initialGradient != null) {
      Reference.StateGradient exact = expected.initialState();
      check(problem, "dS", exact.ds(), initialGradient.ds(), DType.F32, computed, 0);
      check(problem, "dz", exact.dz(), initialGradient.dz(), DType.F32, computed, 0);
      check(problem, "du", exact.du(), initialGradient.du(), DType.F32, computed, 0);
    }
  }

  /** Asserts that da and db are what the reference says. */
  public void assertCoefficientsRight(Case problem) {
    Reference.Result expected = problem.expected();
    Scales scales = Scales.of(problem, expected.g());
    checkCoefficients(problem, expected, bounds(problem).coefficient(), scales);
  }

  private void checkCoefficients(
      Case problem, Reference.Result expected, double bound, Scales scales) {
    double daSpread = Reference.norm(expected.daSpread());
    double dbSpread = Reference.norm(expected.dbSpread());
    checkSum(problem, "da", expected.da(), da, bound, scales.a, daSpread);
    checkSum(problem, "db", expected.db(), db, bound, scales.b, dbSpread);
  }

  private static void check(
      Case problem,
      String what,
      double[] expected,
      float @Nullable [] got,
      DType dtype,
      double bound,
      double scale) {
    if (got == null) {
      return;
    }
    Tolerance.assertClose(problem + ": " + what, expected, got, dtype, bound, scale);
  }

  private static void checkSum(
      Case problem,
      String what,
      double[] expected,
      float @Nullable [] got,
      double bound,
      double scale,
      double spread) {
    if (got == null) {
      return;
    }
    Tolerance.assertClose(problem + ": " + what, expected, got, DType.F32, bound, scale, spread);
  }

  /** Asserts the same bits everywhere. */
  public void assertSameBits(Results other, String what) {
    assertBits(o, other.o, what + ": o");
    assertBits(g, other.g, what + ": g");
    assertBits(dq, other.dq, what + ": dq");
    assertBits(dk, other.dk, what + ": dk");
    assertBits(dv, other.dv, what + ": dv");
    assertBits(da, other.da, what + ": da");
    assertBits(db, other.db, what + ": db");
    if (state != null && other.state != null) {
      assertBits(state.s(), other.state.s(), what + ": S");
      assertBits(state.z(), other.state.z(), what + ": z");
      assertBits(state.u(), other.state.u(), what + ": u");
      assertThat(state.counts()).as(what + ": counts").isEqualTo(other.state.counts());
    }
    if (initialGradient != null && other.initialGradient != null) {
      assertBits(initialGradient.ds(), other.initialGradient.ds(), what + ": dS");
      assertBits(initialGradient.dz(), other.initialGradient.dz(), what + ": dz");
      assertBits(initialGradient.du(), other.initialGradient.du(), what + ": du");
    }
  }

  /** Asserts that two arrays hold the same bits; NaN equals the same NaN. */
  public static void assertBits(float @Nullable [] got, float @Nullable [] expected, String what) {
    if (got == null || expected == null) {
      assertThat(got).as(what).isSameAs(expected);
      return;
    }
    assertThat(got).as(what + Seeds.replay()).hasSameSizeAs(expected);
    for (int i = 0; i < got.length; i++) {
      if (Float.floatToRawIntBits(got[i]) != Float.floatToRawIntBits(expected[i])) {
        throw new AssertionError(
            "%s differs at element %d: %s and %s%s"
                .formatted(what, i, got[i], expected[i], Seeds.replay()));
      }
    }
  }

  /** Norms of the terms that cancel in the gradients, by the inequality of Cauchy and Schwarz. */
  private record Scales(double queries, double keys, double a, double b) {

    static Scales of(Case problem, double[] g) {
      AttentionShape shape = problem.shape;
      double omega = 0;
      for (int i = 0; i < g.length; i++) {
        double row = rowNorm(problem.dO, i, shape.valueDim()) / Math.abs(g[i]);
        omega += row * row;
      }
      double value = largestRow(problem.v, shape.valueDim());
      double query = largestRow(problem.q, shape.keyDim());
      double key = largestRow(problem.k, shape.keyDim());
      double slope = 0;
      for (float b : problem.b) {
        slope = Math.max(slope, Math.abs(b));
      }
      double terms = Math.sqrt(omega) * value;
      double units = problem.normalize ? 1 : query * key;
      double queries =
          slope * terms * (problem.normalize ? 1 / smallestRow(problem.q, shape.keyDim()) : key);
      double keys =
          slope * terms * (problem.normalize ? 1 / smallestRow(problem.k, shape.keyDim()) : query);
      return new Scales(queries, keys, terms, terms * units);
    }

    private static double rowNorm(float[] values, int row, int width) {
      double squares = 0;
      for (int j = row * width; j < (row + 1) * width; j++) {
        squares += (double) values[j] * values[j];
      }
      return Math.sqrt(squares);
    }

    private static double largestRow(float[] values, int width) {
      double largest = 0;
      for (int row = 0; row < values.length / width; row++) {
        largest = Math.max(largest, rowNorm(values, row, width));
      }
      return largest;
    }

    private static double smallestRow(float[] values, int width) {
      double smallest = Double.MAX_VALUE;
      for (int row = 0; row < values.length / width; row++) {
        double norm = rowNorm(values, row, width);
        smallest = norm == 0 ? smallest : Math.min(smallest, norm);
      }
      return smallest;
    }
  }
}
