package io.github.linattn.test.contract;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.github.linattn.DType;
import io.github.linattn.Mode;
import io.github.linattn.reference.Reference;
import io.github.linattn.test.harness.Backends;
import io.github.linattn.test.harness.Case;
import io.github.linattn.test.harness.GpuTest;
import io.github.linattn.test.harness.Layout;
import io.github.linattn.test.harness.Results;
import io.github.linattn.test.harness.Run;
import io.github.linattn.test.harness.StateGradientValues;
import io.github.linattn.test.harness.Subject;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * Breaks when gradients that are computed token by token, because a sweep marked them, are wrong: a
 * NaN in dO of the first token touches the first rows of its head's dq, dk and dv alone, and every
 * other row of the head is repaired.
 */
@GpuTest
final class GpuRepairTest {
  private static final String PROPERTY = "linattn.gradient.plan";
  private static final int TOKENS = 200;

  /** In the third chunk. */
  private static final int SPOILED = 130;

  static List<Arguments> plansAndCases() {
    List<Arguments> rows = new ArrayList<>();
    for (Subject subject : Backends.gpu()) {
      for (String plan :
          List.of("wgmma", "mma", "wgmma:64", "mma:128", "wgmma:64:0", "wgmma:64+")) {
        for (Case.Builder builder : cases()) {
          rows.add(Arguments.of(plan, builder.build(), subject));
        }
      }
    }
    return rows;
  }

  private static List<Case.Builder> cases() {
    List<Case.Builder> cases = new ArrayList<>();
    for (DType dtype : DType.values()) {
      cases.add(of(1, 2, 2, 150, 64, 64).dtype(dtype).afterTokens(9).throughStates());
      cases.add(of(2, 6, 2, 70, 96, 128).dtype(dtype).throughStates());
    }
    Mode mode = Mode.TF32;
    cases.add(of(1, 2, 2, 333, 128, 128).mode(mode).coefficients(1.5f, 0.5f).throughStates());
    cases.add(of(1, 4, 2, 131, 32, 96).packed(70, 0, 61).afterTokens(3).throughStates());
    cases.add(of(1, 2, 1, 90, 64, 32).normalized().coefficients(2, 0.1f).throughStates());
    cases.add(of(2, 2, 2, 70, 128, 128).layout(Layout.TOKEN_MAJOR));
    cases.add(of(1, 2, 2, 200, 192, 192).normalized().throughStates());
    cases.add(of(2, 6, 2, 300, 256, 256).normalized().throughStates());
    cases.add(of(1, 4, 2, 333, 192, 192).dtype(DType.BF16).normalized());
    float[] a = {1, -2};
    float[] b = {0.5f, 0};
    cases.add(of(1, 2, 2, 200, 32, 32).coefficients(a, b));
    return cases;
  }

  private static Case.Builder of(
      int batch, int heads, int keyValueHeads, int tokens, int dim, int valueDim) {
    return SweepContract.of("repair", batch, heads, keyValueHeads, tokens, dim, valueDim);
  }

  static List<Arguments> segmentsAndSubjects() {
    List<Arguments> rows = new ArrayList<>();
    for (Subject subject : Backends.gpu()) {
      for (DType dtype : DType.values()) {
        for (Mode mode : dtype == DType.F32 ? Mode.values() : new Mode[] {Mode.DEFAULT}) {
          String name = "segments " + dtype + " " + mode;
          for (Case.Builder builder :
              List.of(
                  SweepContract.of(name, 1, 2, 2, 1500, 64, 64),
                  SweepContract.of(name, 1, 4, 2, 1500, 64, 64),
                  SweepContract.of(name + " packed", 1, 2, 2, 1500, 64, 64).packed(100, 0, 1400))) {
            rows.add(Arguments.of(builder.dtype(dtype).mode(mode).normalized().build(), subject));
          }
        }
      }
    }
    return rows;
  }

  /** The length of one row is out of range, and later segments start from sums that it is in. */
  @ParameterizedTest(name = "{0} on {1}")
  @MethodSource("segmentsAndSubjects")
  void noSegmentBehindARowOfAnySizeIsSpoiled(Case drawn, Subject subject) {
    System.setProperty("linattn.plan", "wgmma:512");
    System.setProperty(PROPERTY, "wgmma:512");
    int dim = drawn.shape.keyDim();
    int row = drawn.shape.tokens() + 300; // of the second head
    float size = drawn.dtype == DType.F16 ? 1e4f : 1e-14f;
    float[] k = drawn.k.clone();
    for (int i = row * dim; i < (row + 1) * dim; i++) {
      k[i] *= size;
    }
    Case problem = drawn.but("a row of " + size).k(k).build();
    Run.of(problem, subject.backend()).assertRight(problem);
  }

  @AfterEach
  void choosesFreelyAgain() {
    System.clearProperty(PROPERTY);
    System.clearProperty("linattn.plan");
  }

  @ParameterizedTest(name = "{0}: {1} on {2}")
  @MethodSource("plansAndCases")
  void theRowsBesideASpoiledOneAreRight(String plan, Case clean, Subject subject) {
    System.setProperty(PROPERTY, plan);
    assumeTrue(
        Subject.differentiates(clean, subject.backend()) && Subject.canTake(plan, clean),
        "left out: this technique has no kernels for the problem");
    float[] dO = clean.dO.clone();
    dO[0] = Float.NaN;
    Results got = Run.of(clean.but("NaN in dO").dO(dO).build(), subject.backend());
    Reference.Result expected = clean.expected();
    int keyDim = clean.shape.keyDim();
    int valueDim = clean.shape.valueDim();
    float[] dq = withoutTrace("dq", got.dq(), expected.dq(), keyDim);
    float[] dk = withoutTrace("dk", got.dk(), expected.dk(), keyDim);
    float[] dv = withoutTrace("dv", got.dv(), expected.dv(), valueDim);
    float[] da = withoutTrace("da", got.da(), expected.da(), 1);
    float[] db = withoutTrace("db", got.db(), expected.db(), 1);
    StateGradientValues first = got.initialGradient();
    if (first != null) {
      Reference.StateGradient exact = expected.initialState();
      first =
          new StateGradientValues(
              withoutTrace("dS", first.ds(), exact.ds(), keyDim * valueDim),
              withoutTrace("dz", first.dz(), exact.dz(), keyDim),
              withoutTrace("du", first.du(), exact.du(), valueDim));
    }
    new Results(got.o(), got.g(), dq, dk, dv, da, db, got.state(), first, got.onTensorCores())
        .assertRight(clean);
  }

  /** What holds a NaN in a row of the first head. */
  enum Spoiled {
    Q,
    K,
    V,
    DO
  }

  static List<Arguments> spoiledOneSweeps() {
    List<Arguments> rows = new ArrayList<>();
    List<Case.Builder> cases =
        List.of(
            of(1, 2, 2, TOKENS, 64, 64).dtype(DType.BF16),
            of(1, 2, 2, TOKENS, 128, 128).dtype(DType.BF16),
            of(1, 2, 2, TOKENS, 128, 128).dtype(DType.F16));
    for (Case.Builder builder : cases) {
      Case clean = builder.keepingState().build();
      for (Subject subject : Backends.gpu()) {
        for (Spoiled input : Spoiled.values()) {
          rows.add(Arguments.of("one_sweep", input, clean, subject));
          rows.add(Arguments.of("one_sweep:128+", input, clean, subject));
          rows.add(Arguments.of("one_sweep:128*", input, clean, subject));
        }
      }
    }
    return rows;
  }

  /** A NaN in k or v reaches the state after the last token, and from there every chunk before. */
  @ParameterizedTest(name = "{0}, NaN in {1}: {2} on {3}")
  @MethodSource("spoiledOneSweeps")
  void oneSweepIsRightBesideASpoiledRow(String plan, Spoiled input, Case clean, Subject subject) {
    System.setProperty(PROPERTY, plan);
    assumeTrue(
        Subject.plansGradients(clean, subject.backend()), "left out: this GPU has no one sweep");
    Results got = Run.of(spoil(clean, input), subject.backend());
    Reference.Result expected = clean.expected();
    int dim = clean.shape.keyDim();
    int at = SPOILED * dim;
    int after = at + dim;
    int all = TOKENS * dim;
    boolean ofKey = input == Spoiled.K || input == Spoiled.V;
    float[] o = got.o();
    float[] g = got.g();
    if (input != Spoiled.DO) {
      o = withoutTrace("o", o, expected.o(), at, ofKey ? all : after);
    }
    if (input == Spoiled.Q || input == Spoiled.K) {
      g = withoutTrace("g", g, expected.g(), SPOILED, ofKey ? TOKENS : SPOILED + 1);
    }
    int lastKey = ofKey ? all : after;
    float[] dv = got.dv();
    if (input != Spoiled.V) { // which dv does not depend on
      dv = withoutTrace("dv", dv, expected.dv(), 0, lastKey);
    }
    new Results(
            o,
            g,
            withoutTrace("dq", got.dq(), expected.dq(), at, lastKey),
            withoutTrace("dk", got.dk(), expected.dk(), 0, lastKey),
            dv,
            withoutTrace("da", got.da(), expected.da(), 1),
            withoutTrace("db", got.db(), expected.db(), 1),
            null,
            null,
            got.onTensorCores())
        .assertRight(clean);
  }

  private static Case spoil(Case clean, Spoiled input) {
    Case.Builder builder = clean.but("NaN in " + input);
    int dim = clean.shape.keyDim();
    return switch (input) {
      case Q -> builder.q(spoiled(clean.q, dim)).build();
      case K -> builder.k(spoiled(clean.k, dim)).build();
      case V -> builder.v(spoiled(clean.v, dim)).build();
      case DO -> builder.dO(spoiled(clean.dO, dim)).build();
    };
  }

  private static float[] spoiled(float[] values, int dim) {
    float[] spoiled = values.clone();
    spoiled[SPOILED * dim + 5] = Float.NaN;
    return spoiled;
  }

  /** The first {@code touched} elements, of which one at least is not finite, as expected. */
  private static float[] withoutTrace(String what, float[] got, double[] expected, int touched) {
    return withoutTrace(what, got, expected, 0, touched);
  }

  private static float[] withoutTrace(
      String what, float[] got, double[] expected, int first, int end) {
    float[] untouched = got.clone();
    boolean shows = false;
    for (int i = first; i < end; i++) {
      shows |= !Float.isFinite(got[i]);
      untouched[i] = (float) expected[i];
    }
    assertThat(shows).as("%s shows the NaN", what).isTrue();
    return untouched;
  }
}
