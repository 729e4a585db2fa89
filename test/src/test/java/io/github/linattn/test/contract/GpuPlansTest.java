package io.github.linattn.test.contract;

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
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * Breaks when a plan that the planner does not choose for a small problem is wrong: every
 * technique, with whole sequences and with segments of one, two and three chunks, with blocks that
 * take turns, and with blocks that hand states on.
 */
@GpuTest
final class GpuPlansTest {
  private static final String PROPERTY = "linattn.plan";

  static List<Arguments> plansAndCases() {
    List<Arguments> rows = new ArrayList<>();
    for (Subject subject : Backends.gpu()) {
      boolean hopper = subject.isHopper();
      for (String technique : hopper ? List.of("wgmma", "mma") : List.of("mma")) {
        for (String cut : List.of("", ":64", ":128", ":192")) {
          for (Case.Builder builder : cases()) {
            rows.add(Arguments.of(technique + cut, builder.build(), subject));
          }
        }
      }
      if (hopper) {
        for (String turns : List.of("*2", "*4", ":64*2", ":128*2")) {
          for (Case.Builder builder : casesInTurns()) {
            rows.add(Arguments.of("wgmma" + turns, builder.build(), subject));
          }
        }
        for (String relay : List.of(":64+", ":128+")) {
          Stream.of(cases(), relayedCases())
              .flatMap(List::stream)
              .forEach(
                  builder -> rows.add(Arguments.of("wgmma" + relay, builder.build(), subject)));
        }
      }
    }
    return rows;
  }

  /** What blocks that take turns do: 16 bits, not normalised, up to D = 128. */
  private static List<Case.Builder> casesInTurns() {
    List<Case.Builder> cases = new ArrayList<>();
    for (DType dtype : List.of(DType.BF16, DType.F16)) {
      String name = "turns " + dtype;
      cases.add(SweepContract.of(name, 1, 2, 391, 64).dtype(dtype).afterTokens(37));
      cases.add(SweepContract.of(name, 2, 4, 2, 320, 128, 96).dtype(dtype));
      cases.add(SweepContract.of(name, 1, 2, 271, 32).dtype(dtype).packed(70, 0, 1, 200));
      cases.add(SweepContract.of(name, 1, 2, 200, 96).dtype(dtype).coefficients(1.5f, 0));
    }
    return cases;
  }

  private static List<Case.Builder> cases() {
    List<Case.Builder> cases = new ArrayList<>();
    for (DType dtype : DType.values()) {
      for (Mode mode : dtype == DType.F32 ? Mode.values() : new Mode[] {Mode.DEFAULT}) {
        String name = "plan " + dtype + " " + mode;
        cases.add(SweepContract.of(name, 1, 2, 391, 64).dtype(dtype).mode(mode));
        cases.add(SweepContract.of(name, 1, 2, 200, 32).dtype(dtype).mode(mode));
        cases.add(
            SweepContract.of(name, 2, 4, 2, 320, 128, 96).dtype(dtype).mode(mode).normalized());
        if (dtype != DType.F32 || mode == Mode.TF32) {
          cases.add(SweepContract.of(name, 1, 2, 200, 192).dtype(dtype).mode(mode));
        }
      }
    }
    return cases;
  }

  /** What blocks that hand states on have beside: states before the first item, groups of heads. */
  private static List<Case.Builder> relayedCases() {
    List<Case.Builder> cases = new ArrayList<>();
    for (DType dtype : DType.values()) {
      String name = "relay " + dtype;
      cases.add(SweepContract.of(name, 2, 2, 391, 128).dtype(dtype).afterTokens(37));
      cases.add(SweepContract.of(name, 2, 6, 2, 320, 192, 256).dtype(dtype).afterTokens(9));
      cases.add(SweepContract.of(name, 1, 3, 500, 96).dtype(dtype).keepingState().normalized());
    }
    return cases;
  }

  static List<Arguments> casesInTurnsOnHopper() {
    List<Arguments> rows = new ArrayList<>();
    for (Subject subject : Backends.gpu()) {
      if (subject.isHopper()) {
        casesInTurns().forEach(builder -> rows.add(Arguments.of(builder.build(), subject)));
      }
    }
    return rows;
  }

  @AfterEach
  void choosesFreelyAgain() {
    System.clearProperty(PROPERTY);
  }

  @ParameterizedTest(name = "{0}: {1} on {2}")
  @MethodSource("plansAndCases")
  void everyPlanIsRight(String plan, Case problem, Subject subject) {
    System.setProperty(PROPERTY, plan);
    Results first = Run.of(problem, subject.backend());
    first.assertRight(problem);
    Run.of(problem, subject.backend()).assertSameBits(first, plan + " run twice");
  }

  @ParameterizedTest(name = "{0} on {1}")
  @MethodSource("casesInTurnsOnHopper")
  void blocksThatTakeTurnsGiveTheBitsOfOne(Case problem, Subject subject) {
    System.setProperty(PROPERTY, "wgmma");
    Results one = Run.of(problem, subject.backend());
    for (String turns : List.of("wgmma*2", "wgmma*4")) {
      System.setProperty(PROPERTY, turns);
      Run.of(problem, subject.backend()).assertSameBits(one, turns);
    }
  }
}
