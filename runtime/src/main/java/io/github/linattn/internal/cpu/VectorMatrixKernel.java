package io.github.linattn.internal.cpu;

import jdk.incubator.vector.FloatVector;

/**
 * Products with the Vector API, in blocks of sixteen vectors, four rows of four; of eight where a
 * vector has eight lanes.
 *
 * <p>Each method takes all indices before its vectors: behind them a call would not be inlined, and
 * save and load them all.
 */
final class VectorMatrixKernel extends VectorRows {
  /** Whether there are registers for sixteen sums; vectors of 256 bits mostly come with sixteen. */
  static final boolean WIDE = LANES != 8;

  /** Columns that are taken through all rows at a time, so that their part of b stays near. */
  private static final int BAND = 64;

  /** Of one block of {@link #addProduct}. */
  private final Panels sums = new Panels(ROW_STEP, BAND);

  private final VectorRecurrence recurrence = new VectorRecurrence();

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
      int rows,
      Panels left,
      Panels right,
      Panels x,
      Panels from,
      Panels into,
      Panels y,
      Upcoming upcoming) {
    recurrence.recur(rows, left, right, x, from, into, y, upcoming);
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
    recurrence.recurBoth(rows, left, right, x, w, matrix, y, z, upcoming);
  }
}
