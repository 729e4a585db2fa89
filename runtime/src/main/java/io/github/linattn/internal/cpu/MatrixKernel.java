package io.github.linattn.internal.cpu;

import io.github.linattn.DType;
import java.lang.foreign.MemorySegment;

/**
 * The recurrence, products and sums over rows that all of the CPU engine is made of. Equal operands
 * give equal bits. One thread's at a time.
 *
 * <p>Matrices are {@link Panels}; a tile has a row for each token of a chunk, in the order in which
 * a sweep takes them. {@link Rows} are in token order.
 */
interface MatrixKernel {
  /** Rows that products take at a time. */
  int ROW_STEP = 4;

  /** Of the rows of a tile. */
  enum Order {
    /** The first row is that of the first token. */
    FORWARD,
    /** The first row is that of the last token. */
    BACKWARD;

    /** The row of a tile's row in token order. */
    int row(int i, int rows) {
      return this == FORWARD ? i : rows - 1 - i;
    }
  }

  /**
   * c[i][j] = Σ_p a[i][p] b[p][j].
   *
   * @param rows of a and c, a multiple of {@link #ROW_STEP}
   */
  void multiply(int rows, Panels a, Panels b, Panels c);

  /**
   * c[i][j] += Σ_p a[p][i] b[p][j], where {@code lost} is what the additions to c have rounded away
   * so far and now make up for: a sum over any number of chunks is as good as one of few.
   *
   * @param rows of a and b, any number
   */
  void addProduct(int rows, Panels a, Panels b, Panels c, Panels lost);

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
   * @param from S before the first token
   * @param into takes S after the last one; may be {@code from}
   * @param upcoming rows that are asked for meanwhile
   */
  void recur(
      int rows,
      Panels left,
      Panels right,
      Panels x,
      Panels from,
      Panels into,
      Panels y,
      Upcoming upcoming);

  /**
   * The recurrence with products on both sides: token by token
   *
   * <pre>
   *   S += left_t ⊗ right_t      y_t += x_t S      z_t += S w_t
   * </pre>
   *
   * @param rows tokens, up to {@link Tiles#CHUNK}
   * @param matrix S before the first token and then after the last one
   * @param upcoming rows that are asked for meanwhile
   */
  void recurBoth(
      int rows,
      Panels left,
      Panels right,
      Panels x,
      Panels w,
      Panels matrix,
      Panels y,
      Panels z,
      Upcoming upcoming);

  /**
   * sums[i] = Σ_j x[i][j]², as {@link #dots} has it, of rows in token order.
   *
   * @param sums of {@link Tiles#CHUNK} elements, as all sums of rows
   */
  void squares(int rows, int width, Rows x, double[] sums);

  /**
   * sums[i] = Σ_j x[i][j] y[i][j], of sums of few products in fp32 added in double.
   *
   * @param rows any number
   * @param sums as long, up to a multiple of {@link #ROW_STEP}
   */
  void dots(int rows, Panels x, Panels y, double[] sums);

  /**
   * Dots of all rows of x with one.
   *
   * @param rows any number
   * @param sums as long, up to a multiple of {@link #ROW_STEP}
   */
  void dots(int rows, Panels x, float[] c, double[] sums);

  /**
   * Dots of each row of x with a running sum, z_t = {@code before} + Σ_s added_s, s up to and with
   * t. The part of these rows is formed on its own before that is added.
   *
   * @param before the sum over rows that came earlier
   * @param sum takes that of these rows alone
   */
  void dots(int rows, Panels x, float[] before, Panels added, float[] sum, double[] sums);

  /** Dots of each row of x with itself, with y, with a running sum, and with one row for all. */
  void dots(
      int rows,
      Panels x,
      Panels y,
      float[] before,
      Panels added,
      float[] sum,
      float[] c,
      double[] alongX,
      double[] alongY,
      double[] alongZ,
      double[] alongC);

  /** y[i][j] = x[i][j] - less[j], of rows in token order. */
  void pack(int rows, Order order, Rows x, float[] less, Panels y);

  /**
   * y[i][j] = factors[i] x[i][j] - less[j] to a few roundings of fp32, of rows in token order.
   *
   * @param factors of the rows of y
   */
  void pack(int rows, Order order, double[] factors, Rows x, float[] less, Panels y);

  /** y[i][j] = x[i][j], rows of y in token order. */
  void unpack(int rows, Order order, Panels x, Rows y);

  /**
   * target[i][j] = scales[i] (y[i][j] + factors[i] x[i][j]) to a few roundings of fp32, rows of
   * {@code target} in token order.
   *
   * @param scales of the rows of y, as {@code factors}
   */
  void combine(
      int rows, Order order, double[] scales, Panels y, double[] factors, Panels x, Rows target);

  /** The same in token order, with a running sum for x. */
  void combine(
      int rows,
      double[] scales,
      Panels y,
      double[] factors,
      float[] before,
      Panels added,
      float[] sum,
      Rows target);

  /**
   * target[i][j] = scales[i] (y[i][j] + zFactors[i] z[i][j] + cFactors[i] c[j] + xFactors[i]
   * x[i][j]) to a few roundings of fp32, all in token order, where z is a running sum.
   */
  void combine(
      int rows,
      double[] scales,
      Panels y,
      double[] zFactors,
      float[] before,
      Panels added,
      double[] cFactors,
      float[] c,
      double[] xFactors,
      Panels x,
      Rows target);

  /** y[i][j] += factor row[j]. */
  void addRow(int rows, float factor, float[] row, Panels y);

  /** sum[j] = Σ_i weights[i] x[i][j]. */
  void sumRows(int rows, float[] weights, Panels x, float[] sum);

  /** y_t = factor ({@code before} + Σ_s weights_s x_s), a running sum of weighted rows. */
  void accumulateRows(
      int rows, float[] weights, Panels x, float[] before, float factor, Panels y, float[] sum);

  /**
   * Makes fp32 of bf16.
   *
   * @param count of elements, a multiple of {@link Panels#WIDTH}
   * @param from offset of the first in bytes, as {@code to}
   */
  void widen(int count, MemorySegment source, long from, MemorySegment target, long to);

  /** Makes bf16 of as many fp32, as {@link DType#encode} rounds. */
  void narrow(int count, MemorySegment source, long from, MemorySegment target, long to);

  /** Short name for messages. */
  String name();
}
