package io.github.linattn.internal.cuda;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.within;

import org.junit.jupiter.api.Test;

/** Breaks when clock and width of a memory give another copy speed than the one measured. */
class GpuTraitsTest {
  @Test
  void clockAndWidthTellWhatCopiesReach() {
    assertThat(GpuTraits.bytesPerMicro(3_201_000, 6016))
        .as("H200")
        .isCloseTo(Rates.BYTES_PER_MICRO, within(0.01e6));
    assertThat(GpuTraits.bytesPerMicro(2_619_000, 5120))
        .as("H100")
        .isCloseTo(AnyKernel.H100.bytesPerMicro(), within(0.01e6));
  }

  @Test
  void aGpuThatDoesNotTellIsTakenForAnH200() {
    assertThat(GpuTraits.bytesPerMicro(0, 6016)).isEqualTo(Rates.BYTES_PER_MICRO);
    assertThat(GpuTraits.bytesPerMicro(3_201_000, 0)).isEqualTo(Rates.BYTES_PER_MICRO);
  }
}
