package io.github.linattn.test.contract;

import io.github.linattn.test.harness.Backends;
import io.github.linattn.test.harness.GpuTest;
import io.github.linattn.test.harness.Subject;
import java.util.List;

/** {@link TwoLayersContract} on the GPU. */
@GpuTest
final class GpuTwoLayersTest extends TwoLayersContract {
  @Override
  List<Subject> subjects() {
    return Backends.gpu();
  }
}
