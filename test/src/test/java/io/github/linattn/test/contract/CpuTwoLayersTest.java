package io.github.linattn.test.contract;

import io.github.linattn.test.harness.Backends;
import io.github.linattn.test.harness.Subject;
import java.util.List;

/** {@link TwoLayersContract} on the CPU. */
final class CpuTwoLayersTest extends TwoLayersContract {
  @Override
  List<Subject> subjects() {
    return Backends.cpu();
  }
}
