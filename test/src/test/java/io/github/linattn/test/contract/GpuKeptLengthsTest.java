package io.github.linattn.test.contract;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.github.linattn.AttentionShape;
import io.github.linattn.DType;
import io.github.linattn.LinearAttention;
import io.github.linattn.Mode;
import io.github.linattn.test.harness.Backends;
import io.github.linattn.test.harness.Case;
import io.github.linattn.test.harness.GpuTest;
import io.github.linattn.test.harness.Layout;
import io.github.linattn.test.harness.Results;
import io.github.linattn.test.harness.Run;
import io.github.linattn.test.harness.Subject;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * Breaks when a backward of normalised rows takes wrong lengths from its forward: of another head,
 * row or unit, or of a row whose length the forward could not tell.
 */
@GpuTest
final class GpuKeptLengthsTest {
  private static final int TOKENS = 200;

  static List<Arguments> casesAndSubjects() {
    List<Arguments> rows = new ArrayList<>();
    for (Subject subject : Backends.gpu()) {
      for (Case.Builder builder : cases()) {
        Case problem = builder.normalized().keepingState().build();
        rows.add(Arguments.of(problem, subject));
        if (problem.shape.tokens() < 1000) {
          rows.add(Arguments.of(problem.but("all tokens").nonCausal().build(), subject));
        }
      }
    }
    return rows;
  }

  private static List<Case.Builder> cases() {
    List<Case.Builder> cases = new ArrayList<>();
    for (DType dtype : DType.values()) {
      for (Mode mode : dtype == DType.F32 ? Mode.values() : new Mode[] {Mode.DEFAULT}) {
        String name = "kept lengths " + dtype + " " + mode;
        for (int dim : new int[] {32, 64, 96, 128, 192, 256}) {
          cases.add(SweepContract.of(name, 2, 2, TOKENS, dim).dtype(dtype).mode(mode));
        }
        cases.add(SweepContract.of(name, 2, 4, 2, 320, 128, 96).dtype(dtype).mode(mode));
        cases.add(
            SweepContract.of(name, 1, 6, 2, 271, 64, 64)
                .dtype(dtype)
                .mode(mode)
                .packed(70, 0, 1, 200)
                .layout(Layout.TOKEN_MAJOR)
                .throughStates());
        cases.add(SweepContract.of(name, 1, 1, 30_000, 32).dtype(dtype).mode(mode)); // segments
      }
    }
    return cases;
  }

  @ParameterizedTest(name = "{0} on {1}")
  @MethodSource("casesAndSubjects")
  void gradientsAreRight(Case problem, Subject subject) {
    assumeKept(problem, subject);
    Results first = Run.of(problem, subject.backend());
    first.assertRight(problem);
    Run.of(problem, subject.backend()).assertSameBits(first, "run twice");
  }

  static List<Arguments> sizesAndSubjects() {
    List<Arguments> rows = new ArrayList<>();
    for (Subject subject : Backends.gpu()) {
      for (DType dtype : DType.values()) {
        for (float size : new float[] {0, 1e-25f, 1e-13f, 1e-3f, 8e3f, 1e19f}) {
          boolean isHalf = size >= 1e-3f && size <= 8e3f; // where lengths have a unit
          if (size == 0 || isHalf == (dtype == DType.F16)) {
            rows.add(Arguments.of(dtype, size, true, subject));
            rows.add(Arguments.of(dtype, size, false, subject));
          }
        }
      }
    }
    return rows;
  }

  /** Such elements or their squares leave the range of operands and sums; zeros have no length. */
  @ParameterizedTest(name = "{0}, rows of {1}, causal: {2}, on {3}")
  @MethodSource("sizesAndSubjects")
  void aRowOfAnySizeHasItsLength(DType dtype, float size, boolean causal, Subject subject) {
    int dim = 64;
    Case drawn =
        Case.of("sizes", AttentionShape.of(1, 2, TOKENS, dim)).dtype(dtype).normalized().build();
    float[] q = drawn.q.clone();
    float[] k = drawn.k.clone();
    for (int i = 0; i < dim; i++) {
      q[3 * dim + i] *= size;
      k[(TOKENS + 150) * dim + i] *= size;
    }
    Case.Builder sized = drawn.but("rows of " + size).q(q).k(k).keepingState();
    Case problem = (causal ? sized : sized.nonCausal()).build();
    assumeKept(problem, subject);
    Run.of(problem, subject.backend()).assertRight(problem);
  }

  private static void assumeKept(Case problem, Subject subject) {
    assumeTrue(Subject.differentiates(problem, subject.backend()), "left out: no kernels for it");
    LinearAttention.Builder operator = problem.operator();
    LinearAttention keeping = operator.keepState(true).on(subject.backend());
    assumeTrue(
        keeping.plan(problem.shape, problem.dtype).forward().steps().stream()
            .anyMatch(
                step ->
                    step.contains("_normalized_forward_wgmma_")
                        || (step.contains("_normalized_state_sums_wgmma_") && !problem.causal)),
        "left out: this GPU's forward finds no lengths");
    assertThat(workspace(keeping, problem))
        .as("without a place for lengths")
        .isLessThan(workspace(operator.keepState(false).on(subject.backend()), problem));
  }

  private static long workspace(LinearAttention attention, Case problem) {
    return attention.plan(problem.shape, problem.dtype).backward().workspaceBytes();
  }
}
