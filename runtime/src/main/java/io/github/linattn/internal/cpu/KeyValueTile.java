package io.github.linattn.internal.cpu;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.internal.Operator;
import org.jspecify.annotations.Nullable;

/**
 * Rows of k and v of one chunk of a lane, with k normalised where the operator says so. One
 * worker's own.
 *
 * <p>The backward centres them: every e_in = Ω_i·v_n − o_i·Ω_i stays as it is when one constant
 * vector is taken from all v (and so from o), and dq wants no more of one taken from all k than
 * that vector times Σ_n e_in. Sums of centred rows stay small, and so do their roundings.
 */
final class KeyValueTile {
  /** Weights of a plain sum of rows. */
  static final float[] ONES = Tiles.repeatedFloat(1, Tiles.CHUNK);

  /** First rows of a lane that tell where its centre is. */
  private static final int CENTER_ROWS = 256;

  private final MatrixKernel kernel;
  private final boolean normalize;
  private final Lane lane;
  private final TensorRows keyRows;
  private final TensorRows valueRows;

  /** 1/|k| of the lane's tokens, if they are kept. */
  private final double @Nullable [] laneNorms;

  private boolean knowsNorms;
  private Center center;
  private boolean centersKeys;
  private boolean centersValues;
  final float[] k;
  final float[] v;
  private final float[] keySum;
  private final float[] valueSum;
  final double[] inverseNorms = new double[Tiles.CHUNK];

  private KeyValueTile(
      MatrixKernel kernel,
      Operator operator,
      AttentionInput input,
      Lane lane,
      Center center,
      double @Nullable [] laneNorms) {
    this.kernel = kernel;
    this.normalize = operator.normalize();
    this.lane = lane;
    this.keyRows = new TensorRows(input.k());
    this.valueRows = new TensorRows(input.v());
    this.k = new float[Tiles.CHUNK * keyRows.width()];
    this.v = new float[Tiles.CHUNK * valueRows.width()];
    this.keySum = new float[keyRows.width()];
    this.valueSum = new float[valueRows.width()];
    this.laneNorms = laneNorms;
    moveTo(center);
  }

  /** Takes this from rows that are loaded from now on. */
  void moveTo(Center other) {
    center = other;
    centersKeys = !isZero(other.k());
    centersValues = !isZero(other.v());
  }

  Center center() {
    return center;
  }

  private static boolean isZero(float[] row) {
    for (float x : row) {
      if (x != 0) {
        return false;
      }
    }
    return true;
  }

  /** Tiles of k and v as they are. */
  static KeyValueTile of(MatrixKernel kernel, Operator operator, AttentionInput input, Lane lane) {
    AttentionShape shape = input.shape();
    Center none = Center.none(shape.keyDim(), shape.valueDim());
    return new KeyValueTile(kernel, operator, input, lane, none, null);
  }

  /**
   * Tiles of k and v less what {@code center} says.
   *
   * @param norms takes 1/|k| of the tokens that are loaded, the lane's first at 0, where the
   *     operator normalises
   */
  static KeyValueTile centered(
      MatrixKernel kernel,
      Operator operator,
      AttentionInput input,
      Lane lane,
      Center center,
      double[] norms) {
    return new KeyValueTile(kernel, operator, input, lane, center, norms);
  }

  /** This, but from now on the kept norms are read. */
  KeyValueTile withKnownNorms() {
    knowsNorms = true;
    return this;
  }

  /** The mean of the lane's first rows. */
  Center findCenter() {
    int count = Math.min(CENTER_ROWS, lane.length());
    double[] keys = new double[keySum.length];
    double[] values = new double[valueSum.length];
    for (int token = 0; token < count; token += Tiles.CHUNK) {
      int rows = Math.min(Tiles.CHUNK, count - token);
      load(lane.start() + token, rows);
      sum(rows);
      add(keySum, keys);
      add(valueSum, values);
    }
    return Center.none(keys.length, values.length).movedBy(keys, values, count);
  }

  private static void add(float[] part, double[] sum) {
    for (int i = 0; i < sum.length; i++) {
      sum[i] += part[i];
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
    if (normalize) {
      normalize(token - lane.start(), rows);
    }
    if (centersKeys) {
      kernel.addRows(rows, keyRows.width(), -1, center.k(), 0, k);
    }
    if (centersValues) {
      kernel.addRows(rows, valueRows.width(), -1, center.v(), 0, v);
    }
  }

  private void normalize(int token, int rows) {
    if (laneNorms != null && knowsNorms) {
      System.arraycopy(laneNorms, token, inverseNorms, 0, rows);
      kernel.scaleRows(rows, keyRows.width(), inverseNorms, k);
      return;
    }
    Tiles.normalize(kernel, k, rows, keyRows.width(), 1, inverseNorms);
    if (laneNorms != null) {
      System.arraycopy(inverseNorms, 0, laneNorms, token, rows);
    }
  }

  private void sum(int rows) {
    kernel.sumRows(rows, ONES, k, keySum);
    kernel.sumRows(rows, ONES, v, valueSum);
  }

  /** S, z and u over a segment alone. */
  OuterSum sumOver(Segments.Segment segment) {
    OuterSum sum = new OuterSum(keyRows.width(), valueRows.width());
    for (int token = segment.start(); token < segment.end(); token += Tiles.CHUNK) {
      int rows = Math.min(Tiles.CHUNK, segment.end() - token);
      load(token, rows);
      sum(rows);
      sum.addRows(kernel, rows, k, keySum, v, valueSum);
    }
    return sum;
  }

  /** Makes sums over k and v as they are into sums over the rows that this tile gives. */
  OuterSum center(OuterSum sum) {
    Center none = Center.none(sum.leftWidth, sum.rightWidth);
    sum.shift(none.k(), center.k(), none.v(), center.v(), lane.countBefore());
    return sum;
  }

  /**
   * Makes dS, dz, du of sums over v as it is into R, r, y over the rows that this tile gives, and
   * back: R = dS, r = −(dz + dS c), y = du, where c is what those rows lack.
   */
  OuterSum exchange(OuterSum sum) {
    sum.reflectLeft(center.v());
    return sum;
  }
}
