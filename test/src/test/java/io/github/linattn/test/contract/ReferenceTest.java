package io.github.linattn.test.contract;

import static org.assertj.core.api.Assertions.assertThat;

import io.github.linattn.AttentionShape;
import io.github.linattn.reference.Reference;
import io.github.linattn.test.harness.Case;
import io.github.linattn.test.harness.OracleFile;
import io.github.linattn.test.harness.Seeds;
import io.github.linattn.test.harness.StateGradientValues;
import io.github.linattn.test.harness.StateValues;
import java.util.List;
import java.util.function.BiFunction;
import java.util.stream.Stream;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Breaks when the reference that all else is measured by is wrong itself. */
final class ReferenceTest {
  /** A power of two, so that adding it to a number of few bits is exact in fp32. */
  private static final float STEP = 0x1p-9f;

  static List<Case> problems() {
    AttentionShape shape = new AttentionShape(1, 2, 1, 6, 16, 32);
    return Stream.of(
            Case.of("causal", shape),
            Case.of("causal normalized", shape).normalized(),
            Case.of("all normalized", shape).normalized().nonCausal(),
            Case.of("all", shape).nonCausal(),
            Case.of("packed", shape).packed(2, 0, 4),
            Case.of("from a state", shape).afterTokens(3),
            Case.of("through states", shape).afterTokens(3).throughStates(),
            Case.of("packed through states", shape)
                .packed(2, 0, 4)
                .afterTokens(2)
                .normalized()
                .throughStates())
        .map(builder -> builder.coefficients(new float[] {1, 1.5f}, new float[] {0.5f, -0.75f}))
        .map(builder -> coarse(builder.build()))
        .toList();
  }

  /** Inputs of few bits. */
  private static Case coarse(Case problem) {
    return problem
        .but("coarse")
        .q(coarse(problem.q))
        .k(coarse(problem.k))
        .v(coarse(problem.v))
        .dO(coarse(problem.dO))
        .build();
  }

  private static float[] coarse(float[] values) {
    float[] rounded = new float[values.length];
    for (int i = 0; i < values.length; i++) {
      rounded[i] = Math.round(values[i] * 64) / 64f;
    }
    return rounded;
  }

  @ParameterizedTest
  @MethodSource("problems")
  void gradientsAreWhatFiniteDifferencesOfTheLossSay(Case problem) {
    Reference.Result result = problem.expected();
    check(problem, "dq", problem.q, result.dq(), Case.Builder::q);
    check(problem, "dk", problem.k, result.dk(), Case.Builder::k);
    check(problem, "dv", problem.v, result.dv(), Case.Builder::v);
    check(
        problem, "da", problem.a, result.da(), (builder, a) -> builder.coefficients(a, problem.b));
    check(
        problem, "db", problem.b, result.db(), (builder, b) -> builder.coefficients(problem.a, b));
  }

  @ParameterizedTest
  @MethodSource("problems")
  void gradientsOfStatesAreWhatFiniteDifferencesOfTheLossSay(Case problem) {
    StateValues state = problem.initial;
    if (state == null) {
      return;
    }
    Reference.StateGradient gradient = problem.expected().initialState();
    float[] s = state.s();
    float[] z = state.z();
    float[] u = state.u();
    long[] counts = state.counts();
    check(
        problem,
        "dS",
        s,
        gradient.ds(),
        (builder, moved) -> builder.from(new StateValues(moved, z, u, counts)));
    check(
        problem,
        "dz",
        z,
        gradient.dz(),
        (builder, moved) -> builder.from(new StateValues(s, moved, u, counts)));
    check(
        problem,
        "du",
        u,
        gradient.du(),
        (builder, moved) -> builder.from(new StateValues(s, z, moved, counts)));
  }

  private static void check(
      Case problem,
      String what,
      float[] input,
      double[] gradient,
      BiFunction<Case.Builder, float[], Case.Builder> replace) {
    double largest = 0;
    for (double element : gradient) {
      largest = Math.max(largest, Math.abs(element));
    }
    for (int i = 0; i < input.length; i++) {
      double up = loss(replace.apply(problem.but("up"), moved(input, i, STEP)).build());
      double down = loss(replace.apply(problem.but("down"), moved(input, i, -STEP)).build());
      double difference = (up - down) / (2.0 * STEP);
      assertThat(Math.abs(difference - gradient[i]) <= 1e-3 * largest) // STEP² times derivatives
          .as("%s %s[%d]: %s, %s%s", problem, what, i, gradient[i], difference, Seeds.replay())
          .isTrue();
    }
  }

  private static float[] moved(float[] values, int at, float step) {
    float[] moved = values.clone();
    moved[at] += step;
    return moved;
  }

  /** Σ o·dO, and the same of the final state, in double. */
  private static double loss(Case problem) {
    Reference.Result result = Reference.of(problem.problem(null));
    double sum = along(result.o(), problem.dO);
    StateGradientValues gradient = problem.finalGradient;
    if (gradient == null) {
      return sum;
    }
    return sum
        + along(result.state().s(), gradient.ds())
        + along(result.state().z(), gradient.dz())
        + along(result.state().u(), gradient.du());
  }

  private static double along(double[] values, float[] gradient) {
    double sum = 0;
    for (int i = 0; i < values.length; i++) {
      sum += values[i] * gradient[i];
    }
    return sum;
  }

  static List<String> files() {
    return OracleFile.NAMES;
  }

  @ParameterizedTest
  @MethodSource("files")
  void agreesWithAnIndependentProgram(String name) {
    OracleFile file = OracleFile.read(name);
    Case problem = file.problem().build();
    Reference.Result ours = problem.expected();
    Reference.Result theirs = file.answer();
    assertNear(name + " o", ours.o(), theirs.o(), 0);
    assertNear(name + " g", ours.g(), theirs.g(), 0);
    assertNear(name + " dq", ours.dq(), theirs.dq(), 1e-3);
    assertNear(name + " dk", ours.dk(), theirs.dk(), 1e-3);
    assertNear(name + " dv", ours.dv(), theirs.dv(), 0);
    assertNear(name + " da", ours.da(), theirs.da(), 1e-3);
    assertNear(name + " db", ours.db(), theirs.db(), 1e-3);
  }

  /** 1e-7 because the coefficients 0.7, 0.3 and 0.4 are fp32 here and double there. */
  private static void assertNear(String what, double[] ours, double[] theirs, double floor) {
    double error = 0;
    double norm = 0;
    for (int i = 0; i < ours.length; i++) {
      error += (ours[i] - theirs[i]) * (ours[i] - theirs[i]);
      norm += theirs[i] * theirs[i];
    }
    assertThat(Math.sqrt(error) <= 1e-7 * Math.max(Math.sqrt(norm), floor)).as(what).isTrue();
  }
}
