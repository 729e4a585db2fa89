package io.github.linattn.test.contract;

import static org.assertj.core.api.Assertions.assertThat;

import io.github.linattn.Backend;
import org.junit.jupiter.api.Test;

/** Breaks when a run that is meant for one matrix kernel silently tests the other. */
final class MatrixKernelTest {

  @Test
  void isTheOneThatThisRunIsFor() {
    try (Backend cpu = Backend.cpu(1)) {
      if (Boolean.getBoolean("linattn.scalar")) {
        assertThat(cpu.describe()).contains("scalar");
      } else {
        assertThat(cpu.describe()).contains("Vector API").doesNotContain("scalar");
      }
    }
  }
}
