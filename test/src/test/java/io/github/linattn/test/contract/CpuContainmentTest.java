package io.github.linattn.test.contract;

import io.github.linattn.test.harness.Backends;
import io.github.linattn.test.harness.Subject;
import java.util.List;

/** {@link ContainmentContract} on the CPU. */
final class CpuContainmentTest extends ContainmentContract {
  @Override
  List<Subject> subjects() {
    return Backends.cpu();
  }
}
