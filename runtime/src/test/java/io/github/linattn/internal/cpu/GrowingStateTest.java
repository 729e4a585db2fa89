package io.github.linattn.internal.cpu;

import static org.assertj.core.api.Assertions.assertThat;

import io.github.linattn.Mode;
import java.util.SplittableRandom;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Breaks when a state loses more than its mode allows of tokens that all round it the same way. */
class GrowingStateTest {
  private static final int D = 64;
  private static final int TOKENS = 64 * D;
  private static final int RANDOM_TOKENS = 256;
  private static final long SEED = 77;

  private final MatrixKernel kernel = MatrixKernels.create();
  private final OuterSum sums = new OuterSum(D, D);
  private final Panels k = new Panels(Tiles.CHUNK, D);
  private final Panels v = new Panels(Tiles.CHUNK, D);
  private final Panels q = new Panels(Tiles.CHUNK, D);
  private final Panels y = new Panels(Tiles.CHUNK, D);
  private final double[] expected = new double[D * D];

  /** A part of S is large first, and is left alone by the tokens that repeat from then on. */
  @ParameterizedTest
  @CsvSource({"0, 0", "1, 0", "0, 16", "1, 16", "32, 0", "32, 32"})
  void tokensThatRepeatLeaveAPartAlone(int keyColumns, int valueColumns) {
    GrowingState growing = new GrowingState(Mode.DEFAULT, sums, TOKENS);
    SplittableRandom random = new SplittableRandom(SEED);
    float[] laterKey = row(random, keyColumns, 0, 0.1, 0.2);
    float[] laterValue = row(random, valueColumns, 0, 0.5, 1);
    for (int token = 0; token < TOKENS; token += Tiles.CHUNK) {
      for (int i = 0; i < Tiles.CHUNK; i++) {
        boolean later = token + i >= RANDOM_TOKENS;
        float[] key = later ? laterKey : row(random, keyColumns, 1, 0, 0.2);
        float[] value = later ? laterValue : row(random, valueColumns, 1, 0, 1);
        k.setRow(i, key, 0);
        v.setRow(i, value, 0);
        for (int at = 0; at < expected.length; at++) {
          expected[at] += (double) key[at / D] * value[at % D];
        }
      }
      kernel.recur(Tiles.CHUNK, k, v, q, growing.matrix(), growing.matrix(), y, new Upcoming());
      growing.addRows(kernel, Tiles.CHUNK, k, v);
      growing.passed(kernel, Tiles.CHUNK);
    }
    double largest = 0;
    double error = 0;
    for (int at = 0; at < expected.length; at++) {
      float actual = growing.matrix().data[growing.matrix().at(at / D, at % D)];
      largest = Math.max(largest, Math.abs(expected[at]));
      error = Math.max(error, Math.abs(actual - expected[at]));
    }
    assertThat(error).isLessThan(2e-5 * largest);
  }

  /** Equal values in the first columns, and uniform ones from a least on in the others. */
  private static float[] row(
      SplittableRandom random, int columns, float first, double least, double range) {
    float[] row = new float[D];
    for (int i = 0; i < D; i++) {
      row[i] = i < columns ? first : (float) (least + range * random.nextDouble());
    }
    return row;
  }
}
