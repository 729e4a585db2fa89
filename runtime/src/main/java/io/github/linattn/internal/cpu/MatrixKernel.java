package io.github.linattn.internal.cpu;

/**
 * The products and the sums over rows that all of the CPU engine is made of. Stateless; equal
 * operands give equal bits.
 *
 * <p>Tiles are row-major and padded: row counts to multiples of {@link #ROW_STEP}, column counts to
 * multiples of {@link #COLUMN_STEP}.
 */
interface MatrixKernel {
  int ROW_STEP = 4;
  int COLUMN_STEP = 16;

  /** Which part of a product c = a b there is; the rest costs next to nothing. */
  enum Part {
    /** All of it. */
    ALL,
    /**
     * a is lower triangular, with zeros above its diagonal as far as {@link #lower} writes them.
     */
    LEFT_LOWER,
    /** a is upper triangular, the transpose of such a tile. */
    LEFT_UPPER,
    /** Only c[i][j] with j ≤ i are wanted; the others are left as they are or become anything. */
    RESULT_LOWER
  }

  /**
   * c[i][j] = Σ_p a[i][p] b[p][j], added to what c holds if {@code add}. Each sum is formed on its
   * own, in the order of p, before it is added, so that a long sum of products loses no digits.
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
      boolean add);

  /**
   * c += a b, where {@code lost} is what the additions to c have rounded away so far and now make
   * up for: a sum over any number of chunks is as good as one of few. Rows of b, c and {@code lost}
   * are n apart; the rest is as in {@link #multiply}.
   */
  void addProduct(
      int m, int n, int k, float[] a, int aRow, int aColumn, float[] b, float[] c, float[] lost);

  /**
   * sums[i] = Σ_j a[i][j] b[i][j] in double, over j ≤ i if {@code lower}, else over all of {@code
   * width}.
   *
   * @param aRow distance of the rows of a
   * @param bRow distance of the rows of b; 0 if all take the same
   */
  void dots(
      int rows, int width, boolean lower, float[] a, int aRow, float[] b, int bRow, double[] sums);

  /**
   * x[i][j] = factor x[i][j] + shifts[i] for j ≤ i, to few roundings of fp32, and 0 behind it up to
   * the next multiple of {@link #COLUMN_STEP}; sums[i] is the sum of row i.
   *
   * @param xRow distance of the rows
   */
  void lower(int rows, float factor, double[] shifts, float[] x, int xRow, double[] sums);

  /** x[i][j] = factors[i] x[i][j] to a few roundings of fp32; rows are {@code width} apart. */
  void scaleRows(int rows, int width, double[] factors, float[] x);

  /**
   * y[i][j] = scales[i] (y[i][j] + factors[i] x[i][j]) to a few roundings of fp32; rows of y are
   * {@code width} apart.
   *
   * @param xRow distance of the rows of x; 0 if all take the same
   */
  void combineRows(
      int rows, int width, double[] scales, float[] y, double[] factors, float[] x, int xRow);

  /** sum[j] = Σ_i weights[i] x[i][j]; rows are as far apart as sum is long. */
  void sumRows(int rows, float[] weights, float[] x, float[] sum);

  /**
   * y[j][i] = x[i][j].
   *
   * @param rows rows of x, taken up to the next multiple of {@link #ROW_STEP}
   * @param columns columns of x, likewise
   */
  void transpose(int rows, int columns, float[] x, int xRow, float[] y, int yRow);

  /** Short name for messages. */
  String name();
}
