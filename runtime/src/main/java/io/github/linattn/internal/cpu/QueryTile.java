package io.github.linattn.internal.cpu;

import io.github.linattn.AttentionShape;
import io.github.linattn.internal.cpu.MatrixKernel.Order;
import java.util.Arrays;

/**
 * Rows of q and of Ω = dO/g of one chunk and query head, q normalised if asked. One worker's own.
 */
final class QueryTile {
  private final BackwardLane backward;
  private final BackwardPass pass;
  private final AttentionShape shape;
  private final MatrixKernel kernel;
  private final Order order;

  private final RowBuffer buffer;

  private final float[] zeros;
  private final double[] factors = new double[Tiles.CHUNK];
  final Panels q;
  final Panels omega;
  final double[] inverseNorms = new double[Tiles.CHUNK];

  /** In token order. */
  final float[] g = new float[Tiles.CHUNK];

  /** δ, once {@link #loadWeighted} has read it. */
  final float[] delta = new float[Tiles.CHUNK];

  /** a of the head that {@link #loadWeighted} was told. */
  final float[] a = new float[Tiles.CHUNK];

  private final float[] deltaSum;
  private final float[] omegaSum;

  /**
   * @param order of the sweep
   */
  QueryTile(BackwardLane backward, Order order, Scratch scratch) {
    this.backward = backward;
    this.pass = backward.pass;
    this.shape = pass.shape;
    this.kernel = scratch.kernel;
    this.order = order;
    this.buffer = scratch.rowBuffer(Math.max(shape.keyDim(), shape.valueDim()));
    this.zeros = new float[Math.max(shape.keyDim(), shape.valueDim())];
    this.q = scratch.panels(Tiles.CHUNK, shape.keyDim());
    this.omega = scratch.panels(Tiles.CHUNK, shape.valueDim());
    this.deltaSum = new float[shape.keyDim()];
    this.omegaSum = new float[shape.valueDim()];
  }

  /** Before rows are loaded. */
  void announce(Lane lane, int head, int token, int count, Upcoming upcoming) {
    pass.outputGradient.announce(lane.batch(), head, token, count, upcoming);
    pass.query.announce(lane.batch(), head, token, count, upcoming);
  }

  /** Loads Ω, and q as it is. */
  void load(Lane lane, int head, int token, int count) {
    loadGradient(lane, head, token, count);
    Rows rows = pass.query.load(lane.batch(), head, token, count, buffer);
    kernel.pack(count, order, rows, zeros, q);
  }

  private void loadGradient(Lane lane, int head, int token, int count) {
    pass.normalizer.load(lane.batch(), head, token, count, g);
    Rows rows = pass.outputGradient.load(lane.batch(), head, token, count, buffer);
    for (int i = 0; i < count; i++) {
      factors[i] = 1.0 / g[order.row(i, count)];
    }
    kernel.pack(count, order, factors, rows, zeros, omega);
  }

  /**
   * Loads Ω and b q, normalised if asked, of rows whose norms and δ the first sweep has found, and
   * the weights of q and Ω in r = Σ b δ q and y = Σ a Ω.
   */
  void loadWeighted(Lane lane, int head, int token, int count) {
    loadGradient(lane, head, token, count);
    Rows rows = pass.query.load(lane.batch(), head, token, count, buffer);
    double b = pass.operator.b(head);
    int first = token - lane.start();
    double[] deltas = backward.deltas(head);
    double[] inverses = backward.inverseNorms(head);
    for (int i = 0; i < count; i++) {
      int row = first + order.row(i, count);
      delta[i] = (float) deltas[row];
      factors[i] = pass.operator.normalize() ? b * inverses[row] : b;
    }
    Arrays.fill(a, pass.operator.a(head));
    if (pass.operator.normalize() || b != 1) {
      kernel.pack(count, order, factors, rows, zeros, q);
    } else {
      kernel.pack(count, order, rows, zeros, q);
    }
  }

  /**
   * R = Σ b q⊗Ω, r and y over a segment alone, of all query heads of its key/value head.
   *
   * @param target what v is to lack in them
   */
  OuterSum sumOver(Segments.Segment segment, Center target) {
    Centers centers = backward.centers();
    Center center = target;
    OuterSum sum = new OuterSum(shape.keyDim(), shape.valueDim());
    Lane lane = segment.lane();
    int group = shape.headsPerKeyValueHead();
    int count;
    for (int token = segment.start(); token < segment.end(); token += count) {
      count = Math.min(Tiles.CHUNK, centers.stretchEnd(token, segment.end()) - token);
      center.exchange(kernel, sum, centers.at(token));
      center = centers.at(token);
      for (int head = lane.keyValueHead() * group;
          head < (lane.keyValueHead() + 1) * group;
          head++) {
        loadWeighted(lane, head, token, count);
        kernel.sumRows(count, delta, q, deltaSum);
        kernel.sumRows(count, a, omega, omegaSum);
        sum.addRows(kernel, count, q, deltaSum, omega, omegaSum);
      }
    }
    center.exchange(kernel, sum, target);
    return sum;
  }
}
