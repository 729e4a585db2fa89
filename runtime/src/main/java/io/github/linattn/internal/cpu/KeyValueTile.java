package io.github.linattn.internal.cpu;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.internal.Operator;
import io.github.linattn.internal.cpu.MatrixKernel.Order;
import java.util.Objects;
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

  private final MatrixKernel kernel;
  private final boolean normalize;
  private final Lane lane;
  private final Order order;
  private final TensorRows keyRows;
  private final TensorRows valueRows;

  /** 1/|k| of the lane's tokens, if they are kept. */
  private final double @Nullable [] laneNorms;

  private Center center;
  final Panels k;
  final Panels v;

  /** Free for the tile's owner between loads. */
  final RowBuffer buffer;

  private final float[] keySum;
  private final float[] valueSum;
  final double[] inverseNorms = new double[Tiles.CHUNK];

  private KeyValueTile(
      Operator operator,
      AttentionInput input,
      Lane lane,
      Order order,
      Center center,
      double @Nullable [] laneNorms,
      Scratch scratch) {
    this.kernel = scratch.kernel;
    this.normalize = operator.normalize();
    this.lane = lane;
    this.order = order;
    this.keyRows = new TensorRows(input.k());
    this.valueRows = new TensorRows(input.v());
    this.k = scratch.panels(Tiles.CHUNK, keyRows.width());
    this.v = scratch.panels(Tiles.CHUNK, valueRows.width());
    this.buffer = scratch.rowBuffer(Math.max(keyRows.width(), valueRows.width()));
    this.keySum = new float[keyRows.width()];
    this.valueSum = new float[valueRows.width()];
    this.laneNorms = laneNorms;
    this.center = center;
  }

  /** Takes this from rows that are loaded from now on. */
  void moveTo(Center other) {
    center = other;
  }

  /** Tiles of k and v as they are. */
  static KeyValueTile of(Operator operator, AttentionInput input, Lane lane, Scratch scratch) {
    AttentionShape shape = input.shape();
    Center none = Center.none(shape.keyDim(), shape.valueDim());
    return new KeyValueTile(operator, input, lane, Order.FORWARD, none, null, scratch);
  }

  /**
   * Tiles of k and v less what {@code center} says, for a sweep in {@code order}.
   *
   * @param norms 1/|k| of the lane's tokens where the operator normalises: a sweep in token order
   *     keeps those that it loads, one against it reads them
   */
  static KeyValueTile centered(
      Operator operator,
      AttentionInput input,
      Lane lane,
      Order order,
      Center center,
      double[] norms,
      Scratch scratch) {
    return new KeyValueTile(operator, input, lane, order, center, norms, scratch);
  }

  /** The mean of the rows that {@code initial} is the state of and of the lane's first rows. */
  Center findCenter(OuterSum initial, int rows) {
    int all = Math.min(rows, lane.length());
    double[] keys = initial.left.clone();
    double[] values = initial.right.clone();
    for (int token = 0; token < all; token += Tiles.CHUNK) {
      int count = Math.min(Tiles.CHUNK, all - token);
      load(lane.start() + token, count);
      sum(count);
      Tiles.add(keySum, keys);
      Tiles.add(valueSum, values);
    }
    return Center.none(keys.length, values.length).movedBy(keys, values, lane.countBefore() + all);
  }

  /** To rows of zeros, of which a sum stays what it is. */
  void clear() {
    k.clear();
    v.clear();
  }

  /** Before {@code count} rows from {@code token} on are loaded; none if it is not positive. */
  void announce(int token, int count, Upcoming upcoming) {
    keyRows.announce(lane.batch(), lane.keyValueHead(), token, count, upcoming);
    valueRows.announce(lane.batch(), lane.keyValueHead(), token, count, upcoming);
  }

  void load(int token, int count) {
    Rows rows = keyRows.load(lane.batch(), lane.keyValueHead(), token, count, buffer);
    if (normalize) {
      findInverseNorms(token - lane.start(), count, rows);
      kernel.pack(count, order, inverseNorms, rows, center.k(), k);
    } else {
      kernel.pack(count, order, rows, center.k(), k);
    }
    rows = valueRows.load(lane.batch(), lane.keyValueHead(), token, count, buffer);
    kernel.pack(count, order, rows, center.v(), v);
  }

  /** Finds the norms of rows in token order and keeps them; rows against it have been found. */
  private void findInverseNorms(int token, int count, Rows rows) {
    if (order == Order.FORWARD) {
      Tiles.findInverseNorms(kernel, count, keyRows.width(), rows, inverseNorms);
      if (laneNorms != null) {
        System.arraycopy(inverseNorms, 0, laneNorms, token, count);
      }
      return;
    }
    double[] known = Objects.requireNonNull(laneNorms);
    for (int i = 0; i < count; i++) {
      inverseNorms[i] = known[token + order.row(i, count)];
    }
  }

  private void sum(int count) {
    kernel.sumRows(count, ONES, k, keySum);
    kernel.sumRows(count, ONES, v, valueSum);
  }

  /** S, z and u over a segment alone. */
  OuterSum sumOver(Segments.Segment segment) {
    OuterSum sum = new OuterSum(keyRows.width(), valueRows.width());
    int count;
    for (int token = segment.start(); token < segment.end(); token += count) {
      count = Math.min(Tiles.CHUNK, segment.end() - token);
      load(token, count);
      sum(count);
      sum.addRows(kernel, count, k, keySum, v, valueSum);
    }
    return sum;
  }
}
