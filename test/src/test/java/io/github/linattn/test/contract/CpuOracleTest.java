package io.github.linattn.test.contract;

import io.github.linattn.test.harness.Backends;
import io.github.linattn.test.harness.Subject;
import java.util.List;

/** {@link OracleContract} on the CPU. */
final class CpuOracleTest extends OracleContract {
  @Override
  List<Subject> subjects() {
    return Backends.cpu();
  }
}
