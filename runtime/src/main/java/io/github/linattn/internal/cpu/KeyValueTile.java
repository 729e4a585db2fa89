package io.github.linattn.internal.cpu;

import io.github.linattn.AttentionInput;
import io.github.linattn.internal.Operator;
import java.util.Arrays;

/** Rows of k and v of one chunk, with k normalised where the operator says so. One worker's own. */
final class KeyValueTile {
  /** Weights of a plain sum of rows. */
  private static final float[] ONES = ones();

  private final boolean normalize;
  private final TensorRows keyRows;
  private final TensorRows valueRows;
  final float[] k;
  final float[] v;
  final double[] keyNorms = new double[Tiles.CHUNK];

  KeyValueTile(Operator operator, AttentionInput input) {
    this.normalize = operator.normalize();
    this.keyRows = new TensorRows(input.k());
    this.valueRows = new TensorRows(input.v());
    this.k = new float[Tiles.CHUNK * keyRows.width()];
    this.v = new float[Tiles.CHUNK * valueRows.width()];
  }

  private static float[] ones() {
    float[] ones = new float[Tiles.CHUNK];
    Arrays.fill(ones, 1);
    return ones;
  }

  void load(Lane lane, int token, int rows) {
    keyRows.load(lane.batch(), lane.keyValueHead(), token, rows, k);
    valueRows.load(lane.batch(), lane.keyValueHead(), token, rows, v);
    if (normalize) {
      Tiles.normalize(k, rows, keyRows.width(), keyNorms);
    }
  }

  /**
   * Loads up to {@code rows} rows and returns how many a product of the chunk may take: 1 where one
   * of them is not finite, because in a product 0 times NaN would carry it to earlier tokens.
   */
  int loadSafely(Lane lane, int token, int rows) {
    load(lane, token, rows);
    boolean finite =
        Tiles.isFinite(k, rows * keyRows.width()) && Tiles.isFinite(v, rows * valueRows.width());
    return finite ? rows : 1;
  }

  /** Adds k⊗v, k and v to sums whose left side is k. */
  void addTo(OuterSum sum, MatrixKernel kernel, int rows) {
    sum.addRows(kernel, rows, k, ONES, v, 1);
  }

  /** Adds v⊗k, v and k to sums whose left side is v. */
  void addTransposedTo(OuterSum sum, MatrixKernel kernel, int rows) {
    sum.addRows(kernel, rows, v, ONES, k, 1);
  }

  /** S, z and u over a segment alone. */
  OuterSum sumOver(Segments.Segment segment, MatrixKernel kernel) {
    OuterSum sum = new OuterSum(keyRows.width(), valueRows.width());
    for (int token = segment.start(); token < segment.end(); token += Tiles.CHUNK) {
      int rows = Math.min(Tiles.CHUNK, segment.end() - token);
      load(segment.lane(), token, rows);
      addTo(sum, kernel, rows);
    }
    return sum;
  }
}
