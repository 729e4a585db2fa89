package io.github.linattn.internal.cpu;

import io.github.linattn.bindings.host.HeapAddress;
import java.util.Arrays;

/**
 * An fp32 matrix in panels of sixteen columns: the rows of a panel follow one another, each a line
 * of the cache, and panels lie an odd number of lines apart, so that those of one row find
 * different places there. The distance of rows is the same for all matrices, which is what lets the
 * compiler take the checks of an index out of a loop over them. One worker's own.
 */
final class Panels {
  /** Columns of a panel, and so the distance of the rows in it. */
  static final int WIDTH = 16;

  final int rows;
  final int columns;
  final float[] data;

  /** Of the first element: where a line begins, unless the array was moved since. */
  private final int start;

  private final int stride;

  /**
   * @param columns a multiple of {@link #WIDTH}
   */
  Panels(int rows, int columns) {
    this(rows, columns, new float[length(rows, columns) + WIDTH - 1]);
  }

  private Panels(int rows, int columns, float[] data) {
    this(rows, columns, data, HeapAddress.elementsToBoundary(data, WIDTH));
  }

  /** In a part of an array, {@link #length} elements from {@code start} on. */
  Panels(int rows, int columns, float[] data, int start) {
    this.rows = rows;
    this.columns = columns;
    this.stride = stride(rows);
    this.data = data;
    this.start = start;
  }

  private static int stride(int rows) {
    return WIDTH * (rows | 1);
  }

  /** Elements of an array that a matrix takes, lines between its panels among them. */
  static int length(int rows, int columns) {
    return columns / WIDTH * stride(rows);
  }

  static long bytes(int rows, int columns) {
    return (long) Float.BYTES * (length(rows, columns) + WIDTH - 1);
  }

  /** Index of an element; that of the next row is {@link #WIDTH} further on. */
  int at(int row, int column) {
    return start + column / WIDTH * stride + row * WIDTH + column % WIDTH;
  }

  void clear() {
    Arrays.fill(data, start, start + length(rows, columns), 0);
  }

  /**
   * @param from of the same size
   */
  void set(Panels from) {
    System.arraycopy(from.data, from.start, data, start, length(rows, columns));
  }

  /**
   * @param other of the same size
   */
  void add(Panels other) {
    int length = length(rows, columns);
    for (int i = 0; i < length; i++) {
      data[start + i] += other.data[other.start + i];
    }
  }

  /**
   * @param from with as many rows as this has columns, and columns as this has rows
   */
  void setTransposed(Panels from) {
    for (int row = 0; row < rows; row += WIDTH) {
      for (int column = 0; column < columns; column += WIDTH) {
        setTransposedSquare(at(row, column), from.data, from.at(column, row));
      }
    }
  }

  private void setTransposedSquare(int to, float[] source, int from) {
    for (int i = 0; i < WIDTH; i++) {
      for (int j = 0; j < WIDTH; j++) {
        data[to + i * WIDTH + j] = source[from + j * WIDTH + i];
      }
    }
  }

  void setRow(int row, float[] source) {
    for (int column = 0; column < columns; column += WIDTH) {
      System.arraycopy(source, column, data, at(row, column), WIDTH);
    }
  }

  void getRow(int row, float[] target) {
    for (int column = 0; column < columns; column += WIDTH) {
      System.arraycopy(data, at(row, column), target, column, WIDTH);
    }
  }
}
