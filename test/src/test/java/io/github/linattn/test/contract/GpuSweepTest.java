package io.github.linattn.test.contract;

import io.github.linattn.DType;
import io.github.linattn.Mode;
import io.github.linattn.test.harness.Backends;
import io.github.linattn.test.harness.Case;
import io.github.linattn.test.harness.GpuTest;
import io.github.linattn.test.harness.StateGradientValues;
import io.github.linattn.test.harness.StateValues;
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

  @Override
  Mode[] modes(Case drawn) {
    return drawn.dtype == DType.F32 ? Mode.values() : super.modes(drawn);
  }

  List<Arguments> casesInOtherUnits() {
    List<Arguments> rows = new ArrayList<>();
    for (Case.Builder builder : cases()) {
      Case drawn = builder.build();
      for (Mode mode : modes(drawn)) {
        Case problem = inOtherUnits(drawn, mode);
        subjects().forEach(subject -> rows.add(Arguments.of(problem, subject)));
      }
    }
    return rows;
  }

  /** The same problem: larger values and queries, smaller keys, a smaller loss. */
  private static Case inOtherUnits(Case drawn, Mode mode) {
    boolean isNarrow = drawn.dtype == DType.F16;
    float ofValues = isNarrow ? 0x1p4f : 0x1p20f;
    float ofQueries = isNarrow ? 0x1p2f : 0x1p10f;
    float ofLoss = 1 / ofValues;
    float ofKeysInStates = drawn.normalize ? 1 : 1 / ofQueries;
    Case.Builder changed =
        drawn
            .but("other units, " + mode)
            .mode(mode)
            .q(Case.times(drawn.q, ofQueries))
            .k(Case.times(drawn.k, 1 / ofQueries))
            .v(Case.times(drawn.v, ofValues))
            .dO(Case.times(drawn.dO, ofLoss / ofValues));
    StateValues first = drawn.initial;
    if (first != null) {
      changed.from(
          new StateValues(
              Case.times(first.s(), ofValues * ofKeysInStates),
              Case.times(first.z(), ofKeysInStates),
              Case.times(first.u(), ofValues),
              first.counts()));
    }
    StateGradientValues last = drawn.finalGradient;
    if (last != null) {
      changed.finalGradient(
          new StateGradientValues(
              Case.times(last.ds(), ofLoss / (ofValues * ofKeysInStates)),
              Case.times(last.dz(), ofLoss / ofKeysInStates),
              Case.times(last.du(), ofLoss / ofValues)));
    }
    return changed.build();
  }

  /** Operands of 16 bits have the range of their type; dO of a mean over many tokens is small. */
  @ParameterizedTest(name = "{0} on {1}")
  @MethodSource("casesInOtherUnits")
  void unitsDoNotMatter(Case problem, Subject subject) {
    assertRightUnlessLeftOut(problem, subject);
  }
}
