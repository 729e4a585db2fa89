package io.github.linattn.internal.cpu;

/**
 * What is taken from all rows of k and of v.
 *
 * @param k one row; zeros where k stays as it is
 * @param v likewise
 */
record Center(float[] k, float[] v) {
  /** Zeros. */
  static Center none(int keyDim, int valueDim) {
    return new Center(new float[keyDim], new float[valueDim]);
  }

  /** The same for v alone. */
  Center ofValues() {
    return new Center(new float[k.length], v);
  }

  /**
   * Moved by the mean of {@code count} rows whose sums are these, and not in a column where that is
   * not finite.
   */
  Center movedBy(double[] keySum, double[] valueSum, long count) {
    return new Center(moved(k, keySum, count), moved(v, valueSum, count));
  }

  /** Makes sums over {@code count} rows as they are into sums over rows that lack this. */
  OuterSum center(OuterSum sum, long count) {
    sum.center(k, v, count);
    return sum;
  }

  /** Makes R, r, y over rows that lack this into those over rows that lack {@code other}. */
  void exchange(MatrixKernel kernel, OuterSum sum, Center other) {
    if (other != this) {
      sum.moveLeft(kernel, v, other.v);
    }
  }

  /**
   * Makes dS, dz, du of sums over v as it is into R, r, y over rows that lack this, and back: R =
   * dS, r = −(dz + dS v), y = du.
   */
  OuterSum exchange(MatrixKernel kernel, OuterSum sum) {
    sum.reflectLeft(kernel, v);
    return sum;
  }

  private static float[] moved(float[] row, double[] sum, long count) {
    float[] moved = row.clone();
    for (int i = 0; i < row.length; i++) {
      float x = (float) (row[i] + sum[i] / count);
      if (Float.isFinite(x)) {
        moved[i] = x;
      }
    }
    return moved;
  }
}
