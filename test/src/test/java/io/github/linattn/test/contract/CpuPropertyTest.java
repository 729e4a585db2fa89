package io.github.linattn.test.contract;

import io.github.linattn.AttentionShape;
import io.github.linattn.test.harness.Backends;
import io.github.linattn.test.harness.Case;
import io.github.linattn.test.harness.Run;
import io.github.linattn.test.harness.Seeds;
import io.github.linattn.test.harness.Subject;
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

  private static float[] padded(SplittableRandom random, int tokens, int first) {
    float[] rows = new float[tokens * D];
    for (int i = 0; i < rows.length; i++) {
      double x = random.nextGaussian();
      rows[i] = (float) (i < first * D ? 1e-3 * x : Math.abs(x));
    }
    return rows;
  }
}
