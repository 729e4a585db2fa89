package io.github.linattn.test.contract;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.within;

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
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * Breaks when outputs or gradients without causality are wrong, by either technique: of widths of
 * one box of columns and of several, whole and in part, of sums of one item and of several, from
 * states and to them, and of sums that fp16 cannot hold as they are.
 */
@GpuTest
final class GpuNonCausalTest {
  /** Heads of which a GPU has one-warpgroup blocks on all of its multiprocessors. */
  private static final int FILLING = 280;

  private static final List<String> PROPERTIES = List.of("linattn.plan", "linattn.gradient.plan");

  static List<Arguments> techniquesAndCases() {
    List<Arguments> rows = new ArrayList<>();
    for (Subject subject : Backends.gpu()) {
      List<String> byWarps = List.of("mma", "mma:128");
      List<String> all = List.of("wgmma", "wgmma:128", "mma", "mma:128");
      for (String technique : subject.isHopper() ? all : byWarps) {
        for (DType dtype : DType.values()) {
          for (Mode mode : dtype == DType.F32 ? Mode.values() : new Mode[] {Mode.DEFAULT}) {
            for (Case.Builder builder : cases(dtype + " " + mode)) {
              Case problem = builder.nonCausal().dtype(dtype).mode(mode).build();
              rows.add(Arguments.of(technique, problem, subject));
            }
          }
        }
      }
    }
    return rows;
  }

  private static List<Case.Builder> cases(String name) {
    Case.Builder large = SweepContract.of(name + ", large", 1, 2, 1300, 96);
    float[] values = large.build().v.clone();
    for (int i = 0; i < values.length; i++) {
      values[i] *= 3000;
    }
    return List.of(
        SweepContract.of(name, 1, 2, 391, 64),
        SweepContract.of(name, 2, 4, 2, 320, 128, 96).normalized(),
        SweepContract.of(name, 1, 1, 1300, 128),
        SweepContract.of(name, 1, 2, 200, 48).coefficients(1.5f, 0),
        SweepContract.of(name, 1, 2, 200, 48).coefficients(1.5f, 0).normalized(),
        SweepContract.of(name, 2, 4, 2, 391, 64, 80).normalized(),
        SweepContract.of(name, 1, 3, 77, 192),
        SweepContract.of(name, 2, 2, 300, 160).normalized(),
        SweepContract.of(name, 1, 3, 200, 192).normalized(),
        SweepContract.of(name, 1, 2, 300, 256).normalized(),
        SweepContract.of(name, 1, 2, 271, 32).packed(70, 0, 1, 200),
        SweepContract.of(name, 1, 6, 2, 131, 80, 144).layout(Layout.TOKEN_MAJOR),
        SweepContract.of(name, 1, 70, 7, 130, 16, 240),
        SweepContract.of(name, 1, FILLING, 20, 130, 64, 32),
        SweepContract.of(name, 5, FILLING / 5, FILLING / 5, 130, 144, 16).normalized(),
        SweepContract.of(name, 1, 1, 9000, 128).keepingState(),
        SweepContract.of(name, 1, 2, 5500, 64).packed(2500, 0, 3000).afterTokens(9),
        SweepContract.of(name, 1, 2, 131, 64).afterTokens(20).keepingState(),
        SweepContract.of(name, 1, 4, 2, 300, 96, 80).normalized().throughStates(),
        large.v(values));
  }

  static List<Arguments> typesAndSubjects() {
    List<Arguments> rows = new ArrayList<>();
    for (Subject subject : Backends.gpu()) {
      for (DType dtype : DType.values()) {
        rows.add(Arguments.of(dtype, subject));
      }
    }
    return rows;
  }

  /** S is scaled by its largest element where that is not told from an infinity. */
  @ParameterizedTest
  @MethodSource("typesAndSubjects")
  void anInfinityStaysInItsColumn(DType dtype, Subject subject) {
    int dim = 64;
    int column = 5;
    Case clean = SweepContract.of(dtype + "", 1, 1, 300, dim).nonCausal().dtype(dtype).build();
    float[] v = clean.v.clone();
    v[100 * dim + column] = Float.POSITIVE_INFINITY;
    float[] expected = Run.of(clean, subject.backend()).o();
    float[] o = Run.of(clean.but("one infinite").v(v).build(), subject.backend()).o();
    for (int i = 0; i < o.length; i++) {
      boolean isSpoiled = i % dim == column;
      assertThat(Float.isFinite(o[i]))
          .as("element %d%s", i, Seeds.replay())
          .isNotEqualTo(isSpoiled);
      if (!isSpoiled) {
        assertThat(o[i])
            .as("element %d%s", i, Seeds.replay())
            .isCloseTo(expected[i], within(1e-3f));
      }
    }
  }

  static List<Arguments> sizesAndSubjects() {
    List<Arguments> rows = new ArrayList<>();
    for (Subject subject : Backends.gpu()) {
      for (DType dtype : DType.values()) {
        for (Mode mode : dtype == DType.F32 ? Mode.values() : new Mode[] {Mode.DEFAULT}) {
          for (float size : sizes(dtype)) {
            rows.add(Arguments.of(dtype, mode, size, true, subject));
            rows.add(Arguments.of(dtype, mode, size, false, subject));
          }
        }
      }
    }
    return rows;
  }

  private static float[] sizes(DType dtype) {
    return dtype == DType.F16
        ? new float[] {0, 1e-3f, 1e3f}
        : new float[] {0, 1e-25f, 1e-13f, 1e-6f, 1e6f, 1e12f};
  }

  /** One row of k and one of v among others. A longer one of k, not normalised, would rule g. */
  @ParameterizedTest(name = "{0} {1}, rows of {2}, normalised: {3}, on {4}")
  @MethodSource("sizesAndSubjects")
  void rowsOfAnySizeAreSummed(
      DType dtype, Mode mode, float size, boolean normalized, Subject subject) {
    int dim = 64;
    int tokens = 300;
    Case.Builder builder =
        SweepContract.of("sizes", 1, 2, tokens, dim).nonCausal().dtype(dtype).mode(mode);
    Case drawn = (normalized ? builder.normalized() : builder).build();
    float[] k = drawn.k.clone();
    float[] v = drawn.v.clone();
    for (int i = 0; i < dim; i++) {
      k[(tokens + 250) * dim + i] *= normalized ? size : Math.min(size, 1);
      v[(tokens + 270) * dim + i] *= size;
    }
    Case problem = drawn.but("rows of " + size).k(k).v(v).build();
    Run.of(problem, subject.backend()).assertRight(problem);
  }

  static List<Arguments> modesAndSubjects() {
    List<Arguments> rows = new ArrayList<>();
    for (Subject subject : Backends.gpu()) {
      for (Mode mode : Mode.values()) {
        rows.add(Arguments.of(mode, true, subject));
        rows.add(Arguments.of(mode, false, subject));
      }
    }
    return rows;
  }

  /** Of more sums than blocks look for what is marked: those of the last head and of another. */
  @ParameterizedTest(name = "{0}, normalised: {1}, on {2}")
  @MethodSource("modesAndSubjects")
  void fewOfManySumsAreFormedAgain(Mode mode, boolean normalized, Subject subject) {
    int dim = 128;
    int tokens = 70;
    Case.Builder builder =
        SweepContract.of("few of many", 1, FILLING, FILLING, tokens, dim, dim)
            .nonCausal()
            .mode(mode);
    Case clean = (normalized ? builder.normalized() : builder).build();
    float[] v = clean.v.clone();
    List<Integer> heads = List.of(100, FILLING - 1);
    for (int head : heads) {
      for (int i = 0; i < dim; i++) {
        v[(head * tokens + 50) * dim + i] *= 1e12f;
      }
    }
    Case problem = clean.but("rows of 1e12").v(v).build();
    float[] expected = Run.of(clean, subject.backend()).o();
    Results got = Run.of(problem, subject.backend());
    got.assertRight(problem);
    for (int i = 0; i < expected.length; i++) {
      if (!heads.contains(i / (tokens * dim))) {
        assertThat(got.o()[i]).as("element %d%s", i, Seeds.replay()).isEqualTo(expected[i]);
      }
    }
  }

  @AfterEach
  void choosesFreelyAgain() {
    PROPERTIES.forEach(System::clearProperty);
  }

  @ParameterizedTest(name = "{0}: {1} on {2}")
  @MethodSource("techniquesAndCases")
  void bothTechniquesAreRight(String technique, Case problem, Subject subject) {
    PROPERTIES.forEach(property -> System.setProperty(property, technique));
    Results first = Run.of(problem, subject.backend());
    first.assertRight(problem);
    Run.of(problem, subject.backend()).assertSameBits(first, technique + " run twice");
  }
}
