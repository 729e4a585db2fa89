package io.github.linattn.test.contract;

import io.github.linattn.test.harness.Backends;
import io.github.linattn.test.harness.Case;
import io.github.linattn.test.harness.Subject;
import java.util.ArrayList;
import java.util.List;

/** {@link SweepContract} on the CPU; with the scalar kernel, which is slow, on few shapes. */
final class CpuSweepTest extends SweepContract {
  @Override
  List<Subject> subjects() {
    return Backends.cpu();
  }

  @Override
  List<Case.Builder> cases() {
    if (!Boolean.getBoolean("linattn.scalar")) {
      return super.cases();
    }
    List<Case.Builder> few = new ArrayList<>();
    addPackings(few);
    addCoefficients(few);
    addTypes(few);
    return few;
  }
}
