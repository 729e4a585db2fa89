package io.github.linattn.internal.cpu;

import io.github.linattn.AttentionShape;
import io.github.linattn.internal.Operator;
import io.github.linattn.internal.cpu.MatrixKernel.Order;
import java.util.Arrays;
import org.jspecify.annotations.Nullable;

/**
 * Second sweep of the backward over one segment, against token order. Over the queries that see row
 * n, of all heads that share it, the sums R = Σ b q⊗Ω, r = Σ b δ q and y = Σ a Ω give
 *
 * <pre>
 *   dk_n = v_n Rᵀ − r      dv_n = k_n R + y
 * </pre>
 */
final class KeyValueSweep {
  private final BackwardPass pass;
  private final Segments.Segment segment;
  private final Lane lane;
  private final Operator operator;
  private final AttentionShape shape;
  private final MatrixKernel kernel;
  private final Sums sums;

  /** Of one chunk and a further head that shares its keys; null where there is none. */
  private final @Nullable Sums further;

  private final KeyValueTile keyValue;
  private final QueryTile query;
  private final ReadAhead readAhead;
  private final TensorRows dk;
  private final TensorRows dv;

  /**
   * @param sums R, r and y that the segment starts from
   */
  KeyValueSweep(BackwardLane backward, Segments.Segment segment, OuterSum sums) {
    this.pass = backward.pass;
    this.segment = segment;
    this.lane = segment.lane();
    this.operator = pass.operator;
    this.shape = pass.shape;
    this.kernel = pass.kernel;
    this.sums = new Sums(sums, segment.length());
    this.further =
        shape.headsPerKeyValueHead() == 1
            ? null
            : new Sums(new OuterSum(shape.keyDim(), shape.valueDim()), 0);
    this.keyValue = backward.withCenteredValues();
    this.query = new QueryTile(backward);
    this.dk = new TensorRows(pass.gradients.dk());
    this.dv = new TensorRows(pass.gradients.dv());
    this.readAhead =
        new ReadAhead(segment, 2 * keyValue.tokenBytes() + query.tokenBytes(), this::touch);
  }

  private int touch(int start, int end) {
    int head = lane.keyValueHead();
    int touched =
        keyValue.touch(start, end)
            + dk.touch(lane.batch(), head, 1, start, end)
            + dv.touch(lane.batch(), head, 1, start, end);
    return operator.causal() ? touched + query.touch(lane, start, end) : touched;
  }

  void run() {
    int rows;
    for (int end = segment.end(); end > segment.start(); end -= rows) {
      rows = Math.min(Tiles.CHUNK, end - segment.start());
      readAhead.backward(end - rows, end);
      differentiate(end - rows, rows);
    }
    if (segment.isFirst()) {
      pass.gradients
          .initialState()
          .ifPresent(initial -> StateRows.store(keyValue.exchange(sums.all), initial, lane));
    }
  }

  private void differentiate(int token, int rows) {
    int d = shape.keyDim();
    keyValue.load(token, rows);
    if (operator.causal()) {
      int group = shape.headsPerKeyValueHead();
      int head = lane.keyValueHead() * group;
      sums.takeIn(head, token, rows);
      sums.growing.addRows(rows, query.q, query.omega);
      if (further != null) {
        for (int member = 1; member < group; member++) {
          further.clear();
          further.takeIn(head + member, token, rows);
          sums.add(further, rows);
          sums.growing.addRows(rows, query.q, query.omega);
        }
      }
      sums.passed(rows);
    } else {
      sums.giveWhole(rows);
    }
    if (operator.normalize()) {
      Tiles.normalizeGradient(kernel, sums.dk, keyValue.k, keyValue.inverseNorms, rows, d);
    }
    dk.store(lane.batch(), lane.keyValueHead(), token, rows, sums.dk);
    dv.store(lane.batch(), lane.keyValueHead(), token, rows, sums.dv);
  }

  /** R, r and y over queries, and what they give the rows of a chunk. */
  private final class Sums {
    final OuterSum all;
    final GrowingState growing;

    /** Rᵀ: dk and dv want rows of R of their own. */
    final float[] transposed;

    private final RunningSum r;
    private final RunningSum y;
    final float[] dk = new float[Tiles.CHUNK * shape.keyDim()];
    final float[] dv = new float[Tiles.CHUNK * shape.valueDim()];

    Sums(OuterSum all, int tokens) {
      this.all = all;
      this.growing = new GrowingState(kernel, all, tokens);
      this.transposed = all.transposed().matrix;
      this.r = new RunningSum(kernel, all.left);
      this.y = new RunningSum(kernel, all.right);
    }

    void clear() {
      all.clear();
      Arrays.fill(transposed, 0);
    }

    /** Gives dk and dv of the chunk while it takes in the chunk's queries of a head. */
    void takeIn(int head, int token, int rows) {
      int d = shape.keyDim();
      int width = shape.valueDim();
      query.loadWeighted(lane, head, token, rows);
      query.weigh(lane, head, token, rows);
      r.accumulate(rows, Order.BACKWARD, query.delta, query.q, -1, dk);
      y.accumulate(rows, Order.BACKWARD, query.a, query.omega, 1, dv);
      kernel.recur(
          rows,
          Order.BACKWARD,
          width,
          d,
          query.omega,
          query.q,
          keyValue.v,
          transposed,
          transposed,
          dk);
      kernel.recur(
          rows,
          Order.BACKWARD,
          d,
          width,
          query.q,
          query.omega,
          keyValue.k,
          growing.matrix(),
          growing.matrix(),
          dv);
    }

    /** Gives dk and dv of a chunk that all queries see. */
    void giveWhole(int rows) {
      int d = shape.keyDim();
      int width = shape.valueDim();
      int paddedRows = Tiles.roundUp(rows, MatrixKernel.ROW_STEP);
      float[] keyPart = new float[d];
      float[] valuePart = new float[width];
      Tiles.toFloats(all.left, keyPart);
      Tiles.toFloats(all.right, valuePart);
      kernel.multiply(paddedRows, d, width, keyValue.v, transposed, dk);
      kernel.addRows(rows, d, -1, keyPart, 0, dk);
      kernel.multiply(paddedRows, width, d, keyValue.k, all.matrix, dv);
      kernel.addRows(rows, width, 1, valuePart, 0, dv);
    }

    /** After the chunk's queries of all heads. */
    void passed(int tokens) {
      if (growing.passed(tokens)) {
        System.arraycopy(all.transposed().matrix, 0, transposed, 0, transposed.length);
      }
    }

    /** Adds sums over other queries and what they gave. */
    void add(Sums other, int rows) {
      all.addSides(other.all);
      for (int i = 0; i < transposed.length; i++) {
        growing.matrix()[i] += other.growing.matrix()[i];
      }
      for (int i = 0; i < transposed.length; i++) {
        transposed[i] += other.transposed[i];
      }
      kernel.addRows(rows, shape.keyDim(), 1, other.dk, shape.keyDim(), dk);
      kernel.addRows(rows, shape.valueDim(), 1, other.dv, shape.valueDim(), dv);
    }
  }
}
