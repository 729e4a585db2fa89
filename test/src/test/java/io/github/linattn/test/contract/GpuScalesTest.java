package io.github.linattn.test.contract;

import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.github.linattn.DType;
import io.github.linattn.Mode;
import io.github.linattn.test.harness.Backends;
import io.github.linattn.test.harness.Case;
import io.github.linattn.test.harness.GpuTest;
import io.github.linattn.test.harness.Run;
import io.github.linattn.test.harness.StateGradientValues;
import io.github.linattn.test.harness.Subject;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * Breaks when operands of 16 bits are scaled by rows that say nothing of those behind them: the
 * zeros of a padded sequence, or of the gradient of a prompt that no loss is taken of.
 */
@GpuTest
final class GpuScalesTest {
  private static final int TOKENS = 400;

  /** More than a chunk, and not whole chunks. */
  private static final int ZEROS = 150;

  static List<Arguments> casesAndSubjects() {
    List<Arguments> rows = new ArrayList<>();
    for (Subject subject : Backends.gpu()) {
      for (Case problem : cases()) {
        rows.add(Arguments.of("", problem, subject));
        if (problem.causal) { // segments of zeros alone, and one that begins with them
          rows.add(Arguments.of("wgmma:128", problem, subject));
          rows.add(Arguments.of("wgmma:256", problem, subject));
        }
      }
    }
    return rows;
  }

  private static List<Case> cases() {
    List<Case> cases = new ArrayList<>();
    for (DType dtype : DType.values()) {
      for (Mode mode : dtype == DType.F32 ? Mode.values() : new Mode[] {Mode.DEFAULT}) {
        boolean isSingle = dtype == DType.F32;
        float small = isSingle ? 1e-6f : 1e-4f;
        for (int dim : new int[] {64, 128, 256}) {
          Case drawn = of(dtype, mode, 2, 2, dim).build();
          cases.add(behindZeros(drawn, isSingle ? small : 1e-2f));
          cases.add(withoutPrompt(drawn, small));
          cases.add(withoutPrompt(drawn.but("kept").keepingState().build(), small));
          cases.add(withoutPrompt(drawn.but("all tokens").nonCausal().build(), small));
          if (isSingle) {
            cases.add(drawn.but("tiny").v(Case.times(drawn.v, 1e-19f)).build());
            // out of the range of operands, so that all of it is repaired
            cases.add(drawn.but("huge").v(Case.times(drawn.v, 1e19f)).build());
          }
        }
        Case grouped = of(dtype, mode, 4, 2, 64).throughStates().build();
        cases.add(withoutPrompt(grouped, small));
        Case normalized = of(dtype, mode, 2, 2, 64).normalized().build().but("normalised").build();
        cases.add(withoutPrompt(normalized, small));
        if (isSingle) {
          float[] tiny = Case.times(normalized.dO, 1e-12f);
          cases.add(normalized.but("1e-12").dO(tiny).build());
          cases.add(normalized.but("1e-12, all tokens").dO(tiny).nonCausal().build());
        }
        cases.add(withoutEvenHeads(grouped, small));
        cases.add(throughTheStateAlone(grouped, isSingle ? small : 1e-2f));
      }
    }
    return cases;
  }

  private static Case.Builder of(DType dtype, Mode mode, int heads, int keyValueHeads, int dim) {
    String name = "scales " + dtype + " " + mode;
    return SweepContract.of(name, 1, heads, keyValueHeads, TOKENS, dim, dim)
        .dtype(dtype)
        .mode(mode);
  }

  /** The loss is one of the last state, so that all rows of dO are zeros. */
  private static Case throughTheStateAlone(Case drawn, float size) {
    StateGradientValues gradient = Objects.requireNonNull(drawn.finalGradient);
    return drawn
        .but("through the state alone, " + size)
        .dO(new float[drawn.dO.length])
        .finalGradient(
            new StateGradientValues(
                Case.times(gradient.ds(), size),
                Case.times(gradient.dz(), size),
                Case.times(gradient.du(), size)))
        .build();
  }

  /** Of each group of two heads the first has a gradient of zeros and asks for nothing. */
  private static Case withoutEvenHeads(Case drawn, float size) {
    int head = TOKENS * drawn.shape.valueDim();
    float[] q = drawn.q.clone();
    float[] dO = Case.times(drawn.dO, size);
    for (int i = 0; i < q.length; i++) {
      if (i / head % 2 == 0) {
        q[i] = 0;
        dO[i] = 0;
      }
    }
    return drawn.but("without even heads, " + size).q(q).dO(dO).build();
  }

  private static Case behindZeros(Case drawn, float size) {
    return drawn
        .but("behind zeros, " + size)
        .q(behind(drawn.q, drawn.shape.keyDim(), 1))
        .k(behind(drawn.k, drawn.shape.keyDim(), 1))
        .v(behind(drawn.v, drawn.shape.valueDim(), size))
        .dO(behind(drawn.dO, drawn.shape.valueDim(), size))
        .build();
  }

  private static Case withoutPrompt(Case drawn, float size) {
    return drawn
        .but("no gradient of a prompt, " + size)
        .dO(behind(drawn.dO, drawn.shape.valueDim(), size))
        .build();
  }

  /** Rows of each head, the first of them zeros. */
  private static float[] behind(float[] rows, int dim, float factor) {
    float[] changed = Case.times(rows, factor);
    for (int i = 0; i < rows.length; i++) {
      if (i / dim % TOKENS < ZEROS) {
        changed[i] = 0;
      }
    }
    return changed;
  }

  @AfterEach
  void choosesFreelyAgain() {
    System.clearProperty("linattn.plan");
    System.clearProperty("linattn.gradient.plan");
  }

  @ParameterizedTest(name = "{1}, plan {0}, on {2}")
  @MethodSource("casesAndSubjects")
  void rowsKeepTheirDigits(String plan, Case problem, Subject subject) {
    if (!plan.isEmpty()) {
      System.setProperty("linattn.plan", plan);
      System.setProperty("linattn.gradient.plan", plan);
    }
    assumeTrue(Subject.differentiates(problem, subject.backend()), "left out: no kernels for it");
    Run.of(problem, subject.backend()).assertRight(problem);
  }
}
