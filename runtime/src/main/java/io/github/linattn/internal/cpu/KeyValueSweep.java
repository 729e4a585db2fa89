package io.github.linattn.internal.cpu;

import io.github.linattn.AttentionShape;
import io.github.linattn.StateGradient;
import io.github.linattn.internal.Operator;
import io.github.linattn.internal.cpu.MatrixKernel.Order;
import java.util.Objects;
import org.jspecify.annotations.Nullable;

/**
 * Second sweep of the backward over one segment, against token order. Over the queries that see row
 * n, of all heads that share it, the sums R = Σ b q⊗Ω, r = Σ b δ q and y = Σ a Ω give
 *
 * <pre>
 *   dk_n = v_n Rᵀ − r      dv_n = k_n R + y
 * </pre>
 *
 * <p>v lacks what it lacked in the first sweep, and r moves from one such centre to the one before.
 */
final class KeyValueSweep {
  private final BackwardLane backward;
  private final BackwardPass pass;
  private final Segments.Segment segment;
  private final Lane lane;
  private final Operator operator;
  private final AttentionShape shape;
  private final TensorRows dk;
  private final TensorRows dv;
  private final OuterSum sums;
  private final GrowingState growing;

  /** What v lacks in r. */
  private Center center;

  /** Rᵀ where R does not grow. */
  private final @Nullable Panels transposed;

  /** One past the last token that is still to be done. */
  private int end;

  /**
   * @param sums R, r and y that the segment starts from
   * @param center what v lacks in them
   */
  KeyValueSweep(BackwardLane backward, Segments.Segment segment, OuterSum sums, Center center) {
    this.backward = backward;
    this.pass = backward.pass;
    this.segment = segment;
    this.lane = segment.lane();
    this.operator = pass.operator;
    this.shape = pass.shape;
    this.dk = new TensorRows(pass.gradients.dk());
    this.dv = new TensorRows(pass.gradients.dv());
    this.sums = sums;
    this.center = center;
    this.growing = new GrowingState(operator.mode(), sums, segment.length());
    this.transposed = operator.causal() ? null : sums.transposed().matrix;
    this.end = segment.end();
  }

  /** Writes dk and dv of the tokens before those that are done. */
  void advance(int tokens, Scratch scratch) {
    new Step(scratch).run(Math.max(end - tokens, segment.start()));
    if (end == segment.start() && segment.isFirst()) {
      pass.gradients.initialState().ifPresent(initial -> store(initial, scratch));
    }
  }

  private void store(StateGradient initial, Scratch scratch) {
    OuterSum own = operator.causal() ? sums : sums.copy(); // other segments read those of a lane
    StateRows.store(center.exchange(scratch.kernel, own), initial, lane);
  }

  /** Tiles for some tokens in a row. */
  private final class Step {
    private final MatrixKernel kernel;
    private final Results results;

    /** Of a further head that shares its keys with the first; null where there is none. */
    private final @Nullable Results further;

    private final KeyValueTile keyValue;
    private final QueryTile query;
    private final Upcoming upcoming = new Upcoming();
    private final double[] along = new double[Tiles.CHUNK];

    Step(Scratch scratch) {
      this.kernel = scratch.kernel;
      this.keyValue = backward.withCenteredValues(center, scratch);
      this.query = new QueryTile(backward, Order.BACKWARD, scratch);
      this.results = new Results(sums, growing, scratch);
      this.further =
          operator.causal() && shape.headsPerKeyValueHead() > 1 ? ofOneHead(scratch) : null;
    }

    private Results ofOneHead(Scratch scratch) {
      OuterSum own = new OuterSum(shape.keyDim(), shape.valueDim());
      return new Results(own, new GrowingState(operator.mode(), own, 0), scratch);
    }

    void run(int start) {
      while (end > start) {
        moveCenter(backward.centers().at(end - 1));
        int first = Math.max(start, backward.centers().stretchStart(end - 1));
        int rows = Math.min(Tiles.CHUNK, end - first);
        end -= rows;
        differentiate(end, rows);
      }
    }

    private void moveCenter(Center to) {
      center.exchange(kernel, sums, to);
      center = to;
      keyValue.moveTo(to.ofValues());
    }

    private void differentiate(int token, int rows) {
      keyValue.load(token, rows);
      if (operator.causal()) {
        int group = shape.headsPerKeyValueHead();
        int head = lane.keyValueHead() * group;
        query.loadWeighted(lane, head, token, rows);
        announce(0, token, rows);
        results.takeIn(rows);
        growing.addRows(kernel, rows, query.q, query.omega);
        if (further != null) {
          for (int member = 1; member < group; member++) {
            query.loadWeighted(lane, head + member, token, rows);
            announce(member, token, rows);
            further.all.clear();
            further.takeIn(rows);
            results.add(further);
            growing.addRows(kernel, rows, query.q, query.omega);
          }
        }
        growing.passed(kernel, rows);
      } else {
        results.giveWhole(rows);
      }
      store(token, rows);
    }

    /** What is stored after the last recurrence of a chunk, and what is loaded after each. */
    private void announce(int member, int token, int rows) {
      int group = shape.headsPerKeyValueHead();
      int firstHead = lane.keyValueHead() * group;
      upcoming.clear();
      if (member < group - 1) {
        query.announce(lane, firstHead + member + 1, token, rows, upcoming);
      } else {
        dk.announce(lane.batch(), lane.keyValueHead(), token, rows, upcoming);
        dv.announce(lane.batch(), lane.keyValueHead(), token, rows, upcoming);
        int count = Math.min(Tiles.CHUNK, token - segment.start());
        keyValue.announce(token - count, count, upcoming);
        query.announce(lane, firstHead, token - count, count, upcoming);
      }
    }

    private void store(int token, int rows) {
      int batch = lane.batch();
      int head = lane.keyValueHead();
      RowBuffer buffer = keyValue.buffer;
      Rows target = dk.target(batch, head, token, buffer);
      if (operator.normalize()) {
        unpackRaw(rows, target);
      } else {
        kernel.unpack(rows, Order.BACKWARD, results.dk, target);
      }
      dk.store(batch, head, token, rows, buffer);
      kernel.unpack(rows, Order.BACKWARD, results.dv, dv.target(batch, head, token, buffer));
      dv.store(batch, head, token, rows, buffer);
    }

    /**
     * Unpacks dk, made into gradients of raw rows: dk = (dk̂ − k̂(k̂·dk̂))/|k|, and 0 where |k| =
     * 0.
     */
    private void unpackRaw(int rows, Rows target) {
      kernel.dots(rows, keyValue.k, results.dk, along);
      for (int i = 0; i < rows; i++) {
        along[i] = -along[i];
      }
      kernel.combine(
          rows, Order.BACKWARD, keyValue.inverseNorms, results.dk, along, keyValue.k, target);
    }

    /** What sums over queries give the rows of a chunk. */
    private final class Results {
      final OuterSum all;
      final GrowingState growing;

      private final RunningSum r;
      private final RunningSum y;
      final Panels dk;
      final Panels dv;

      Results(OuterSum all, GrowingState growing, Scratch scratch) {
        this.all = all;
        this.growing = growing;
        this.dk = scratch.panels(Tiles.CHUNK, shape.keyDim());
        this.dv = scratch.panels(Tiles.CHUNK, shape.valueDim());
        this.r = new RunningSum(kernel, all.left);
        this.y = new RunningSum(kernel, all.right);
      }

      /** Gives dk and dv of the chunk while it takes in the queries that are loaded. */
      void takeIn(int rows) {
        r.accumulate(rows, query.delta, query.q, -1, dk);
        y.accumulate(rows, query.a, query.omega, 1, dv);
        kernel.recurBoth(
            rows, query.q, query.omega, keyValue.k, keyValue.v, growing.matrix(), dv, dk, upcoming);
      }

      /** Gives dk and dv of a chunk that all queries see. */
      void giveWhole(int rows) {
        int paddedRows = Tiles.roundUp(rows, MatrixKernel.ROW_STEP);
        kernel.multiply(paddedRows, keyValue.v, Objects.requireNonNull(transposed), dk);
        kernel.addRow(rows, -1, Tiles.toFloats(all.left), dk);
        kernel.multiply(paddedRows, keyValue.k, all.matrix, dv);
        kernel.addRow(rows, 1, Tiles.toFloats(all.right), dv);
      }

      /** Adds sums over other queries and what they gave. */
      void add(Results other) {
        all.addSides(other.all);
        growing.matrix().add(other.growing.matrix());
        dk.add(other.dk);
        dv.add(other.dv);
      }
    }
  }
}
