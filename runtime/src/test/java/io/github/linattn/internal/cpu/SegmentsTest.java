package io.github.linattn.internal.cpu;

import static org.assertj.core.api.Assertions.assertThat;

import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

final class SegmentsTest {
  @ParameterizedTest
  @CsvSource({
    "4, 1, 0", // one thread takes one lane after the other
    "4, 2, 0",
    "5, 2, 1",
    "3, 16, 3", // all lanes: fewer than threads
    "12, 16, 0", // three quarters of the threads have work
    "16, 16, 0",
    "17, 16, 1",
    "20, 16, 4",
    "26, 16, 10",
    "27, 16, 0",
    "64, 16, 0"
  })
  void cutsTheLanesThatWouldLeaveThreadsIdle(int lanes, int threads, int cut) {
    assertThat(Segments.cutLanes(lanes, threads)).isEqualTo(cut);
  }

  @ParameterizedTest
  @CsvSource({
    "1, 100000, 16, 32",
    "3, 100000, 16, 11",
    "10, 100000, 16, 4",
    "1, 4096, 16, 8", // each of 512 tokens at least
    "1, 1000, 16, 1",
    "1, 0, 16, 1"
  })
  void cutsThemIntoTwoSegmentsForEachThread(int lanes, int tokens, int threads, int segments) {
    assertThat(Segments.perCutLane(lanes, tokens, threads)).isEqualTo(segments);
  }
}
