package io.github.linattn.internal.cpu;

import jdk.incubator.vector.DoubleVector;
import jdk.incubator.vector.FloatVector;
import jdk.incubator.vector.Vector;
import jdk.incubator.vector.VectorMask;
import jdk.incubator.vector.VectorShape;
import jdk.incubator.vector.VectorShuffle;
import jdk.incubator.vector.VectorSpecies;

/**
 * Products with the Vector API, in blocks of four rows and four vectors of columns.
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

  /** Whether there are registers for sixteen sums; vectors of 256 bits mostly come with sixteen. */
  private static final boolean WIDE = LANES != 8;

  /** Columns that are taken through all rows at a time, so that their part of b stays near. */
  private static final int PANEL = 64;

  private static final VectorShuffle<Float> ROTATE_8 = VectorShuffle.iota(SPECIES, 8, 1, true);
  private static final VectorShuffle<Float> ROTATE_4 = VectorShuffle.iota(SPECIES, 4, 1, true);
  private static final VectorShuffle<Float> ROTATE_2 = VectorShuffle.iota(SPECIES, 2, 1, true);

  private static final VectorSpecies<Double> DOUBLES = SPECIES.withLanes(double.class);
  private static final int STEP = DOUBLES.length();
  private static final VectorShuffle<Double> ROTATE_4_OF_DOUBLES =
      VectorShuffle.iota(DOUBLES, 4, 1, true);
  private static final VectorShuffle<Double> ROTATE_2_OF_DOUBLES =
      VectorShuffle.iota(DOUBLES, 2, 1, true);

  /** As many floats as a vector holds doubles. */
  private static final VectorSpecies<Float> HALF =
      VectorSpecies.of(float.class, VectorShape.forBitSize(SPECIES.vectorBitSize() / 2));

  private static final VectorSpecies<Float> FOUR = FloatVector.SPECIES_128;
  private static final VectorShuffle<Float> SWAP = VectorShuffle.fromValues(FOUR, 1, 0, 3, 2);
  private static final VectorShuffle<Float> SWAP_PAIRS = VectorShuffle.fromValues(FOUR, 2, 3, 0, 1);
  private static final VectorMask<Float> ODD = VectorMask.fromLong(FOUR, 0b1010);
  private static final VectorMask<Float> LAST_PAIR = VectorMask.fromLong(FOUR, 0b1100);

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
    float[] sums = add ? new float[ROW_STEP * PANEL] : c;
    for (int panel = 0; panel < n; panel += PANEL) {
      for (int row = 0; row < m; row += ROW_STEP) {
        int rowEnd = row + ROW_STEP;
        int width = Math.min(n - panel, PANEL);
        int wanted = part == Part.RESULT_LOWER ? Math.min(rowEnd - panel, width) : width;
        int first = part == Part.LEFT_UPPER ? Math.min(k, row) : 0;
        int end = part == Part.LEFT_LOWER ? Math.min(k, rowEnd) : k;
        int aAt = row * aRow + first * aColumn;
        int bAt = first * bRow + panel;
        int cAt = row * cRow + panel;
        int sumsAt = add ? 0 : cAt;
        int sumsRow = add ? PANEL : cRow;
        multiplyRows(
            wanted, width, end - first, a, aAt, aRow, aColumn, b, bAt, bRow, sums, sumsAt, sumsRow);
        if (add) {
          addRows(wanted, sums, c, cAt, cRow);
        }
      }
    }
  }

  @Override
  public void addProduct(
      int m, int n, int k, float[] a, int aRow, int aColumn, float[] b, float[] c, float[] lost) {
    float[] sums = new float[ROW_STEP * PANEL];
    for (int panel = 0; panel < n; panel += PANEL) {
      int width = Math.min(n - panel, PANEL);
      for (int row = 0; row < m; row += ROW_STEP) {
        multiplyRows(width, width, k, a, row * aRow, aRow, aColumn, b, panel, n, sums, 0, PANEL);
        addRows(width, sums, c, lost, row * n + panel, n);
      }
    }
  }

  /**
   * The first {@code wanted} columns of four rows, in the widest blocks that there are; up to the
   * next of {@code width} columns more.
   */
  private static void multiplyRows(
      int wanted,
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
    for (int column = 0; column < wanted; ) {
      int bColumn = bAt + column;
      int cColumn = cAt + column;
      int vectors = Math.min(wanted - column + LANES - 1, width - column) / LANES;
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

  /** c += the sums of four rows, which are {@link #PANEL} apart. */
  private static void addRows(int width, float[] sums, float[] c, int cStart, int cRow) {
    int at = cStart;
    for (int i = 0; i < ROW_STEP * PANEL; i += PANEL) {
      for (int j = 0; j < width; j += LANES) {
        FloatVector sum = FloatVector.fromArray(SPECIES, sums, i + j);
        sum.add(FloatVector.fromArray(SPECIES, c, at + j)).intoArray(c, at + j);
      }
      at += cRow;
    }
  }

  /** The same with what the additions to c have lost so far. */
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
  public void dots(
      int rows, int width, boolean lower, float[] a, int aRow, float[] b, int bRow, double[] sums) {
    for (int i = 0; i < rows; i++) {
      int n = lower ? i + 1 : width;
      DoubleVector even = DoubleVector.zero(DOUBLES);
      DoubleVector odd = even; // a second chain, as a sum waits for the one before
      int j = 0;
      for (; j + 2 * STEP <= n; j += 2 * STEP) {
        Vector<Double> left = FloatVector.fromArray(HALF, a, i * aRow + j).castShape(DOUBLES, 0);
        Vector<Double> right = FloatVector.fromArray(HALF, b, i * bRow + j).castShape(DOUBLES, 0);
        even = ((DoubleVector) left).fma(right, even);
        left = FloatVector.fromArray(HALF, a, i * aRow + j + STEP).castShape(DOUBLES, 0);
        right = FloatVector.fromArray(HALF, b, i * bRow + j + STEP).castShape(DOUBLES, 0);
        odd = ((DoubleVector) left).fma(right, odd);
      }
      for (; j < n; j += STEP) { // what lies behind n may be anything, even NaN
        Vector<Double> left = FloatVector.fromArray(HALF, a, i * aRow + j).castShape(DOUBLES, 0);
        Vector<Double> right = FloatVector.fromArray(HALF, b, i * bRow + j).castShape(DOUBLES, 0);
        DoubleVector all = ((DoubleVector) left).fma(right, even);
        even = even.blend(all, DOUBLES.indexInRange(j, n));
      }
      DoubleVector sum = even.add(odd);
      if (STEP > 4) {
        sum = sum.add(sum.rearrange(ROTATE_4_OF_DOUBLES));
      }
      if (STEP > 2) {
        sum = sum.add(sum.rearrange(ROTATE_2_OF_DOUBLES));
      }
      sums[i] = sum.lane(0) + sum.lane(1);
    }
  }

  /** In one order; that of reduceLanes changes with compilation. */
  private static float sumOfLanes(FloatVector sum) {
    FloatVector part = sum;
    if (LANES > 8) {
      part = part.add(part.rearrange(ROTATE_8));
    }
    if (LANES > 4) {
      part = part.add(part.rearrange(ROTATE_4));
    }
    part = part.add(part.rearrange(ROTATE_2));
    return part.lane(0) + part.lane(1);
  }

  @Override
  public void lower(int rows, float factor, double[] shifts, float[] x, int xRow, double[] sums) {
    for (int i = 0; i < rows; i++) {
      float high = (float) shifts[i];
      float low = (float) (shifts[i] - high);
      FloatVector lows = FloatVector.broadcast(SPECIES, low);
      FloatVector sum = FloatVector.zero(SPECIES);
      int start = i * xRow;
      int j = 0;
      for (; j <= i; j += LANES) {
        FloatVector value = FloatVector.fromArray(SPECIES, x, start + j);
        value = FloatVector.broadcast(SPECIES, factor).fma(value, lows).add(high);
        value = FloatVector.zero(SPECIES).blend(value, SPECIES.indexInRange(j, i + 1));
        sum = sum.add(value);
        value.intoArray(x, start + j);
      }
      for (; j % COLUMN_STEP != 0; j += LANES) {
        FloatVector.zero(SPECIES).intoArray(x, start + j);
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

  /** Squares of four rows and columns: first their quarters change places, then elements. */
  @Override
  public void transpose(int rows, int columns, float[] x, int xRow, float[] y, int yRow) {
    for (int i = 0; i < rows; i += ROW_STEP) {
      for (int j = 0; j < columns; j += ROW_STEP) {
        int from = i * xRow + j;
        int to = j * yRow + i;
        FloatVector x0 = FloatVector.fromArray(FOUR, x, from);
        FloatVector x1 = FloatVector.fromArray(FOUR, x, from + xRow);
        FloatVector x2 = FloatVector.fromArray(FOUR, x, from + 2 * xRow);
        FloatVector x3 = FloatVector.fromArray(FOUR, x, from + 3 * xRow);
        FloatVector y0 = x0.blend(x2.rearrange(SWAP_PAIRS), LAST_PAIR);
        FloatVector y1 = x1.blend(x3.rearrange(SWAP_PAIRS), LAST_PAIR);
        FloatVector y2 = x0.rearrange(SWAP_PAIRS).blend(x2, LAST_PAIR);
        FloatVector y3 = x1.rearrange(SWAP_PAIRS).blend(x3, LAST_PAIR);
        y0.blend(y1.rearrange(SWAP), ODD).intoArray(y, to);
        y0.rearrange(SWAP).blend(y1, ODD).intoArray(y, to + yRow);
        y2.blend(y3.rearrange(SWAP), ODD).intoArray(y, to + 2 * yRow);
        y2.rearrange(SWAP).blend(y3, ODD).intoArray(y, to + 3 * yRow);
      }
    }
  }

  @Override
  public String name() {
    return "Vector API, " + SPECIES.vectorBitSize() + " bits";
  }
}
