package io.github.linattn;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import org.junit.jupiter.api.Test;

/** Breaks when a record of extents accepts what can't be, or derives a wrong shape. */
final class ShapesTest {

  @Test
  void shapesOfTheOperandsFollowFromTheExtents() {
    AttentionShape shape = new AttentionShape(2, 6, 3, 10, 32, 48);
    assertThat(shape.q()).isEqualTo(TensorShape.of(2, 6, 10, 32));
    assertThat(shape.k()).isEqualTo(TensorShape.of(2, 3, 10, 32));
    assertThat(shape.v()).isEqualTo(TensorShape.of(2, 3, 10, 48));
    assertThat(shape.output()).isEqualTo(TensorShape.of(2, 6, 10, 48));
    assertThat(shape.normalizer()).isEqualTo(TensorShape.of(2, 6, 10));
    assertThat(shape.coefficients()).isEqualTo(TensorShape.of(2, 6));
    assertThat(shape.headsPerKeyValueHead()).isEqualTo(2);
    assertThat(AttentionShape.of(2, 6, 10, 32).withKeyValueHeads(3).withValueDim(48))
        .isEqualTo(shape);
  }

  @Test
  void largestProblemsKeepTheirElementCounts() {
    AttentionShape shape = AttentionShape.of(1, 64, 1 << 30, 512);
    assertThat(shape.q().elements()).isEqualTo(64L * (1L << 30) * 512);
  }

  @Test
  void dimensionsAreMultiplesOfSixteenUpTo512() {
    for (int dim = -16; dim <= 528; dim++) {
      int candidate = dim;
      if (dim >= 16 && dim <= 512 && dim % 16 == 0) {
        assertThat(AttentionShape.of(1, 1, 1, dim).keyDim()).isEqualTo(dim);
      } else {
        assertThatThrownBy(() -> AttentionShape.of(1, 1, 1, candidate))
            .hasMessageContaining("multiple of 16 from 16 to 512, got " + candidate);
      }
    }
  }

  @Test
  void tensorShapesAreValues() {
    long[] extents = {2, 3};
    TensorShape shape = TensorShape.of(extents);
    extents[0] = 5;
    assertThat(shape).isEqualTo(TensorShape.of(2, 3)).hasSameHashCodeAs(TensorShape.of(2, 3));
    assertThat(shape).isNotEqualTo(TensorShape.of(3, 2)).isNotEqualTo(TensorShape.of(2, 3, 1));
    assertThat(shape.rank()).isEqualTo(2);
    assertThat(shape.extent(1)).isEqualTo(3);
    assertThat(shape.elements()).isEqualTo(6);
    assertThat(shape).hasToString("[2, 3]");
    assertThatThrownBy(() -> TensorShape.of(2, 0))
        .hasMessage("every extent must be at least 1, got [2, 0]");
  }

  @Test
  void sequencesKnowWhereTheyStart() {
    int[] lengths = {3, 0, 200};
    Sequences sequences = Sequences.ofLengths(lengths);
    lengths[0] = 9;
    assertThat(sequences.count()).isEqualTo(3);
    assertThat(sequences.start(0)).isZero();
    assertThat(sequences.start(1)).isEqualTo(3);
    assertThat(sequences.start(2)).isEqualTo(3);
    assertThat(sequences.start(3)).isEqualTo(203);
    assertThat(sequences.length(1)).isZero();
    assertThat(sequences.length(2)).isEqualTo(200);
    assertThat(sequences.tokens()).isEqualTo(203);
    assertThat(sequences).hasToString("[3, 0, 200]");
    assertThat(sequences)
        .isEqualTo(Sequences.ofLengths(3, 0, 200))
        .hasSameHashCodeAs(Sequences.ofLengths(3, 0, 200))
        .isNotEqualTo(Sequences.ofLengths(3, 200));
  }

  @Test
  void aSequenceMayFillTheWholeRangeOfTokens() {
    assertThat(Sequences.ofLengths(Integer.MAX_VALUE, 0).tokens()).isEqualTo(Integer.MAX_VALUE);
  }
}
