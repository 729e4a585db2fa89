package io.github.linattn.internal.cpu;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.github.linattn.Backend;
import io.github.linattn.Event;
import java.util.List;
import org.junit.jupiter.api.Test;

final class CpuEngineTest {
  @Test
  void timesOfTwoBackendsAreNotCompared() {
    try (Backend one = Backend.cpu(1);
        Backend two = Backend.cpu(1);
        Event first = one.newStream().record();
        Event second = two.newStream().record()) {
      assertThat(one.newStream().record().millisSince(first)).isNotNegative();
      assertThatThrownBy(() -> second.millisSince(first))
          .isInstanceOf(IllegalArgumentException.class)
          .hasMessage("the earlier event is of another backend");
    }
  }

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
