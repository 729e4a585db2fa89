package io.github.linattn.test.contract;

import static org.assertj.core.api.Assertions.assertThat;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.Backend;
import io.github.linattn.DType;
import io.github.linattn.Diagnostics;
import io.github.linattn.Gradients;
import io.github.linattn.LinearAttention;
import io.github.linattn.Stream;
import io.github.linattn.Tensor;
import io.github.linattn.test.harness.GpuTest;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/**
 * Breaks when a call takes other memory of the device than its plan says: a tensor of N D elements
 * would show, here 400 times what is left to the driver.
 */
@GpuTest
final class GpuMemoryTest {
  private static final DType DTYPE = DType.BF16;

  /** The device gives memory in units of 2 MiB, and a stream takes some. */
  private static final long MOST_BESIDE = 6L << 20;

  @ParameterizedTest(name = "{1} heads, {2} tokens, normalised {3}")
  @CsvSource({"4, 16, 100000, false", "4, 16, 100000, true", "1, 2, 3200000, false"})
  void aBackwardTakesWhatItsPlanSays(int batch, int heads, int tokens, boolean normalize) {
    AttentionShape shape = AttentionShape.of(batch, heads, tokens, 64);
    try (Backend gpu = Backend.cuda(0);
        Tensor q = gpu.allocate(DTYPE, shape.q());
        Tensor k = gpu.allocate(DTYPE, shape.k());
        Tensor v = gpu.allocate(DTYPE, shape.v());
        Tensor o = gpu.allocate(DTYPE, shape.output());
        Tensor g = gpu.allocate(DType.F32, shape.normalizer());
        Tensor dO = gpu.allocate(DTYPE, shape.output());
        Tensor dq = gpu.allocate(DTYPE, shape.q());
        Tensor dk = gpu.allocate(DTYPE, shape.k());
        Tensor dv = gpu.allocate(DTYPE, shape.v());
        Tensor da = gpu.allocate(DType.F32, shape.coefficients());
        Tensor db = gpu.allocate(DType.F32, shape.coefficients())) {
      Gradients gradients = Gradients.over(dq, dk, dv, da, db);
      AttentionInput input = AttentionInput.of(q, k, v);
      LinearAttention.Builder builder =
          LinearAttention.builder().normalizeQueriesAndKeys(normalize);
      LinearAttention attention = builder.on(gpu);
      attention.backwardInto(input, o, g, dO, gradients); // loads the kernels
      attention.synchronize();
      long free = freeBytes();
      try (Stream stream = gpu.newStream()) {
        builder.on(gpu, stream).backwardInto(input, o, g, dO, gradients);
        stream.synchronize();
        long planned = attention.plan(shape, DTYPE).backward().workspaceBytes();
        assertThat(planned).isGreaterThan(4 * MOST_BESIDE);
        assertThat(free - freeBytes()).isBetween(planned, planned + MOST_BESIDE);
      }
    }
  }

  private static long freeBytes() {
    return Diagnostics.gpu(0).orElseThrow().freeBytes();
  }
}
