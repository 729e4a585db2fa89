package io.github.linattn.bindings.host;

import static org.assertj.core.api.Assertions.assertThat;

import java.util.List;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

/** Needs native access, which the tests have. */
final class HeapAddressTest {
  @Test
  void anArrayBeginsAtAMultipleOfEightBytes() {
    for (int length = 1; length < 200; length++) {
      assertThat(HeapAddress.elementsToBoundary(new float[length], 2)).isZero();
    }
  }

  /** Of arrays that follow one another in the heap, some begin elsewhere than others. */
  @Test
  void arraysBeginAtMoreThanOnePlaceOfALine() {
    List<Integer> places =
        IntStream.range(1, 200)
            .map(length -> HeapAddress.elementsToBoundary(new float[length], 16))
            .boxed()
            .distinct()
            .toList();
    assertThat(places).hasSizeGreaterThan(1).allMatch(at -> at >= 0 && at < 16 && at % 2 == 0);
  }
}
