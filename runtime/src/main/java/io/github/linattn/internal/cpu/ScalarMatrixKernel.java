package io.github.linattn.internal.cpu;

import io.github.linattn.DType;
import java.lang.foreign.MemorySegment;
import java.util.Arrays;

/** Plain loops, for a JVM without the Vector API. */
final class ScalarMatrixKernel implements MatrixKernel {
  private static final int WIDTH = Panels.WIDTH;

  @Override
  public void multiply(int rows, Panels a, Panels b, Panels c) {
    for (int i = 0; i < rows; i++) {
      for (int j = 0; j < c.columns; j += WIDTH) {
        int to = c.at(i, j);
        Arrays.fill(c.data, to, to + WIDTH, 0);
        for (int p = 0; p < a.columns; p++) {
          addLine(a.data[a.at(i, p)], b.data, b.at(p, j), c.data, to);
        }
      }
    }
  }

  @Override
  public void addProduct(int rows, Panels a, Panels b, Panels c, Panels lost) {
    float[] sums = new float[WIDTH];
    for (int i = 0; i < a.columns; i++) {
      for (int j = 0; j < b.columns; j += WIDTH) {
        Arrays.fill(sums, 0);
        for (int p = 0; p < rows; p++) {
          addLine(a.data[a.at(p, i)], b.data, b.at(p, j), sums, 0);
        }
        int at = c.at(i, j);
        int lostAt = lost.at(i, j);
        for (int e = 0; e < WIDTH; e++) {
          float sum = sums[e] + lost.data[lostAt + e];
          float before = c.data[at + e];
          float after = before + sum;
          c.data[at + e] = after;
          lost.data[lostAt + e] = sum - (after - before);
        }
      }
    }
  }

  @Override
  public void recur(
      int rows,
      Panels left,
      Panels right,
      Panels x,
      Panels from,
      Panels into,
      Panels y,
      Upcoming upcoming) {
    if (from != into) {
      into.set(from);
    }
    for (int t = 0; t < rows; t++) {
      for (int j = 0; j < right.columns; j += WIDTH) {
        int rightAt = right.at(t, j);
        int yAt = y.at(t, j);
        for (int i = 0; i < left.columns; i++) {
          int at = into.at(i, j);
          addLine(left.data[left.at(t, i)], right.data, rightAt, into.data, at);
          addLine(x.data[x.at(t, i)], into.data, at, y.data, yAt);
        }
      }
    }
  }

  @Override
  public void recurBoth(
      int rows,
      Panels left,
      Panels right,
      Panels x,
      Panels w,
      Panels matrix,
      Panels y,
      Panels z,
      Upcoming upcoming) {
    for (int t = 0; t < rows; t++) {
      for (int j = 0; j < right.columns; j += WIDTH) {
        int rightAt = right.at(t, j);
        int yAt = y.at(t, j);
        int wAt = w.at(t, j);
        for (int i = 0; i < left.columns; i++) {
          int at = matrix.at(i, j);
          addLine(left.data[left.at(t, i)], right.data, rightAt, matrix.data, at);
          addLine(x.data[x.at(t, i)], matrix.data, at, y.data, yAt);
          z.data[z.at(t, i)] += dotLines(matrix.data, at, w.data, wAt);
        }
      }
    }
  }

  private static float dotLines(float[] x, int xAt, float[] y, int yAt) {
    float sum = 0;
    for (int e = 0; e < WIDTH; e++) {
      sum += x[xAt + e] * y[yAt + e];
    }
    return sum;
  }

  private static void addLine(float factor, float[] x, int xAt, float[] y, int yAt) {
    for (int e = 0; e < WIDTH; e++) {
      y[yAt + e] += factor * x[xAt + e];
    }
  }

  @Override
  public void squares(int rows, int width, Rows x, double[] sums) {
    for (int i = 0; i < rows; i++) {
      sums[i] = Tiles.square(x, i, width);
    }
  }

  @Override
  public void dots(int rows, Panels x, Panels y, double[] sums) {
    for (int i = 0; i < rows; i++) {
      double sum = 0;
      for (int j = 0; j < x.columns; j += WIDTH) {
        sum += dot(x.data, x.at(i, j), y.data, y.at(i, j), WIDTH);
      }
      sums[i] = sum;
    }
  }

  @Override
  public void dots(int rows, Panels x, float[] c, double[] sums) {
    for (int i = 0; i < rows; i++) {
      double sum = 0;
      for (int j = 0; j < x.columns; j += WIDTH) {
        sum += dot(x.data, x.at(i, j), c, j, WIDTH);
      }
      sums[i] = sum;
    }
  }

  @Override
  public void dots(int rows, Panels x, float[] before, Panels added, float[] sum, double[] sums) {
    Arrays.fill(sum, 0);
    for (int i = 0; i < rows; i++) {
      addRowTo(i, 1, added, sum);
      double along = 0;
      for (int j = 0; j < x.columns; j++) {
        along += (double) x.data[x.at(i, j)] * (before[j] + sum[j]);
      }
      sums[i] = along;
    }
  }

  @Override
  public void dots(
      int rows,
      Panels x,
      Panels y,
      float[] before,
      Panels added,
      float[] sum,
      float[] c,
      double[] alongX,
      double[] alongY,
      double[] alongZ,
      double[] alongC) {
    dots(rows, x, x, alongX);
    dots(rows, x, y, alongY);
    dots(rows, x, before, added, sum, alongZ);
    dots(rows, x, c, alongC);
  }

  /** In double, where products of floats neither overflow nor vanish. */
  static double dot(float[] a, int aStart, float[] b, int bStart, int width) {
    double sum = 0;
    for (int j = 0; j < width; j++) {
      sum += (double) a[aStart + j] * b[bStart + j];
    }
    return sum;
  }

  @Override
  public void pack(int rows, Order order, Rows x, float[] less, Panels y) {
    for (int i = 0; i < rows; i++) {
      packRow(i, 1, x, order.row(i, rows), less, y);
    }
  }

  @Override
  public void pack(int rows, Order order, double[] factors, Rows x, float[] less, Panels y) {
    for (int i = 0; i < rows; i++) {
      packRow(i, factors[i], x, order.row(i, rows), less, y);
    }
  }

  static void packRow(int i, double factor, Rows x, int xRow, float[] less, Panels y) {
    for (int j = 0; j < y.columns; j++) {
      y.data[y.at(i, j)] = (float) (factor * x.get(xRow, j) - less[j]);
    }
  }

  @Override
  public void unpack(int rows, Order order, Panels x, Rows y) {
    for (int i = 0; i < rows; i++) {
      for (int j = 0; j < x.columns; j++) {
        y.set(order.row(i, rows), j, x.data[x.at(i, j)]);
      }
    }
  }

  @Override
  public void combine(
      int rows, Order order, double[] scales, Panels y, double[] factors, Panels x, Rows target) {
    for (int i = 0; i < rows; i++) {
      combineRow(i, scales[i], y, factors[i], x, order.row(i, rows), target);
    }
  }

  static void combineRow(
      int i, double scale, Panels y, double factor, Panels x, int row, Rows target) {
    for (int j = 0; j < y.columns; j++) {
      double sum = y.data[y.at(i, j)] + factor * x.data[x.at(i, j)];
      target.set(row, j, (float) (scale * sum));
    }
  }

  @Override
  public void combine(
      int rows,
      double[] scales,
      Panels y,
      double[] factors,
      float[] before,
      Panels added,
      float[] sum,
      Rows target) {
    Arrays.fill(sum, 0);
    for (int i = 0; i < rows; i++) {
      addRowTo(i, 1, added, sum);
      combineRow(i, scales[i], y, factors[i], before, sum, target);
    }
  }

  /** A row of the above on its own. */
  static void combineRow(
      int i, double scale, Panels y, double factor, float[] before, Panels added, Rows target) {
    combineRow(i, scale, y, factor, before, sumTo(i, added), target);
  }

  private static void combineRow(
      int i, double scale, Panels y, double factor, float[] before, float[] sum, Rows target) {
    for (int j = 0; j < y.columns; j++) {
      double x = before[j] + sum[j];
      target.set(i, j, (float) (scale * (y.data[y.at(i, j)] + factor * x)));
    }
  }

  /** Σ_s added_s, s up to and with i. */
  private static float[] sumTo(int i, Panels added) {
    float[] sum = new float[added.columns];
    for (int s = 0; s <= i; s++) {
      addRowTo(s, 1, added, sum);
    }
    return sum;
  }

  @Override
  public void combine(
      int rows,
      double[] scales,
      Panels y,
      double[] zFactors,
      float[] before,
      Panels added,
      double[] cFactors,
      float[] c,
      double[] xFactors,
      Panels x,
      Rows target) {
    float[] sum = new float[added.columns];
    for (int i = 0; i < rows; i++) {
      addRowTo(i, 1, added, sum);
      combineRow(i, scales, y, zFactors, before, sum, cFactors, c, xFactors, x, target);
    }
  }

  /** A row of the above on its own. */
  static void combineRow(
      int i,
      double[] scales,
      Panels y,
      double[] zFactors,
      float[] before,
      Panels added,
      double[] cFactors,
      float[] c,
      double[] xFactors,
      Panels x,
      Rows target) {
    float[] sum = sumTo(i, added);
    combineRow(i, scales, y, zFactors, before, sum, cFactors, c, xFactors, x, target);
  }

  private static void combineRow(
      int i,
      double[] scales,
      Panels y,
      double[] zFactors,
      float[] before,
      float[] sum,
      double[] cFactors,
      float[] c,
      double[] xFactors,
      Panels x,
      Rows target) {
    for (int j = 0; j < y.columns; j++) {
      double all =
          y.data[y.at(i, j)]
              + zFactors[i] * (before[j] + sum[j])
              + cFactors[i] * c[j]
              + xFactors[i] * x.data[x.at(i, j)];
      target.set(i, j, (float) (scales[i] * all));
    }
  }

  @Override
  public void addRow(int rows, float factor, float[] row, Panels y) {
    for (int i = 0; i < rows; i++) {
      for (int j = 0; j < y.columns; j += WIDTH) {
        addLine(factor, row, j, y.data, y.at(i, j));
      }
    }
  }

  @Override
  public void sumRows(int rows, float[] weights, Panels x, float[] sum) {
    Arrays.fill(sum, 0);
    for (int i = 0; i < rows; i++) {
      addRowTo(i, weights[i], x, sum);
    }
  }

  private static void addRowTo(int i, float weight, Panels x, float[] sum) {
    for (int j = 0; j < x.columns; j += WIDTH) {
      addLine(weight, x.data, x.at(i, j), sum, j);
    }
  }

  @Override
  public void accumulateRows(
      int rows, float[] weights, Panels x, float[] before, float factor, Panels y, float[] sum) {
    Arrays.fill(sum, 0);
    for (int t = 0; t < rows; t++) {
      addRowTo(t, weights[t], x, sum);
      for (int j = 0; j < y.columns; j++) {
        y.data[y.at(t, j)] = factor * (before[j] + sum[j]);
      }
    }
  }

  @Override
  public void widen(int count, MemorySegment source, long from, MemorySegment target, long to) {
    float[] values = new float[count];
    DType.BF16.decode(source.asSlice(from), 0, values, 0, count);
    DType.F32.encode(values, 0, target.asSlice(to), 0, count);
  }

  @Override
  public void narrow(int count, MemorySegment source, long from, MemorySegment target, long to) {
    float[] values = new float[count];
    DType.F32.decode(source.asSlice(from), 0, values, 0, count);
    DType.BF16.encode(values, 0, target.asSlice(to), 0, count);
  }

  @Override
  public String name() {
    return "scalar";
  }
}
