package io.github.linattn.internal.cpu;

import jdk.incubator.vector.FloatVector;
import jdk.incubator.vector.VectorSpecies;

/** Products with the Vector API, in blocks of four rows and two vectors of columns. */
final class VectorMatrixKernel implements MatrixKernel {
  private static final VectorSpecies<Float> SPECIES =
      FloatVector.SPECIES_PREFERRED.length() > COLUMN_STEP
          ? FloatVector.SPECIES_512
          : FloatVector.SPECIES_PREFERRED;
  private static final int LANES = SPECIES.length();

  @Override
  public void multiply(
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
    int column = 0;
    for (; column + 2 * LANES <= n; column += 2 * LANES) {
      for (int row = 0; row < m; row += ROW_STEP) {
        multiplyBlock(row, column, k, a, aRow, aColumn, b, bRow, c, cRow, add);
      }
    }
    for (; column < n; column += LANES) {
      for (int row = 0; row < m; row += ROW_STEP) {
        multiplyStrip(row, column, k, a, aRow, aColumn, b, bRow, c, cRow, add);
      }
    }
  }

  /** Eight sums in registers: four rows of two vectors. */
  private static void multiplyBlock(
      int row,
      int column,
      int k,
      float[] a,
      int aRow,
      int aColumn,
      float[] b,
      int bRow,
      float[] c,
      int cRow,
      boolean add) {
    FloatVector c00 = FloatVector.zero(SPECIES);
    FloatVector c01 = c00;
    FloatVector c10 = c00;
    FloatVector c11 = c00;
    FloatVector c20 = c00;
    FloatVector c21 = c00;
    FloatVector c30 = c00;
    FloatVector c31 = c00;
    int a0 = row * aRow;
    int a1 = a0 + aRow;
    int a2 = a1 + aRow;
    int a3 = a2 + aRow;
    int bAt = column;
    for (int p = 0; p < k; p++) {
      FloatVector b0 = FloatVector.fromArray(SPECIES, b, bAt);
      FloatVector b1 = FloatVector.fromArray(SPECIES, b, bAt + LANES);
      FloatVector factor = FloatVector.broadcast(SPECIES, a[a0]);
      c00 = factor.fma(b0, c00);
      c01 = factor.fma(b1, c01);
      factor = FloatVector.broadcast(SPECIES, a[a1]);
      c10 = factor.fma(b0, c10);
      c11 = factor.fma(b1, c11);
      factor = FloatVector.broadcast(SPECIES, a[a2]);
      c20 = factor.fma(b0, c20);
      c21 = factor.fma(b1, c21);
      factor = FloatVector.broadcast(SPECIES, a[a3]);
      c30 = factor.fma(b0, c30);
      c31 = factor.fma(b1, c31);
      a0 += aColumn;
      a1 += aColumn;
      a2 += aColumn;
      a3 += aColumn;
      bAt += bRow;
    }
    int at = row * cRow + column;
    store(c00, c01, c, at, add);
    store(c10, c11, c, at + cRow, add);
    store(c20, c21, c, at + 2 * cRow, add);
    store(c30, c31, c, at + 3 * cRow, add);
  }

  private static void store(FloatVector left, FloatVector right, float[] c, int at, boolean add) {
    store(left, c, at, add);
    store(right, c, at + LANES, add);
  }

  private static void store(FloatVector sum, float[] c, int at, boolean add) {
    (add ? sum.add(FloatVector.fromArray(SPECIES, c, at)) : sum).intoArray(c, at);
  }

  /** The last vector of columns, where their number is odd. */
  private static void multiplyStrip(
      int row,
      int column,
      int k,
      float[] a,
      int aRow,
      int aColumn,
      float[] b,
      int bRow,
      float[] c,
      int cRow,
      boolean add) {
    FloatVector c0 = FloatVector.zero(SPECIES);
    FloatVector c1 = c0;
    FloatVector c2 = c0;
    FloatVector c3 = c0;
    int aAt = row * aRow;
    int bAt = column;
    for (int p = 0; p < k; p++) {
      FloatVector b0 = FloatVector.fromArray(SPECIES, b, bAt);
      c0 = b0.fma(FloatVector.broadcast(SPECIES, a[aAt]), c0);
      c1 = b0.fma(FloatVector.broadcast(SPECIES, a[aAt + aRow]), c1);
      c2 = b0.fma(FloatVector.broadcast(SPECIES, a[aAt + 2 * aRow]), c2);
      c3 = b0.fma(FloatVector.broadcast(SPECIES, a[aAt + 3 * aRow]), c3);
      aAt += aColumn;
      bAt += bRow;
    }
    int at = row * cRow + column;
    store(c0, c, at, add);
    store(c1, c, at + cRow, add);
    store(c2, c, at + 2 * cRow, add);
    store(c3, c, at + 3 * cRow, add);
  }

  @Override
  public float dot(int n, float[] a, int aStart, float[] b) {
    FloatVector sum = FloatVector.zero(SPECIES);
    for (int p = 0; p < n; p += LANES) {
      FloatVector left = FloatVector.fromArray(SPECIES, a, aStart + p);
      sum = left.fma(FloatVector.fromArray(SPECIES, b, p), sum);
    }
    float total = 0;
    for (float lane : sum.toArray()) { // reduceLanes adds in an order that changes with compilation
      total += lane;
    }
    return total;
  }

  @Override
  public String name() {
    return "Vector API, " + SPECIES.vectorBitSize() + " bits";
  }
}
