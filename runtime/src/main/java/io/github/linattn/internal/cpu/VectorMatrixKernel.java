package io.github.linattn.internal.cpu;

import jdk.incubator.vector.DoubleVector;
import jdk.incubator.vector.FloatVector;
import jdk.incubator.vector.Vector;
import jdk.incubator.vector.VectorMask;
import jdk.incubator.vector.VectorShape;
import jdk.incubator.vector.VectorShuffle;
import jdk.incubator.vector.VectorSpecies;

/**
 * Products with the Vector API, in blocks of four rows and two vectors of columns.
 *
 * <p>The loops over rows call that API alone and nothing of this class but {@link #sumOfLanes}:
 * what the compiler may leave out of a large caller would pass its vectors through the heap.
 */
final class VectorMatrixKernel implements MatrixKernel {
  private static final VectorSpecies<Float> SPECIES =
      FloatVector.SPECIES_PREFERRED.length() > COLUMN_STEP
          ? FloatVector.SPECIES_512
          : FloatVector.SPECIES_PREFERRED;
  private static final int LANES = SPECIES.length();

  private static final VectorSpecies<Double> DOUBLES = SPECIES.withLanes(double.class);

  /** As many floats as a vector holds doubles. */
  private static final VectorSpecies<Float> HALF =
      VectorSpecies.of(float.class, VectorShape.forBitSize(SPECIES.vectorBitSize() / 2));

  private static final int STEP = DOUBLES.length();
  private static final VectorShuffle<Double> ROTATE_4 = VectorShuffle.iota(DOUBLES, 4, 1, true);
  private static final VectorShuffle<Double> ROTATE_2 = VectorShuffle.iota(DOUBLES, 2, 1, true);

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
    for (int column = 0; column < n; column += 2 * LANES) {
      for (int row = 0; row < m; row += ROW_STEP) {
        int rowEnd = row + ROW_STEP;
        int columns = part == Part.RESULT_LOWER ? Math.min(n, rowEnd) : n;
        int first = part == Part.LEFT_UPPER ? Math.min(k, row) : 0;
        int end = part == Part.LEFT_LOWER ? Math.min(k, rowEnd) : k;
        if (column + LANES < columns) {
          multiplyBlock(row, column, first, end, a, aRow, aColumn, b, bRow, c, cRow, add);
        } else if (column < columns) {
          multiplyStrip(row, column, first, end, a, aRow, aColumn, b, bRow, c, cRow, add);
        }
      }
    }
  }

  /** Eight sums in registers: four rows of two vectors. */
  private static void multiplyBlock(
      int row,
      int column,
      int first,
      int end,
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
    int a0 = row * aRow + first * aColumn;
    int a1 = a0 + aRow;
    int a2 = a1 + aRow;
    int a3 = a2 + aRow;
    int bAt = first * bRow + column;
    for (int p = first; p < end; p++) {
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

  /** Four rows of one vector: the last column where their number is odd, or the only wanted one. */
  private static void multiplyStrip(
      int row,
      int column,
      int first,
      int end,
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
    int aAt = row * aRow + first * aColumn;
    int bAt = first * bRow + column;
    for (int p = first; p < end; p++) {
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
  public void dots(
      int rows, int width, boolean lower, float[] a, int aRow, float[] b, int bRow, double[] sums) {
    for (int i = 0; i < rows; i++) {
      int n = lower ? i + 1 : width;
      DoubleVector even =
          DoubleVector.zero(DOUBLES); // two chains, as a sum waits for the one before
      DoubleVector odd = even;
      int j = 0;
      for (; j + 2 * STEP <= n; j += 2 * STEP) {
        Vector<Double> left = FloatVector.fromArray(HALF, a, i * aRow + j).castShape(DOUBLES, 0);
        Vector<Double> right = FloatVector.fromArray(HALF, b, i * bRow + j).castShape(DOUBLES, 0);
        even = ((DoubleVector) left).fma(right, even);
        left = FloatVector.fromArray(HALF, a, i * aRow + j + STEP).castShape(DOUBLES, 0);
        right = FloatVector.fromArray(HALF, b, i * bRow + j + STEP).castShape(DOUBLES, 0);
        odd = ((DoubleVector) left).fma(right, odd);
      }
      for (; j < n; j += STEP) {
        VectorMask<Float> rest = HALF.indexInRange(j, n);
        Vector<Double> left =
            FloatVector.fromArray(HALF, a, i * aRow + j, rest).castShape(DOUBLES, 0);
        Vector<Double> right =
            FloatVector.fromArray(HALF, b, i * bRow + j, rest).castShape(DOUBLES, 0);
        even = ((DoubleVector) left).fma(right, even);
      }
      sums[i] = sumOfLanes(even.add(odd));
    }
  }

  /** In one order; that of reduceLanes changes with compilation. */
  private static double sumOfLanes(DoubleVector sum) {
    DoubleVector part = sum;
    if (STEP > 4) {
      part = part.add(part.rearrange(ROTATE_4));
    }
    if (STEP > 2) {
      part = part.add(part.rearrange(ROTATE_2));
    }
    return part.lane(0) + part.lane(1);
  }

  @Override
  public void lower(int rows, double factor, double[] shifts, float[] x, int xRow, double[] sums) {
    DoubleVector factors = DoubleVector.broadcast(DOUBLES, factor);
    for (int i = 0; i < rows; i++) {
      DoubleVector shift = DoubleVector.broadcast(DOUBLES, shifts[i]);
      DoubleVector sum = DoubleVector.zero(DOUBLES);
      int padded = (i + COLUMN_STEP) / COLUMN_STEP * COLUMN_STEP;
      for (int j = 0; j < padded; j += STEP) {
        int at = i * xRow + j;
        DoubleVector value =
            factors.fma(FloatVector.fromArray(HALF, x, at).castShape(DOUBLES, 0), shift);
        value = DoubleVector.zero(DOUBLES).blend(value, DOUBLES.indexInRange(j, i + 1));
        sum = sum.add(value);
        ((FloatVector) value.castShape(HALF, 0)).intoArray(x, at);
      }
      sums[i] = sumOfLanes(sum);
    }
  }

  @Override
  public void scaleRows(int rows, int width, double[] factors, float[] x) {
    for (int i = 0; i < rows; i++) {
      int row = i * width;
      if (!splits(factors[i])) {
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

  /**
   * Whether the factor can be had as the sum of two floats: a product with these is as good as one
   * in double and takes no conversion.
   */
  private static boolean splits(double factor) {
    double size = Math.abs(factor);
    return size == 0 || (size > 0x1p-100 && size < 0x1p100);
  }

  @Override
  public void combineRows(
      int rows, int width, double[] scales, float[] y, double[] factors, float[] x, int xRow) {
    for (int i = 0; i < rows; i++) {
      int row = i * width;
      if (!splits(scales[i]) || !splits(factors[i])) {
        ScalarMatrixKernel.combineRow(width, scales[i], y, row, factors[i], x, i * xRow);
        continue;
      }
      FloatVector scaleHigh = FloatVector.broadcast(SPECIES, (float) scales[i]);
      float scaleLow = (float) (scales[i] - (float) scales[i]);
      FloatVector high = FloatVector.broadcast(SPECIES, (float) factors[i]);
      FloatVector low = FloatVector.broadcast(SPECIES, (float) (factors[i] - (float) factors[i]));
      for (int j = 0; j < width; j += LANES) {
        FloatVector added = FloatVector.fromArray(SPECIES, x, i * xRow + j);
        FloatVector sum = low.fma(added, FloatVector.fromArray(SPECIES, y, row + j));
        sum = high.fma(added, sum);
        sum.fma(scaleHigh, sum.mul(scaleLow)).intoArray(y, row + j);
      }
    }
  }

  @Override
  public void accumulate(int rows, double[] weights, float[] x, double[] sum) {
    for (int i = 0; i < rows; i++) {
      DoubleVector weight = DoubleVector.broadcast(DOUBLES, weights[i]);
      for (int j = 0; j < sum.length; j += STEP) {
        Vector<Double> row =
            FloatVector.fromArray(HALF, x, i * sum.length + j).castShape(DOUBLES, 0);
        weight.fma(row, DoubleVector.fromArray(DOUBLES, sum, j)).intoArray(sum, j);
      }
    }
  }

  @Override
  public String name() {
    return "Vector API, " + SPECIES.vectorBitSize() + " bits";
  }
}
