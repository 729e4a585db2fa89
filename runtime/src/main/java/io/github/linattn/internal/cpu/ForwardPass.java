package io.github.linattn.internal.cpu;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.AttentionState;
import io.github.linattn.internal.ForwardCall;
import io.github.linattn.internal.Operator;
import io.github.linattn.internal.cpu.MatrixKernel.Order;
import java.util.Arrays;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Forward of one call: with the sums S, z, u and the count c over the tokens that row i sees, its
 * own among them,
 *
 * <pre>
 *   g_i = a c + b q_i·z      o_i = (b q_i S + a u)/g_i
 * </pre>
 *
 * where causal sums grow token by token and others are over the whole sequence. The paper's
 * equations for its linear time and memory.
 */
final class ForwardPass {
  private final Operator operator;
  private final AttentionInput input;
  private final AttentionShape shape;
  private final MatrixKernel kernel;
  private final Parallel parallel;
  private final TensorRows q;
  private final TensorRows o;
  private final TensorRows g;
  private final @Nullable AttentionState finalState;

  ForwardPass(ForwardCall call, MatrixKernel kernel, Parallel parallel) {
    this.operator = call.operator();
    this.input = call.input();
    this.shape = input.shape();
    this.kernel = kernel;
    this.parallel = parallel;
    this.q = new TensorRows(input.q());
    this.o = new TensorRows(call.output());
    this.g = new TensorRows(call.normalizer());
    this.finalState = call.finalState();
  }

  void run() {
    Segments.forEachLane(input, parallel, (index, lane) -> run(lane));
  }

  private void run(Segments segments) {
    List<OuterSum> starts =
        segments.starts(
            operator.causal() ? Segments.Start.BEFORE : Segments.Start.WHOLE,
            () -> StateRows.initial(input, segments.lane()),
            segment -> KeyValueTile.of(kernel, operator, input, segment.lane()).sumOver(segment));
    segments.forEach(i -> new Sweep(segments.get(i), starts.get(i)).run());
  }

  /** One segment; owns its tiles. */
  private final class Sweep {
    private final Segments.Segment segment;
    private final Lane lane;
    private final OuterSum state;
    private final GrowingState growing;
    private final KeyValueTile keyValue;

    /** b Q. */
    private final float[] query = new float[Tiles.CHUNK * shape.keyDim()];

    private final float[] output = new float[Tiles.CHUNK * shape.valueDim()];
    private final float[] normalizer = new float[Tiles.CHUNK];
    private final double[] inverses = new double[Tiles.CHUNK];
    private final double[] alongKeys = new double[Tiles.CHUNK];
    private final ReadAhead readAhead;
    private final RunningSum keySum;
    private final RunningSum valueSum;

    /** Row i of either is what row i of the chunk sees; without causality all see the first. */
    private final float[] z = new float[Tiles.CHUNK * shape.keyDim()];

    private final float[] u = new float[Tiles.CHUNK * shape.valueDim()];

    /** Takes S after the chunk from all but the last of the heads that share it. */
    private final float[] discarded;

    Sweep(Segments.Segment segment, OuterSum state) {
      this.segment = segment;
      this.lane = segment.lane();
      this.state = state;
      this.growing = new GrowingState(kernel, state, segment.length());
      this.keyValue = KeyValueTile.of(kernel, operator, input, lane);
      this.keySum = new RunningSum(kernel, state.left);
      this.valueSum = new RunningSum(kernel, state.right);
      int heads = shape.headsPerKeyValueHead();
      this.discarded = new float[heads > 1 ? state.matrix.length : 0];
      long tokenBytes = keyValue.tokenBytes() + q.tokenBytes(heads) + o.tokenBytes(heads);
      this.readAhead = new ReadAhead(segment, tokenBytes, this::touch);
    }

    private int touch(int start, int end) {
      int heads = shape.headsPerKeyValueHead();
      int first = lane.keyValueHead() * heads;
      int touched =
          q.touch(lane.batch(), first, heads, start, end)
              + o.touch(lane.batch(), first, heads, start, end);
      return operator.causal() ? touched + keyValue.touch(start, end) : touched;
    }

    void run() {
      if (!operator.causal()) {
        Tiles.toFloats(state.left, z);
        Tiles.toFloats(state.right, u);
      }
      for (int token = segment.start(); token < segment.end(); token += Tiles.CHUNK) {
        int rows = Math.min(Tiles.CHUNK, segment.end() - token);
        readAhead.forward(token, token + rows);
        if (operator.causal()) {
          keyValue.load(token, rows);
          keySum.accumulate(rows, Order.FORWARD, KeyValueTile.ONES, keyValue.k, 1, z);
          valueSum.accumulate(rows, Order.FORWARD, KeyValueTile.ONES, keyValue.v, 1, u);
        }
        int group = shape.headsPerKeyValueHead();
        for (int member = 0; member < group; member++) {
          attend(member, token, rows);
        }
        if (operator.causal()) {
          growing.addRows(rows, keyValue.k, keyValue.v);
          growing.passed(rows);
        }
      }
      if (finalState != null && segment.isLast()) {
        StateRows.store(state, finalState, lane);
      }
    }

    private void attend(int member, int token, int rows) {
      int group = shape.headsPerKeyValueHead();
      int head = lane.keyValueHead() * group + member;
      int d = shape.keyDim();
      int dv = shape.valueDim();
      boolean causal = operator.causal();
      q.load(lane.batch(), head, token, rows, query);
      if (operator.normalize()) {
        Tiles.normalize(kernel, query, rows, d, operator.b(head), inverses);
      } else if (operator.b(head) != 1) {
        kernel.scaleRows(rows, d, Tiles.repeated(operator.b(head), rows), query);
      }
      if (causal) {
        Arrays.fill(output, 0);
        kernel.recur(
            rows,
            Order.FORWARD,
            d,
            dv,
            keyValue.k,
            keyValue.v,
            query,
            growing.matrix(),
            member == group - 1 ? growing.matrix() : discarded,
            output);
      } else {
        int paddedRows = Tiles.roundUp(rows, MatrixKernel.ROW_STEP);
        kernel.multiply(paddedRows, dv, d, query, state.matrix, output);
      }
      kernel.dots(rows, d, query, z, causal ? d : 0, alongKeys);
      for (int i = 0; i < rows; i++) {
        normalizer[i] =
            (float) (operator.a(head) * (double) lane.seenBy(token + i, causal) + alongKeys[i]);
        inverses[i] = 1.0 / normalizer[i];
      }
      double[] a = Tiles.repeated(operator.a(head), rows);
      kernel.combineRows(rows, dv, inverses, output, a, u, causal ? dv : 0);
      o.store(lane.batch(), head, token, rows, output);
      g.store(lane.batch(), head, token, rows, normalizer);
    }
  }
}
