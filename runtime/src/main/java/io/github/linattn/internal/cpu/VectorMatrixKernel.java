package io.github.linattn.internal.cpu;

import jdk.incubator.vector.DoubleVector;
import jdk.incubator.vector.FloatVector;
import jdk.incubator.vector.VectorShuffle;
import jdk.incubator.vector.VectorSpecies;

/**
 * Recurrence and products with the Vector API, in blocks of sixteen vectors: four rows of four for
 * products, eight of two for the recurrence, which loads and stores the columns of every token.
 *
 * <p>The loops over rows call that API alone and nothing of this class: what the compiler may leave
 * out of a large caller would pass its vectors through the heap.
 */
final class VectorMatrixKernel implements MatrixKernel {
  private static final VectorSpecies<Float> SPECIES =
      FloatVector.SPECIES_PREFERRED.length() > COLUMN_STEP
          ? FloatVector.SPECIES_512
          : FloatVector.SPECIES_PREFERRED;
  private static final int LANES = SPECIES.length();

  /** Whether there are registers for sixteen sums; vectors of 256 bits mostly come with sixteen. */
  private static final boolean WIDE = LANES != 8;

  /** Columns that are taken through all rows at a time, so that their part of b stays near. */
  private static final int PANEL = 64;

  private static final VectorSpecies<Double> DOUBLES = SPECIES.withLanes(double.class);
  private static final int STEP = DOUBLES.length();

  /** Brings the upper half down, where its conversion needs no other place. */
  private static final VectorShuffle<Float> UPPER_HALF = VectorShuffle.iota(SPECIES, STEP, 1, true);

  private static final VectorShuffle<Double> ROTATE_4_OF_DOUBLES =
      VectorShuffle.iota(DOUBLES, 4, 1, true);
  private static final VectorShuffle<Double> ROTATE_2_OF_DOUBLES =
      VectorShuffle.iota(DOUBLES, 2, 1, true);

  @Override
  public void multiply(int m, int n, int k, float[] a, float[] b, float[] c) {
    for (int panel = 0; panel < n; panel += PANEL) {
      int width = Math.min(n - panel, PANEL);
      for (int row = 0; row < m; row += ROW_STEP) {
        multiplyRows(width, k, a, row * k, k, 1, b, panel, n, c, row * n + panel, n);
      }
    }
  }

  @Override
  public void addProduct(int m, int n, int k, float[] a, float[] b, float[] c, float[] lost) {
    float[] sums = new float[ROW_STEP * PANEL];
    for (int panel = 0; panel < n; panel += PANEL) {
      int width = Math.min(n - panel, PANEL);
      for (int row = 0; row < m; row += ROW_STEP) {
        multiplyRows(width, k, a, row, 1, m, b, panel, n, sums, 0, PANEL);
        addRows(width, sums, c, lost, row * n + panel, n);
      }
    }
  }

  /** {@code width} columns of four rows, in the widest blocks that there are. */
  private static void multiplyRows(
      int width,
      int k,
      float[] a,
      int aAt,
      int aRow,
      int aColumn,
      float[] b,
      int bAt,
      int bRow,
      float[] c,
      int cAt,
      int cRow) {
    for (int column = 0; column < width; ) {
      int bColumn = bAt + column;
      int cColumn = cAt + column;
      int vectors = (width - column) / LANES;
      if (WIDE && vectors >= 4) {
        multiplyWide(k, a, aAt, aRow, aColumn, b, bColumn, bRow, c, cColumn, cRow);
        column += 4 * LANES;
      } else if (vectors >= 2) {
        multiplyPair(k, a, aAt, aRow, aColumn, b, bColumn, bRow, c, cColumn, cRow);
        column += 2 * LANES;
      } else {
        multiplyStrip(k, a, aAt, aRow, aColumn, b, bColumn, bRow, c, cColumn, cRow);
        column += LANES;
      }
    }
  }

  /** Sixteen sums in registers: four rows of four vectors. */
  private static void multiplyWide(
      int k,
      float[] a,
      int aStart,
      int aRow,
      int aColumn,
      float[] b,
      int bStart,
      int bRow,
      float[] c,
      int cStart,
      int cRow) {
    FloatVector c00 = FloatVector.zero(SPECIES);
    FloatVector c01 = c00;
    FloatVector c02 = c00;
    FloatVector c03 = c00;
    FloatVector c10 = c00;
    FloatVector c11 = c00;
    FloatVector c12 = c00;
    FloatVector c13 = c00;
    FloatVector c20 = c00;
    FloatVector c21 = c00;
    FloatVector c22 = c00;
    FloatVector c23 = c00;
    FloatVector c30 = c00;
    FloatVector c31 = c00;
    FloatVector c32 = c00;
    FloatVector c33 = c00;
    int aAt = aStart;
    int bAt = bStart;
    for (int p = 0; p < k; p++) {
      FloatVector b0 = FloatVector.fromArray(SPECIES, b, bAt);
      FloatVector b1 = FloatVector.fromArray(SPECIES, b, bAt + LANES);
      FloatVector b2 = FloatVector.fromArray(SPECIES, b, bAt + 2 * LANES);
      FloatVector b3 = FloatVector.fromArray(SPECIES, b, bAt + 3 * LANES);
      FloatVector factor = FloatVector.broadcast(SPECIES, a[aAt]);
      c00 = factor.fma(b0, c00);
      c01 = factor.fma(b1, c01);
      c02 = factor.fma(b2, c02);
      c03 = factor.fma(b3, c03);
      factor = FloatVector.broadcast(SPECIES, a[aAt + aRow]);
      c10 = factor.fma(b0, c10);
      c11 = factor.fma(b1, c11);
      c12 = factor.fma(b2, c12);
      c13 = factor.fma(b3, c13);
      factor = FloatVector.broadcast(SPECIES, a[aAt + 2 * aRow]);
      c20 = factor.fma(b0, c20);
      c21 = factor.fma(b1, c21);
      c22 = factor.fma(b2, c22);
      c23 = factor.fma(b3, c23);
      factor = FloatVector.broadcast(SPECIES, a[aAt + 3 * aRow]);
      c30 = factor.fma(b0, c30);
      c31 = factor.fma(b1, c31);
      c32 = factor.fma(b2, c32);
      c33 = factor.fma(b3, c33);
      aAt += aColumn;
      bAt += bRow;
    }
    int at = cStart;
    c00.intoArray(c, at);
    c01.intoArray(c, at + LANES);
    c02.intoArray(c, at + 2 * LANES);
    c03.intoArray(c, at + 3 * LANES);
    at += cRow;
    c10.intoArray(c, at);
    c11.intoArray(c, at + LANES);
    c12.intoArray(c, at + 2 * LANES);
    c13.intoArray(c, at + 3 * LANES);
    at += cRow;
    c20.intoArray(c, at);
    c21.intoArray(c, at + LANES);
    c22.intoArray(c, at + 2 * LANES);
    c23.intoArray(c, at + 3 * LANES);
    at += cRow;
    c30.intoArray(c, at);
    c31.intoArray(c, at + LANES);
    c32.intoArray(c, at + 2 * LANES);
    c33.intoArray(c, at + 3 * LANES);
  }

  /** Four rows of two vectors. */
  private static void multiplyPair(
      int k,
      float[] a,
      int aStart,
      int aRow,
      int aColumn,
      float[] b,
      int bStart,
      int bRow,
      float[] c,
      int cStart,
      int cRow) {
    FloatVector c00 = FloatVector.zero(SPECIES);
    FloatVector c01 = c00;
    FloatVector c10 = c00;
    FloatVector c11 = c00;
    FloatVector c20 = c00;
    FloatVector c21 = c00;
    FloatVector c30 = c00;
    FloatVector c31 = c00;
    int aAt = aStart;
    int bAt = bStart;
    for (int p = 0; p < k; p++) {
      FloatVector b0 = FloatVector.fromArray(SPECIES, b, bAt);
      FloatVector b1 = FloatVector.fromArray(SPECIES, b, bAt + LANES);
      FloatVector factor = FloatVector.broadcast(SPECIES, a[aAt]);
      c00 = factor.fma(b0, c00);
      c01 = factor.fma(b1, c01);
      factor = FloatVector.broadcast(SPECIES, a[aAt + aRow]);
      c10 = factor.fma(b0, c10);
      c11 = factor.fma(b1, c11);
      factor = FloatVector.broadcast(SPECIES, a[aAt + 2 * aRow]);
      c20 = factor.fma(b0, c20);
      c21 = factor.fma(b1, c21);
      factor = FloatVector.broadcast(SPECIES, a[aAt + 3 * aRow]);
      c30 = factor.fma(b0, c30);
      c31 = factor.fma(b1, c31);
      aAt += aColumn;
      bAt += bRow;
    }
    int at = cStart;
    c00.intoArray(c, at);
    c01.intoArray(c, at + LANES);
    at += cRow;
    c10.intoArray(c, at);
    c11.intoArray(c, at + LANES);
    at += cRow;
    c20.intoArray(c, at);
    c21.intoArray(c, at + LANES);
    at += cRow;
    c30.intoArray(c, at);
    c31.intoArray(c, at + LANES);
  }

  /** Four rows of one vector. */
  private static void multiplyStrip(
      int k,
      float[] a,
      int aStart,
      int aRow,
      int aColumn,
      float[] b,
      int bStart,
      int bRow,
      float[] c,
      int cStart,
      int cRow) {
    FloatVector c00 = FloatVector.zero(SPECIES);
    FloatVector c10 = c00;
    FloatVector c20 = c00;
    FloatVector c30 = c00;
    int aAt = aStart;
    int bAt = bStart;
    for (int p = 0; p < k; p++) {
      FloatVector b0 = FloatVector.fromArray(SPECIES, b, bAt);
      FloatVector factor = FloatVector.broadcast(SPECIES, a[aAt]);
      c00 = factor.fma(b0, c00);
      factor = FloatVector.broadcast(SPECIES, a[aAt + aRow]);
      c10 = factor.fma(b0, c10);
      factor = FloatVector.broadcast(SPECIES, a[aAt + 2 * aRow]);
      c20 = factor.fma(b0, c20);
      factor = FloatVector.broadcast(SPECIES, a[aAt + 3 * aRow]);
      c30 = factor.fma(b0, c30);
      aAt += aColumn;
      bAt += bRow;
    }
    int at = cStart;
    c00.intoArray(c, at);
    at += cRow;
    c10.intoArray(c, at);
    at += cRow;
    c20.intoArray(c, at);
    at += cRow;
    c30.intoArray(c, at);
  }

  /**
   * c += the sums of four rows, which are {@link #PANEL} apart, and what earlier additions lost.
   */
  private static void addRows(
      int width, float[] sums, float[] c, float[] lost, int cStart, int cRow) {
    int at = cStart;
    for (int i = 0; i < ROW_STEP * PANEL; i += PANEL) {
      for (int j = 0; j < width; j += LANES) {
        FloatVector sum = FloatVector.fromArray(SPECIES, sums, i + j);
        sum = sum.add(FloatVector.fromArray(SPECIES, lost, at + j));
        FloatVector before = FloatVector.fromArray(SPECIES, c, at + j);
        FloatVector after = before.add(sum);
        sum.sub(after.sub(before)).intoArray(lost, at + j);
        after.intoArray(c, at + j);
      }
      at += cRow;
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
    int step = order == Order.FORWARD ? 1 : -1;
    int first = order == Order.FORWARD ? 0 : rows - 1;
    for (int column = 0; column < n; ) {
      int width = Math.min((n - column) / LANES, 2);
      int height = WIDE && width == 2 ? 2 * ROW_STEP : ROW_STEP;
      int rightAt = first * n + column;
      for (int row = 0; row < m; row += height) {
        int leftAt = first * m + row;
        int at = row * n + column;
        if (height > ROW_STEP) {
          recurWide(rows, step, leftAt, m, left, rightAt, n, right, x, from, into, at, y);
        } else if (width == 2) {
          recurPair(rows, step, leftAt, m, left, rightAt, n, right, x, from, into, at, y);
        } else {
          recurStrip(rows, step, leftAt, m, left, rightAt, n, right, x, from, into, at, y);
        }
      }
      column += width * LANES;
    }
  }

  /** Sixteen elements of S for each lane in registers: eight rows of two vectors. */
  private static void recurWide(
      int rows,
      int step,
      int leftStart,
      int leftRow,
      float[] left,
      int rightStart,
      int rightRow,
      float[] right,
      float[] x,
      float[] from,
      float[] into,
      int stateStart,
      float[] y) {
    int at = stateStart;
    FloatVector s00 = FloatVector.fromArray(SPECIES, from, at);
    FloatVector s01 = FloatVector.fromArray(SPECIES, from, at + LANES);
    at += rightRow;
    FloatVector s10 = FloatVector.fromArray(SPECIES, from, at);
    FloatVector s11 = FloatVector.fromArray(SPECIES, from, at + LANES);
    at += rightRow;
    FloatVector s20 = FloatVector.fromArray(SPECIES, from, at);
    FloatVector s21 = FloatVector.fromArray(SPECIES, from, at + LANES);
    at += rightRow;
    FloatVector s30 = FloatVector.fromArray(SPECIES, from, at);
    FloatVector s31 = FloatVector.fromArray(SPECIES, from, at + LANES);
    at += rightRow;
    FloatVector s40 = FloatVector.fromArray(SPECIES, from, at);
    FloatVector s41 = FloatVector.fromArray(SPECIES, from, at + LANES);
    at += rightRow;
    FloatVector s50 = FloatVector.fromArray(SPECIES, from, at);
    FloatVector s51 = FloatVector.fromArray(SPECIES, from, at + LANES);
    at += rightRow;
    FloatVector s60 = FloatVector.fromArray(SPECIES, from, at);
    FloatVector s61 = FloatVector.fromArray(SPECIES, from, at + LANES);
    at += rightRow;
    FloatVector s70 = FloatVector.fromArray(SPECIES, from, at);
    FloatVector s71 = FloatVector.fromArray(SPECIES, from, at + LANES);
    int leftAt = leftStart;
    int rightAt = rightStart;
    for (int t = 0; t < rows; t++) {
      FloatVector right0 = FloatVector.fromArray(SPECIES, right, rightAt);
      FloatVector right1 = FloatVector.fromArray(SPECIES, right, rightAt + LANES);
      FloatVector y0 = FloatVector.fromArray(SPECIES, y, rightAt);
      FloatVector y1 = FloatVector.fromArray(SPECIES, y, rightAt + LANES);
      FloatVector factor = FloatVector.broadcast(SPECIES, left[leftAt]);
      s00 = factor.fma(right0, s00);
      s01 = factor.fma(right1, s01);
      factor = FloatVector.broadcast(SPECIES, x[leftAt]);
      y0 = factor.fma(s00, y0);
      y1 = factor.fma(s01, y1);
      factor = FloatVector.broadcast(SPECIES, left[leftAt + 1]);
      s10 = factor.fma(right0, s10);
      s11 = factor.fma(right1, s11);
      factor = FloatVector.broadcast(SPECIES, x[leftAt + 1]);
      y0 = factor.fma(s10, y0);
      y1 = factor.fma(s11, y1);
      factor = FloatVector.broadcast(SPECIES, left[leftAt + 2]);
      s20 = factor.fma(right0, s20);
      s21 = factor.fma(right1, s21);
      factor = FloatVector.broadcast(SPECIES, x[leftAt + 2]);
      y0 = factor.fma(s20, y0);
      y1 = factor.fma(s21, y1);
      factor = FloatVector.broadcast(SPECIES, left[leftAt + 3]);
      s30 = factor.fma(right0, s30);
      s31 = factor.fma(right1, s31);
      factor = FloatVector.broadcast(SPECIES, x[leftAt + 3]);
      y0 = factor.fma(s30, y0);
      y1 = factor.fma(s31, y1);
      factor = FloatVector.broadcast(SPECIES, left[leftAt + 4]);
      s40 = factor.fma(right0, s40);
      s41 = factor.fma(right1, s41);
      factor = FloatVector.broadcast(SPECIES, x[leftAt + 4]);
      y0 = factor.fma(s40, y0);
      y1 = factor.fma(s41, y1);
      factor = FloatVector.broadcast(SPECIES, left[leftAt + 5]);
      s50 = factor.fma(right0, s50);
      s51 = factor.fma(right1, s51);
      factor = FloatVector.broadcast(SPECIES, x[leftAt + 5]);
      y0 = factor.fma(s50, y0);
      y1 = factor.fma(s51, y1);
      factor = FloatVector.broadcast(SPECIES, left[leftAt + 6]);
      s60 = factor.fma(right0, s60);
      s61 = factor.fma(right1, s61);
      factor = FloatVector.broadcast(SPECIES, x[leftAt + 6]);
      y0 = factor.fma(s60, y0);
      y1 = factor.fma(s61, y1);
      factor = FloatVector.broadcast(SPECIES, left[leftAt + 7]);
      s70 = factor.fma(right0, s70);
      s71 = factor.fma(right1, s71);
      factor = FloatVector.broadcast(SPECIES, x[leftAt + 7]);
      y0 = factor.fma(s70, y0);
      y1 = factor.fma(s71, y1);
      y0.intoArray(y, rightAt);
      y1.intoArray(y, rightAt + LANES);
      leftAt += step * leftRow;
      rightAt += step * rightRow;
    }
    at = stateStart;
    s00.intoArray(into, at);
    s01.intoArray(into, at + LANES);
    at += rightRow;
    s10.intoArray(into, at);
    s11.intoArray(into, at + LANES);
    at += rightRow;
    s20.intoArray(into, at);
    s21.intoArray(into, at + LANES);
    at += rightRow;
    s30.intoArray(into, at);
    s31.intoArray(into, at + LANES);
    at += rightRow;
    s40.intoArray(into, at);
    s41.intoArray(into, at + LANES);
    at += rightRow;
    s50.intoArray(into, at);
    s51.intoArray(into, at + LANES);
    at += rightRow;
    s60.intoArray(into, at);
    s61.intoArray(into, at + LANES);
    at += rightRow;
    s70.intoArray(into, at);
    s71.intoArray(into, at + LANES);
  }

  /** Four rows of two vectors of S. */
  private static void recurPair(
      int rows,
      int step,
      int leftStart,
      int leftRow,
      float[] left,
      int rightStart,
      int rightRow,
      float[] right,
      float[] x,
      float[] from,
      float[] into,
      int stateStart,
      float[] y) {
    int at = stateStart;
    FloatVector s00 = FloatVector.fromArray(SPECIES, from, at);
    FloatVector s01 = FloatVector.fromArray(SPECIES, from, at + LANES);
    at += rightRow;
    FloatVector s10 = FloatVector.fromArray(SPECIES, from, at);
    FloatVector s11 = FloatVector.fromArray(SPECIES, from, at + LANES);
    at += rightRow;
    FloatVector s20 = FloatVector.fromArray(SPECIES, from, at);
    FloatVector s21 = FloatVector.fromArray(SPECIES, from, at + LANES);
    at += rightRow;
    FloatVector s30 = FloatVector.fromArray(SPECIES, from, at);
    FloatVector s31 = FloatVector.fromArray(SPECIES, from, at + LANES);
    int leftAt = leftStart;
    int rightAt = rightStart;
    for (int t = 0; t < rows; t++) {
      FloatVector right0 = FloatVector.fromArray(SPECIES, right, rightAt);
      FloatVector right1 = FloatVector.fromArray(SPECIES, right, rightAt + LANES);
      FloatVector y0 = FloatVector.fromArray(SPECIES, y, rightAt);
      FloatVector y1 = FloatVector.fromArray(SPECIES, y, rightAt + LANES);
      FloatVector factor = FloatVector.broadcast(SPECIES, left[leftAt]);
      s00 = factor.fma(right0, s00);
      s01 = factor.fma(right1, s01);
      factor = FloatVector.broadcast(SPECIES, x[leftAt]);
      y0 = factor.fma(s00, y0);
      y1 = factor.fma(s01, y1);
      factor = FloatVector.broadcast(SPECIES, left[leftAt + 1]);
      s10 = factor.fma(right0, s10);
      s11 = factor.fma(right1, s11);
      factor = FloatVector.broadcast(SPECIES, x[leftAt + 1]);
      y0 = factor.fma(s10, y0);
      y1 = factor.fma(s11, y1);
      factor = FloatVector.broadcast(SPECIES, left[leftAt + 2]);
      s20 = factor.fma(right0, s20);
      s21 = factor.fma(right1, s21);
      factor = FloatVector.broadcast(SPECIES, x[leftAt + 2]);
      y0 = factor.fma(s20, y0);
      y1 = factor.fma(s21, y1);
      factor = FloatVector.broadcast(SPECIES, left[leftAt + 3]);
      s30 = factor.fma(right0, s30);
      s31 = factor.fma(right1, s31);
      factor = FloatVector.broadcast(SPECIES, x[leftAt + 3]);
      y0 = factor.fma(s30, y0);
      y1 = factor.fma(s31, y1);
      y0.intoArray(y, rightAt);
      y1.intoArray(y, rightAt + LANES);
      leftAt += step * leftRow;
      rightAt += step * rightRow;
    }
    at = stateStart;
    s00.intoArray(into, at);
    s01.intoArray(into, at + LANES);
    at += rightRow;
    s10.intoArray(into, at);
    s11.intoArray(into, at + LANES);
    at += rightRow;
    s20.intoArray(into, at);
    s21.intoArray(into, at + LANES);
    at += rightRow;
    s30.intoArray(into, at);
    s31.intoArray(into, at + LANES);
  }

  /** Four rows of one vector of S. */
  private static void recurStrip(
      int rows,
      int step,
      int leftStart,
      int leftRow,
      float[] left,
      int rightStart,
      int rightRow,
      float[] right,
      float[] x,
      float[] from,
      float[] into,
      int stateStart,
      float[] y) {
    int at = stateStart;
    FloatVector s00 = FloatVector.fromArray(SPECIES, from, at);
    at += rightRow;
    FloatVector s10 = FloatVector.fromArray(SPECIES, from, at);
    at += rightRow;
    FloatVector s20 = FloatVector.fromArray(SPECIES, from, at);
    at += rightRow;
    FloatVector s30 = FloatVector.fromArray(SPECIES, from, at);
    int leftAt = leftStart;
    int rightAt = rightStart;
    for (int t = 0; t < rows; t++) {
      FloatVector right0 = FloatVector.fromArray(SPECIES, right, rightAt);
      FloatVector y0 = FloatVector.fromArray(SPECIES, y, rightAt);
      FloatVector factor = FloatVector.broadcast(SPECIES, left[leftAt]);
      s00 = factor.fma(right0, s00);
      factor = FloatVector.broadcast(SPECIES, x[leftAt]);
      y0 = factor.fma(s00, y0);
      factor = FloatVector.broadcast(SPECIES, left[leftAt + 1]);
      s10 = factor.fma(right0, s10);
      factor = FloatVector.broadcast(SPECIES, x[leftAt + 1]);
      y0 = factor.fma(s10, y0);
      factor = FloatVector.broadcast(SPECIES, left[leftAt + 2]);
      s20 = factor.fma(right0, s20);
      factor = FloatVector.broadcast(SPECIES, x[leftAt + 2]);
      y0 = factor.fma(s20, y0);
      factor = FloatVector.broadcast(SPECIES, left[leftAt + 3]);
      s30 = factor.fma(right0, s30);
      factor = FloatVector.broadcast(SPECIES, x[leftAt + 3]);
      y0 = factor.fma(s30, y0);
      y0.intoArray(y, rightAt);
      leftAt += step * leftRow;
      rightAt += step * rightRow;
    }
    at = stateStart;
    s00.intoArray(into, at);
    at += rightRow;
    s10.intoArray(into, at);
    at += rightRow;
    s20.intoArray(into, at);
    at += rightRow;
    s30.intoArray(into, at);
  }

  @Override
  public void dots(int rows, int width, float[] a, float[] b, int bRow, double[] sums) {
    for (int i = 0; i < rows; i++) {
      FloatVector lanes = FloatVector.zero(SPECIES);
      for (int j = 0; j < width; j += LANES) {
        FloatVector left = FloatVector.fromArray(SPECIES, a, i * width + j);
        lanes = left.fma(FloatVector.fromArray(SPECIES, b, i * bRow + j), lanes);
      }
      DoubleVector sum =
          ((DoubleVector) lanes.castShape(DOUBLES, 0))
              .add(lanes.rearrange(UPPER_HALF).castShape(DOUBLES, 0));
      if (STEP > 4) {
        sum = sum.add(sum.rearrange(ROTATE_4_OF_DOUBLES));
      }
      if (STEP > 2) {
        sum = sum.add(sum.rearrange(ROTATE_2_OF_DOUBLES));
      }
      sums[i] = sum.lane(0) + sum.lane(1);
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
    for (int i = 0; i < rows; i++) {
      int row = i * width;
      FloatVector lanesX = FloatVector.zero(SPECIES);
      FloatVector lanesY = lanesX;
      FloatVector lanesZ = lanesX;
      FloatVector lanesC = lanesX;
      for (int j = 0; j < width; j += LANES) {
        FloatVector left = FloatVector.fromArray(SPECIES, x, row + j);
        lanesX = left.fma(left, lanesX);
        lanesY = left.fma(FloatVector.fromArray(SPECIES, y, row + j), lanesY);
        lanesZ = left.fma(FloatVector.fromArray(SPECIES, z, i * zRow + j), lanesZ);
        lanesC = left.fma(FloatVector.fromArray(SPECIES, c, j), lanesC);
      }
      DoubleVector sumX =
          ((DoubleVector) lanesX.castShape(DOUBLES, 0))
              .add(lanesX.rearrange(UPPER_HALF).castShape(DOUBLES, 0));
      DoubleVector sumY =
          ((DoubleVector) lanesY.castShape(DOUBLES, 0))
              .add(lanesY.rearrange(UPPER_HALF).castShape(DOUBLES, 0));
      DoubleVector sumZ =
          ((DoubleVector) lanesZ.castShape(DOUBLES, 0))
              .add(lanesZ.rearrange(UPPER_HALF).castShape(DOUBLES, 0));
      DoubleVector sumC =
          ((DoubleVector) lanesC.castShape(DOUBLES, 0))
              .add(lanesC.rearrange(UPPER_HALF).castShape(DOUBLES, 0));
      if (STEP > 4) {
        sumX = sumX.add(sumX.rearrange(ROTATE_4_OF_DOUBLES));
        sumY = sumY.add(sumY.rearrange(ROTATE_4_OF_DOUBLES));
        sumZ = sumZ.add(sumZ.rearrange(ROTATE_4_OF_DOUBLES));
        sumC = sumC.add(sumC.rearrange(ROTATE_4_OF_DOUBLES));
      }
      if (STEP > 2) {
        sumX = sumX.add(sumX.rearrange(ROTATE_2_OF_DOUBLES));
        sumY = sumY.add(sumY.rearrange(ROTATE_2_OF_DOUBLES));
        sumZ = sumZ.add(sumZ.rearrange(ROTATE_2_OF_DOUBLES));
        sumC = sumC.add(sumC.rearrange(ROTATE_2_OF_DOUBLES));
      }
      alongX[i] = sumX.lane(0) + sumX.lane(1);
      alongY[i] = sumY.lane(0) + sumY.lane(1);
      alongZ[i] = sumZ.lane(0) + sumZ.lane(1);
      alongC[i] = sumC.lane(0) + sumC.lane(1);
    }
  }

  @Override
  public void scaleRows(int rows, int width, double[] factors, float[] x) {
    for (int i = 0; i < rows; i++) {
      int row = i * width;
      if (!fits(factors[i])) {
        ScalarMatrixKernel.scaleRow(width, factors[i], x, row);
        continue;
      }
      float high = (float) factors[i];
      float low = (float) (factors[i] - high);
      FloatVector highs = FloatVector.broadcast(SPECIES, high);
      for (int at = row; at < row + width; at += LANES) {
        FloatVector before = FloatVector.fromArray(SPECIES, x, at);
        before.fma(highs, before.mul(low)).intoArray(x, at);
      }
    }
  }

  /** Whether the factor can be had as a float, or as the sum of two, as well as in double. */
  private static boolean fits(double factor) {
    double size = Math.abs(factor);
    return size == 0 || (size > 0x1p-100 && size < 0x1p100);
  }

  @Override
  public void combineRows(
      int rows, int width, double[] scales, float[] y, double[] factors, float[] x, int xRow) {
    for (int i = 0; i < rows; i++) {
      int row = i * width;
      if (!fits(scales[i]) || !fits(factors[i])) {
        ScalarMatrixKernel.combineRow(width, scales[i], y, row, factors[i], x, i * xRow);
        continue;
      }
      FloatVector scale = FloatVector.broadcast(SPECIES, (float) scales[i]);
      FloatVector factor = FloatVector.broadcast(SPECIES, (float) factors[i]);
      for (int j = 0; j < width; j += LANES) {
        FloatVector sum = FloatVector.fromArray(SPECIES, y, row + j);
        sum = factor.fma(FloatVector.fromArray(SPECIES, x, i * xRow + j), sum);
        sum.mul(scale).intoArray(y, row + j);
      }
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
      int row = i * width;
      if (!fits(scales[i]) || !fits(zFactors[i]) || !fits(cFactors[i]) || !fits(xFactors[i])) {
        ScalarMatrixKernel.combineRow(
            i, width, scales, y, zFactors, z, zRow, cFactors, c, xFactors, x);
        continue;
      }
      FloatVector scale = FloatVector.broadcast(SPECIES, (float) scales[i]);
      FloatVector zFactor = FloatVector.broadcast(SPECIES, (float) zFactors[i]);
      FloatVector cFactor = FloatVector.broadcast(SPECIES, (float) cFactors[i]);
      FloatVector xFactor = FloatVector.broadcast(SPECIES, (float) xFactors[i]);
      for (int j = 0; j < width; j += LANES) {
        FloatVector sum = FloatVector.fromArray(SPECIES, y, row + j);
        sum = zFactor.fma(FloatVector.fromArray(SPECIES, z, i * zRow + j), sum);
        sum = cFactor.fma(FloatVector.fromArray(SPECIES, c, j), sum);
        sum = xFactor.fma(FloatVector.fromArray(SPECIES, x, row + j), sum);
        sum.mul(scale).intoArray(y, row + j);
      }
    }
  }

  @Override
  public void addRows(int rows, int width, float factor, float[] x, int xRow, float[] y) {
    for (int i = 0; i < rows; i++) {
      for (int j = 0; j < width; j += LANES) {
        FloatVector added = FloatVector.fromArray(SPECIES, x, i * xRow + j);
        FloatVector before = FloatVector.fromArray(SPECIES, y, i * width + j);
        added.fma(FloatVector.broadcast(SPECIES, factor), before).intoArray(y, i * width + j);
      }
    }
  }

  @Override
  public void sumRows(int rows, float[] weights, float[] x, float[] sum) {
    int width = sum.length;
    for (int j = 0; j < width; j += LANES) {
      FloatVector even = FloatVector.zero(SPECIES); // two chains, as a sum waits for the one before
      FloatVector odd = even;
      int i = 0;
      for (; i + 2 <= rows; i += 2) {
        FloatVector row = FloatVector.fromArray(SPECIES, x, i * width + j);
        even = row.fma(FloatVector.broadcast(SPECIES, weights[i]), even);
        row = FloatVector.fromArray(SPECIES, x, (i + 1) * width + j);
        odd = row.fma(FloatVector.broadcast(SPECIES, weights[i + 1]), odd);
      }
      if (i < rows) {
        FloatVector row = FloatVector.fromArray(SPECIES, x, i * width + j);
        even = row.fma(FloatVector.broadcast(SPECIES, weights[i]), even);
      }
      even.add(odd).intoArray(sum, j);
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
    int step = order == Order.FORWARD ? 1 : -1;
    int first = order == Order.FORWARD ? 0 : rows - 1;
    int j = 0;
    for (; j + 4 * LANES <= width; j += 4 * LANES) { // as a sum waits for the one before
      FloatVector start0 = FloatVector.fromArray(SPECIES, before, j);
      FloatVector start1 = FloatVector.fromArray(SPECIES, before, j + LANES);
      FloatVector start2 = FloatVector.fromArray(SPECIES, before, j + 2 * LANES);
      FloatVector start3 = FloatVector.fromArray(SPECIES, before, j + 3 * LANES);
      FloatVector all0 = FloatVector.zero(SPECIES);
      FloatVector all1 = all0;
      FloatVector all2 = all0;
      FloatVector all3 = all0;
      for (int t = 0, i = first; t < rows; t++, i += step) {
        int at = i * width + j;
        FloatVector weight = FloatVector.broadcast(SPECIES, weights[i]);
        all0 = weight.fma(FloatVector.fromArray(SPECIES, x, at), all0);
        all1 = weight.fma(FloatVector.fromArray(SPECIES, x, at + LANES), all1);
        all2 = weight.fma(FloatVector.fromArray(SPECIES, x, at + 2 * LANES), all2);
        all3 = weight.fma(FloatVector.fromArray(SPECIES, x, at + 3 * LANES), all3);
        start0.add(all0).mul(factor).intoArray(y, at);
        start1.add(all1).mul(factor).intoArray(y, at + LANES);
        start2.add(all2).mul(factor).intoArray(y, at + 2 * LANES);
        start3.add(all3).mul(factor).intoArray(y, at + 3 * LANES);
      }
      all0.intoArray(sum, j);
      all1.intoArray(sum, j + LANES);
      all2.intoArray(sum, j + 2 * LANES);
      all3.intoArray(sum, j + 3 * LANES);
    }
    for (; j < width; j += LANES) {
      FloatVector start = FloatVector.fromArray(SPECIES, before, j);
      FloatVector all = FloatVector.zero(SPECIES);
      for (int t = 0, i = first; t < rows; t++, i += step) {
        FloatVector row = FloatVector.fromArray(SPECIES, x, i * width + j);
        all = row.fma(FloatVector.broadcast(SPECIES, weights[i]), all);
        start.add(all).mul(factor).intoArray(y, i * width + j);
      }
      all.intoArray(sum, j);
    }
  }

  @Override
  public String name() {
    return "Vector API, " + SPECIES.vectorBitSize() + " bits";
  }
}
