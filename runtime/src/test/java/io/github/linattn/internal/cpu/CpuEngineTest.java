package io.github.linattn.internal.cpu;

import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.util.List;
import org.junit.jupiter.api.Test;

final class CpuEngineTest {
  @Test
  void whereTheHeapIsTooSmallItSaysHowMuchIsWanted() {
    OutOfMemoryError error = new OutOfMemoryError("Java heap space");
    assertThatThrownBy(
            () ->
                CpuEngine.run(
                    () -> {
                      throw error;
                    },
                    List::of,
                    () -> 12_345))
        .isInstanceOf(OutOfMemoryError.class)
        .hasMessage(
            "the cpu backend works in up to 12345 bytes of the Java heap here: Java heap space;"
                + " -Xmx gives more")
        .hasCause(error);
  }
}
