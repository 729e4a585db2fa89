package io.github.linattn.internal.cpu;

import java.util.Arrays;

/** Small loops over row-major tiles of a chunk. */
final class Tiles {
  /**
   * Most tokens of one chunk: its tiles, and a panel of a state's rows, stay in the first cache.
   */
  static final int CHUNK = 64;

  /** Between these the square of a row's length is as good in fp32 as any. */
  private static final double LEAST_SQUARE = 0x1p-80;

  private static final double MOST_SQUARE = 0x1p80;

  private Tiles() {}

  static int roundUp(int value, int step) {
    return (value + step - 1) / step * step;
  }

  /**
   * Turns each row x into {@code factor} x/|x| and puts 1/|x| into {@code inverses}; zero rows stay
   * zero and get 0.
   */
  static void normalize(
      MatrixKernel kernel, float[] tile, int rows, int width, double factor, double[] inverses) {
    double[] squares = new double[rows];
    kernel.dots(rows, width, tile, tile, width, squares);
    for (int i = 0; i < rows; i++) {
      if (!isExact(squares[i])) {
        squares[i] = dot(tile, i * width, tile, i * width, width);
      }
    }
    double[] factors = new double[rows];
    for (int i = 0; i < rows; i++) { // without a branch, so that the compiler takes several at once
      inverses[i] = 1 / Math.sqrt(squares[i]);
      factors[i] = factor * inverses[i];
    }
    for (int i = 0; i < rows; i++) {
      if (squares[i] == 0) {
        inverses[i] = 0;
        factors[i] = 0;
      }
    }
    kernel.scaleRows(rows, width, factors, tile);
  }

  /** Whether a row's square that was formed in fp32 is as good as one in double. */
  static boolean isExact(double square) {
    return square > LEAST_SQUARE && square < MOST_SQUARE;
  }

  /** In double, where products of floats neither overflow nor vanish. */
  static double dot(float[] a, int aStart, float[] b, int bStart, int width) {
    double sum = 0;
    for (int j = 0; j < width; j++) {
      sum += (double) a[aStart + j] * b[bStart + j];
    }
    return sum;
  }

  /** Turns one row x into x/|x|, of whatever size it is, and gives 1/|x|; 0 for a row of zeros. */
  static double normalizeRow(float[] tile, int start, int width) {
    double square = dot(tile, start, tile, start, width);
    double inverse = square == 0 ? 0 : 1 / Math.sqrt(square);
    for (int at = start; at < start + width; at++) {
      tile[at] = (float) (inverse * tile[at]);
    }
    return inverse;
  }

  /**
   * Turns gradients of normalised rows into those of raw rows: dx = (dx̂ − x̂(x̂·dx̂))/|x|, and 0
   * where |x| = 0.
   */
  static void normalizeGradient(
      MatrixKernel kernel, float[] gradient, float[] unit, double[] inverses, int rows, int width) {
    double[] along = new double[rows];
    kernel.dots(rows, width, unit, gradient, width, along);
    for (int i = 0; i < rows; i++) {
      along[i] = -along[i];
    }
    kernel.combineRows(rows, width, inverses, gradient, along, unit, width);
  }

  static float[] repeatedFloat(float value, int count) {
    float[] values = new float[count];
    Arrays.fill(values, value);
    return values;
  }

  static double[] repeated(double value, int count) {
    double[] values = new double[count];
    Arrays.fill(values, value);
    return values;
  }

  static void toFloats(double[] source, float[] target) {
    for (int i = 0; i < source.length; i++) {
      target[i] = (float) source[i];
    }
  }
}
