package io.github.linattn.internal.cpu;

import io.github.linattn.AttentionShape;
import io.github.linattn.Mode;
import java.util.Arrays;
import java.util.Random;
import org.jspecify.annotations.Nullable;

/**
 * A state that a sweep's recurrence moves token by token. Each token rounds all of it once, so in a
 * long segment its sums are formed a second time, a chunk at a time and with what is lost made up
 * for, and take its place from time to time. One segment's own.
 *
 * <p>Mostly roundings are as good as random and grow with the root of the tokens. Where all tokens
 * add the same, as padding does, they all go one way: S of rows that repeat loses some 1e-8 of
 * itself with every token. So in mode ACCURATE the sums take the place of the state after every
 * chunk, and in other modes once the state, which is {@linkplain Watch watched}, has gone astray.
 */
final class GrowingState {
  /**
   * Tokens between in other modes, for each of the columns that a product with the state averages
   * over: what the roundings of so many tokens come to in it does not depend on the number of
   * columns.
   */
  private static final int TOKENS_PER_COLUMN = 64;

  /** Tokens between two looks at what is watched; so few cost no digits. */
  private static final int LOOK_AFTER = 4 * Tiles.CHUNK;

  /**
   * Of its length. Roundings as good as random come to 2e-6 in 16,384 tokens, those of equal rows
   * to 6e-6 in some 250 to 850, the fewer the more tokens came before.
   */
  private static final double MOST_ASTRAY = 6e-6;

  private final OuterSum sums;
  private int settleAfter;
  private int since;
  private int left;
  private Panels matrix;
  private int sinceLook;
  private @Nullable Watch watch;

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
    if (watch != null) {
      watch.addRows(kernel, rows, leftRows, rightRows);
    }
  }

  /** After so many tokens. */
  void passed(MatrixKernel kernel, int tokens) {
    since += tokens;
    left -= tokens;
    if (since >= settleAfter && matrix != sums.matrix) {
      settle();
    } else if (settleAfter > Tiles.CHUNK) {
      look(kernel, tokens);
    }
  }

  private void look(MatrixKernel kernel, int tokens) {
    if (watch == null) {
      if (left >= LOOK_AFTER) { // else nobody would look any more
        watch = new Watch(kernel, matrix);
      }
      return;
    }
    sinceLook += tokens;
    if (sinceLook < LOOK_AFTER) {
      return;
    }
    sinceLook = 0;
    if (watch.astray(kernel, matrix) > MOST_ASTRAY) {
      settleAfter = Tiles.CHUNK;
      settle();
    }
  }

  /** Makes the matrix that of the sums: a copy if it will be so again within the segment. */
  void settle() {
    since = 0;
    sinceLook = 0;
    watch = null;
    if (left <= settleAfter) {
      matrix = sums.matrix;
    } else {
      if (matrix == sums.matrix) {
        matrix = new Panels(sums.leftWidth, sums.rightWidth);
      }
      matrix.set(sums.matrix);
    }
  }

  /**
   * What tokens make, in double, of a combination of all rows of the state, so that what each
   * element has lost shows in it, whichever rows the later tokens move.
   *
   * <p>Rows that are equal lose the same, and rows that are opposite lose opposite amounts: a row
   * goes in with the sign that it has along one direction of columns, so that none of these cancel.
   */
  private static final class Watch {
    private static final float[] DIRECTION = drawn(-0.5f);
    private static final float[] SIZES = drawn(0.5f);

    private final float[] factors;
    private final double[] expected;
    private final float[] row;
    private final double[] ofRows;
    private final double[] along = new double[Tiles.CHUNK];
    private final float[] weights = new float[Tiles.CHUNK];

    Watch(MatrixKernel kernel, Panels matrix) {
      this.factors = new float[matrix.rows];
      this.expected = new double[matrix.columns];
      this.row = new float[matrix.columns];
      this.ofRows = new double[matrix.rows];
      kernel.dots(matrix.rows, matrix, DIRECTION, ofRows);
      for (int i = 0; i < factors.length; i++) {
        factors[i] = Math.copySign(SIZES[i], (float) ofRows[i]);
      }
      kernel.sumRows(matrix.rows, factors, matrix, row);
      Tiles.add(row, expected);
    }

    /** As many as a row may have, from {@code least} to one more, the same in every process. */
    private static float[] drawn(float least) {
      Random random = new Random(AttentionShape.MAX_DIM);
      float[] values = new float[AttentionShape.MAX_DIM];
      for (int i = 0; i < values.length; i++) {
        values[i] = least + random.nextFloat();
      }
      return values;
    }

    void addRows(MatrixKernel kernel, int rows, Panels leftRows, Panels rightRows) {
      kernel.dots(rows, leftRows, factors, along);
      Tiles.toFloats(along, weights);
      kernel.sumRows(rows, weights, rightRows, row);
      Tiles.add(row, expected);
    }

    /** How far the state is from what it should be, against its length; NaN if not finite. */
    double astray(MatrixKernel kernel, Panels matrix) {
      kernel.sumRows(matrix.rows, factors, matrix, row);
      double difference = 0;
      for (int j = 0; j < row.length; j++) {
        double lost = expected[j] - row[j];
        difference += lost * lost;
      }
      kernel.dots(matrix.rows, matrix, matrix, ofRows);
      double length = Arrays.stream(ofRows).sum();
      return Math.sqrt(difference / length);
    }
  }
}
