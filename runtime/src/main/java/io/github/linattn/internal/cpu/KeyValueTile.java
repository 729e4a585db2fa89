package io.github.linattn.internal.cpu;

import io.github.linattn.AttentionInput;
import io.github.linattn.internal.Operator;

/**
 * Rows of k and v of one chunk of a lane, with k normalised where the operator says so. One
 * worker's own.
 *
 * <p>The backward centres v: every e_in = Ω_i·v_n − o_i·Ω_i stays as it is when one constant vector
 * is taken from all v (and so from o), and sums of centred rows cancel less.
 */
final class KeyValueTile {
  /** Weights of a plain sum of rows. */
  private static final float[] ONES = Tiles.repeatedFloat(1, Tiles.CHUNK);

  /** Rows whose mean the backward takes from v; the mean of fewer is further from that of all. */
  private static final int CENTER_ROWS = 256;

  private final MatrixKernel kernel;
  private final boolean normalize;
  private final Lane lane;
  private final TensorRows keyRows;
  private final TensorRows valueRows;
  private final float[] center;
  private boolean centered;
  final float[] k;
  final float[] v;
  private final float[] keySum;
  private final float[] valueSum;
  final double[] inverseNorms = new double[Tiles.CHUNK];

  private KeyValueTile(MatrixKernel kernel, Operator operator, AttentionInput input, Lane lane) {
    this.kernel = kernel;
    this.normalize = operator.normalize();
    this.lane = lane;
    this.keyRows = new TensorRows(input.k());
    this.valueRows = new TensorRows(input.v());
    this.center = new float[valueRows.width()];
    this.k = new float[Tiles.CHUNK * keyRows.width()];
    this.v = new float[Tiles.CHUNK * valueRows.width()];
    this.keySum = new float[keyRows.width()];
    this.valueSum = new float[valueRows.width()];
  }

  /** Tiles of v as it is. */
  static KeyValueTile of(MatrixKernel kernel, Operator operator, AttentionInput input, Lane lane) {
    return new KeyValueTile(kernel, operator, input, lane);
  }

  /** Tiles of v less the mean of the lane's first rows. */
  static KeyValueTile centered(
      MatrixKernel kernel, Operator operator, AttentionInput input, Lane lane) {
    KeyValueTile tile = new KeyValueTile(kernel, operator, input, lane);
    tile.findCenter();
    tile.centered = true;
    return tile;
  }

  /** The mean in each column, 0 where it is not finite. */
  private void findCenter() {
    int count = Math.min(CENTER_ROWS, lane.length());
    double[] sums = new double[center.length];
    int rows;
    for (int token = 0; token < count; token += rows) {
      rows = Math.min(Tiles.CHUNK, count - token);
      valueRows.load(lane.batch(), lane.keyValueHead(), lane.start() + token, rows, v);
      kernel.sumRows(rows, ONES, v, valueSum);
      for (int j = 0; j < sums.length; j++) {
        sums[j] += valueSum[j];
      }
    }
    for (int j = 0; j < sums.length; j++) {
      float mean = (float) (sums[j] / count);
      center[j] = Float.isFinite(mean) ? mean : 0;
    }
  }

  long tokenBytes() {
    return keyRows.tokenBytes(1) + valueRows.tokenBytes(1);
  }

  int touch(int start, int end) {
    return keyRows.touch(lane.batch(), lane.keyValueHead(), 1, start, end)
        + valueRows.touch(lane.batch(), lane.keyValueHead(), 1, start, end);
  }

  void load(int token, int rows) {
    keyRows.load(lane.batch(), lane.keyValueHead(), token, rows, k);
    valueRows.load(lane.batch(), lane.keyValueHead(), token, rows, v);
    if (centered) {
      Tiles.addToRows(kernel, v, rows, -1, center);
    }
    if (normalize) {
      Tiles.normalize(kernel, k, rows, keyRows.width(), 1, inverseNorms);
    }
  }

  /**
   * Loads up to {@code rows} rows and returns how many a product of the chunk may take: 1 where one
   * of them is not finite, because in a product 0 times NaN would carry it to earlier tokens.
   */
  int loadSafely(int token, int rows) {
    load(token, rows);
    sum(rows);
    if (Tiles.isFinite(keySum) && Tiles.isFinite(valueSum)) { // and so is each of the rows
      return rows;
    }
    sum(1);
    return 1;
  }

  private void sum(int rows) {
    kernel.sumRows(rows, ONES, k, keySum);
    kernel.sumRows(rows, ONES, v, valueSum);
  }

  /** Adds k⊗v, k and v of the rows that were loaded safely to sums whose left side is k. */
  void addTo(OuterSum sum, int rows) {
    sum.addRows(kernel, rows, k, keySum, v, valueSum);
  }

  /** Adds v⊗k, v and k of these rows to sums whose left side is v. */
  void addTransposedTo(OuterSum sum, int rows) {
    sum.addRows(kernel, rows, v, valueSum, k, keySum);
  }

  /** S, z and u over a segment alone. */
  OuterSum sumOver(Segments.Segment segment) {
    OuterSum sum = new OuterSum(keyRows.width(), valueRows.width());
    for (int token = segment.start(); token < segment.end(); token += Tiles.CHUNK) {
      int rows = Math.min(Tiles.CHUNK, segment.end() - token);
      load(token, rows);
      sum(rows);
      addTo(sum, rows);
    }
    return sum;
  }

  /** Makes sums over v as it is into sums over the rows that this tile gives. */
  OuterSum center(OuterSum sum) {
    sum.shiftRight(center, lane.countBefore());
    return sum;
  }

  /**
   * Makes dS, dz, du of sums over v as it is into R, r, y over the rows that this tile gives, and
   * back: R = dS, r = −(dz + dS c), y = du, where c is what those rows lack.
   */
  OuterSum exchange(OuterSum sum) {
    sum.reflectLeft(center);
    return sum;
  }
}
