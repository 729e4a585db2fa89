package io.github.linattn.internal.cpu;

import jdk.incubator.vector.FloatVector;

/**
 * Recurrence and products with the Vector API, in blocks of sixteen vectors: four rows of four for
 * products, eight of two for the recurrence, which loads and stores the columns of every token.
 *
 * <p>Each method takes all indices before its vectors: behind them a call would not be inlined, and
 * save and load them all.
 */
final class VectorMatrixKernel extends VectorRows {
  /** Whether there are registers for sixteen sums; vectors of 256 bits mostly come with sixteen. */
  private static final boolean WIDE = LANES != 8;

  /** Columns that are taken through all rows at a time, so that their part of b stays near. */
  private static final int BAND = 64;

  /** Of one block of {@link #addProduct}. */
  private final Panels sums = new Panels(ROW_STEP, BAND);

  @Override
  public void multiply(int rows, Panels a, Panels b, Panels c) {
    int aPanel = a.at(0, Panels.WIDTH) - a.at(0, Panels.WIDTH - 1) - 1;
    for (int band = 0; band < c.columns; band += BAND) {
      int width = Math.min(c.columns - band, BAND);
      for (int row = 0; row < rows; row += ROW_STEP) {
        multiplyRows(width, a.columns, a, row, 0, Panels.WIDTH, 1, aPanel, b, band, c, row, band);
      }
    }
  }

  @Override
  public void addProduct(int rows, Panels a, Panels b, Panels c, Panels lost) {
    for (int band = 0; band < c.columns; band += BAND) {
      int width = Math.min(c.columns - band, BAND);
      for (int row = 0; row < c.rows; row += ROW_STEP) {
        multiplyRows(width, rows, a, 0, row, 1, Panels.WIDTH, 0, b, band, sums, 0, 0);
        addSums(width, sums, c, lost, row, band);
      }
    }
  }

  /**
   * {@code width} columns of four rows, in the widest blocks that there are.
   *
   * @param aRow distance of factors of neighbouring rows of c
   * @param aColumn distance of neighbouring factors of one row
   * @param aPanel what is added to that after every sixteen
   */
  private static void multiplyRows(
      int width,
      int k,
      Panels a,
      int row,
      int firstColumn,
      int aRow,
      int aColumn,
      int aPanel,
      Panels b,
      int band,
      Panels c,
      int cRow,
      int cColumn) {
    int aAt = a.at(row, firstColumn);
    for (int column = 0; column < width; ) {
      int from = band + column;
      int to = cColumn + column;
      int vectors = (width - column) / LANES;
      if (WIDE && vectors >= 4 && aRow == 1) {
        addWide(k, a.data, aAt, b, from, c, cRow, to);
        column += 4 * LANES;
      } else if (WIDE && vectors >= 4) {
        multiplyWide(k, a.data, aAt, aRow, aColumn, aPanel, b, from, c, cRow, to);
        column += 4 * LANES;
      } else if (vectors >= 2) {
        multiplyPair(k, a.data, aAt, aRow, aColumn, aPanel, b, from, c, cRow, to);
        column += 2 * LANES;
      } else {
        multiplyStrip(k, a.data, aAt, aRow, aColumn, aPanel, b, from, c, cRow, to);
        column += LANES;
      }
    }
  }

  /** Sixteen sums in registers: four rows of four vectors. */
  private static void multiplyWide(
      int k,
      float[] a,
      int aAt,
      int aRow,
      int aColumn,
      int aPanel,
      Panels b,
      int column,
      Panels c,
      int cRow,
      int cColumn) {
    int b0At = b.at(0, column);
    int b1At = b.at(0, column + LANES);
    int b2At = b.at(0, column + 2 * LANES);
    int b3At = b.at(0, column + 3 * LANES);
    int c0At = c.at(cRow, cColumn);
    int c1At = c.at(cRow, cColumn + LANES);
    int c2At = c.at(cRow, cColumn + 2 * LANES);
    int c3At = c.at(cRow, cColumn + 3 * LANES);
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
    float[] bs = b.data;
    for (int p = 0; p < k; p++) {
      int at = aAt + p * aColumn + p / Panels.WIDTH * aPanel;
      int line = p * Panels.WIDTH;
      FloatVector b0 = FloatVector.fromArray(SPECIES, bs, b0At + line);
      FloatVector b1 = FloatVector.fromArray(SPECIES, bs, b1At + line);
      FloatVector b2 = FloatVector.fromArray(SPECIES, bs, b2At + line);
      FloatVector b3 = FloatVector.fromArray(SPECIES, bs, b3At + line);
      FloatVector factor = FloatVector.broadcast(SPECIES, a[at]);
      c00 = factor.fma(b0, c00);
      c01 = factor.fma(b1, c01);
      c02 = factor.fma(b2, c02);
      c03 = factor.fma(b3, c03);
      factor = FloatVector.broadcast(SPECIES, a[at + aRow]);
      c10 = factor.fma(b0, c10);
      c11 = factor.fma(b1, c11);
      c12 = factor.fma(b2, c12);
      c13 = factor.fma(b3, c13);
      factor = FloatVector.broadcast(SPECIES, a[at + 2 * aRow]);
      c20 = factor.fma(b0, c20);
      c21 = factor.fma(b1, c21);
      c22 = factor.fma(b2, c22);
      c23 = factor.fma(b3, c23);
      factor = FloatVector.broadcast(SPECIES, a[at + 3 * aRow]);
      c30 = factor.fma(b0, c30);
      c31 = factor.fma(b1, c31);
      c32 = factor.fma(b2, c32);
      c33 = factor.fma(b3, c33);
    }
    c00.intoArray(c.data, c0At);
    c01.intoArray(c.data, c1At);
    c02.intoArray(c.data, c2At);
    c03.intoArray(c.data, c3At);
    c10.intoArray(c.data, c0At + Panels.WIDTH);
    c11.intoArray(c.data, c1At + Panels.WIDTH);
    c12.intoArray(c.data, c2At + Panels.WIDTH);
    c13.intoArray(c.data, c3At + Panels.WIDTH);
    c20.intoArray(c.data, c0At + 2 * Panels.WIDTH);
    c21.intoArray(c.data, c1At + 2 * Panels.WIDTH);
    c22.intoArray(c.data, c2At + 2 * Panels.WIDTH);
    c23.intoArray(c.data, c3At + 2 * Panels.WIDTH);
    c30.intoArray(c.data, c0At + 3 * Panels.WIDTH);
    c31.intoArray(c.data, c1At + 3 * Panels.WIDTH);
    c32.intoArray(c.data, c2At + 3 * Panels.WIDTH);
    c33.intoArray(c.data, c3At + 3 * Panels.WIDTH);
  }

  /** The same of the columns of a: that its indices are plain makes it a sixth faster. */
  private static void addWide(
      int k, float[] a, int aAt, Panels b, int column, Panels c, int cRow, int cColumn) {
    int b0At = b.at(0, column);
    int b1At = b.at(0, column + LANES);
    int b2At = b.at(0, column + 2 * LANES);
    int b3At = b.at(0, column + 3 * LANES);
    int c0At = c.at(cRow, cColumn);
    int c1At = c.at(cRow, cColumn + LANES);
    int c2At = c.at(cRow, cColumn + 2 * LANES);
    int c3At = c.at(cRow, cColumn + 3 * LANES);
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
    float[] bs = b.data;
    for (int p = 0; p < k; p++) {
      int line = p * Panels.WIDTH;
      int at = aAt + line;
      FloatVector b0 = FloatVector.fromArray(SPECIES, bs, b0At + line);
      FloatVector b1 = FloatVector.fromArray(SPECIES, bs, b1At + line);
      FloatVector b2 = FloatVector.fromArray(SPECIES, bs, b2At + line);
      FloatVector b3 = FloatVector.fromArray(SPECIES, bs, b3At + line);
      FloatVector factor = FloatVector.broadcast(SPECIES, a[at]);
      c00 = factor.fma(b0, c00);
      c01 = factor.fma(b1, c01);
      c02 = factor.fma(b2, c02);
      c03 = factor.fma(b3, c03);
      factor = FloatVector.broadcast(SPECIES, a[at + 1]);
      c10 = factor.fma(b0, c10);
      c11 = factor.fma(b1, c11);
      c12 = factor.fma(b2, c12);
      c13 = factor.fma(b3, c13);
      factor = FloatVector.broadcast(SPECIES, a[at + 2]);
      c20 = factor.fma(b0, c20);
      c21 = factor.fma(b1, c21);
      c22 = factor.fma(b2, c22);
      c23 = factor.fma(b3, c23);
      factor = FloatVector.broadcast(SPECIES, a[at + 3]);
      c30 = factor.fma(b0, c30);
      c31 = factor.fma(b1, c31);
      c32 = factor.fma(b2, c32);
      c33 = factor.fma(b3, c33);
    }
    c00.intoArray(c.data, c0At);
    c01.intoArray(c.data, c1At);
    c02.intoArray(c.data, c2At);
    c03.intoArray(c.data, c3At);
    c10.intoArray(c.data, c0At + Panels.WIDTH);
    c11.intoArray(c.data, c1At + Panels.WIDTH);
    c12.intoArray(c.data, c2At + Panels.WIDTH);
    c13.intoArray(c.data, c3At + Panels.WIDTH);
    c20.intoArray(c.data, c0At + 2 * Panels.WIDTH);
    c21.intoArray(c.data, c1At + 2 * Panels.WIDTH);
    c22.intoArray(c.data, c2At + 2 * Panels.WIDTH);
    c23.intoArray(c.data, c3At + 2 * Panels.WIDTH);
    c30.intoArray(c.data, c0At + 3 * Panels.WIDTH);
    c31.intoArray(c.data, c1At + 3 * Panels.WIDTH);
    c32.intoArray(c.data, c2At + 3 * Panels.WIDTH);
    c33.intoArray(c.data, c3At + 3 * Panels.WIDTH);
  }

  /** Four rows of two vectors. */
  private static void multiplyPair(
      int k,
      float[] a,
      int aAt,
      int aRow,
      int aColumn,
      int aPanel,
      Panels b,
      int column,
      Panels c,
      int cRow,
      int cColumn) {
    int b0At = b.at(0, column);
    int b1At = b.at(0, column + LANES);
    int c0At = c.at(cRow, cColumn);
    int c1At = c.at(cRow, cColumn + LANES);
    FloatVector c00 = FloatVector.zero(SPECIES);
    FloatVector c01 = c00;
    FloatVector c10 = c00;
    FloatVector c11 = c00;
    FloatVector c20 = c00;
    FloatVector c21 = c00;
    FloatVector c30 = c00;
    FloatVector c31 = c00;
    float[] bs = b.data;
    for (int p = 0; p < k; p++) {
      int at = aAt + p * aColumn + p / Panels.WIDTH * aPanel;
      int line = p * Panels.WIDTH;
      FloatVector b0 = FloatVector.fromArray(SPECIES, bs, b0At + line);
      FloatVector b1 = FloatVector.fromArray(SPECIES, bs, b1At + line);
      FloatVector factor = FloatVector.broadcast(SPECIES, a[at]);
      c00 = factor.fma(b0, c00);
      c01 = factor.fma(b1, c01);
      factor = FloatVector.broadcast(SPECIES, a[at + aRow]);
      c10 = factor.fma(b0, c10);
      c11 = factor.fma(b1, c11);
      factor = FloatVector.broadcast(SPECIES, a[at + 2 * aRow]);
      c20 = factor.fma(b0, c20);
      c21 = factor.fma(b1, c21);
      factor = FloatVector.broadcast(SPECIES, a[at + 3 * aRow]);
      c30 = factor.fma(b0, c30);
      c31 = factor.fma(b1, c31);
    }
    c00.intoArray(c.data, c0At);
    c01.intoArray(c.data, c1At);
    c10.intoArray(c.data, c0At + Panels.WIDTH);
    c11.intoArray(c.data, c1At + Panels.WIDTH);
    c20.intoArray(c.data, c0At + 2 * Panels.WIDTH);
    c21.intoArray(c.data, c1At + 2 * Panels.WIDTH);
    c30.intoArray(c.data, c0At + 3 * Panels.WIDTH);
    c31.intoArray(c.data, c1At + 3 * Panels.WIDTH);
  }

  /** Four rows of one vector. */
  private static void multiplyStrip(
      int k,
      float[] a,
      int aAt,
      int aRow,
      int aColumn,
      int aPanel,
      Panels b,
      int column,
      Panels c,
      int cRow,
      int cColumn) {
    int b0At = b.at(0, column);
    int c0At = c.at(cRow, cColumn);
    FloatVector c00 = FloatVector.zero(SPECIES);
    FloatVector c10 = c00;
    FloatVector c20 = c00;
    FloatVector c30 = c00;
    float[] bs = b.data;
    for (int p = 0; p < k; p++) {
      int at = aAt + p * aColumn + p / Panels.WIDTH * aPanel;
      int line = p * Panels.WIDTH;
      FloatVector b0 = FloatVector.fromArray(SPECIES, bs, b0At + line);
      FloatVector factor = FloatVector.broadcast(SPECIES, a[at]);
      c00 = factor.fma(b0, c00);
      factor = FloatVector.broadcast(SPECIES, a[at + aRow]);
      c10 = factor.fma(b0, c10);
      factor = FloatVector.broadcast(SPECIES, a[at + 2 * aRow]);
      c20 = factor.fma(b0, c20);
      factor = FloatVector.broadcast(SPECIES, a[at + 3 * aRow]);
      c30 = factor.fma(b0, c30);
    }
    c00.intoArray(c.data, c0At);
    c10.intoArray(c.data, c0At + Panels.WIDTH);
    c20.intoArray(c.data, c0At + 2 * Panels.WIDTH);
    c30.intoArray(c.data, c0At + 3 * Panels.WIDTH);
  }

  /** c += the sums of four rows and what earlier additions lost. */
  private static void addSums(int width, Panels sums, Panels c, Panels lost, int row, int band) {
    for (int j = 0; j < width; j += LANES) {
      int sumAt = sums.at(0, j);
      int cAt = c.at(row, band + j);
      int lostAt = lost.at(row, band + j);
      for (int line = 0; line < ROW_STEP * Panels.WIDTH; line += Panels.WIDTH) {
        FloatVector sum = FloatVector.fromArray(SPECIES, sums.data, sumAt + line);
        sum = sum.add(FloatVector.fromArray(SPECIES, lost.data, lostAt + line));
        FloatVector before = FloatVector.fromArray(SPECIES, c.data, cAt + line);
        FloatVector after = before.add(sum);
        sum.sub(after.sub(before)).intoArray(lost.data, lostAt + line);
        after.intoArray(c.data, cAt + line);
      }
    }
  }

  @Override
  public void recur(
      int rows, Panels left, Panels right, Panels x, Panels from, Panels into, Panels y) {
    int column = 0;
    for (; column + 2 * LANES <= right.columns; column += 2 * LANES) {
      for (int row = 0; row < left.columns; row += WIDE ? 8 : 4) {
        if (WIDE) {
          recurWide(rows, left, row, right, column, x, from, into, y);
        } else {
          recurPair(rows, left, row, right, column, x, from, into, y);
        }
      }
    }
    for (; column < right.columns; column += LANES) {
      for (int row = 0; row < left.columns; row += 16) {
        recurStrip(rows, left, row, right, column, x, from, into, y);
      }
    }
  }

  /** Sixteen elements of S for each lane in registers: eight rows of two vectors. */
  private static void recurWide(
      int rows,
      Panels left,
      int row,
      Panels right,
      int column,
      Panels x,
      Panels from,
      Panels into,
      Panels y) {
    int from0At = from.at(row, column);
    int from1At = from.at(row, column + LANES);
    int into0At = into.at(row, column);
    int into1At = into.at(row, column + LANES);
    int leftAt = left.at(0, row);
    int xAt = x.at(0, row);
    int right0At = right.at(0, column);
    int right1At = right.at(0, column + LANES);
    int y0At = y.at(0, column);
    int y1At = y.at(0, column + LANES);
    FloatVector s00 = FloatVector.fromArray(SPECIES, from.data, from0At);
    FloatVector s01 = FloatVector.fromArray(SPECIES, from.data, from1At);
    FloatVector s10 = FloatVector.fromArray(SPECIES, from.data, from0At + Panels.WIDTH);
    FloatVector s11 = FloatVector.fromArray(SPECIES, from.data, from1At + Panels.WIDTH);
    FloatVector s20 = FloatVector.fromArray(SPECIES, from.data, from0At + 2 * Panels.WIDTH);
    FloatVector s21 = FloatVector.fromArray(SPECIES, from.data, from1At + 2 * Panels.WIDTH);
    FloatVector s30 = FloatVector.fromArray(SPECIES, from.data, from0At + 3 * Panels.WIDTH);
    FloatVector s31 = FloatVector.fromArray(SPECIES, from.data, from1At + 3 * Panels.WIDTH);
    FloatVector s40 = FloatVector.fromArray(SPECIES, from.data, from0At + 4 * Panels.WIDTH);
    FloatVector s41 = FloatVector.fromArray(SPECIES, from.data, from1At + 4 * Panels.WIDTH);
    FloatVector s50 = FloatVector.fromArray(SPECIES, from.data, from0At + 5 * Panels.WIDTH);
    FloatVector s51 = FloatVector.fromArray(SPECIES, from.data, from1At + 5 * Panels.WIDTH);
    FloatVector s60 = FloatVector.fromArray(SPECIES, from.data, from0At + 6 * Panels.WIDTH);
    FloatVector s61 = FloatVector.fromArray(SPECIES, from.data, from1At + 6 * Panels.WIDTH);
    FloatVector s70 = FloatVector.fromArray(SPECIES, from.data, from0At + 7 * Panels.WIDTH);
    FloatVector s71 = FloatVector.fromArray(SPECIES, from.data, from1At + 7 * Panels.WIDTH);
    float[] lefts = left.data;
    float[] rights = right.data;
    float[] xs = x.data;
    float[] ys = y.data;
    for (int t = 0; t < rows; t++) {
      int at = t * Panels.WIDTH;
      FloatVector right0 = FloatVector.fromArray(SPECIES, rights, right0At + at);
      FloatVector right1 = FloatVector.fromArray(SPECIES, rights, right1At + at);
      FloatVector y0 = FloatVector.fromArray(SPECIES, ys, y0At + at);
      FloatVector y1 = FloatVector.fromArray(SPECIES, ys, y1At + at);
      FloatVector factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at]);
      s00 = factor.fma(right0, s00);
      s01 = factor.fma(right1, s01);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at]);
      y0 = factor.fma(s00, y0);
      y1 = factor.fma(s01, y1);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 1]);
      s10 = factor.fma(right0, s10);
      s11 = factor.fma(right1, s11);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 1]);
      y0 = factor.fma(s10, y0);
      y1 = factor.fma(s11, y1);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 2]);
      s20 = factor.fma(right0, s20);
      s21 = factor.fma(right1, s21);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 2]);
      y0 = factor.fma(s20, y0);
      y1 = factor.fma(s21, y1);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 3]);
      s30 = factor.fma(right0, s30);
      s31 = factor.fma(right1, s31);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 3]);
      y0 = factor.fma(s30, y0);
      y1 = factor.fma(s31, y1);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 4]);
      s40 = factor.fma(right0, s40);
      s41 = factor.fma(right1, s41);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 4]);
      y0 = factor.fma(s40, y0);
      y1 = factor.fma(s41, y1);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 5]);
      s50 = factor.fma(right0, s50);
      s51 = factor.fma(right1, s51);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 5]);
      y0 = factor.fma(s50, y0);
      y1 = factor.fma(s51, y1);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 6]);
      s60 = factor.fma(right0, s60);
      s61 = factor.fma(right1, s61);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 6]);
      y0 = factor.fma(s60, y0);
      y1 = factor.fma(s61, y1);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 7]);
      s70 = factor.fma(right0, s70);
      s71 = factor.fma(right1, s71);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 7]);
      y0 = factor.fma(s70, y0);
      y1 = factor.fma(s71, y1);
      y0.intoArray(ys, y0At + at);
      y1.intoArray(ys, y1At + at);
    }
    s00.intoArray(into.data, into0At);
    s01.intoArray(into.data, into1At);
    s10.intoArray(into.data, into0At + Panels.WIDTH);
    s11.intoArray(into.data, into1At + Panels.WIDTH);
    s20.intoArray(into.data, into0At + 2 * Panels.WIDTH);
    s21.intoArray(into.data, into1At + 2 * Panels.WIDTH);
    s30.intoArray(into.data, into0At + 3 * Panels.WIDTH);
    s31.intoArray(into.data, into1At + 3 * Panels.WIDTH);
    s40.intoArray(into.data, into0At + 4 * Panels.WIDTH);
    s41.intoArray(into.data, into1At + 4 * Panels.WIDTH);
    s50.intoArray(into.data, into0At + 5 * Panels.WIDTH);
    s51.intoArray(into.data, into1At + 5 * Panels.WIDTH);
    s60.intoArray(into.data, into0At + 6 * Panels.WIDTH);
    s61.intoArray(into.data, into1At + 6 * Panels.WIDTH);
    s70.intoArray(into.data, into0At + 7 * Panels.WIDTH);
    s71.intoArray(into.data, into1At + 7 * Panels.WIDTH);
  }

  /** Four rows of two vectors of S. */
  private static void recurPair(
      int rows,
      Panels left,
      int row,
      Panels right,
      int column,
      Panels x,
      Panels from,
      Panels into,
      Panels y) {
    int from0At = from.at(row, column);
    int from1At = from.at(row, column + LANES);
    int into0At = into.at(row, column);
    int into1At = into.at(row, column + LANES);
    int leftAt = left.at(0, row);
    int xAt = x.at(0, row);
    int right0At = right.at(0, column);
    int right1At = right.at(0, column + LANES);
    int y0At = y.at(0, column);
    int y1At = y.at(0, column + LANES);
    FloatVector s00 = FloatVector.fromArray(SPECIES, from.data, from0At);
    FloatVector s01 = FloatVector.fromArray(SPECIES, from.data, from1At);
    FloatVector s10 = FloatVector.fromArray(SPECIES, from.data, from0At + Panels.WIDTH);
    FloatVector s11 = FloatVector.fromArray(SPECIES, from.data, from1At + Panels.WIDTH);
    FloatVector s20 = FloatVector.fromArray(SPECIES, from.data, from0At + 2 * Panels.WIDTH);
    FloatVector s21 = FloatVector.fromArray(SPECIES, from.data, from1At + 2 * Panels.WIDTH);
    FloatVector s30 = FloatVector.fromArray(SPECIES, from.data, from0At + 3 * Panels.WIDTH);
    FloatVector s31 = FloatVector.fromArray(SPECIES, from.data, from1At + 3 * Panels.WIDTH);
    float[] lefts = left.data;
    float[] rights = right.data;
    float[] xs = x.data;
    float[] ys = y.data;
    for (int t = 0; t < rows; t++) {
      int at = t * Panels.WIDTH;
      FloatVector right0 = FloatVector.fromArray(SPECIES, rights, right0At + at);
      FloatVector right1 = FloatVector.fromArray(SPECIES, rights, right1At + at);
      FloatVector y0 = FloatVector.fromArray(SPECIES, ys, y0At + at);
      FloatVector y1 = FloatVector.fromArray(SPECIES, ys, y1At + at);
      FloatVector factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at]);
      s00 = factor.fma(right0, s00);
      s01 = factor.fma(right1, s01);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at]);
      y0 = factor.fma(s00, y0);
      y1 = factor.fma(s01, y1);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 1]);
      s10 = factor.fma(right0, s10);
      s11 = factor.fma(right1, s11);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 1]);
      y0 = factor.fma(s10, y0);
      y1 = factor.fma(s11, y1);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 2]);
      s20 = factor.fma(right0, s20);
      s21 = factor.fma(right1, s21);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 2]);
      y0 = factor.fma(s20, y0);
      y1 = factor.fma(s21, y1);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 3]);
      s30 = factor.fma(right0, s30);
      s31 = factor.fma(right1, s31);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 3]);
      y0 = factor.fma(s30, y0);
      y1 = factor.fma(s31, y1);
      y0.intoArray(ys, y0At + at);
      y1.intoArray(ys, y1At + at);
    }
    s00.intoArray(into.data, into0At);
    s01.intoArray(into.data, into1At);
    s10.intoArray(into.data, into0At + Panels.WIDTH);
    s11.intoArray(into.data, into1At + Panels.WIDTH);
    s20.intoArray(into.data, into0At + 2 * Panels.WIDTH);
    s21.intoArray(into.data, into1At + 2 * Panels.WIDTH);
    s30.intoArray(into.data, into0At + 3 * Panels.WIDTH);
    s31.intoArray(into.data, into1At + 3 * Panels.WIDTH);
  }

  /** Sixteen rows of one vector of S. */
  private static void recurStrip(
      int rows,
      Panels left,
      int row,
      Panels right,
      int column,
      Panels x,
      Panels from,
      Panels into,
      Panels y) {
    int from0At = from.at(row, column);
    int into0At = into.at(row, column);
    int leftAt = left.at(0, row);
    int xAt = x.at(0, row);
    int right0At = right.at(0, column);
    int y0At = y.at(0, column);
    FloatVector s00 = FloatVector.fromArray(SPECIES, from.data, from0At);
    FloatVector s10 = FloatVector.fromArray(SPECIES, from.data, from0At + Panels.WIDTH);
    FloatVector s20 = FloatVector.fromArray(SPECIES, from.data, from0At + 2 * Panels.WIDTH);
    FloatVector s30 = FloatVector.fromArray(SPECIES, from.data, from0At + 3 * Panels.WIDTH);
    FloatVector s40 = FloatVector.fromArray(SPECIES, from.data, from0At + 4 * Panels.WIDTH);
    FloatVector s50 = FloatVector.fromArray(SPECIES, from.data, from0At + 5 * Panels.WIDTH);
    FloatVector s60 = FloatVector.fromArray(SPECIES, from.data, from0At + 6 * Panels.WIDTH);
    FloatVector s70 = FloatVector.fromArray(SPECIES, from.data, from0At + 7 * Panels.WIDTH);
    FloatVector s80 = FloatVector.fromArray(SPECIES, from.data, from0At + 8 * Panels.WIDTH);
    FloatVector s90 = FloatVector.fromArray(SPECIES, from.data, from0At + 9 * Panels.WIDTH);
    FloatVector s100 = FloatVector.fromArray(SPECIES, from.data, from0At + 10 * Panels.WIDTH);
    FloatVector s110 = FloatVector.fromArray(SPECIES, from.data, from0At + 11 * Panels.WIDTH);
    FloatVector s120 = FloatVector.fromArray(SPECIES, from.data, from0At + 12 * Panels.WIDTH);
    FloatVector s130 = FloatVector.fromArray(SPECIES, from.data, from0At + 13 * Panels.WIDTH);
    FloatVector s140 = FloatVector.fromArray(SPECIES, from.data, from0At + 14 * Panels.WIDTH);
    FloatVector s150 = FloatVector.fromArray(SPECIES, from.data, from0At + 15 * Panels.WIDTH);
    float[] lefts = left.data;
    float[] rights = right.data;
    float[] xs = x.data;
    float[] ys = y.data;
    for (int t = 0; t < rows; t++) {
      int at = t * Panels.WIDTH;
      FloatVector right0 = FloatVector.fromArray(SPECIES, rights, right0At + at);
      FloatVector y0 = FloatVector.fromArray(SPECIES, ys, y0At + at);
      FloatVector factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at]);
      s00 = factor.fma(right0, s00);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at]);
      y0 = factor.fma(s00, y0);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 1]);
      s10 = factor.fma(right0, s10);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 1]);
      y0 = factor.fma(s10, y0);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 2]);
      s20 = factor.fma(right0, s20);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 2]);
      y0 = factor.fma(s20, y0);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 3]);
      s30 = factor.fma(right0, s30);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 3]);
      y0 = factor.fma(s30, y0);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 4]);
      s40 = factor.fma(right0, s40);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 4]);
      y0 = factor.fma(s40, y0);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 5]);
      s50 = factor.fma(right0, s50);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 5]);
      y0 = factor.fma(s50, y0);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 6]);
      s60 = factor.fma(right0, s60);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 6]);
      y0 = factor.fma(s60, y0);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 7]);
      s70 = factor.fma(right0, s70);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 7]);
      y0 = factor.fma(s70, y0);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 8]);
      s80 = factor.fma(right0, s80);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 8]);
      y0 = factor.fma(s80, y0);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 9]);
      s90 = factor.fma(right0, s90);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 9]);
      y0 = factor.fma(s90, y0);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 10]);
      s100 = factor.fma(right0, s100);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 10]);
      y0 = factor.fma(s100, y0);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 11]);
      s110 = factor.fma(right0, s110);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 11]);
      y0 = factor.fma(s110, y0);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 12]);
      s120 = factor.fma(right0, s120);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 12]);
      y0 = factor.fma(s120, y0);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 13]);
      s130 = factor.fma(right0, s130);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 13]);
      y0 = factor.fma(s130, y0);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 14]);
      s140 = factor.fma(right0, s140);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 14]);
      y0 = factor.fma(s140, y0);
      factor = FloatVector.broadcast(SPECIES, lefts[leftAt + at + 15]);
      s150 = factor.fma(right0, s150);
      factor = FloatVector.broadcast(SPECIES, xs[xAt + at + 15]);
      y0 = factor.fma(s150, y0);
      y0.intoArray(ys, y0At + at);
    }
    s00.intoArray(into.data, into0At);
    s10.intoArray(into.data, into0At + Panels.WIDTH);
    s20.intoArray(into.data, into0At + 2 * Panels.WIDTH);
    s30.intoArray(into.data, into0At + 3 * Panels.WIDTH);
    s40.intoArray(into.data, into0At + 4 * Panels.WIDTH);
    s50.intoArray(into.data, into0At + 5 * Panels.WIDTH);
    s60.intoArray(into.data, into0At + 6 * Panels.WIDTH);
    s70.intoArray(into.data, into0At + 7 * Panels.WIDTH);
    s80.intoArray(into.data, into0At + 8 * Panels.WIDTH);
    s90.intoArray(into.data, into0At + 9 * Panels.WIDTH);
    s100.intoArray(into.data, into0At + 10 * Panels.WIDTH);
    s110.intoArray(into.data, into0At + 11 * Panels.WIDTH);
    s120.intoArray(into.data, into0At + 12 * Panels.WIDTH);
    s130.intoArray(into.data, into0At + 13 * Panels.WIDTH);
    s140.intoArray(into.data, into0At + 14 * Panels.WIDTH);
    s150.intoArray(into.data, into0At + 15 * Panels.WIDTH);
  }
}
