package io.github.linattn.internal.cpu;

import io.github.linattn.AttentionShape;
import io.github.linattn.internal.Operator;
import io.github.linattn.internal.cpu.MatrixKernel.Order;
import java.util.Arrays;
import org.jspecify.annotations.Nullable;

/**
 * First sweep of the backward over one segment, in token order. With the sums S = Σ k⊗v, z, u and
 * the count c over the tokens that row i sees, where all k lack k̄ and all v another such row:
 *
 * <pre>
 *   y = Ω_i Sᵀ      ω = Ω_i·u      δ = (b (q_i·y + (q_i·k̄) ω) + a ω)/g_i
 *   dq_i = b (y − δ z + (ω − δ c) k̄)      da += ω − δ c      db += q_i·dq_i/b
 * </pre>
 *
 * <p>Each row keeps (a + b q_i·k̄) (ω − δ c) + b (q_i·y − δ q_i·z) = 0.
 */
final class QuerySweep {
  private final BackwardLane backward;
  private final Segments.Segment segment;
  private final Lane lane;
  private final Operator operator;
  private final AttentionShape shape;
  private final TensorRows dq;
  private final OuterSum state;
  private final GrowingState growing;
  private final double[] da;
  private final double[] db;

  /** What k and v lack in the sums. */
  private Center center;

  /** Those so far; δ of a row is that of values that lack its own. */
  private final Centers centers = new Centers();

  /** Tokens seen after which the centre moves next. */
  private long nextMove;

  /** The first one that is still to be done. */
  private int token;

  /**
   * @param state sums that the segment starts from, with v on their left and k on their right
   * @param center what k and v lack in them
   */
  QuerySweep(BackwardLane backward, Segments.Segment segment, OuterSum state, Center center) {
    BackwardPass pass = backward.pass;
    this.backward = backward;
    this.segment = segment;
    this.lane = segment.lane();
    this.operator = pass.operator;
    this.shape = pass.shape;
    this.dq = new TensorRows(pass.gradients.dq());
    this.state = state;
    this.growing = new GrowingState(operator.mode(), state, segment.length());
    this.da = new double[shape.headsPerKeyValueHead()];
    this.db = new double[shape.headsPerKeyValueHead()];
    this.center = center;
    this.nextMove = segment.isFirst() ? moveAfter(lane.countBefore()) : 0;
    centers.put(segment.start(), center);
    this.token = segment.start();
  }

  /**
   * Tokens seen after which the centre moves from the mean of {@code seen} rows to that of all so
   * far: a sequence may begin unlike its rest, and few rows say little of where the rest is.
   */
  private static long moveAfter(long seen) {
    long times = seen < Tiles.CHUNK ? 8 : 2;
    return seen > Long.MAX_VALUE / times ? Long.MAX_VALUE : times * Math.max(1, seen);
  }

  /** Writes dq and δ of the next tokens. */
  void advance(int tokens, Scratch scratch) {
    new Step(scratch).run(segment.endOf(token, tokens));
  }

  /** All of them once all tokens are done. */
  Centers centers() {
    return centers;
  }

  /** da and db once all tokens are done. */
  BackwardPass.CoefficientGradients coefficients() {
    return new BackwardPass.CoefficientGradients(da, db);
  }

  /** Tiles for some tokens in a row. */
  private final class Step {
    private final MatrixKernel kernel;

    /** Stays zeros without causality: then every row sees what the first one does. */
    private final KeyValueTile keyValue;

    private final QueryTile query;
    private final Panels gradient;
    private final RunningSum keySum;
    private final RunningSum valueSum;
    private final Upcoming upcoming = new Upcoming();

    /** Takes S after the chunk from all but the last of the heads that share it. */
    private final @Nullable Panels discarded;

    private final double[] alongKeys = new double[Tiles.CHUNK];
    private final double[] alongCenter = new double[Tiles.CHUNK];
    private final double[] alongValues = new double[Tiles.CHUNK];
    private final double[] minusDeltas = new double[Tiles.CHUNK];
    private final double[] alongSums = new double[Tiles.CHUNK];
    private final double[] squares = new double[Tiles.CHUNK];
    private final double[] units = new double[Tiles.CHUNK];
    private final double[] scales = new double[Tiles.CHUNK];

    Step(Scratch scratch) {
      this.kernel = scratch.kernel;
      this.keyValue = backward.centered(center, scratch);
      this.query = new QueryTile(backward, Order.FORWARD, scratch);
      this.gradient = scratch.panels(Tiles.CHUNK, shape.keyDim());
      this.keySum = new RunningSum(kernel, state.right);
      this.valueSum = new RunningSum(kernel, state.left);
      this.discarded = da.length > 1 ? scratch.panels(shape.valueDim(), shape.keyDim()) : null;
    }

    void run(int end) {
      if (!operator.causal()) {
        keyValue.clear();
      }
      int rows;
      for (; token < end; token += rows) {
        rows = Math.min(Tiles.CHUNK, end - token);
        if (operator.causal()) {
          long seen = lane.seenBy(token - 1, true);
          moveCenter(seen);
          rows = Math.clamp(nextMove - seen, 1, rows);
          keyValue.load(token, rows);
        }
        keySum.begin();
        valueSum.begin();
        for (int member = 0; member < da.length; member++) {
          differentiate(member, rows);
        }
        if (operator.causal()) {
          keySum.end();
          valueSum.end();
          growing.addRows(kernel, rows, keyValue.v, keyValue.k);
          growing.passed(kernel, rows);
        }
      }
    }

    /** To the mean of all rows so far, of which no later token has a part. */
    private void moveCenter(long seen) {
      if (seen < nextMove) {
        return;
      }
      nextMove = moveAfter(seen);
      Center from = center;
      center = from.movedBy(state.right, state.left, seen);
      state.shift(kernel, from.v(), center.v(), from.k(), center.k(), seen);
      growing.settle();
      keyValue.moveTo(center);
      centers.put(token, center);
    }

    private void differentiate(int member, int rows) {
      int head = lane.keyValueHead() * da.length + member;
      query.load(lane, head, token, rows);
      if (operator.causal()) {
        Panels after = discarded == null || member == da.length - 1 ? growing.matrix() : discarded;
        gradient.clear();
        announce(member, rows);
        kernel.recur(
            rows, keyValue.v, keyValue.k, query.omega, growing.matrix(), after, gradient, upcoming);
      } else {
        int paddedRows = Tiles.roundUp(rows, MatrixKernel.ROW_STEP);
        kernel.multiply(paddedRows, query.omega, state.matrix, gradient);
      }
      finish(member, head, rows);
      dq.store(lane.batch(), head, token, rows, keyValue.buffer);
    }

    /** What is stored after the recurrence, and what is loaded then. */
    private void announce(int member, int rows) {
      int firstHead = lane.keyValueHead() * da.length;
      upcoming.clear();
      dq.announce(lane.batch(), firstHead + member, token, rows, upcoming);
      if (member < da.length - 1) {
        query.announce(lane, firstHead + member + 1, token, rows, upcoming);
      } else {
        int next = token + rows;
        int count = Math.min(Tiles.CHUNK, segment.end() - next);
        keyValue.announce(next, count, upcoming);
        query.announce(lane, firstHead, next, count, upcoming);
      }
    }

    /** Makes dq of y, and with it δ and the chunk's part of da and db. */
    private void finish(int member, int head, int rows) {
      boolean causal = operator.causal();
      double a = operator.a(head);
      double b = operator.b(head);
      double[] deltas = backward.deltas(head);
      kernel.dots(rows, query.omega, valueSum.before, keyValue.v, valueSum.part, alongValues);
      kernel.dots(
          rows,
          query.q,
          gradient,
          keySum.before,
          keyValue.k,
          keySum.part,
          center.k(),
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
        double toCenter = unit * alongCenter[i];
        double constant = a + b * toCenter; // in front of the sums of rows that are centred
        double delta = (b * alongKey + constant * along) / query.g[i];
        double alongSum = delta * unit * alongSums[i];
        double counted = delta * lane.seenBy(token + i, causal);
        // constant · rest + b · product = 0, and the one whose terms cancel less tells the other
        double rest = along - counted;
        double product = alongKey - alongSum;
        double restTerms = Math.abs(constant) * (Math.abs(along) + Math.abs(counted));
        double productTerms = Math.abs(b) * (Math.abs(alongKey) + Math.abs(alongSum));
        if (restTerms > productTerms) {
          rest = -b * product / constant;
        } else if (productTerms > 0) {
          product = -constant * rest / b;
        }
        double alongGradient = alongKey - alongSum + toCenter * rest; // as dq has it
        deltas[token - lane.start() + i] = delta;
        da[member] += rest;
        db[member] += product + toCenter * rest;
        minusDeltas[i] = -delta;
        alongValues[i] = rest;
        alongKeys[i] = operator.normalize() ? -alongGradient * unit : 0;
        scales[i] = b * query.inverseNorms[i];
      }
      kernel.combine(
          rows,
          scales,
          gradient,
          minusDeltas,
          keySum.before,
          keyValue.k,
          alongValues,
          center.k(),
          alongKeys,
          query.q,
          dq.target(lane.batch(), head, token, keyValue.buffer));
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
      float[] unit = new float[d];
      query.q.getRow(row, unit);
      double inverse = Tiles.normalizeRow(unit);
      query.q.setRow(row, unit);
      float[] other = new float[d];
      gradient.getRow(row, other);
      alongKeys[row] = ScalarMatrixKernel.dot(unit, 0, other, 0, d);
      float[] z = keySum.before.clone();
      for (int i = 0; i <= row; i++) {
        keyValue.k.getRow(i, other);
        for (int j = 0; j < d; j++) {
          z[j] += other[j];
        }
      }
      alongSums[row] = ScalarMatrixKernel.dot(unit, 0, z, 0, d);
      alongCenter[row] = ScalarMatrixKernel.dot(unit, 0, center.k(), 0, d);
      return inverse;
    }
  }
}
