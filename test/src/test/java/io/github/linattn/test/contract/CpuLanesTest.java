package io.github.linattn.test.contract;

import io.github.linattn.test.harness.Backends;
import io.github.linattn.test.harness.Case;
import io.github.linattn.test.harness.Results;
import io.github.linattn.test.harness.Run;
import io.github.linattn.test.harness.Subject;
import java.util.List;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * Breaks when a lane that goes from thread to thread, a step at a time, loses or repeats something
 * on the way: then its results are wrong, or depend on how many threads there are.
 */
final class CpuLanesTest {
  static List<Case> cases() {
    return List.of(
        SweepContract.of("lanes", 1, 5, 600, 32).normalized().build(),
        SweepContract.of("lanes", 2, 6, 3, 520, 16, 32).throughStates().build(),
        SweepContract.of("lanes", 1, 4, 530, 16).nonCausal().build(),
        SweepContract.of("long lanes", 1, 4, 1300, 16).keepingState().build(), // sums settle
        SweepContract.of("lanes of all lengths", 1, 2, 885, 16)
            .packed(300, 0, 1, 520, 64)
            .throughStates()
            .build());
  }

  @ParameterizedTest
  @MethodSource("cases")
  void takeTurns(Case problem) {
    List<Subject> subjects = Backends.cpu();
    Results first = Run.of(problem, subjects.getFirst().backend());
    first.assertRight(problem);
    for (Subject subject : subjects.subList(1, subjects.size())) {
      Run.of(problem, subject.backend()).assertSameBits(first, subject.toString());
    }
  }
}
