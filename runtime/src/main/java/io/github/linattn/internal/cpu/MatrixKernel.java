package io.github.linattn.internal.cpu;

/**
 * The recurrence, products and sums over rows that all of the CPU engine is made of. Stateless;
 * equal operands give equal bits.
 *
 * <p>Tiles are row-major and padded: row counts to multiples of {@link #ROW_STEP}, column counts to
 * multiples of {@link #COLUMN_STEP}.
 */
interface MatrixKernel {
  int ROW_STEP = 4;
  int COLUMN_STEP = 16;

  /** Of tokens. */
  enum Order {
    /** From the first to the last. */
    FORWARD,
    /** From the last to the first. */
    BACKWARD
  }

  /**
   * c[i][j] = Σ_p a[i][p] b[p][j].
   *
   * @param m rows of a and c, a multiple of {@link #ROW_STEP}
   * @param n columns of b and c, and the distance of their rows; a multiple of {@link #COLUMN_STEP}
   * @param k columns of a, and the distance of its rows; rows of b
   */
  void multiply(int m, int n, int k, float[] a, float[] b, float[] c);

  /**
   * c[i][j] += Σ_p a[p][i] b[p][j], where {@code lost} is what the additions to c have rounded away
   * so far and now make up for: a sum over any number of chunks is as good as one of few.
   *
   * @param m columns of a, and the distance of its rows
   * @param n columns of b, c and {@code lost}, and the distance of their rows
   * @param k rows of a and b, any number
   */
  void addProduct(int m, int n, int k, float[] a, float[] b, float[] c, float[] lost);

  /**
   * The recurrence that linear attention and each of its gradients is: token by token
   *
   * <pre>
   *   S += left_t ⊗ right_t      y_t += x_t S
   * </pre>
   *
   * <p>Each element of S stays in a register for all tokens of the call, and a NaN in a row reaches
   * the y of its own and later tokens alone.
   *
   * @param rows tokens, any number
   * @param order in which they come
   * @param m elements of a row of left and x, rows of S; a multiple of {@link #COLUMN_STEP}
   * @param n elements of a row of right and y, columns of S; a multiple of {@link #COLUMN_STEP}
   * @param from S before the first token
   * @param into takes S after the last one; may be {@code from}
   */
  void recur(
      int rows,
      Order order,
      int m,
      int n,
      float[] left,
      float[] right,
      float[] x,
      float[] from,
      float[] into,
      float[] y);

  /**
   * sums[i] = Σ_j a[i][j] b[i][j], of sums of few products in fp32 added in double; rows of a are
   * {@code width} apart.
   *
   * @param bRow distance of the rows of b; 0 if all take the same
   */
  void dots(int rows, int width, float[] a, float[] b, int bRow, double[] sums);

  /**
   * Dots as above of each row of x with itself and with rows of three others, of which {@code c} is
   * one for all; rows of x and y are {@code width} apart.
   *
   * @param zRow distance of the rows of z; 0 if all take the same
   */
  void dots(
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
      double[] alongC);

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

  /**
   * y[i][j] = scales[i] (y[i][j] + zFactors[i] z[i][j] + cFactors[i] c[j] + xFactors[i] x[i][j]) to
   * a few roundings of fp32; rows of x and y are {@code width} apart.
   *
   * @param zRow distance of the rows of z; 0 if all take the same
   */
  void combineRows(
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
      float[] x);

  /**
   * y[i][j] += factor x[i][j]; rows of y are {@code width} apart.
   *
   * @param xRow distance of the rows of x; 0 if all take the same
   */
  void addRows(int rows, int width, float factor, float[] x, int xRow, float[] y);

  /** sum[j] = Σ_i weights[i] x[i][j]; rows are as far apart as sum is long. */
  void sumRows(int rows, float[] weights, float[] x, float[] sum);

  /**
   * Running sums over tokens: y_t = factor ({@code before} + Σ_s weights_s x_s), s up to and with
   * t. They are formed on their own before that is added; rows are as far apart as it is long.
   *
   * @param order in which the tokens come
   * @param before the sum over tokens that came earlier
   * @param sum takes the sum of these rows alone
   */
  void accumulateRows(
      int rows,
      Order order,
      float[] weights,
      float[] x,
      float[] before,
      float factor,
      float[] y,
      float[] sum);

  /** Short name for messages. */
  String name();
}
