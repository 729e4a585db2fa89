package io.github.linattn.internal.cpu;

import io.github.linattn.Mode;

/**
 * A state that a sweep's recurrence moves token by token. Each token rounds all of it once, so in a
 * long segment its sums are formed a second time, a chunk at a time and with what is lost made up
 * for, and take its place from time to time. One segment's own.
 *
 * <p>Mostly roundings are as good as random and grow with the root of the tokens. Where all tokens
 * add the same, as padding does, they all go one way: S of rows that repeat loses some 1e-8 of
 * itself with every token. In mode ACCURATE the sums take the place of the state after every chunk.
 */
final class GrowingState {
  /**
   * Tokens between in other modes, for each of the columns that a product with the state averages
   * over: what the roundings of so many tokens come to in it does not depend on the number of
   * columns.
   */
  private static final int TOKENS_PER_COLUMN = 64;

  private final OuterSum sums;
  private final int settleAfter;
  private int since;
  private int left;
  private Panels matrix;

  /**
   * @param sums over tokens before the segment, which become those over it too
   * @param tokens of the segment
   */
  GrowingState(Mode mode, OuterSum sums, int tokens) {
    this.sums = sums;
    this.settleAfter =
        mode == Mode.ACCURATE
            ? Tiles.CHUNK
            : TOKENS_PER_COLUMN * Math.min(sums.leftWidth, sums.rightWidth);
    this.left = tokens;
    this.matrix = sums.matrix;
    settle();
  }

  /** As the recurrence has it, until {@link #settle}. */
  Panels matrix() {
    return matrix;
  }

  /** Takes in rows that the recurrence has taken in. */
  void addRows(MatrixKernel kernel, int rows, Panels leftRows, Panels rightRows) {
    if (matrix != sums.matrix) {
      sums.addProduct(kernel, rows, leftRows, rightRows);
    }
  }

  /** After so many tokens. */
  void passed(int tokens) {
    since += tokens;
    left -= tokens;
    if (since >= settleAfter && matrix != sums.matrix) {
      settle();
    }
  }

  /** Makes the matrix that of the sums: a copy if it will be so again within the segment. */
  void settle() {
    since = 0;
    if (left <= settleAfter) {
      matrix = sums.matrix;
    } else {
      if (matrix == sums.matrix) {
        matrix = new Panels(sums.leftWidth, sums.rightWidth);
      }
      matrix.set(sums.matrix);
    }
  }
}
