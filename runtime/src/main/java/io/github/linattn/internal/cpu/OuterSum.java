package io.github.linattn.internal.cpu;

import java.util.Arrays;
import org.jspecify.annotations.Nullable;

/**
 * Sums over tokens: matrix = Σ left⊗right in fp32 and the weighted sums of left and of right rows
 * in double. The forward's S, z, u and the backward's R, r, y are such sums.
 */
final class OuterSum {
  final int leftWidth;
  final int rightWidth;
  final Panels matrix;

  /**
   * What {@link #addProduct} has lost to rounding, once it was called; not carried from one sum
   * into another.
   */
  private @Nullable Panels lost;

  final double[] left;
  final double[] right;

  OuterSum(int leftWidth, int rightWidth) {
    this.leftWidth = leftWidth;
    this.rightWidth = rightWidth;
    this.matrix = new Panels(leftWidth, rightWidth);
    this.left = new double[leftWidth];
    this.right = new double[rightWidth];
  }

  /** Bytes that one sum of these widths takes. */
  static long bytes(int leftWidth, int rightWidth) {
    return 2 * Panels.bytes(leftWidth, rightWidth) + 8L * (leftWidth + rightWidth);
  }

  /**
   * Takes in rows of a chunk.
   *
   * @param leftSum weighted sum of the left rows
   * @param rightSum the same of the right rows
   */
  void addRows(
      MatrixKernel kernel,
      int rows,
      Panels leftRows,
      float[] leftSum,
      Panels rightRows,
      float[] rightSum) {
    addProduct(kernel, rows, leftRows, rightRows);
    Tiles.add(leftSum, left);
    Tiles.add(rightSum, right);
  }

  /** Takes the products of rows alone into the matrix. */
  void addProduct(MatrixKernel kernel, int rows, Panels leftRows, Panels rightRows) {
    Panels losses = lost == null ? new Panels(leftWidth, rightWidth) : lost;
    lost = losses;
    kernel.addProduct(rows, leftRows, rightRows, matrix, losses);
  }

  void add(OuterSum other) {
    matrix.add(other.matrix);
    addSides(other);
  }

  /** Adds the sums of left and of right rows alone. */
  void addSides(OuterSum other) {
    for (int i = 0; i < left.length; i++) {
      left[i] += other.left[i];
    }
    for (int i = 0; i < right.length; i++) {
      right[i] += other.right[i];
    }
  }

  /**
   * Makes these sums over {@code count} rows as they are those over rows that lack {@code leftMean}
   * and {@code rightMean}. What is left of the matrix may be small beside it, so it is rounded
   * once.
   */
  void center(float[] leftMean, float[] rightMean, long count) {
    subtract(right, rightMean, count);
    for (int i = 0; i < leftWidth; i++) {
      for (int j = 0; j < rightWidth; j++) {
        int at = matrix.at(i, j);
        double less = left[i] * rightMean[j] + leftMean[i] * right[j];
        matrix.data[at] = (float) (matrix.data[at] - less);
      }
    }
    subtract(left, leftMean, count);
  }

  private static void subtract(double[] sum, float[] mean, long count) {
    for (int i = 0; i < sum.length; i++) {
      sum[i] -= count * (double) mean[i];
    }
  }

  /**
   * Makes these sums over {@code count} rows that lacked {@code leftFrom} and {@code rightFrom}
   * those over rows that lack {@code leftTo} and {@code rightTo}: matrix += left⊗(rightFrom −
   * rightTo) + (leftFrom − leftTo)⊗right, with right as it is then.
   */
  void shift(
      MatrixKernel kernel,
      float[] leftFrom,
      float[] leftTo,
      float[] rightFrom,
      float[] rightTo,
      long count) {
    shift(right, rightFrom, rightTo, count);
    Panels lefts = new Panels(2, leftWidth);
    Panels rights = new Panels(2, rightWidth);
    lefts.setRow(0, Tiles.toFloats(left));
    rights.setRow(0, difference(rightFrom, rightTo));
    lefts.setRow(1, difference(leftFrom, leftTo));
    rights.setRow(1, Tiles.toFloats(right));
    addProduct(kernel, 2, lefts, rights);
    shift(left, leftFrom, leftTo, count);
  }

  private static void shift(double[] sum, float[] from, float[] to, long count) {
    for (int i = 0; i < sum.length; i++) {
      sum[i] += count * ((double) from[i] - to[i]);
    }
  }

  private static float[] difference(float[] from, float[] to) {
    float[] difference = new float[from.length];
    for (int i = 0; i < from.length; i++) {
      difference[i] = from[i] - to[i];
    }
    return difference;
  }

  /** left += matrix · (from − to). */
  void moveLeft(MatrixKernel kernel, float[] from, float[] to) {
    double[] moved = new double[leftWidth];
    kernel.dots(leftWidth, matrix, difference(from, to), moved);
    for (int i = 0; i < leftWidth; i++) {
      left[i] += moved[i];
    }
  }

  /** left = −(left + matrix · row). */
  void reflectLeft(MatrixKernel kernel, float[] row) {
    moveLeft(kernel, row, new float[rightWidth]);
    for (int i = 0; i < leftWidth; i++) {
      left[i] = -left[i];
    }
  }

  void clear() {
    matrix.clear();
    lost = null;
    Arrays.fill(left, 0);
    Arrays.fill(right, 0);
  }

  OuterSum copy() {
    OuterSum copy = new OuterSum(leftWidth, rightWidth);
    copy.add(this);
    return copy;
  }

  /** The same sums with left and right exchanged. */
  OuterSum transposed() {
    OuterSum other = new OuterSum(rightWidth, leftWidth);
    other.matrix.setTransposed(matrix);
    System.arraycopy(right, 0, other.left, 0, rightWidth);
    System.arraycopy(left, 0, other.right, 0, leftWidth);
    return other;
  }
}
