package io.github.linattn.test.contract;

import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.github.linattn.DType;
import io.github.linattn.Mode;
import io.github.linattn.test.harness.Backends;
import io.github.linattn.test.harness.Case;
import io.github.linattn.test.harness.GpuTest;
import io.github.linattn.test.harness.Results;
import io.github.linattn.test.harness.Run;
import io.github.linattn.test.harness.Subject;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * Breaks when da and db are taken from sums that have lost their digits: of a rounded o where
 * weights are flat, of q · dq where it is o again that dq has them from, or where dq has left the
 * range of its type; and when the rows that are looked at say nothing of the others.
 */
@GpuTest
final class GpuCoefficientsTest {
  private static final int TOKENS = 1500;

  /** Makes weights flat. */
  private static final float SMALL = 0x1p-7f;

  static List<Arguments> casesAndSubjects() {
    List<Arguments> rows = new ArrayList<>();
    for (DType dtype : DType.values()) {
      for (Mode mode : dtype == DType.F32 ? Mode.values() : new Mode[] {Mode.DEFAULT}) {
        for (Case problem : cases(dtype, mode)) {
          Backends.gpu().forEach(subject -> rows.add(Arguments.of(problem, subject)));
        }
      }
    }
    return rows;
  }

  private static List<Case> cases(DType dtype, Mode mode) {
    List<Case> cases = new ArrayList<>();
    for (int dim : new int[] {64, 128, 256}) {
      cases.add(alike(of(dtype, mode, dim, "alike").build()));
      cases.add(alike(of(dtype, mode, dim, "alike, all tokens").nonCausal().build()));
      cases.add(alike(of(dtype, mode, dim, "alike, b = 0.05").coefficients(1, 0.05f).build()));
      cases.add(flat(of(dtype, mode, dim, "flat").build()).build());
      cases.add(flat(of(dtype, mode, dim, "flat, all tokens").nonCausal().build()).build());
      cases.add(aroundOne(of(dtype, mode, dim, "drawn").build()));
      cases.add(aroundOne(of(dtype, mode, dim, "normalised").normalized().build()));
      for (float b : new float[] {1, 2}) {
        Case.Builder all = of(dtype, mode, dim, "normalised, all tokens, b = " + b);
        cases.add(aroundOne(all.coefficients(1, b).normalized().nonCausal().build()));
      }
    }
    for (float b : new float[] {1, 1e-3f, 0}) {
      Case one = of(dtype, mode, 64, "b = " + b).coefficients(1, b).build();
      cases.add(one.but("one loss").dO(rowsOf(one.dO, 64, 1003, TOKENS)).build());
    }
    Case sparse = of(dtype, mode, 64, "flat").build();
    cases.add(flat(sparse).dO(rowsOf(sparse.dO, 64, 37, 101)).build());
    int[] oneAndEmpty = {TOKENS, 0, 0, 0, 0, 0, 0, 0, 0};
    cases.add(flat(of(dtype, mode, 64, "one and none").packed(oneAndEmpty).build()).build());
    int[] oneAndShort = {TOKENS - 8, 1, 1, 1, 1, 1, 1, 1, 1};
    cases.add(flat(of(dtype, mode, 64, "one and short").packed(oneAndShort).build()).build());
    Case two = of(dtype, mode, 64, "first head").build();
    cases.add(two.but("flat").q(firstHead(two.q, SMALL)).k(firstHead(two.k, SMALL)).build());
    if (dtype == DType.F32) { // out of the range of operands, so that all of it is repaired
      cases.add(flat(two).v(firstHead(two.v, 1e19f)).build());
    }
    if (dtype == DType.F16) { // dq is a few of the steps that fp16 has there
      Case drawn = of(dtype, mode, 64, "small loss").build();
      cases.add(
          drawn
              .but("small keys")
              .q(Case.times(drawn.q, 8))
              .k(Case.times(drawn.k, 0x1p-5f))
              .dO(Case.times(drawn.dO, 0x1p-12f))
              .build());
    }
    return cases;
  }

  private static Case.Builder of(DType dtype, Mode mode, int dim, String what) {
    String name = "%s %s, %s,".formatted(dtype, mode, what);
    return SweepContract.of(name, 1, 2, TOKENS, dim).dtype(dtype).mode(mode);
  }

  private static Case.Builder flat(Case drawn) {
    return drawn.but("small").q(Case.times(drawn.q, SMALL)).k(Case.times(drawn.k, SMALL));
  }

  /**
   * Keys that differ little, and queries along what they have in common: weights are large and
   * nearly the same, so that q · dq has more of the error of o than the sums of dO · v have.
   */
  private static Case alike(Case drawn) {
    int dim = drawn.shape.keyDim();
    float[] common = new float[dim];
    SplittableRandom random = new SplittableRandom(dim);
    for (int i = 0; i < dim; i++) {
      common[i] = (float) (random.nextGaussian() / Math.sqrt(dim));
    }
    float[] q = Case.times(drawn.q, 0.3f);
    float[] k = Case.times(drawn.k, 0.5f);
    for (int i = 0; i < q.length; i++) {
      q[i] += 8 * common[i % dim];
      k[i] += common[i % dim];
    }
    return drawn.but("keys").q(q).k(k).build();
  }

  private static float[] firstHead(float[] rows, float factor) {
    float[] changed = rows.clone();
    for (int i = 0; i < rows.length / 2; i++) {
      changed[i] *= factor;
    }
    return changed;
  }

  /** Values with a mean, so that o is larger than what rows tell apart. */
  private static Case aroundOne(Case drawn) {
    float[] v = drawn.v.clone();
    for (int i = 0; i < v.length; i++) {
      v[i] += 1;
    }
    return drawn.but("v around one").v(v).build();
  }

  /** The rows of each head from {@code first} on, {@code step} apart; zeros else. */
  private static float[] rowsOf(float[] rows, int dim, int first, int step) {
    float[] changed = new float[rows.length];
    for (int i = 0; i < rows.length; i++) {
      int token = i / dim % TOKENS;
      changed[i] = token >= first && (token - first) % step == 0 ? rows[i] : 0;
    }
    return changed;
  }

  @ParameterizedTest(name = "{0} on {1}")
  @MethodSource("casesAndSubjects")
  void coefficientsKeepTheirDigits(Case problem, Subject subject) {
    assumeTrue(Subject.differentiates(problem, subject.backend()), "left out: no kernels for it");
    Results first = Run.of(problem, subject.backend());
    first.assertCoefficientsRight(problem);
    Run.of(problem, subject.backend()).assertSameBits(first, problem + " run twice");
  }
}
