package io.github.linattn.test.contract;

import static org.assertj.core.api.Assertions.assertThat;

import io.github.linattn.AttentionShape;
import io.github.linattn.DType;
import io.github.linattn.Mode;
import io.github.linattn.test.harness.Backends;
import io.github.linattn.test.harness.Case;
import io.github.linattn.test.harness.Results;
import io.github.linattn.test.harness.Run;
import io.github.linattn.test.harness.Seeds;
import io.github.linattn.test.harness.StateValues;
import io.github.linattn.test.harness.Subject;
import io.github.linattn.test.harness.Tolerance;
import java.util.Arrays;
import java.util.List;
import java.util.SplittableRandom;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** {@link PropertyContract} on the CPU, and what only its sums in fp32 could break. */
final class CpuPropertyTest extends PropertyContract {
  private static final int D = 32;

  @Override
  List<Subject> subjects() {
    return Backends.cpu();
  }

  /** Breaks when sums are centred by rows that are not like the rest: dq then errs by 1e-5. */
  @ParameterizedTest
  @MethodSource("subjects")
  void aBeginningUnlikeTheRestCostsNoDigits(Subject subject) {
    int tokens = 10_000;
    int first = 300;
    SplittableRandom random = Seeds.random("padding");
    Case problem =
        Case.of("padding before positive rows", AttentionShape.of(1, 1, tokens, D))
            .normalized()
            .q(padded(random, tokens, first))
            .k(padded(random, tokens, first))
            .v(padded(random, tokens, first))
            .build();
    Run.of(problem, subject.backend()).assertRight(problem);
  }

  /** Breaks when rows have a part, by what sums are centred on, in results that do not see them. */
  @ParameterizedTest
  @MethodSource("subjects")
  void aHugeRowLeavesResultsThatDoNotSeeIt(Subject subject) {
    int tokens = 1100;
    for (int huge : new int[] {1, 50, 200, 603}) {
      Case any = Case.of("a huge row", AttentionShape.of(1, 1, tokens, D)).build();
      float[] dO = any.dO.clone();
      Arrays.fill(dO, huge * D, dO.length, 0);
      Case clean = any.but("queries before " + huge).dO(dO).build();
      Case spoiled = clean.but("huge").k(timesHuge(any.k, huge)).v(timesHuge(any.v, huge)).build();
      Results expected = Run.of(clean, subject.backend());
      Results got = Run.of(spoiled, subject.backend());
      assertSameRowsBefore(huge, expected.dq(), got.dq(), "dq");
      assertSameRowsBefore(huge, expected.dk(), got.dk(), "dk");
      assertSameRowsBefore(huge, expected.dv(), got.dv(), "dv");
    }
  }

  private static float[] timesHuge(float[] rows, int row) {
    float[] changed = rows.clone();
    for (int at = row * D; at < (row + 1) * D; at++) {
      changed[at] *= 1e10f;
    }
    return changed;
  }

  private static void assertSameRowsBefore(int row, float[] expected, float[] got, String what) {
    Results.assertBits(
        Arrays.copyOf(got, row * D), Arrays.copyOf(expected, row * D), what + " before row " + row);
  }

  /** Breaks when sums of many rows are centred on what a few others say. */
  @ParameterizedTest
  @MethodSource("subjects")
  void aLongStateCostsNoDigits(Subject subject) {
    long seen = 1_000_000;
    SplittableRandom random = Seeds.random("long state");
    double deviation = Math.sqrt(seen);
    StateValues state =
        new StateValues(
            gaussian(random, D * D, deviation / Math.sqrt(D)),
            gaussian(random, D, deviation / Math.sqrt(D)),
            gaussian(random, D, deviation),
            new long[] {seen});
    for (int tokens : new int[] {1, 1100}) {
      Case problem =
          Case.of("long state", AttentionShape.of(1, 1, tokens, D))
              .normalized()
              .from(state)
              .build();
      Run.of(problem, subject.backend()).assertRight(problem);
    }
  }

  /** Breaks when gradients whose terms nearly cancel are sums of these terms as they are. */
  @ParameterizedTest
  @MethodSource("subjects")
  void gradientsOfRowsThatRepeatKeepTheirDigits(Subject subject) {
    for (int period : new int[] {1, 2}) {
      Case problem = ofRepeatedRows(period);
      Run.of(problem, subject.backend()).assertRight(problem);
    }
  }

  /**
   * Breaks when roundings that all go one way are not noticed where no mode asks for more digits.
   */
  @ParameterizedTest
  @MethodSource("subjects")
  void rowsThatRepeatHoldTheBoundOfEachMode(Subject subject) {
    for (Mode mode : Mode.values()) {
      for (int period : new int[] {1, 2, 3}) {
        Case problem = ofRepeatedRows(period);
        problem = problem.but(problem + ", " + mode).mode(mode).build();
        Run.of(problem, subject.backend())
            .assertRight(problem, problem.expected(), Tolerance.ofMode(problem));
      }
    }
  }

  private static float[] gaussian(SplittableRandom random, int count, double deviation) {
    float[] values = new float[count];
    for (int i = 0; i < count; i++) {
      values[i] = (float) (deviation * random.nextGaussian());
    }
    return values;
  }

  /**
   * Breaks when a square that fp32 cannot hold costs a row its digits, or its neighbours theirs.
   */
  @ParameterizedTest
  @MethodSource("subjects")
  void queriesOfAnyLengthAreNormalized(Subject subject) {
    int tokens = 300;
    Case problem = Case.of("lengths", AttentionShape.of(1, 1, tokens, D)).normalized().build();
    float[] q = problem.q.clone();
    for (int i = 0; i < q.length; i++) {
      q[i] *= scale(i / D);
    }
    Results plain = Run.of(problem, subject.backend());
    Results scaled =
        Run.of(problem.but("some of them long, some short").q(q).build(), subject.backend());
    double[] expected = new double[q.length];
    float[] dq = new float[q.length];
    for (int i = 0; i < q.length; i++) {
      expected[i] = plain.dq()[i];
      dq[i] = scaled.dq()[i] * scale(i / D);
      if (scale(i / D) == 1) {
        assertThat(scaled.dq()[i]).as("dq of a row like before").isEqualTo(plain.dq()[i]);
      }
    }
    double bound = 2 * Tolerance.computed(tokens); // two runs
    Tolerance.assertClose("dq times the length", expected, dq, DType.F32, bound, 0);
    Tolerance.assertClose("dk", doubles(plain.dk()), scaled.dk(), DType.F32, bound, 0);
    Tolerance.assertClose("dv", doubles(plain.dv()), scaled.dv(), DType.F32, bound, 0);
    Tolerance.assertClose("o", doubles(plain.o()), scaled.o(), DType.F32, bound, 0);
  }

  private static float scale(int token) {
    return switch (token % 7) {
      case 2 -> 0x1p-70f;
      case 5 -> 0x1p70f;
      default -> 1;
    };
  }

  private static double[] doubles(float[] values) {
    double[] doubles = new double[values.length];
    Arrays.setAll(doubles, i -> values[i]);
    return doubles;
  }

  private static float[] padded(SplittableRandom random, int tokens, int first) {
    float[] rows = new float[tokens * D];
    for (int i = 0; i < rows.length; i++) {
      double x = random.nextGaussian();
      rows[i] = (float) (i < first * D ? 1e-3 * x : Math.abs(x));
    }
    return rows;
  }
}
