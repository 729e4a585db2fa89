package io.github.linattn.internal.cpu;

import static org.assertj.core.api.Assertions.assertThat;

import org.junit.jupiter.api.Test;

/** Breaks when the kernel is one that this JVM runs slowly, or its text names a wrong cure. */
final class KernelChoiceTest {
  @Test
  void vectorsNeedTheirModuleAndAFusedMultiplyAdd() {
    assertThat(MatrixKernels.obstacle(false, true, true, () -> 4)).isNull();
    assertThat(MatrixKernels.obstacle(false, true, true, () -> 2)).contains("too short");
    assertThat(MatrixKernels.obstacle(false, true, false, () -> 8)).contains("multiply-add");
    assertThat(MatrixKernels.obstacle(false, false, true, KernelChoiceTest::unasked))
        .contains("--add-modules jdk.incubator.vector");
  }

  @Test
  void aScalarKernelThatWasAskedForNeedsNoCure() {
    assertThat(MatrixKernels.obstacle(true, true, true, KernelChoiceTest::unasked))
        .contains("linattn.scalar")
        .doesNotContain("--add-modules");
  }

  private static int unasked() {
    throw new AssertionError("asked a module that is not there");
  }
}
