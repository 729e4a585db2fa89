package io.github.linattn.internal.cpu;

import java.util.Arrays;

/** Small loops over row-major tiles of a chunk. */
final class Tiles {
  /** Most tokens of one chunk; also the row distance of token-by-token tiles. */
  static final int CHUNK = 64;

  private Tiles() {}

  static int roundUp(int value, int step) {
    return (value + step - 1) / step * step;
  }

  /** target[j][i] = tile[i][j]; rows of the target are {@link #CHUNK} apart. */
  static void transpose(float[] tile, int rows, int width, float[] target) {
    for (int i = 0; i < rows; i++) {
      for (int j = 0; j < width; j++) {
        target[j * CHUNK + i] = tile[i * width + j];
      }
    }
  }

  /** tile[i][j] = source[j][i], the inverse of {@link #transpose}. */
  static void transposeBack(float[] source, int rows, int width, float[] tile) {
    for (int i = 0; i < rows; i++) {
      for (int j = 0; j < width; j++) {
        tile[i * width + j] = source[j * CHUNK + i];
      }
    }
  }

  /** Whether the first {@code count} elements are all finite. */
  static boolean isFinite(float[] tile, int count) {
    int sign = 0; // an exponent of all ones carries into the sign bit
    for (int i = 0; i < count; i++) {
      sign |= (Float.floatToRawIntBits(tile[i]) & 0x7f800000) + 0x00800000;
    }
    return sign >= 0;
  }

  /** Divides each row by its Euclidean norm, which goes into {@code norms}; zero rows stay zero. */
  static void normalize(float[] tile, int rows, int width, double[] norms) {
    for (int i = 0; i < rows; i++) {
      double squares = 0; // squares of floats neither overflow nor vanish in double
      for (int j = 0; j < width; j++) {
        double x = tile[i * width + j];
        squares += x * x;
      }
      norms[i] = Math.sqrt(squares);
      double inverse = norms[i] == 0 ? 0 : 1 / norms[i];
      for (int j = 0; j < width; j++) {
        tile[i * width + j] = (float) (tile[i * width + j] * inverse);
      }
    }
  }

  /**
   * Turns gradients of normalised rows into those of raw rows: dx = (dx̂ − x̂(x̂·dx̂))/|x|, and 0
   * where |x| = 0.
   */
  static void normalizeGradient(
      float[] gradient, float[] unit, double[] norms, int rows, int width) {
    for (int i = 0; i < rows; i++) {
      int row = i * width;
      double along = 0;
      for (int j = 0; j < width; j++) {
        along += (double) unit[row + j] * gradient[row + j];
      }
      double inverse = norms[i] == 0 ? 0 : 1 / norms[i];
      for (int j = 0; j < width; j++) {
        gradient[row + j] = (float) ((gradient[row + j] - unit[row + j] * along) * inverse);
      }
    }
  }

  /**
   * Turns scores q_i·k_n of a chunk into weights a + b q_i·k_n for n ≤ i and 0 for n > i, and sums
   * each row.
   */
  static void causalWeights(float[] scores, int rows, float a, float b, double[] rowSums) {
    for (int i = 0; i < rows; i++) {
      double sum = 0;
      for (int at = i * CHUNK; at <= i * CHUNK + i; at++) {
        scores[at] = a + b * scores[at];
        sum += scores[at];
      }
      rowSums[i] = sum;
      Arrays.fill(scores, i * CHUNK + i + 1, i * CHUNK + rows, 0);
    }
  }

  /** Mean of each column, 0 where it is not finite. */
  static void meanOfRows(float[] tile, int rows, float[] mean) {
    for (int j = 0; j < mean.length; j++) {
      double sum = 0;
      for (int i = 0; i < rows; i++) {
        sum += tile[i * mean.length + j];
      }
      float value = (float) (sum / rows);
      mean[j] = Float.isFinite(value) ? value : 0;
    }
  }

  static void subtractFromRows(float[] tile, int rows, float[] row) {
    for (int i = 0; i < rows; i++) {
      for (int j = 0; j < row.length; j++) {
        tile[i * row.length + j] -= row[j];
      }
    }
  }

  static void scale(float[] tile, int count, float factor) {
    for (int i = 0; i < count; i++) {
      tile[i] *= factor;
    }
  }

  static void toFloats(double[] source, float[] target) {
    for (int i = 0; i < source.length; i++) {
      target[i] = (float) source[i];
    }
  }
}
