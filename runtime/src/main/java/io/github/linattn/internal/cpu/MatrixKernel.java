package io.github.linattn.internal.cpu;

/**
 * The product that all of the CPU engine is made of. Stateless.
 *
 * <p>Tiles are row-major and padded: row counts to multiples of {@link #ROW_STEP}, column counts to
 * multiples of {@link #COLUMN_STEP}.
 */
interface MatrixKernel {
  int ROW_STEP = 4;
  int COLUMN_STEP = 16;

  /**
   * c[i][j] = Σ_p a[i][p] b[p][j], added to what c holds if {@code add}. Each sum is formed on its
   * own, from p = 0 on, before it is added, so that a long sum of products loses no digits.
   *
   * @param m rows of a and c, a multiple of {@link #ROW_STEP}
   * @param n columns of b and c, a multiple of {@link #COLUMN_STEP}
   * @param k columns of a, rows of b
   * @param a element [i][p] lies at {@code i * aRow + p * aColumn}: a transposed tile is one with
   *     {@code aRow = 1}
   * @param bRow distance of the rows of b
   * @param cRow distance of the rows of c
   */
  void multiply(
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
      boolean add);

  /** Σ_p a[aStart + p] b[p] over {@code n} elements, a multiple of {@link #COLUMN_STEP}. */
  float dot(int n, float[] a, int aStart, float[] b);

  /** Short name for messages. */
  String name();
}
