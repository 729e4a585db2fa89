package io.github.linattn.test.contract;

import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.github.linattn.test.harness.Case;
import io.github.linattn.test.harness.Run;
import io.github.linattn.test.harness.Subject;

/** What a backend does with a problem that it has no kernel for. */
final class Refusals {
  private Refusals() {}

  /** Asserts that the problem is refused with a sentence that says what is possible instead. */
  static void assertRefused(Case problem, Subject subject) {
    assertThatThrownBy(() -> Run.of(problem, subject.backend()))
        .as("%s on %s", problem, subject)
        .isInstanceOf(UnsupportedOperationException.class)
        .message()
        .hasSizeGreaterThan(40)
        .contains(" ");
  }
}
