package io.github.linattn.internal.cpu;

import java.util.Arrays;

/** Small loops over row-major tiles of a chunk. */
final class Tiles {
  /** Most tokens of one chunk; also the row distance of token-by-token tiles. */
  static final int CHUNK = 32;

  private Tiles() {}

  static int roundUp(int value, int step) {
    return (value + step - 1) / step * step;
  }

  static boolean isFinite(float[] row) {
    for (float x : row) {
      if (!Float.isFinite(x)) {
        return false;
      }
    }
    return true;
  }

  /**
   * result[i][j] = Σ_p left[i][p] right[p][j] for j ≤ i, others as {@link
   * MatrixKernel.Part#RESULT_LOWER} says; rows of right and result are {@link #CHUNK} apart.
   */
  static void multiplyLower(
      MatrixKernel kernel, float[] left, int width, float[] right, int rows, float[] result) {
    kernel.multiply(
        MatrixKernel.Part.RESULT_LOWER,
        roundUp(rows, MatrixKernel.ROW_STEP),
        roundUp(rows, MatrixKernel.COLUMN_STEP),
        width,
        left,
        width,
        1,
        right,
        CHUNK,
        result,
        CHUNK,
        false);
  }

  /**
   * Turns each row x into {@code factor} x/|x| and puts 1/|x| into {@code inverses}; zero rows stay
   * zero and get 0.
   */
  static void normalize(
      MatrixKernel kernel, float[] tile, int rows, int width, double factor, double[] inverses) {
    double[] factors = new double[rows];
    kernel.dots(rows, width, false, tile, width, tile, width, inverses);
    for (int i = 0; i < rows; i++) { // squares of floats neither overflow nor vanish in double
      inverses[i] = inverses[i] == 0 ? 0 : 1 / Math.sqrt(inverses[i]);
      factors[i] = factor * inverses[i];
    }
    kernel.scaleRows(rows, width, factors, tile);
  }

  /**
   * Turns gradients of normalised rows into those of raw rows: dx = (dx̂ − x̂(x̂·dx̂))/|x|, and 0
   * where |x| = 0.
   */
  static void normalizeGradient(
      MatrixKernel kernel, float[] gradient, float[] unit, double[] inverses, int rows, int width) {
    double[] along = new double[rows];
    kernel.dots(rows, width, false, unit, width, gradient, width, along);
    for (int i = 0; i < rows; i++) {
      along[i] = -along[i];
    }
    kernel.combineRows(rows, width, inverses, gradient, along, unit, width);
  }

  /** Adds {@code factor * row} to each row of {@code tile}, which is as wide. */
  static void addToRows(MatrixKernel kernel, float[] tile, int rows, double factor, float[] row) {
    kernel.combineRows(rows, row.length, repeated(1, rows), tile, repeated(factor, rows), row, 0);
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
