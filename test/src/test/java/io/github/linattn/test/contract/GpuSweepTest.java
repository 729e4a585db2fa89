package io.github.linattn.test.contract;

import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.github.linattn.DType;
import io.github.linattn.Mode;
import io.github.linattn.test.harness.Backends;
import io.github.linattn.test.harness.Case;
import io.github.linattn.test.harness.GpuTest;
import io.github.linattn.test.harness.Run;
import io.github.linattn.test.harness.Subject;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

/** {@link SweepContract} on the GPU. */
@GpuTest
final class GpuSweepTest extends SweepContract {
  @Override
  List<Subject> subjects() {
    return Backends.gpu();
  }

  List<Arguments> casesInOtherUnits() {
    List<Arguments> rows = new ArrayList<>();
    for (Case.Builder builder : cases()) {
      Case drawn = builder.build();
      if (drawn.dtype == DType.F32) {
        for (Mode mode : Mode.values()) {
          Case problem =
              drawn
                  .but("other units, " + mode)
                  .mode(mode)
                  .v(Case.times(drawn.v, 0x1p20f))
                  .dO(Case.times(drawn.dO, 0x1p-40f))
                  .build();
          subjects().forEach(subject -> rows.add(Arguments.of(problem, subject)));
        }
      }
    }
    return rows;
  }

  /** Operands of 16 bits have the range of their type; dO of a mean over many tokens is small. */
  @ParameterizedTest(name = "{0} on {1}")
  @MethodSource("casesInOtherUnits")
  void unitsDoNotMatter(Case problem, Subject subject) {
    assumeTrue(subject.does(problem), "left out: refused");
    assumeTrue(Subject.differentiates(problem, subject.backend()), "left out: no kernels for it");
    Run.of(problem, subject.backend()).assertRight(problem);
  }
}
