package io.github.linattn.internal.cpu;

/**
 * A sum of rows over tokens: in double over all tokens of earlier chunks, and at each token of the
 * chunk at hand. One worker's own.
 */
final class RunningSum {
  private final MatrixKernel kernel;
  private final double[] total;

  /** Over all tokens of earlier chunks, since {@link #begin}. */
  final float[] before;

  /** Takes the sum over a chunk alone, which {@link #end} adds to the total. */
  final float[] part;

  /**
   * @param total the sum over all earlier tokens, which moves on with every chunk
   */
  RunningSum(MatrixKernel kernel, double[] total) {
    this.kernel = kernel;
    this.total = total;
    this.before = new float[total.length];
    this.part = new float[total.length];
  }

  /** Before a chunk. */
  void begin() {
    Tiles.toFloats(total, before);
  }

  /** After a chunk. */
  void end() {
    Tiles.add(part, total);
  }

  /**
   * Takes in {@code weights[t] x_t} of a chunk's tokens.
   *
   * @param rows row t becomes {@code factor} times the sum up to and with token t
   */
  void accumulate(int count, float[] weights, Panels x, float factor, Panels rows) {
    begin();
    kernel.accumulateRows(count, weights, x, before, factor, rows, part);
    end();
  }
}
