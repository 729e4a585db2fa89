package io.github.linattn.test.contract;

import static org.assertj.core.api.Assertions.assertThat;

import io.github.linattn.AttentionShape;
import io.github.linattn.DType;
import io.github.linattn.test.harness.Case;
import io.github.linattn.test.harness.Results;
import io.github.linattn.test.harness.Run;
import io.github.linattn.test.harness.Subject;
import io.github.linattn.test.harness.Tolerance;
import java.util.ArrayList;
import java.util.List;
import java.util.function.IntPredicate;
import org.junit.jupiter.api.TestInstance;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * Breaks when one NaN or infinity in an input reaches a row that does not depend on it, for example
 * through a product with a masked zero.
 *
 * <p>Two heads; one element of token T of head 0 is spoiled. With i a query and p a key: o and g of
 * i depend on q_i and on k, v of p ≤ i; dq of i on those and dO_i; dk and dv of p on everything of
 * i ≥ p.
 */
@TestInstance(TestInstance.Lifecycle.PER_CLASS)
abstract class ContainmentContract {
  private static final int D = 32;
  private static final int N = 1100;
  private static final int T = 603; // inside a chunk, and inside the second half of a cut lane

  private enum Spoiled {
    Q,
    K,
    V,
    DO
  }

  abstract List<Subject> subjects();

  List<Arguments> spoiledInputs() {
    List<Arguments> rows = new ArrayList<>();
    for (Subject subject : subjects()) {
      for (Spoiled input : Spoiled.values()) {
        for (float value : new float[] {Float.NaN, Float.POSITIVE_INFINITY}) {
          for (boolean causal : new boolean[] {true, false}) {
            rows.add(Arguments.of(input, value, causal, subject));
          }
        }
      }
    }
    return rows;
  }

  @ParameterizedTest(name = "{1} in {0}, causal {2}, on {3}")
  @MethodSource("spoiledInputs")
  void reachesTheRowsItTouchesAndNoOthers(
      Spoiled input, float value, boolean causal, Subject subject) {
    Case.Builder builder = Case.of("containment", AttentionShape.of(1, 2, N, D));
    Case clean = (causal ? builder : builder.nonCausal()).build();
    if (!subject.does(clean)) {
      Refusals.assertRefused(clean, subject);
      return;
    }
    Results results = Run.of(spoil(clean, input, value), subject.backend());
    boolean keyOrValue = input == Spoiled.K || input == Spoiled.V;
    // Rows of head 0; those of head 1, from N on, are never touched.
    IntPredicate seesKey = row -> row < N && (!causal || row >= T);
    IntPredicate isQuery = row -> row == T;
    IntPredicate seenByQuery = row -> row < N && (!causal || row <= T);
    IntPredicate nothing = row -> false;
    IntPredicate wholeHead = row -> row < N;
    IntPredicate output =
        switch (input) {
          case Q -> isQuery;
          case K, V -> seesKey;
          case DO -> nothing;
        };
    check("o", results.o(), clean.expected().o(), D, output, input != Spoiled.V);
    check("g", results.g(), clean.expected().g(), 1, input == Spoiled.V ? nothing : output, true);
    IntPredicate queryGradient = keyOrValue ? seesKey : isQuery;
    if (results.dq() == null) {
      return; // the gradients were refused
    }
    check("dq", results.dq(), clean.expected().dq(), D, queryGradient, false);
    IntPredicate keyGradient = keyOrValue ? wholeHead : seenByQuery;
    check("dk", results.dk(), clean.expected().dk(), D, keyGradient, false);
    check("dv", results.dv(), clean.expected().dv(), D, keyGradient, false);
    check("da", results.da(), clean.expected().da(), 1, row -> row == 0, false);
    check("db", results.db(), clean.expected().db(), 1, row -> row == 0, false);
  }

  private static Case spoil(Case clean, Spoiled input, float value) {
    Case.Builder builder = clean.but(value + " in " + input);
    int at = T * D + 5;
    return switch (input) {
      case Q -> builder.q(with(clean.q, at, value)).build();
      case K -> builder.k(with(clean.k, at, value)).build();
      case V -> builder.v(with(clean.v, at, value)).build();
      case DO -> builder.dO(with(clean.dO, at, value)).build();
    };
  }

  private static float[] with(float[] values, int at, float value) {
    float[] changed = values.clone();
    changed[at] = value;
    return changed;
  }

  /** Untouched rows are right; touched ones, where all of a row must show it, are not finite. */
  private static void check(
      String what,
      float[] got,
      double[] expected,
      int width,
      IntPredicate touched,
      boolean allOfTheRow) {
    float[] untouchedGot = got.clone();
    double[] untouchedExpected = expected.clone();
    for (int row = 0; row < got.length / width; row++) {
      if (!touched.test(row)) {
        continue;
      }
      boolean any = false;
      for (int at = row * width; at < (row + 1) * width; at++) {
        any |= showsIt(got[at], expected[at]);
        if (allOfTheRow) {
          assertThat(showsIt(got[at], expected[at])).as("%s row %d", what, row).isTrue();
        }
        untouchedGot[at] = 0;
        untouchedExpected[at] = 0;
      }
      if (width > 1 && (what.equals("o") || what.equals("dq"))) {
        assertThat(any).as("%s row %d shows the spoiled input", what, row).isTrue();
      }
    }
    double bound = what.startsWith("d") && width == 1 ? 1e-4 : Tolerance.computed(N);
    Tolerance.assertClose(
        "untouched " + what, untouchedExpected, untouchedGot, DType.F32, bound, 0);
  }

  /** An infinite g makes o and the gradients 0 or NaN: either is a trace of it. */
  private static boolean showsIt(float got, double clean) {
    return !Float.isFinite(got) || (got == 0 && clean != 0);
  }
}
