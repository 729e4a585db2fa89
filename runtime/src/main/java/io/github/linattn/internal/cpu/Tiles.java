package io.github.linattn.internal.cpu;

import java.util.Arrays;

/** What the tiles of a chunk have in common, and small loops over their rows. */
final class Tiles {
  /** Tokens of a chunk; the last one may be shorter. */
  static final int CHUNK = 64;

  /** Between these the square of a row's length is as good in fp32 as any. */
  private static final double LEAST_SQUARE = 0x1p-80;

  private static final double MOST_SQUARE = 0x1p80;

  private Tiles() {}

  static int roundUp(int value, int step) {
    return (value + step - 1) / step * step;
  }

  /**
   * Finds 1/|x| of each row x, of rows in token order; 0 for a row of zeros.
   *
   * @param inverses of {@link #CHUNK} elements
   */
  static void findInverseNorms(
      MatrixKernel kernel, int count, int width, Rows rows, double[] inverses) {
    kernel.squares(count, width, rows, inverses);
    for (int i = 0; i < count; i++) {
      if (!isExact(inverses[i])) {
        inverses[i] = square(rows, i, width);
      }
    }
    // without a branch, so that the compiler takes several at once
    for (int i = 0; i < count; i++) {
      inverses[i] = 1 / Math.sqrt(inverses[i]);
    }
    for (int i = 0; i < count; i++) {
      if (inverses[i] == Double.POSITIVE_INFINITY) {
        inverses[i] = 0;
      }
    }
  }

  /** In double, where it neither overflows nor vanishes. */
  static double square(Rows rows, int row, int width) {
    double sum = 0;
    for (int j = 0; j < width; j++) {
      double x = rows.get(row, j);
      sum += x * x;
    }
    return sum;
  }

  /** Whether a row's square that was formed in fp32 is as good as one in double. */
  static boolean isExact(double square) {
    return square > LEAST_SQUARE && square < MOST_SQUARE;
  }

  /** Turns one row x into x/|x|, of whatever size it is, and gives 1/|x|; 0 for a row of zeros. */
  static double normalizeRow(float[] row) {
    double square = ScalarMatrixKernel.dot(row, 0, row, 0, row.length);
    double inverse = square == 0 ? 0 : 1 / Math.sqrt(square);
    for (int j = 0; j < row.length; j++) {
      row[j] = (float) (inverse * row[j]);
    }
    return inverse;
  }

  static float[] repeatedFloat(float value, int count) {
    float[] values = new float[count];
    Arrays.fill(values, value);
    return values;
  }

  /** Adds the sum of a part to that of all. */
  static void add(float[] part, double[] sum) {
    for (int i = 0; i < sum.length; i++) {
      sum[i] += part[i];
    }
  }

  static void toFloats(double[] source, float[] target) {
    for (int i = 0; i < source.length; i++) {
      target[i] = (float) source[i];
    }
  }

  static float[] toFloats(double[] source) {
    float[] target = new float[source.length];
    toFloats(source, target);
    return target;
  }
}
