package io.github.linattn.test.contract;

import io.github.linattn.test.harness.Backends;
import io.github.linattn.test.harness.Subject;
import java.util.List;

/** {@link PropertyContract} on the CPU. */
final class CpuPropertyTest extends PropertyContract {
  @Override
  List<Subject> subjects() {
    return Backends.cpu();
  }
}
