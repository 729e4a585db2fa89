package io.github.linattn.internal.cpu;

import static org.assertj.core.api.Assertions.assertThat;

import java.util.SplittableRandom;
import org.junit.jupiter.api.Test;

/** Breaks when sums over rows far from zero lose digits as their means are taken off. */
final class OuterSumTest {
  private static final int KEY_DIM = 16;
  private static final int VALUE_DIM = 32;
  private static final int COUNT = 500;

  @Test
  void whatIsLeftOfALargeSumIsRoundedOnce() {
    var random = new SplittableRandom(1);
    var sum = new OuterSum(KEY_DIM, VALUE_DIM);
    float[] keyMean = randomRow(random, KEY_DIM, 3);
    float[] valueMean = randomRow(random, VALUE_DIM, 300);
    double[][] matrix = new double[KEY_DIM][VALUE_DIM];
    for (int i = 0; i < KEY_DIM; i++) {
      sum.left[i] = (float) (COUNT * (keyMean[i] + random.nextDouble(-0.1, 0.1)));
    }
    for (int j = 0; j < VALUE_DIM; j++) {
      sum.right[j] = (float) (COUNT * (valueMean[j] + random.nextDouble(-0.1, 0.1)));
    }
    for (int i = 0; i < KEY_DIM; i++) {
      for (int j = 0; j < VALUE_DIM; j++) {
        float x = (float) (sum.left[i] * sum.right[j] / COUNT + random.nextDouble(-1, 1));
        sum.matrix.data[sum.matrix.at(i, j)] = x;
        double right = sum.right[j] - COUNT * (double) valueMean[j];
        matrix[i][j] = x - sum.left[i] * valueMean[j] - keyMean[i] * right;
      }
    }

    sum.center(keyMean, valueMean, COUNT);

    for (int i = 0; i < KEY_DIM; i++) {
      for (int j = 0; j < VALUE_DIM; j++) {
        double rounding = 1e-7 * Math.abs(matrix[i][j]) + 1e-9;
        assertThat((double) sum.matrix.data[sum.matrix.at(i, j)])
            .isBetween(matrix[i][j] - rounding, matrix[i][j] + rounding);
      }
    }
    assertThat(Math.abs(sum.left[3])).isLessThan(0.11 * COUNT);
    assertThat(Math.abs(sum.right[3])).isLessThan(0.11 * COUNT);
  }

  private static float[] randomRow(SplittableRandom random, int width, double mean) {
    float[] row = new float[width];
    for (int i = 0; i < width; i++) {
      row[i] = (float) (mean + random.nextDouble());
    }
    return row;
  }
}
