package io.github.linattn.test.fault;

import static org.assertj.core.api.Assertions.assertThat;

import io.github.linattn.Diagnostics;
import io.github.linattn.Diagnostics.CudaRuntime;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;

/** Breaks when a question about one GPU makes contexts on others. */
final class DiagnosticsTest {
  private static CudartDouble cudart;

  @BeforeAll
  static void load() {
    cudart = CudartDouble.load();
  }

  @Test
  void oneGpuIsAskedAlone() {
    cudart.reset();
    CudaRuntime cuda = Diagnostics.cuda().orElseThrow();
    assertThat(cuda.gpus()).hasSizeGreaterThan(1);
    assertThat(memoriesAsked()).isEqualTo(cuda.gpus().size());
    cudart.reset();
    assertThat(Diagnostics.gpu(1)).contains(cuda.gpus().get(1));
    assertThat(memoriesAsked()).isEqualTo(1);
  }

  private static long memoriesAsked() {
    long asked = 0;
    for (long i = 0; i < cudart.calls(); i++) {
      asked += cudart.call(i).equals("cudaMemGetInfo") ? 1 : 0;
    }
    return asked;
  }

  @Test
  void anOrdinalOfNoGpuGivesNothing() {
    assertThat(Diagnostics.gpu(-1)).isEmpty();
    assertThat(Diagnostics.gpu(Diagnostics.cuda().orElseThrow().gpus().size())).isEmpty();
  }
}
