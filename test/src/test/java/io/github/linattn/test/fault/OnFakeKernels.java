package io.github.linattn.test.fault;

import java.nio.file.Path;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.io.TempDir;

/** Tests of the CUDA engine over the double of libcudart and kernels that are not there. */
abstract class OnFakeKernels {
  static CudartDouble cudart;

  @TempDir private static Path folder;

  @BeforeAll
  static void load() {
    cudart = CudartDouble.load();
    FakeKernels.install(folder);
  }

  @AfterAll
  static void remove() {
    FakeKernels.remove();
  }

  @BeforeEach
  void reset() {
    cudart.reset();
  }
}
