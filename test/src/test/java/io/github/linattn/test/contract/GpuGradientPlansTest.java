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
 * every technique, with whole sequences, with segments of one, two and three chunks and such of dq
 * alone, or of dk and dv, by blocks that hand states on; and one sweep of whole sequences, by
 * blocks that hand states on, and in chains.
 */
@GpuTest
final class GpuGradientPlansTest {
  private static final String PROPERTY = "linattn.gradient.plan";
  private static final String ONE_SWEEP = "one_sweep";

  /** What one sweep is built for. */
  private enum OneSweep {
    BF16_64(DType.BF16, 64),
    BF16_128(DType.BF16, 128),
    F16_128(DType.F16, 128);

    private final DType dtype;
    private final int dim;

    OneSweep(DType dtype, int dim) {
      this.dtype = dtype;
      this.dim = dim;
    }

    private Case.Builder of(String name, int batch, int heads, int tokens) {
      String title = "one sweep %s %s".formatted(dtype, name);
      return SweepContract.of(title, batch, heads, tokens, dim).dtype(dtype).keepingState();
    }

    private float[] gaussian(String name, int rows, float deviation) {
      SplittableRandom random = Seeds.random(name);
      float[] values = new float[rows * dim];
      for (int i = 0; i < values.length; i++) {
        values[i] = (float) random.nextGaussian() * deviation;
      }
      return values;
    }
  }

  static List<Arguments> plansAndCases() {
    List<Arguments> rows = new ArrayList<>();
    for (Subject subject : Backends.gpu()) {
      for (String technique : List.of("wgmma", "mma")) {
        for (String cut : List.of("", ":64", ":128", ":192", ":64:0", ":192:64", ":64+", ":128+")) {
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

  /**
   * Not every technique has kernels for every problem, and relays are for one sequence by wgmma.
   */
  private static boolean isThere(String plan, Case problem, Subject subject) {
    System.setProperty(PROPERTY, plan);
    try {
      return Subject.canTake(plan, problem) && Subject.plansGradients(problem, subject.backend());
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
        for (int dim : new int[] {64, 128, 256}) { // sixteen query heads add to each dk and dv
          cases.add(SweepContract.of(name, 1, 16, 1, 140, dim, dim).dtype(dtype).mode(mode));
        }
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
      for (OneSweep kind : OneSweep.values()) {
        for (Case.Builder builder : oneSweepCases(kind)) {
          Case problem = builder.build();
          rows.add(Arguments.of(ONE_SWEEP, problem, subject));
          if (problem.shape.tokens() > 128) {
            rows.add(Arguments.of(ONE_SWEEP + ":128+", problem, subject));
            rows.add(Arguments.of(ONE_SWEEP + ":128*", problem, subject));
          }
        }
      }
    }
    return rows;
  }

  private static List<Case.Builder> oneSweepCases(OneSweep kind) {
    List<Case.Builder> cases = new ArrayList<>();
    for (int tokens : new int[] {1, 63, 64, 65, 200, 1000}) {
      cases.add(kind.of("", 2, 3, tokens));
    }
    cases.add(kind.of("last gradient", 2, 3, 200).throughStates());
    cases.add(kind.of("states", 2, 3, 200).afterTokens(37).throughStates());
    cases.add(kind.of("one chunk, states", 2, 3, 50).afterTokens(37).throughStates());
    cases.add(kind.of("token-major", 2, 3, 200).layout(Layout.TOKEN_MAJOR));
    cases.add(kind.of("interleaved", 2, 3, 200).layout(Layout.INTERLEAVED));
    cases.add(kind.of("slope alone", 1, 2, 200).coefficients(0, 1));
    cases.add(
        kind.of("per head", 2, 3, 200)
            .coefficients(new float[] {1, -2, 1.5f}, new float[] {0.5f, 0.25f, -0.125f}));
    cases.add(kind.of("small gradients", 1, 1, 320).afterTokens(8000));
    float[] keys = kind.gaussian("keys", 2 * 1000, 1);
    cases.add(
        kind.of("a state beyond fp16", 1, 2, 1000)
            .q(kind.gaussian("queries", 2 * 1000, 0.02f))
            .k(keys)
            .v(times(300, keys)));
    return cases;
  }

  private static float[] times(float factor, float[] values) {
    float[] products = new float[values.length];
    for (int i = 0; i < values.length; i++) {
      products[i] = factor * values[i];
    }
    return products;
  }

  @ParameterizedTest(name = "{0}: {1} on {2}")
  @MethodSource("oneSweeps")
  void oneSweepIsRight(String plan, Case problem, Subject subject) {
    System.setProperty(PROPERTY, plan);
    assumeTrue(
        Subject.plansGradients(problem, subject.backend()), "left out: this GPU has no one sweep");
    Results first = Run.of(problem, subject.backend());
    first.assertRight(problem);
    Run.of(problem, subject.backend()).assertSameBits(first, plan + " run twice");
  }

  static List<Arguments> chains() {
    List<Arguments> rows = new ArrayList<>();
    for (Subject subject : Backends.gpu()) {
      for (OneSweep kind : OneSweep.values()) {
        chainCases(kind).forEach(builder -> rows.add(Arguments.of(builder.build(), subject)));
      }
    }
    return rows;
  }

  private static List<Case.Builder> chainCases(OneSweep kind) {
    return List.of(
        kind.of("chain", 2, 3, 129),
        kind.of("chain", 1, 2, 1000),
        kind.of("chain, last gradient", 2, 3, 384).throughStates(),
        kind.of("chain, states", 2, 3, 420).afterTokens(37).throughStates(),
        kind.of("chain, token-major", 2, 3, 300).layout(Layout.TOKEN_MAJOR),
        kind.of("chain, per head", 2, 3, 300)
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
