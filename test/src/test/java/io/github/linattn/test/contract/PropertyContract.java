package io.github.linattn.test.contract;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatIllegalArgumentException;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.AttentionState;
import io.github.linattn.Backend;
import io.github.linattn.DType;
import io.github.linattn.LinearAttention;
import io.github.linattn.Mode;
import io.github.linattn.Tensor;
import io.github.linattn.reference.ErrorBudget;
import io.github.linattn.reference.Reference;
import io.github.linattn.test.harness.Case;
import io.github.linattn.test.harness.Results;
import io.github.linattn.test.harness.Run;
import io.github.linattn.test.harness.Seeds;
import io.github.linattn.test.harness.StateGradientValues;
import io.github.linattn.test.harness.StateValues;
import io.github.linattn.test.harness.Subject;
import io.github.linattn.test.harness.Tolerance;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.SplittableRandom;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.stream.Stream;
import org.junit.jupiter.api.TestInstance;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * Breaks when results are close to the reference but lack a property that users build on:
 * causality, exact resumption, the identities of the gradients, or independence of calls.
 */
@TestInstance(TestInstance.Lifecycle.PER_CLASS)
abstract class PropertyContract {
  private static final int D = 32;

  abstract List<Subject> subjects();

  /** With the same N, the cut into chunks and segments is the same, so equality is exact. */
  @ParameterizedTest
  @MethodSource("subjects")
  void laterTokensNeverChangeEarlierResults(Subject subject) {
    int tokens = 1100;
    int first = 601; // inside a chunk
    Case problem = Case.of("causality", AttentionShape.of(1, 2, tokens, D)).build();
    Results before = Run.of(problem, subject.backend());
    Case changed =
        problem
            .but("other tokens from %d on".formatted(first))
            .q(changedFrom(problem.q, tokens, first))
            .k(changedFrom(problem.k, tokens, first))
            .v(changedFrom(problem.v, tokens, first))
            .build();
    Results after = Run.of(changed, subject.backend());
    for (int head = 0; head < 2; head++) {
      assertSameRows(before.o(), after.o(), head, tokens, D, 0, first, "o");
      assertSameRows(before.g(), after.g(), head, tokens, 1, 0, first, "g");
      assertSameRows(before.dq(), after.dq(), head, tokens, D, 0, first, "dq");
    }
    assertThat(after.o()).isNotEqualTo(before.o());
  }

  @ParameterizedTest
  @MethodSource("subjects")
  void earlierQueriesNeverChangeGradientsOfLaterKeys(Subject subject) {
    int tokens = 1100;
    int last = 601;
    Case problem = Case.of("reverse causality", AttentionShape.of(1, 2, tokens, D)).build();
    float[] q = problem.q.clone();
    for (int head = 0; head < 2; head++) {
      for (int at = head * tokens * D; at < (head * tokens + last) * D; at++) {
        q[at] = -q[at];
      }
    }
    Results before = Run.of(problem, subject.backend());
    Results after = Run.of(problem.but("other first queries").q(q).build(), subject.backend());
    for (int head = 0; head < 2; head++) {
      assertSameRows(before.dk(), after.dk(), head, tokens, D, last, tokens, "dk");
      assertSameRows(before.dv(), after.dv(), head, tokens, D, last, tokens, "dv");
    }
    assertThat(after.dk()).isNotEqualTo(before.dk());
  }

  private static float[] changedFrom(float[] values, int tokens, int first) {
    float[] changed = values.clone();
    for (int head = 0; head < values.length / (tokens * D); head++) {
      for (int at = (head * tokens + first) * D; at < (head + 1) * tokens * D; at++) {
        changed[at] = -values[at] + 0.25f;
      }
    }
    return changed;
  }

  private static void assertSameRows(
      float[] x, float[] y, int head, int tokens, int width, int from, int to, String what) {
    int start = (head * tokens + from) * width;
    int end = (head * tokens + to) * width;
    Results.assertBits(Arrays.copyOfRange(y, start, end), Arrays.copyOfRange(x, start, end), what);
  }

  @ParameterizedTest
  @MethodSource("subjects")
  void aCopiedStateGoesOnAsItsSource(Subject subject) {
    Backend backend = subject.backend();
    AttentionShape shape = AttentionShape.of(1, 2, 70, D);
    Case problem = Case.of("copied state", shape).build();
    try (Tensor q = backend.allocate(DType.F32, shape.q());
        Tensor k = backend.allocate(DType.F32, shape.k());
        Tensor v = backend.allocate(DType.F32, shape.v());
        Tensor o = backend.allocate(DType.F32, shape.output());
        Tensor g = backend.allocate(DType.F32, shape.normalizer());
        AttentionState source = backend.newState(shape, 1);
        AttentionState copy = backend.newState(shape, 1);
        io.github.linattn.Stream stream = backend.newStream()) {
      q.copyFrom(problem.q);
      k.copyFrom(problem.k);
      v.copyFrom(problem.v);
      LinearAttention attention = LinearAttention.builder().on(backend, stream);
      AttentionInput input = AttentionInput.of(q, k, v);
      attention.forwardInto(input, o, g, source);
      source.copyTo(copy, stream);
      assertThat(copy.count(0)).isEqualTo(70);
      attention.forwardInto(input.from(source), o, g, source);
      float[] expected = o.toFloats();
      attention.forwardInto(input.from(copy), o, g, copy);
      Results.assertBits(o.toFloats(), expected, "o");
      Results.assertBits(copy.s().toFloats(), source.s().toFloats(), "S");
      try (AttentionState wider = backend.newState(shape, 2)) {
        assertThatIllegalArgumentException()
            .isThrownBy(() -> source.copyTo(wider, stream))
            .withMessageContaining("a copy needs two tensors of one shape");
      }
      assertThatIllegalArgumentException()
          .isThrownBy(() -> source.copyTo(source, stream))
          .withMessageContaining("does not overlap");
    }
  }

  @ParameterizedTest
  @MethodSource("subjects")
  void isLinearInV(Subject subject) {
    Case one = Case.of("linear", AttentionShape.of(2, 2, 193, D)).build();
    Case two = Case.of("linear, other v", one.shape).q(one.q).k(one.k).build();
    float[] v = new float[one.v.length];
    for (int i = 0; i < v.length; i++) {
      v[i] = 2 * one.v[i] - 0.5f * two.v[i];
    }
    float[] oOne = Run.of(one, subject.backend()).o();
    float[] oTwo = Run.of(two, subject.backend()).o();
    float[] oBoth = Run.of(one.but("2 v - v'/2").v(v).build(), subject.backend()).o();
    double[] expected = new double[oBoth.length];
    for (int i = 0; i < expected.length; i++) {
      expected[i] = 2.0 * oOne[i] - 0.5 * oTwo[i];
    }
    double bound = 3 * Tolerance.computed(193); // three runs, each with an error of its own
    Tolerance.assertClose("o of 2 v - v'/2", expected, oBoth, DType.F32, bound, 0);
  }

  @ParameterizedTest
  @MethodSource("subjects")
  void valuesOfOneGiveOutputsOfOne(Subject subject) {
    AttentionShape shape = AttentionShape.of(1, 2, 1000, D);
    float[] ones = new float[Math.toIntExact(shape.v().elements())];
    Arrays.fill(ones, 1);
    Case problem = Case.of("v = 1", shape).v(ones).build();
    float[] o = Run.of(problem, subject.backend()).o();
    for (float element : o) {
      assertThat(Math.abs(element - 1.0) <= 10 * Tolerance.computed(1000))
          .as("%s is 1%s", element, Seeds.replay())
          .isTrue();
    }
  }

  @ParameterizedTest
  @MethodSource("subjects")
  void aRunSplitAnywhereIsTheWholeRun(Subject subject) {
    AttentionShape shape = AttentionShape.of(2, 2, 700, D);
    for (boolean normalized : new boolean[] {false, true}) {
      Case.Builder builder = Case.of("split, normalized " + normalized, shape);
      Case whole = (normalized ? builder.normalized() : builder).build();
      for (int at : new int[] {1, 63, 64, 300, 699}) {
        assertSplitEqualsWhole(whole, new int[] {at}, subject);
      }
    }
  }

  @ParameterizedTest
  @MethodSource("subjects")
  void packedSequencesSplitAnywhereAreTheWholeSequences(Subject subject) {
    Case whole =
        Case.of("packed split", new AttentionShape(1, 4, 2, 203, D, 48))
            .packed(70, 0, 3, 130)
            .normalized()
            .build();
    if (!subject.does(whole)) {
      Refusals.assertRefused(whole, subject);
      return;
    }
    assertSplitEqualsWhole(whole, new int[] {30, 0, 3, 65}, subject);
    assertSplitEqualsWhole(whole, new int[] {0, 0, 1, 129}, subject);
  }

  /** The gradient of the state where it is cut carries all that the second part says. */
  @ParameterizedTest
  @MethodSource("subjects")
  void aBackwardSplitAnywhereIsTheWholeBackward(Subject subject) {
    for (boolean normalized : new boolean[] {false, true}) {
      Case.Builder builder =
          Case.of("backward split, normalized " + normalized, AttentionShape.of(2, 2, 700, D))
              .afterTokens(20)
              .throughStates();
      Case whole = (normalized ? builder.normalized() : builder).build();
      for (int at : new int[] {1, 63, 64, 300, 699}) {
        assertSplitBackwardEqualsWhole(whole, new int[] {at}, subject);
      }
    }
    Case packed =
        Case.of("packed backward split", new AttentionShape(1, 4, 2, 203, D, 48))
            .packed(70, 0, 3, 130)
            .throughStates()
            .build();
    assertSplitBackwardEqualsWhole(packed, new int[] {30, 0, 3, 65}, subject);
    assertSplitBackwardEqualsWhole(packed, new int[] {0, 0, 1, 129}, subject);
  }

  private static void assertSplitBackwardEqualsWhole(Case whole, int[] lengths, Subject subject) {
    if (!subject.does(whole)) {
      Refusals.assertRefused(whole, subject);
      return;
    }
    int[] rest = new int[lengths.length];
    for (int i = 0; i < rest.length; i++) {
      rest[i] = whole.sequences().length(i) - lengths[i];
    }
    int[] none = new int[rest.length];
    Case first = part(whole, none, lengths, whole.initial);
    Case second =
        part(whole, lengths, rest, Run.of(first, subject.backend()).state())
            .but("with the gradient of the end")
            .finalGradient(whole.finalGradient)
            .build();
    Results after = Run.of(second, subject.backend());
    if (after.initialGradient() == null) {
      return; // the gradients were refused
    }
    Results before =
        Run.of(
            first.but("with that of the cut").finalGradient(after.initialGradient()).build(),
            subject.backend());
    AttentionShape shape = whole.shape;
    int heads = shape.batch() * shape.heads();
    int kvHeads = shape.batch() * shape.keyValueHeads();
    float[] dq = new float[whole.q.length];
    float[] dk = new float[whole.k.length];
    float[] dv = new float[whole.v.length];
    join(dq, before.dq(), none, lengths, whole, heads, shape.keyDim());
    join(dq, after.dq(), lengths, rest, whole, heads, shape.keyDim());
    join(dk, before.dk(), none, lengths, whole, kvHeads, shape.keyDim());
    join(dk, after.dk(), lengths, rest, whole, kvHeads, shape.keyDim());
    join(dv, before.dv(), none, lengths, whole, kvHeads, shape.valueDim());
    join(dv, after.dv(), lengths, rest, whole, kvHeads, shape.valueDim());
    String what = "%s at %s on %s: ".formatted(whole, Arrays.toString(lengths), subject);
    double bound = 2 * Tolerance.computed(shape.tokens()); // two states were rounded to fp32 once
    Reference.Result exact = whole.expected();
    Tolerance.assertClose(what + "dq", exact.dq(), dq, DType.F32, bound, 0);
    Tolerance.assertClose(what + "dk", exact.dk(), dk, DType.F32, bound, 0);
    Tolerance.assertClose(what + "dv", exact.dv(), dv, DType.F32, bound, 0);
    StateGradientValues state = Objects.requireNonNull(before.initialGradient());
    Reference.StateGradient start = exact.initialState();
    Tolerance.assertClose(what + "dS", start.ds(), state.ds(), DType.F32, bound, 0);
    Tolerance.assertClose(what + "dz", start.dz(), state.dz(), DType.F32, bound, 0);
    Tolerance.assertClose(what + "du", start.du(), state.du(), DType.F32, bound, 0);
    double coefficient = 2 * Tolerance.of(whole).coefficient();
    float[] da = sum(before.da(), after.da());
    Tolerance.assertClose(what + "da", exact.da(), da, DType.F32, coefficient, 0);
    float[] db = sum(before.db(), after.db());
    Tolerance.assertClose(what + "db", exact.db(), db, DType.F32, coefficient, 0);
  }

  private static float[] sum(float[] x, float[] y) {
    float[] sum = new float[x.length];
    for (int i = 0; i < sum.length; i++) {
      sum[i] = x[i] + y[i];
    }
    return sum;
  }

  private static void assertSplitEqualsWhole(Case whole, int[] firstLengths, Subject subject) {
    int count = firstLengths.length;
    int[] rest = new int[count];
    for (int i = 0; i < count; i++) {
      rest[i] = whole.sequences().length(i) - firstLengths[i];
    }
    int[] none = new int[count];
    Case first = part(whole, none, firstLengths, null);
    Results before = Run.of(first, subject.backend());
    Results after = Run.of(part(whole, firstLengths, rest, before.state()), subject.backend());
    AttentionShape shape = whole.shape;
    int heads = shape.batch() * shape.heads();
    float[] o = new float[heads * shape.tokens() * shape.valueDim()];
    float[] g = new float[heads * shape.tokens()];
    join(o, before.o(), none, firstLengths, whole, heads, shape.valueDim());
    join(o, after.o(), firstLengths, rest, whole, heads, shape.valueDim());
    join(g, before.g(), none, firstLengths, whole, heads, 1);
    join(g, after.g(), firstLengths, rest, whole, heads, 1);
    String what = "%s at %s on %s: ".formatted(whole, Arrays.toString(firstLengths), subject);
    double bound = 2 * Tolerance.computed(shape.tokens()); // the state was rounded to fp32 once
    Tolerance.assertClose(what + "o", whole.expected().o(), o, DType.F32, bound, 0);
    Tolerance.assertClose(what + "g", whole.expected().g(), g, DType.F32, bound, 0);
    StateValues state = Objects.requireNonNull(after.state());
    Tolerance.assertClose(what + "S", whole.expected().state().s(), state.s(), DType.F32, bound, 0);
    Tolerance.assertClose(what + "z", whole.expected().state().z(), state.z(), DType.F32, bound, 0);
    Tolerance.assertClose(what + "u", whole.expected().state().u(), state.u(), DType.F32, bound, 0);
    assertThat(state.counts()).as(what).isEqualTo(whole.expected().state().counts());
  }

  /** The tokens [skip, skip + length) of each sequence. */
  private static Case part(
      Case whole, int[] skip, int[] lengths, @org.jspecify.annotations.Nullable StateValues from) {
    AttentionShape shape = whole.shape;
    AttentionShape partShape =
        new AttentionShape(
            shape.batch(),
            shape.heads(),
            shape.keyValueHeads(),
            Arrays.stream(lengths).sum(),
            shape.keyDim(),
            shape.valueDim());
    int heads = shape.batch() * shape.heads();
    int kvHeads = shape.batch() * shape.keyValueHeads();
    Case.Builder builder =
        Case.of(whole + ", tokens " + Arrays.toString(skip) + Arrays.toString(lengths), partShape)
            .coefficients(whole.a, whole.b)
            .q(cut(whole.q, skip, lengths, whole, heads, shape.keyDim()))
            .k(cut(whole.k, skip, lengths, whole, kvHeads, shape.keyDim()))
            .v(cut(whole.v, skip, lengths, whole, kvHeads, shape.valueDim()))
            .dO(cut(whole.dO, skip, lengths, whole, heads, shape.valueDim()))
            .from(from);
    if (whole.packing != null) {
      builder.packed(lengths);
    }
    return (whole.normalize ? builder.normalized() : builder).build();
  }

  private static float[] cut(
      float[] all, int[] skip, int[] lengths, Case whole, int heads, int width) {
    float[] some = new float[heads * Arrays.stream(lengths).sum() * width];
    move(all, some, skip, lengths, whole, heads, width, false);
    return some;
  }

  private static void join(
      float[] all, float[] some, int[] skip, int[] lengths, Case whole, int heads, int width) {
    move(all, some, skip, lengths, whole, heads, width, true);
  }

  private static void move(
      float[] all,
      float[] some,
      int[] skip,
      int[] lengths,
      Case whole,
      int heads,
      int width,
      boolean intoAll) {
    int at = 0;
    for (int head = 0; head < heads; head++) {
      for (int i = 0; i < lengths.length; i++) {
        int token = head * whole.shape.tokens() + whole.sequences().start(i) + skip[i];
        int count = lengths[i] * width;
        if (intoAll) {
          System.arraycopy(some, at, all, token * width, count);
        } else {
          System.arraycopy(all, token * width, some, at, count);
        }
        at += count;
      }
    }
  }

  @ParameterizedTest
  @MethodSource("subjects")
  void decodeStepsAreThePrefill(Subject subject) {
    int tokens = 70;
    for (boolean normalized : new boolean[] {false, true}) {
      Case.Builder builder =
          Case.of("decode, normalized " + normalized, AttentionShape.of(2, 3, tokens, D));
      Case whole = (normalized ? builder.normalized() : builder).build();
      Backend backend = subject.backend();
      LinearAttention attention = whole.operator().on(backend);
      AttentionShape step = AttentionShape.of(2, 3, 1, D);
      float[] o = new float[whole.q.length];
      float[] g = new float[o.length / D];
      try (AttentionState state = backend.newState(step, 1);
          Tensor q = backend.allocate(DType.F32, step.q());
          Tensor k = backend.allocate(DType.F32, step.k());
          Tensor v = backend.allocate(DType.F32, step.v());
          Tensor oStep = backend.allocate(DType.F32, step.output());
          Tensor gStep = backend.allocate(DType.F32, step.normalizer())) {
        for (int t = 0; t < tokens; t++) {
          int[] skip = {t};
          int[] one = {1};
          q.copyFrom(cut(whole.q, skip, one, whole, 6, D));
          k.copyFrom(cut(whole.k, skip, one, whole, 6, D));
          v.copyFrom(cut(whole.v, skip, one, whole, 6, D));
          attention.decodeInto(q, k, v, state, oStep, gStep);
          join(o, oStep.toFloats(), skip, one, whole, 6, D);
          join(g, gStep.toFloats(), skip, one, whole, 6, 1);
        }
        assertThat(state.count(0)).isEqualTo(tokens);
        double bound = 2 * Tolerance.computed(tokens);
        Tolerance.assertClose(whole + ": o", whole.expected().o(), o, DType.F32, bound, 0);
        Tolerance.assertClose(whole + ": g", whole.expected().g(), g, DType.F32, bound, 0);
        double[] s = whole.expected().state().s();
        Tolerance.assertClose(whole + ": S", s, state.s().toFloats(), DType.F32, bound, 0);
      }
    }
  }

  /** o depends on a:b only; and row by row q·dq = −a(Ω·u − δ c). */
  @ParameterizedTest
  @MethodSource("subjects")
  void gradientsSatisfyTheIdentitiesOfTheOperator(Subject subject) {
    int tokens = 333;
    float[] a = {1, -2, 0.5f};
    float[] b = {0.5f, 1, -0.25f};
    Case problem =
        Case.of("identities", AttentionShape.of(1, 3, tokens, D)).coefficients(a, b).build();
    Results results = Run.of(problem, subject.backend());
    double bound = Tolerance.of(problem).coefficient();
    for (int head = 0; head < 3; head++) {
      double da = (double) a[head] * results.da()[head];
      double db = (double) b[head] * results.db()[head];
      assertThat(Math.abs(da + db) <= 2 * bound * (Math.abs(da) + Math.abs(db)))
          .as("head %d: a da + b db of %.6g and %.6g%s", head, da, db, Seeds.replay())
          .isTrue();
      double[] expected = new double[tokens];
      float[] got = new float[tokens];
      double[] u = new double[D];
      for (int i = 0; i < tokens; i++) {
        int row = head * tokens + i;
        double alongValues = 0;
        double delta = 0;
        double alongQuery = 0;
        for (int j = 0; j < D; j++) {
          int at = row * D + j;
          u[j] += problem.v[at];
          double omega = problem.dO[at] / (double) results.g()[row];
          alongValues += omega * u[j];
          delta += omega * results.o()[at];
          alongQuery += (double) problem.q[at] * results.dq()[at];
        }
        expected[i] = -a[head] * (alongValues - delta * (i + 1));
        got[i] = (float) alongQuery;
      }
      Tolerance.assertClose("q·dq of head " + head, expected, got, DType.F32, bound, 0);
    }
  }

  /**
   * o is homogeneous of degree 0 in (b, a) and of degree 1 in v; so is what a state says when it is
   * scaled with them. Of a key/value head:
   *
   * <pre>
   *   b db = Σ q·dq = Σ k·dk + S_0·dS_0 + z_0·dz_0 − S_N·dS_N − z_N·dz_N
   *   Σ o·dO        = Σ v·dv + S_0·dS_0 + u_0·du_0 − S_N·dS_N − u_N·du_N
   * </pre>
   */
  @ParameterizedTest
  @MethodSource("subjects")
  void gradientsAndStatesSatisfyTheIdentitiesOfScaling(Subject subject) {
    List<Case.Builder> builders =
        List.of(
            Case.of("scaling", AttentionShape.of(1, 1, 333, D)),
            Case.of("scaling through states", AttentionShape.of(1, 1, 333, D))
                .coefficients(0.75f, 0.5f)
                .afterTokens(50)
                .throughStates(),
            Case.of("scaling of a group", new AttentionShape(1, 3, 1, 200, D, 48))
                .afterTokens(9)
                .throughStates());
    for (Case problem : builders.stream().flatMap(PropertyContract::inEveryMode).toList()) {
      if (!subject.does(problem)) {
        Refusals.assertRefused(problem, subject);
        continue;
      }
      Results results = Run.of(problem, subject.backend());
      if (results.dq() == null) {
        continue; // the gradients were refused
      }
      double[] slope = new double[2]; // Σ, and Σ of absolute values
      for (float db : results.db()) {
        add(slope, problem.b[0] * (double) db);
      }
      double[] queries = along(problem.q, results.dq());
      double[] keys = along(problem.k, results.dk());
      double[] values = along(problem.v, results.dv());
      StateGradientValues first = results.initialGradient();
      StateGradientValues last = problem.finalGradient;
      StateValues end = Objects.requireNonNull(results.state());
      if (first != null && last != null) {
        addAlong(keys, end.s(), last.ds(), -1);
        addAlong(keys, end.z(), last.dz(), -1);
        addAlong(values, end.s(), last.ds(), -1);
        addAlong(values, end.u(), last.du(), -1);
        StateValues start = problem.initial;
        if (start != null) {
          addAlong(keys, start.s(), first.ds(), 1);
          addAlong(keys, start.z(), first.dz(), 1);
          addAlong(values, start.s(), first.ds(), 1);
          addAlong(values, start.u(), first.du(), 1);
        }
      }
      assertSame(problem, "Σ q·dq, b db", queries, slope);
      assertSame(problem, "Σ q·dq, Σ k·dk", queries, keys);
      assertSame(problem, "Σ o·dO, Σ v·dv", along(problem.dO, results.o()), values);
    }
  }

  private static Stream<Case> inEveryMode(Case.Builder builder) {
    return Arrays.stream(DType.values())
        .flatMap(
            dtype ->
                Arrays.stream(dtype == DType.F32 ? Mode.values() : new Mode[] {Mode.DEFAULT})
                    .map(mode -> builder.dtype(dtype).mode(mode).build()));
  }

  private static double[] along(float[] x, float[] y) {
    double[] sum = new double[2];
    addAlong(sum, x, y, 1);
    return sum;
  }

  private static void addAlong(double[] sum, float[] x, float[] y, double sign) {
    for (int i = 0; i < x.length; i++) {
      add(sum, sign * x[i] * y[i]);
    }
  }

  private static void add(double[] sum, double term) {
    sum[0] += term;
    sum[1] += Math.abs(term);
  }

  /** Equal but for the errors that the terms may have. */
  private static void assertSame(Case problem, String what, double[] x, double[] y) {
    double bound = ErrorBudget.ofGradients(problem.dtype, problem.mode) * (x[1] + y[1]);
    assertThat(Math.abs(x[0] - y[0]) <= bound)
        .as(
            "%s in %s, %s: %s is %.9g and %.9g, terms of %.3g%s",
            problem, problem.dtype, problem.mode, what, x[0], y[0], x[1] + y[1], Seeds.replay())
        .isTrue();
  }

  /** The length of a divided row has no part in o: dq is at right angles to q, dk to k. */
  @ParameterizedTest
  @MethodSource("subjects")
  void gradientsOfNormalizedRowsAreAtRightAnglesToThem(Subject subject) {
    Case problem =
        Case.of("right angles", AttentionShape.of(1, 2, 333, D))
            .normalized()
            .coefficients(1, 0.75f)
            .build();
    Results results = Run.of(problem, subject.backend());
    assertRightAngles("q·dq", problem.q, results.dq());
    assertRightAngles("k·dk", problem.k, results.dk());
    for (int head = 0; head < 2; head++) {
      double da = results.da()[head];
      double db = 0.75 * results.db()[head];
      double bound = 2 * Tolerance.of(problem).coefficient() * (Math.abs(da) + Math.abs(db));
      assertThat(Math.abs(da + db) <= bound).as("a da + b db of %s and %s", da, db).isTrue();
    }
  }

  private static void assertRightAngles(String what, float[] rows, float[] gradients) {
    for (int row = 0; row < rows.length / D; row++) {
      double product = 0;
      double row2 = 0;
      double gradient2 = 0;
      for (int at = row * D; at < (row + 1) * D; at++) {
        product += (double) rows[at] * gradients[at];
        row2 += (double) rows[at] * rows[at];
        gradient2 += (double) gradients[at] * gradients[at];
      }
      // The first rows of dq are differences of terms of the size of dO, which is 1 an element.
      double terms = Math.sqrt(row2 * gradient2) + Math.sqrt(D);
      assertThat(Math.abs(product) <= Tolerance.computed(333) * terms)
          .as("%s of row %d is %s beside %s%s", what, row, product, terms, Seeds.replay())
          .isTrue();
    }
  }

  @ParameterizedTest
  @MethodSource("subjects")
  void aSlopeOfZeroMakesRunningMeansAndNoGradientOfQueriesAndKeys(Subject subject) {
    int tokens = 100;
    Case problem = Case.of("b = 0", AttentionShape.of(1, 1, tokens, D)).coefficients(2, 0).build();
    Results results = Run.of(problem, subject.backend());
    assertZeros(results.dq(), 0, tokens * D);
    assertZeros(results.dk(), 0, tokens * D);
    double[] means = new double[tokens * D];
    double[] sum = new double[D];
    for (int i = 0; i < tokens; i++) {
      assertThat(results.g()[i]).isEqualTo(2f * (i + 1));
      for (int j = 0; j < D; j++) {
        sum[j] += problem.v[i * D + j];
        means[i * D + j] = sum[j] / (i + 1);
      }
    }
    Tolerance.assertClose(
        "running means", means, results.o(), DType.F32, Tolerance.computed(tokens), 0);
  }

  @ParameterizedTest
  @MethodSource("subjects")
  void aZeroRowStaysZeroUnderNormalization(Subject subject) {
    int tokens = 80;
    AttentionShape shape = AttentionShape.of(1, 1, tokens, D);
    Case drawn = Case.of("zero rows", shape).normalized().build();
    float[] q = drawn.q.clone();
    float[] k = drawn.k.clone();
    Arrays.fill(q, 3 * D, 4 * D, 0);
    Arrays.fill(k, 70 * D, 71 * D, 0);
    Case problem = drawn.but("q 3 and k 70").q(q).k(k).coefficients(1.5f, 1).build();
    Results results = Run.of(problem, subject.backend());
    results.assertRight(problem);
    assertThat(results.g()[3]).as("g = a·count").isEqualTo(1.5f * 4);
    assertZeros(results.dq(), 3 * D, 4 * D);
    assertZeros(results.dk(), 70 * D, 71 * D);
  }

  /** Breaks when sums round the same way token after token, because all tokens add the same. */
  @ParameterizedTest
  @MethodSource("subjects")
  void sumsOfRowsThatRepeatKeepTheirDigits(Subject subject) {
    for (int period : new int[] {1, 2}) {
      Case problem = ofRepeatedRows(period);
      Run.of(problem, subject.backend()).assertForwardRight(problem);
    }
  }

  static Case ofRepeatedRows(int period) {
    int tokens = 10_000;
    SplittableRandom random = Seeds.random("repeated rows");
    return Case.of("rows of period " + period, AttentionShape.of(1, 1, tokens, D))
        .normalized()
        .k(repeated(random, tokens, period))
        .v(repeated(random, tokens, period))
        .build();
  }

  private static float[] repeated(SplittableRandom random, int tokens, int period) {
    float[] rows = new float[tokens * D];
    for (int i = 0; i < rows.length; i++) {
      rows[i] = i < period * D ? (float) random.nextGaussian() : rows[i - period * D];
    }
    return rows;
  }

  /** Of either sign. */
  private static void assertZeros(float[] values, int from, int to) {
    for (int i = from; i < to; i++) {
      assertThat(values[i] == 0).as("element %d, %s, is zero", i, values[i]).isTrue();
    }
  }

  @ParameterizedTest
  @MethodSource("subjects")
  void aBackendMayBeUsedByManyThreadsAtOnce(Subject subject) throws Exception {
    Case problem = Case.of("many threads", AttentionShape.of(2, 4, 300, D)).build();
    Results alone = Run.of(problem, subject.backend());
    try (ExecutorService pool = Executors.newFixedThreadPool(4)) {
      Callable<Results> task = () -> Run.inNewStream(problem, subject.backend());
      for (Future<Results> future : pool.invokeAll(List.of(task, task, task, task))) {
        future.get().assertSameBits(alone, "among four threads");
      }
    }
  }
}
