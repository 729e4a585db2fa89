package io.github.linattn.internal.cpu;

import java.util.Arrays;

/** Small loops over row-major tiles of a chunk. */
final class Tiles {
  /**
   * Most tokens of one chunk: its tiles, and a panel of a state's rows, stay in the first cache.
   */
  static final int CHUNK = 64;

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
    double[] factors = new double[rows];
    kernel.dots(rows, width, tile, tile, width, inverses);
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
