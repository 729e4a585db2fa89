package io.github.linattn.internal.cpu;

import java.util.Arrays;

/** Plain loops, for a JVM without the Vector API. */
final class ScalarMatrixKernel implements MatrixKernel {

  @Override
  public void multiply(
      Part part,
      int m,
      int n,
      int k,
      float[] a,
      int aRow,
      int aColumn,
      float[] b,
      int bRow,
      float[] c,
      int cRow,
      boolean add) {
    float[] sums = new float[n];
    for (int i = 0; i < m; i++) {
      Arrays.fill(sums, 0);
      int first = part == Part.LEFT_UPPER ? i : 0;
      int end = part == Part.LEFT_LOWER ? Math.min(k, i + 1) : k;
      int columns = part == Part.RESULT_LOWER ? Math.min(n, i + 1) : n;
      for (int p = first; p < end; p++) {
        float factor = a[i * aRow + p * aColumn];
        for (int j = 0; j < columns; j++) {
          sums[j] += factor * b[p * bRow + j];
        }
      }
      for (int j = 0; j < columns; j++) {
        c[i * cRow + j] = add ? c[i * cRow + j] + sums[j] : sums[j];
      }
    }
  }

  @Override
  public void addProduct(
      int m, int n, int k, float[] a, int aRow, int aColumn, float[] b, float[] c, float[] lost) {
    float[] sums = new float[m * n];
    multiply(Part.ALL, m, n, k, a, aRow, aColumn, b, n, sums, n, false);
    for (int at = 0; at < sums.length; at++) {
      float sum = sums[at] + lost[at];
      float before = c[at];
      c[at] += sum;
      lost[at] = sum - (c[at] - before);
    }
  }

  @Override
  public void dots(
      int rows, int width, boolean lower, float[] a, int aRow, float[] b, int bRow, double[] sums) {
    for (int i = 0; i < rows; i++) {
      int n = lower ? i + 1 : width;
      double sum = 0;
      for (int j = 0; j < n; j++) {
        sum += (double) a[i * aRow + j] * b[i * bRow + j];
      }
      sums[i] = sum;
    }
  }

  @Override
  public void lower(int rows, float factor, double[] shifts, float[] x, int xRow, double[] sums) {
    for (int i = 0; i < rows; i++) {
      int start = i * xRow;
      double sum = 0;
      for (int at = start; at <= start + i; at++) {
        double value = (double) factor * x[at] + shifts[i];
        x[at] = (float) value;
        sum += value;
      }
      Arrays.fill(x, start + i + 1, start + Tiles.roundUp(i + 1, COLUMN_STEP), 0);
      sums[i] = sum;
    }
  }

  @Override
  public void scaleRows(int rows, int width, double[] factors, float[] x) {
    for (int i = 0; i < rows; i++) {
      scaleRow(width, factors[i], x, i * width);
    }
  }

  static void scaleRow(int width, double factor, float[] x, int start) {
    for (int at = start; at < start + width; at++) {
      x[at] = (float) (factor * x[at]);
    }
  }

  @Override
  public void combineRows(
      int rows, int width, double[] scales, float[] y, double[] factors, float[] x, int xRow) {
    for (int i = 0; i < rows; i++) {
      combineRow(width, scales[i], y, i * width, factors[i], x, i * xRow);
    }
  }

  static void combineRow(
      int width, double scale, float[] y, int yStart, double factor, float[] x, int xStart) {
    for (int j = 0; j < width; j++) {
      y[yStart + j] = (float) (scale * (y[yStart + j] + factor * x[xStart + j]));
    }
  }

  @Override
  public void sumRows(int rows, float[] weights, float[] x, float[] sum) {
    Arrays.fill(sum, 0);
    for (int i = 0; i < rows; i++) {
      for (int j = 0; j < sum.length; j++) {
        sum[j] += weights[i] * x[i * sum.length + j];
      }
    }
  }

  @Override
  public void transpose(int rows, int columns, float[] x, int xRow, float[] y, int yRow) {
    for (int i = 0; i < rows; i++) {
      for (int j = 0; j < columns; j++) {
        y[j * yRow + i] = x[i * xRow + j];
      }
    }
  }

  @Override
  public String name() {
    return "scalar";
  }
}
