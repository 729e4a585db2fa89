package io.github.linattn.internal.cpu;

import static org.assertj.core.api.Assertions.assertThat;

import io.github.linattn.Mode;
import java.util.SplittableRandom;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Breaks when a state loses more than its mode allows of tokens that all round it the same way. */
class GrowingStateTest {
  private static final int RANDOM_TOKENS = 256;
  private static final long SEED = 77;

  private final MatrixKernel kernel = MatrixKernels.create();

  /** A row of tokens. */
  private interface Rows {
    float[] of(int token);
  }

  /** A part of S is large first, and is left alone by the tokens that repeat from then on. */
  @ParameterizedTest
  @CsvSource({"0, 0", "1, 0", "0, 16", "1, 16", "32, 0", "32, 32"})
  void tokensThatRepeatLeaveAPartAlone(int keyColumns, int valueColumns) {
    int d = 64;
    SplittableRandom random = new SplittableRandom(SEED);
    float[] laterKey = row(random, d, keyColumns, 0, 0.1, 0.2);
    float[] laterValue = row(random, d, valueColumns, 0, 0.5, 1);
    assertKept(
        d,
        token -> token < RANDOM_TOKENS ? row(random, d, keyColumns, 1, 0, 0.2) : laterKey,
        token -> token < RANDOM_TOKENS ? row(random, d, valueColumns, 1, 0, 1) : laterValue);
  }

  /** Rows of S that are equal, or opposite, lose the same. */
  @ParameterizedTest
  @CsvSource({"16, 16", "64, 1", "64, 2", "64, 64", "96, 2", "96, 96", "128, 2"})
  void tokensThatRepeatMakeRowsAlike(int d, int equal) {
    SplittableRandom random = new SplittableRandom(SEED);
    for (int step = 1; step < 3; step++) { // other places of the rows, and other signs
      float[] key = new float[d];
      for (int i = 0; i < equal; i++) {
        key[(7 + step * i) % d] = i % step == 0 ? 0.3f : -0.3f;
      }
      float[] value = row(random, d, 0, 0, -0.5, 1);
      float[] before = value.clone();
      for (int j = 0; j < d; j++) {
        before[j] *= -0.2f;
      }
      assertKept(d, token -> key, token -> token < d * 12 ? before : value);
    }
  }

  private void assertKept(int d, Rows keys, Rows values) {
    int tokens = 64 * d;
    OuterSum sums = new OuterSum(d, d);
    GrowingState growing = new GrowingState(Mode.DEFAULT, sums, tokens);
    Panels k = new Panels(Tiles.CHUNK, d);
    Panels v = new Panels(Tiles.CHUNK, d);
    Panels q = new Panels(Tiles.CHUNK, d);
    Panels y = new Panels(Tiles.CHUNK, d);
    double[] expected = new double[d * d];
    for (int token = 0; token < tokens; token += Tiles.CHUNK) {
      for (int i = 0; i < Tiles.CHUNK; i++) {
        float[] key = keys.of(token + i);
        float[] value = values.of(token + i);
        k.setRow(i, key);
        v.setRow(i, value);
        for (int at = 0; at < expected.length; at++) {
          expected[at] += (double) key[at / d] * value[at % d];
        }
      }
      kernel.recur(Tiles.CHUNK, k, v, q, growing.matrix(), growing.matrix(), y, new Upcoming());
      growing.addRows(kernel, Tiles.CHUNK, k, v);
      growing.passed(kernel, Tiles.CHUNK);
    }
    double largest = 0;
    double error = 0;
    for (int at = 0; at < expected.length; at++) {
      float actual = growing.matrix().data[growing.matrix().at(at / d, at % d)];
      largest = Math.max(largest, Math.abs(expected[at]));
      error = Math.max(error, Math.abs(actual - expected[at]));
    }
    assertThat(error).isLessThan(2e-5 * largest);
  }

  /** Equal values in the first columns, and uniform ones from a least on in the others. */
  private static float[] row(
      SplittableRandom random, int d, int columns, float first, double least, double range) {
    float[] row = new float[d];
    for (int i = 0; i < d; i++) {
      row[i] = i < columns ? first : (float) (least + range * random.nextDouble());
    }
    return row;
  }
}
