package io.github.linattn.internal.cpu;

import io.github.linattn.AttentionShape;
import io.github.linattn.internal.Operator;
import io.github.linattn.internal.cpu.MatrixKernel.Order;
import java.util.Arrays;

/**
 * First sweep of the backward over one segment, in token order. With the sums S = Σ k⊗v, z, u and
 * the count c over the tokens that row i sees, where all k lack k̄ and all v another such row:
 *
 * <pre>
 *   y = Ω_i Sᵀ      ω = Ω_i·u      δ = (b (q_i·y + (q_i·k̄) ω) + a ω)/g_i
 *   dq_i = b (y − δ z + (ω − δ c) k̄)      da += ω − δ c      db += q_i·dq_i/b
 * </pre>
 */
final class QuerySweep {
  /**
   * Tokens seen when the centre moves from the mean of the first rows to that of all so far, which
   * a sequence that begins unlike its rest needs; it moves again at twice as many.
   */
  private static final long FIRST_MOVE = 512;

  private final double[] da;
  private final double[] db;

  private final BackwardLane backward;
  private final Segments.Segment segment;
  private final Lane lane;
  private final Operator operator;
  private final AttentionShape shape;
  private final MatrixKernel kernel;
  private final OuterSum state;
  private final GrowingState growing;
  private final KeyValueTile keyValue;
  private final QueryTile query;
  private final ReadAhead readAhead;
  private final TensorRows dq;

  /** Tokens seen after which the centre of k and v moves next. */
  private long nextMove = FIRST_MOVE;

  /** The centre of v less the one of the second sweep, whose δ is larger by Ω times this. */
  private final float[] valueOffset;

  private final float[] gradient;
  private final RunningSum keySum;
  private final RunningSum valueSum;

  /** Row i of either is what row i of the chunk sees; without causality all see the first. */
  private final float[] z;

  private final float[] u;

  /** Takes S after the chunk from all but the last of the heads that share it. */
  private final float[] discarded;

  private final double[] alongKeys = new double[Tiles.CHUNK];
  private final double[] alongCenter = new double[Tiles.CHUNK];
  private final double[] alongOffset = new double[Tiles.CHUNK];
  private final double[] alongValues = new double[Tiles.CHUNK];
  private final double[] minusDeltas = new double[Tiles.CHUNK];
  private final double[] alongSums = new double[Tiles.CHUNK];
  private final double[] squares = new double[Tiles.CHUNK];
  private final double[] units = new double[Tiles.CHUNK];
  private final double[] scales = new double[Tiles.CHUNK];

  /**
   * @param state sums that the segment starts from, with v on their left and k on their right
   */
  QuerySweep(BackwardLane backward, Segments.Segment segment, OuterSum state) {
    BackwardPass pass = backward.pass;
    this.backward = backward;
    this.segment = segment;
    this.lane = segment.lane();
    this.operator = pass.operator;
    this.shape = pass.shape;
    this.kernel = pass.kernel;
    this.state = state;
    this.growing = new GrowingState(kernel, state, segment.length());
    this.keyValue = backward.centered();
    this.valueOffset = new float[shape.valueDim()];
    this.query = new QueryTile(backward);
    this.dq = new TensorRows(pass.gradients.dq());
    long tokenBytes =
        keyValue.tokenBytes() + query.tokenBytes() + dq.tokenBytes(shape.headsPerKeyValueHead());
    this.readAhead = new ReadAhead(segment, tokenBytes, this::touch);
    this.gradient = new float[Tiles.CHUNK * shape.keyDim()];
    this.keySum = new RunningSum(kernel, state.right);
    this.valueSum = new RunningSum(kernel, state.left);
    this.z = new float[Tiles.CHUNK * shape.keyDim()];
    this.u = new float[Tiles.CHUNK * shape.valueDim()];
    this.discarded = new float[shape.headsPerKeyValueHead() > 1 ? state.matrix.length : 0];
    this.da = new double[shape.headsPerKeyValueHead()];
    this.db = new double[shape.headsPerKeyValueHead()];
  }

  private int touch(int start, int end) {
    int heads = shape.headsPerKeyValueHead();
    int first = lane.keyValueHead() * heads;
    int touched = query.touch(lane, start, end) + dq.touch(lane.batch(), first, heads, start, end);
    return operator.causal() ? touched + keyValue.touch(start, end) : touched;
  }

  /** Writes dq and δ; gives da and db. */
  BackwardPass.CoefficientGradients run() {
    if (!operator.causal()) {
      Tiles.toFloats(state.right, z);
      Tiles.toFloats(state.left, u);
    }
    for (int token = segment.start(); token < segment.end(); token += Tiles.CHUNK) {
      int rows = Math.min(Tiles.CHUNK, segment.end() - token);
      readAhead.forward(token, token + rows);
      if (operator.causal()) {
        moveCenter(lane.seenBy(token - 1, true));
        keyValue.load(token, rows);
        keySum.accumulate(rows, Order.FORWARD, KeyValueTile.ONES, keyValue.k, 1, z);
        valueSum.accumulate(rows, Order.FORWARD, KeyValueTile.ONES, keyValue.v, 1, u);
      }
      for (int member = 0; member < da.length; member++) {
        differentiate(member, token, rows);
      }
      if (operator.causal()) {
        growing.addRows(rows, keyValue.v, keyValue.k);
        growing.passed(rows);
      }
    }
    return new BackwardPass.CoefficientGradients(da, db);
  }

  /** To the mean of all rows so far, of which no later token has a part. */
  private void moveCenter(long seen) {
    if (seen < nextMove) {
      return;
    }
    nextMove = 2 * seen;
    Center from = keyValue.center();
    Center to = from.movedBy(state.right, state.left, seen);
    state.shift(from.v(), to.v(), from.k(), to.k(), seen);
    growing.settle();
    keyValue.moveTo(to);
    float[] lasting = backward.center.v();
    for (int i = 0; i < valueOffset.length; i++) {
      valueOffset[i] = to.v()[i] - lasting[i];
    }
  }

  private void differentiate(int member, int token, int rows) {
    int d = shape.keyDim();
    int dv = shape.valueDim();
    int head = lane.keyValueHead() * da.length + member;
    query.load(lane, head, token, rows);
    if (operator.causal()) {
      Arrays.fill(gradient, 0);
      float[] after = member == da.length - 1 ? growing.matrix() : discarded;
      kernel.recur(
          rows,
          Order.FORWARD,
          dv,
          d,
          keyValue.v,
          keyValue.k,
          query.omega,
          growing.matrix(),
          after,
          gradient);
    } else {
      int paddedRows = Tiles.roundUp(rows, MatrixKernel.ROW_STEP);
      kernel.multiply(paddedRows, d, dv, query.omega, state.matrix, gradient);
    }
    finish(member, head, token, rows);
    dq.store(lane.batch(), head, token, rows, gradient);
  }

  /** Makes dq of y, and with it δ and the chunk's part of da and db. */
  private void finish(int member, int head, int token, int rows) {
    int d = shape.keyDim();
    int dv = shape.valueDim();
    boolean causal = operator.causal();
    double a = operator.a(head);
    double b = operator.b(head);
    double[] deltas = backward.deltas(head);
    kernel.dots(rows, dv, query.omega, u, causal ? dv : 0, alongValues);
    if (nextMove > FIRST_MOVE) {
      kernel.dots(rows, dv, query.omega, valueOffset, 0, alongOffset);
    }
    kernel.dots(
        rows,
        d,
        query.q,
        gradient,
        z,
        causal ? d : 0,
        keyValue.center().k(),
        squares,
        alongKeys,
        alongSums,
        alongCenter);
    Arrays.fill(units, 1);
    Arrays.fill(query.inverseNorms, 1);
    if (operator.normalize()) {
      findInverseNorms(rows);
      System.arraycopy(
          query.inverseNorms, 0, backward.inverseNorms(head), token - lane.start(), rows);
    }
    for (int i = 0; i < rows; i++) {
      double unit = units[i];
      double along = alongValues[i];
      double alongKey = unit * alongKeys[i];
      double center = unit * alongCenter[i];
      double delta = (b * (alongKey + center * along) + a * along) / query.g[i];
      double rest = along - delta * lane.seenBy(token + i, causal);
      double alongGradient = alongKey - delta * unit * alongSums[i] + center * rest;
      deltas[token - lane.start() + i] = delta + alongOffset[i];
      da[member] += rest;
      db[member] += alongGradient;
      minusDeltas[i] = -delta;
      alongValues[i] = rest;
      alongKeys[i] = operator.normalize() ? -alongGradient * unit : 0;
      scales[i] = b * query.inverseNorms[i];
    }
    kernel.combineRows(
        rows,
        d,
        scales,
        gradient,
        minusDeltas,
        z,
        causal ? d : 0,
        alongValues,
        keyValue.center().k(),
        alongKeys,
        query.q);
  }

  /** Finds 1/|q| and what the dots lack of those with q/|q|. */
  private void findInverseNorms(int rows) {
    for (int i = 0; i < rows; i++) {
      if (Tiles.isExact(squares[i])) {
        query.inverseNorms[i] = 1 / Math.sqrt(squares[i]);
        units[i] = query.inverseNorms[i];
      } else {
        query.inverseNorms[i] = normalizeAlone(i);
      }
    }
  }

  /** Normalises a row of q, of which no other row's result depends, and dots it in double. */
  private double normalizeAlone(int row) {
    int d = shape.keyDim();
    int at = row * d;
    double inverse = Tiles.normalizeRow(query.q, at, d);
    alongKeys[row] = Tiles.dot(query.q, at, gradient, at, d);
    alongSums[row] = Tiles.dot(query.q, at, z, operator.causal() ? at : 0, d);
    alongCenter[row] = Tiles.dot(query.q, at, keyValue.center().k(), 0, d);
    return inverse;
  }
}
