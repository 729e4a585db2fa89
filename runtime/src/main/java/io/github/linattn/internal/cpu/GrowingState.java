package io.github.linattn.internal.cpu;

import io.github.linattn.Mode;
import org.jspecify.annotations.Nullable;

/**
 * A state that a sweep's recurrence moves token by token. Each token rounds all of it once, so in a
 * long segment its sums are formed a second time, a chunk at a time and with what is lost made up
 * for, and take its place from time to time. One segment's own.
 *
 * <p>Mostly roundings are as good as random and grow with the root of the tokens. Where all tokens
 * add the same, as padding does, they all go one way: S of rows that repeat loses some 1e-8 of
 * itself with every token. So in mode ACCURATE the sums take the place of the state after every
 * chunk, and in other modes once a part of one row, which is {@linkplain Watch watched}, has gone
 * astray.
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
  void passed(int tokens) {
    since += tokens;
    left -= tokens;
    if (since >= settleAfter && matrix != sums.matrix) {
      settle();
    } else if (settleAfter > Tiles.CHUNK) {
      look(tokens);
    }
  }

  private void look(int tokens) {
    sinceLook += tokens;
    if (sinceLook < LOOK_AFTER) {
      return;
    }
    sinceLook = 0;
    if (watch == null) {
      watch = new Watch(matrix);
    } else if (watch.astray(matrix) > MOST_ASTRAY) {
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
   * Sixteen elements of one row of the state, the longest there is in the first columns, and what
   * tokens make of them in double.
   */
  private static final class Watch {
    private static final int COLUMNS = Panels.WIDTH;

    private final int row;
    private final int column;
    private final double[] expected = new double[COLUMNS];
    private final float[] weights = new float[Tiles.CHUNK];
    private final float[] added = new float[COLUMNS];

    Watch(Panels matrix) {
      int longest = 0;
      double most = 0;
      for (int i = 0; i < matrix.rows; i++) {
        double length = squares(matrix, i, 0);
        if (length > most) {
          most = length;
          longest = i;
        }
      }
      int largest = 0;
      for (int j = COLUMNS; j < matrix.columns; j += COLUMNS) {
        double length = squares(matrix, longest, j);
        if (length > most) {
          most = length;
          largest = j;
        }
      }
      this.row = longest;
      this.column = largest;
      int first = matrix.at(row, column);
      for (int i = 0; i < COLUMNS; i++) {
        expected[i] = matrix.data[first + i];
      }
    }

    private static double squares(Panels matrix, int row, int column) {
      int first = matrix.at(row, column);
      double sum = 0;
      for (int i = 0; i < COLUMNS; i++) {
        double x = matrix.data[first + i];
        sum += x * x;
      }
      return sum;
    }

    void addRows(MatrixKernel kernel, int rows, Panels leftRows, Panels rightRows) {
      for (int i = 0; i < rows; i++) {
        weights[i] = leftRows.data[leftRows.at(i, row)];
      }
      Panels watched = new Panels(rightRows.rows, COLUMNS, rightRows.data, rightRows.at(0, column));
      kernel.sumRows(rows, weights, watched, added);
      Tiles.add(added, expected);
    }

    /** How far they are from what they should be, against their length; NaN if not finite. */
    double astray(Panels matrix) {
      int first = matrix.at(row, column);
      double difference = 0;
      double length = 0;
      for (int i = 0; i < COLUMNS; i++) {
        double lost = expected[i] - matrix.data[first + i];
        difference += lost * lost;
        length += expected[i] * expected[i];
      }
      return Math.sqrt(difference / length);
    }
  }
}
