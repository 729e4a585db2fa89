package io.github.linattn.internal.cpu;

import java.util.Arrays;

/** Plain loops, for a JVM without the Vector API. */
final class ScalarMatrixKernel implements MatrixKernel {

  @Override
  public void multiply(int m, int n, int k, float[] a, float[] b, float[] c) {
    for (int i = 0; i < m; i++) {
      Arrays.fill(c, i * n, (i + 1) * n, 0);
      for (int p = 0; p < k; p++) {
        addRow(n, a[i * k + p], b, p * n, c, i * n);
      }
    }
  }

  @Override
  public void addProduct(int m, int n, int k, float[] a, float[] b, float[] c, float[] lost) {
    float[] sums = new float[n];
    for (int i = 0; i < m; i++) {
      Arrays.fill(sums, 0);
      for (int p = 0; p < k; p++) {
        addRow(n, a[p * m + i], b, p * n, sums, 0);
      }
      for (int j = 0, at = i * n; j < n; j++, at++) {
        float sum = sums[j] + lost[at];
        float before = c[at];
        c[at] += sum;
        lost[at] = sum - (c[at] - before);
      }
    }
  }

  @Override
  public void recur(
      int rows,
      Order order,
      int m,
      int n,
      float[] left,
      float[] right,
      float[] x,
      float[] from,
      float[] into,
      float[] y) {
    if (from != into) {
      System.arraycopy(from, 0, into, 0, m * n);
    }
    for (int t = 0; t < rows; t++) {
      int token = order == Order.FORWARD ? t : rows - 1 - t;
      for (int i = 0; i < m; i++) {
        addRow(n, left[token * m + i], right, token * n, into, i * n);
        addRow(n, x[token * m + i], into, i * n, y, token * n);
      }
    }
  }

  private static void addRow(
      int width, float factor, float[] x, int xStart, float[] y, int yStart) {
    for (int j = 0; j < width; j++) {
      y[yStart + j] += factor * x[xStart + j];
    }
  }

  @Override
  public void dots(int rows, int width, float[] a, float[] b, int bRow, double[] sums) {
    for (int i = 0; i < rows; i++) {
      double sum = 0;
      for (int j = 0; j < width; j++) {
        sum += (double) a[i * width + j] * b[i * bRow + j];
      }
      sums[i] = sum;
    }
  }

  @Override
  public void dots(
      int rows,
      int width,
      float[] x,
      float[] y,
      float[] z,
      int zRow,
      float[] c,
      double[] alongX,
      double[] alongY,
      double[] alongZ,
      double[] alongC) {
    dots(rows, width, x, x, width, alongX);
    dots(rows, width, x, y, width, alongY);
    dots(rows, width, x, z, zRow, alongZ);
    dots(rows, width, x, c, 0, alongC);
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

  @Override
  public void combineRows(
      int rows,
      int width,
      double[] scales,
      float[] y,
      double[] zFactors,
      float[] z,
      int zRow,
      double[] cFactors,
      float[] c,
      double[] xFactors,
      float[] x) {
    for (int i = 0; i < rows; i++) {
      combineRow(i, width, scales, y, zFactors, z, zRow, cFactors, c, xFactors, x);
    }
  }

  static void combineRow(
      int i,
      int width,
      double[] scales,
      float[] y,
      double[] zFactors,
      float[] z,
      int zRow,
      double[] cFactors,
      float[] c,
      double[] xFactors,
      float[] x) {
    int row = i * width;
    combineRow(width, 1, y, row, zFactors[i], z, i * zRow);
    combineRow(width, 1, y, row, cFactors[i], c, 0);
    combineRow(width, scales[i], y, row, xFactors[i], x, row);
  }

  static void combineRow(
      int width, double scale, float[] y, int yStart, double factor, float[] x, int xStart) {
    for (int j = 0; j < width; j++) {
      y[yStart + j] = (float) (scale * (y[yStart + j] + factor * x[xStart + j]));
    }
  }

  @Override
  public void addRows(int rows, int width, float factor, float[] x, int xRow, float[] y) {
    for (int i = 0; i < rows; i++) {
      addRow(width, factor, x, i * xRow, y, i * width);
    }
  }

  @Override
  public void sumRows(int rows, float[] weights, float[] x, float[] sum) {
    Arrays.fill(sum, 0);
    for (int i = 0; i < rows; i++) {
      addRow(sum.length, weights[i], x, i * sum.length, sum, 0);
    }
  }

  @Override
  public void accumulateRows(
      int rows,
      Order order,
      float[] weights,
      float[] x,
      float[] before,
      float factor,
      float[] y,
      float[] sum) {
    int width = before.length;
    Arrays.fill(sum, 0);
    for (int t = 0; t < rows; t++) {
      int token = order == Order.FORWARD ? t : rows - 1 - t;
      addRow(width, weights[token], x, token * width, sum, 0);
      for (int j = 0; j < width; j++) {
        y[token * width + j] = factor * (before[j] + sum[j]);
      }
    }
  }

  @Override
  public String name() {
    return "scalar";
  }
}
