package io.github.linattn.test.contract;

import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.github.linattn.DType;
import io.github.linattn.Mode;
import io.github.linattn.test.harness.Backends;
import io.github.linattn.test.harness.Case;
import io.github.linattn.test.harness.GpuTest;
import io.github.linattn.test.harness.Layout;
import io.github.linattn.test.harness.Results;
import io.github.linattn.test.harness.Run;
import io.github.linattn.test.harness.Seeds;
import io.github.linattn.test.harness.Subject;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * Breaks when a plan of a backward that the planner does not choose for a small problem is wrong:
 * every technique, with whole sequences and with segments of one, two and three chunks, and one
 * sweep.
 */
@GpuTest
final class GpuGradientPlansTest {
  private static final String PROPERTY = "linattn.gradient.plan";
  private static final String ONE_SWEEP = "one_sweep";
  private static final int ONE_SWEEP_DIM = 128;

  static List<Arguments> plansAndCases() {
    List<Arguments> rows = new ArrayList<>();
    for (Subject subject : Backends.gpu()) {
      for (String technique : List.of("wgmma", "mma")) {
        for (String cut : List.of("", ":64", ":128", ":192")) {
          String plan = technique + cut;
          for (Case.Builder builder : cases()) {
            Case problem = builder.build();
            if (isThere(plan, problem, subject)) {
              rows.add(Arguments.of(plan, problem, subject));
            }
          }
        }
      }
    }
    return rows;
  }

  /** Not every technique has kernels for every problem. */
  private static boolean isThere(String plan, Case problem, Subject subject) {
    System.setProperty(PROPERTY, plan);
    try {
      return Subject.plansGradients(problem, subject.backend());
    } finally {
      System.clearProperty(PROPERTY);
    }
  }

  private static List<Case.Builder> cases() {
    List<Case.Builder> cases = new ArrayList<>();
    for (DType dtype : DType.values()) {
      for (Mode mode : dtype == DType.F32 ? Mode.values() : new Mode[] {Mode.DEFAULT}) {
        String name = "gradient plan " + dtype + " " + mode;
        cases.add(SweepContract.of(name, 1, 2, 391, 64).dtype(dtype).mode(mode));
        cases.add(
            SweepContract.of(name, 1, 2, 391, 64)
                .dtype(dtype)
                .mode(mode)
                .afterTokens(37)
                .throughStates());
        cases.add(
            SweepContract.of(name, 1, 2, 271, 32)
                .dtype(dtype)
                .mode(mode)
                .packed(70, 0, 1, 200)
                .throughStates());
        cases.add(
            SweepContract.of(name, 2, 4, 2, 320, 128, 96).dtype(dtype).mode(mode).normalized());
        for (int dim : new int[] {32, 64, 192, 256}) {
          cases.add(SweepContract.of(name, 1, 2, 200, dim).dtype(dtype).mode(mode).normalized());
        }
        cases.add(
            SweepContract.of(name, 1, 2, 200, 96).dtype(dtype).mode(mode).coefficients(1.5f, 0));
        if (mode == Mode.ACCURATE || dtype == DType.F16) { // small gradients of states
          cases.add(
              SweepContract.of(name, 1, 1, 320, 96).dtype(dtype).mode(mode).afterTokens(8000));
        }
      }
    }
    return cases;
  }

  @AfterEach
  void choosesFreelyAgain() {
    System.clearProperty(PROPERTY);
  }

  @ParameterizedTest(name = "{0}: {1} on {2}")
  @MethodSource("plansAndCases")
  void everyPlanIsRight(String plan, Case problem, Subject subject) {
    System.setProperty(PROPERTY, plan);
    Results first = Run.of(problem, subject.backend());
    first.assertRight(problem);
    Run.of(problem, subject.backend()).assertSameBits(first, plan + " run twice");
  }

  static List<Arguments> oneSweeps() {
    List<Arguments> rows = new ArrayList<>();
    for (Subject subject : Backends.gpu()) {
      for (DType dtype : List.of(DType.BF16, DType.F16)) {
        for (Case.Builder builder : oneSweepCases(dtype)) {
          rows.add(Arguments.of(builder.dtype(dtype).keepingState().build(), subject));
        }
      }
    }
    return rows;
  }

  private static List<Case.Builder> oneSweepCases(DType dtype) {
    List<Case.Builder> cases = new ArrayList<>();
    for (int tokens : new int[] {1, 63, 64, 65, 200, 1000}) {
      cases.add(oneSweep(dtype + " ", 2, 3, tokens));
    }
    cases.add(oneSweep(dtype + " last gradient", 2, 3, 200).throughStates());
    cases.add(oneSweep(dtype + " states", 2, 3, 200).afterTokens(37).throughStates());
    cases.add(oneSweep(dtype + " one chunk, states", 2, 3, 50).afterTokens(37).throughStates());
    cases.add(oneSweep(dtype + " token-major", 2, 3, 200).layout(Layout.TOKEN_MAJOR));
    cases.add(oneSweep(dtype + " interleaved", 2, 3, 200).layout(Layout.INTERLEAVED));
    cases.add(oneSweep(dtype + " slope alone", 1, 2, 200).coefficients(0, 1));
    cases.add(
        oneSweep(dtype + " per head", 2, 3, 200)
            .coefficients(new float[] {1, -2, 1.5f}, new float[] {0.5f, 0.25f, -0.125f}));
    cases.add(oneSweep(dtype + " small gradients", 1, 1, 320).afterTokens(8000));
    float[] keys = gaussian("keys", 2 * 1000, 1);
    cases.add(
        oneSweep(dtype + " a state beyond fp16", 1, 2, 1000)
            .q(gaussian("queries", 2 * 1000, 0.02f))
            .k(keys)
            .v(times(300, keys)));
    return cases;
  }

  private static float[] gaussian(String name, int rows, float deviation) {
    SplittableRandom random = Seeds.random(name);
    float[] values = new float[rows * ONE_SWEEP_DIM];
    for (int i = 0; i < values.length; i++) {
      values[i] = (float) random.nextGaussian() * deviation;
    }
    return values;
  }

  private static float[] times(float factor, float[] values) {
    float[] products = new float[values.length];
    for (int i = 0; i < values.length; i++) {
      products[i] = factor * values[i];
    }
    return products;
  }

  private static Case.Builder oneSweep(String name, int batch, int heads, int tokens) {
    return SweepContract.of("one sweep " + name, batch, heads, tokens, ONE_SWEEP_DIM);
  }

  @ParameterizedTest(name = "{0} on {1}")
  @MethodSource("oneSweeps")
  void oneSweepIsRight(Case problem, Subject subject) {
    System.setProperty(PROPERTY, ONE_SWEEP);
    assumeTrue(
        Subject.plansGradients(problem, subject.backend()), "left out: this GPU has no one sweep");
    Results first = Run.of(problem, subject.backend());
    first.assertRight(problem);
    Run.of(problem, subject.backend()).assertSameBits(first, "one sweep run twice");
  }

  static List<Arguments> chains() {
    List<Arguments> rows = new ArrayList<>();
    for (Subject subject : Backends.gpu()) {
      for (DType dtype : List.of(DType.BF16, DType.F16)) {
        for (Case.Builder builder : chainCases(dtype)) {
          rows.add(Arguments.of(builder.dtype(dtype).keepingState().build(), subject));
        }
      }
    }
    return rows;
  }

  private static List<Case.Builder> chainCases(DType dtype) {
    String name = dtype + " chain ";
    return List.of(
        oneSweep(name, 2, 3, 129),
        oneSweep(name, 1, 2, 1000),
        oneSweep(name + "last gradient", 2, 3, 384).throughStates(),
        oneSweep(name + "states", 2, 3, 420).afterTokens(37).throughStates(),
        oneSweep(name + "token-major", 2, 3, 300).layout(Layout.TOKEN_MAJOR),
        oneSweep(name + "per head", 2, 3, 300)
            .coefficients(new float[] {1, -2, 1.5f}, new float[] {0.5f, 0.25f, -0.125f}));
  }

  /** Every 128 tokens, where the planner would take thousands. */
  @ParameterizedTest(name = "{0} on {1}")
  @MethodSource("chains")
  void aChainOfSegmentsIsRight(Case problem, Subject subject) {
    assumeTrue(plansOneSweep(problem, subject), "left out: this GPU has no one sweep");
    System.setProperty(PROPERTY, ONE_SWEEP + ":128");
    Results first = Run.of(problem, subject.backend());
    first.assertRight(problem);
    Run.of(problem, subject.backend()).assertSameBits(first, "a chain run twice");
  }

  private static boolean plansOneSweep(Case problem, Subject subject) {
    System.setProperty(PROPERTY, ONE_SWEEP);
    return Subject.plansGradients(problem, subject.backend());
  }
}
