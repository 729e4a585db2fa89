package io.github.linattn;

import static org.assertj.core.api.Assertions.assertThat;

import org.junit.jupiter.api.Test;

/** Breaks when a result can't be asked what it says of itself, however it lies in memory. */
final class ForwardTest {
  @Test
  void theSmallestNormalizersAreOfRowsThatLieApart() {
    AttentionShape shape = AttentionShape.of(2, 3, 5, 16);
    float[] values = new float[Math.toIntExact(shape.q().elements())];
    for (int i = 0; i < values.length; i++) {
      values[i] = i / 80 + 1; // h in head h, counted from 1: its g grow from 1 + 16 h²
    }
    try (Backend cpu = Backend.cpu(1);
        Tensor x = Tensor.copyOf(values, shape.q());
        Tensor o = cpu.allocate(DType.F32, shape.output());
        Tensor wide = cpu.allocate(DType.F32, TensorShape.of(3, 2, 8))) {
      Tensor g = wide.permuted(1, 0, 2).sliced(2, 2, 5);
      Forward y = Forward.over(AttentionInput.of(x, x, x), o, g, null);
      LinearAttention.builder().on(cpu).forwardInto(y);
      assertThat(y.smallestNormalizers()).containsExactly(17, 65, 145, 257, 401, 577);
    }
  }
}
