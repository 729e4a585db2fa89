package io.github.linattn.internal.cpu;

import io.github.linattn.internal.cpu.MatrixKernel.Order;

/**
 * A sum of rows over tokens: in double over all tokens of earlier chunks, and at each token of the
 * chunk at hand. One worker's own.
 */
final class RunningSum {
  private final MatrixKernel kernel;
  private final double[] total;
  private final float[] before;
  private final float[] part;

  /**
   * @param total the sum over all earlier tokens, which moves on with every chunk
   */
  RunningSum(MatrixKernel kernel, double[] total) {
    this.kernel = kernel;
    this.total = total;
    this.before = new float[total.length];
    this.part = new float[total.length];
  }

  /**
   * Takes in {@code weights[t] x_t} of a chunk's tokens.
   *
   * @param rows row t becomes {@code factor} times the sum up to and with token t
   */
  void accumulate(int count, Order order, float[] weights, float[] x, float factor, float[] rows) {
    Tiles.toFloats(total, before);
    kernel.accumulateRows(count, order, weights, x, before, factor, rows, part);
    for (int i = 0; i < part.length; i++) {
      total[i] += part[i];
    }
  }
}
