package io.github.linattn.test.contract;

import static org.assertj.core.api.Assertions.assertThat;

import io.github.linattn.AttentionShape;
import io.github.linattn.Backend;
import io.github.linattn.DType;
import io.github.linattn.LinearAttention;
import io.github.linattn.Plan;
import io.github.linattn.Sequences;
import org.junit.jupiter.api.Test;

/** Breaks when a plan of the CPU takes packed sequences for one. */
final class CpuPlanTest {
  private static final AttentionShape SHAPE = AttentionShape.of(1, 2, 9000, 16);

  @Test
  void packedSequencesAreLanesWithAStateEach() {
    try (Backend cpu = Backend.cpu(4)) {
      LinearAttention attention = LinearAttention.builder().keepState(true).on(cpu);
      Plan one = attention.plan(SHAPE, DType.F32);
      Plan packed = attention.plan(SHAPE, DType.F32, Sequences.ofLengths(8000, 0, 600, 400));
      assertThat(one.forward().steps().getFirst()).contains("2 lanes x 4 segments");
      assertThat(packed.forward().steps().getFirst()).contains("8 lanes x 1 segments");
      assertThat(packed.backward().steps().getFirst()).contains("8 lanes x 1 segments");
      long ofState = 2L * (16 * 16 + 2 * 16) * Float.BYTES;
      assertThat(packed.forward().resultBytes())
          .isEqualTo(one.forward().resultBytes() + 3 * ofState);
      assertThat(packed.backward().resultBytes()).isEqualTo(one.backward().resultBytes());
    }
  }
}
