package io.github.linattn.internal.cpu;

import static org.assertj.core.api.Assertions.assertThat;

import java.util.List;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Breaks when the end of a long lane is left out because a number of tokens has no such int. */
final class SegmentsTest {
  private static final int MOST = Integer.MAX_VALUE;

  @ParameterizedTest
  @ValueSource(ints = {1, 2, 3, 2_400_000})
  void segmentsAreAllOfALane(int parts) {
    for (int start : new int[] {0, 1, 1_000_000_000}) {
      Lane lane = new Lane(0, 0, 0, start, MOST, 0);
      List<Segments.Segment> segments = Segments.cut(lane, parts);
      int token = start;
      for (Segments.Segment segment : segments) {
        assertThat(segment.start()).isEqualTo(token);
        assertThat(segment.length()).isPositive();
        token = segment.end();
      }
      assertThat(token).isEqualTo(MOST);
      assertThat(segments).hasSize(parts);
    }
  }

  @ParameterizedTest
  @CsvSource({"0, 2147483647", "1200000000, 1200000000", "2147483000, 1000", "2147483647, 64"})
  void theLastStepEndsWithItsSegment(int token, int tokens) {
    Segments.Segment segment = new Segments.Segment(new Lane(0, 0, 0, 0, MOST, 0), 0, MOST);
    assertThat(segment.endOf(token, tokens)).isEqualTo(MOST);
  }

  @ParameterizedTest
  @CsvSource({
    "1, 511, 2, 1",
    "1, 5000, 2, 4",
    "3, 5000, 4, 3",
    "4, 5000, 4, 1",
    "1, 2147483647, 1200000000, 4194303",
    "1, 0, 1200000000, 1"
  })
  void manyThreadsCutALaneAsOftenAsItIsLong(int lanes, int tokens, int threads, int parts) {
    assertThat(Segments.perLane(lanes, tokens, threads)).isEqualTo(parts);
  }
}
