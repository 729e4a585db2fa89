package io.github.linattn.internal.cpu;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.AttentionState;
import io.github.linattn.internal.ForwardCall;
import io.github.linattn.internal.Operator;
import io.github.linattn.internal.cpu.MatrixKernel.Order;
import java.util.Arrays;
import java.util.List;
import java.util.stream.IntStream;
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
  private final Parallel parallel;
  private final TensorRows q;
  private final TensorRows o;
  private final TensorRows g;
  private final @Nullable AttentionState finalState;

  ForwardPass(ForwardCall call, Parallel parallel) {
    this.operator = call.operator();
    this.input = call.input();
    this.shape = input.shape();
    this.parallel = parallel;
    this.q = new TensorRows(input.q());
    this.o = new TensorRows(call.output());
    this.g = new TensorRows(call.normalizer());
    this.finalState = call.finalState();
  }

  void run() {
    Segments.forEachLane(input, parallel, 1, (index, lane, scratch) -> begin(lane, scratch));
  }

  private Segments.LaneWork begin(Segments segments, Scratch scratch) {
    List<OuterSum> starts =
        segments.starts(
            operator.causal() ? Segments.Start.BEFORE : Segments.Start.WHOLE,
            () -> StateRows.initial(input, segments.lane()),
            scratch,
            (segment, free) ->
                KeyValueTile.of(operator, input, segment.lane(), free).sumOver(segment));
    List<Sweep> sweeps =
        IntStream.range(0, segments.count())
            .mapToObj(i -> new Sweep(segments.get(i), starts.get(i)))
            .toList();
    int tokens = segments.stepTokens();
    return (step, free) ->
        segments.forEach(free, (i, tiles) -> sweeps.get(i).advance(tokens, tiles));
  }

  /** One segment. */
  private final class Sweep {
    private final Segments.Segment segment;
    private final Lane lane;
    private final OuterSum state;
    private final GrowingState growing;

    /** The first one that is still to be done. */
    private int token;

    Sweep(Segments.Segment segment, OuterSum state) {
      this.segment = segment;
      this.lane = segment.lane();
      this.state = state;
      this.growing = new GrowingState(operator.mode(), state, segment.length());
      this.token = segment.start();
    }

    /** Writes o and g of the next tokens. */
    void advance(int tokens, Scratch scratch) {
      new Step(scratch).run(segment.endOf(token, tokens));
      if (finalState != null && token == segment.end() && segment.isLast()) {
        StateRows.store(state, finalState, lane);
      }
    }

    /** Tiles for some tokens in a row. */
    private final class Step {
      private final MatrixKernel kernel;

      /** Stays zeros without causality: then every row sees what the first one does. */
      private final KeyValueTile keyValue;

      /** b Q. */
      private final Panels query;

      private final Panels output;

      private final RowBuffer buffer;

      private final float[] zeros = new float[shape.keyDim()];
      private final double[] factors = new double[Tiles.CHUNK];
      private final float[] normalizer = new float[Tiles.CHUNK];
      private final double[] inverses = new double[Tiles.CHUNK];
      private final double[] alongKeys = new double[Tiles.CHUNK];
      private final RunningSum keySum;
      private final RunningSum valueSum;
      private final Upcoming upcoming = new Upcoming();

      /** Takes S after the chunk from all but the last of the heads that share it. */
      private final @Nullable Panels discarded;

      Step(Scratch scratch) {
        this.kernel = scratch.kernel;
        this.keyValue = KeyValueTile.of(operator, input, lane, scratch);
        this.query = scratch.panels(Tiles.CHUNK, shape.keyDim());
        this.output = scratch.panels(Tiles.CHUNK, shape.valueDim());
        this.buffer = keyValue.buffer;
        this.keySum = new RunningSum(kernel, state.left);
        this.valueSum = new RunningSum(kernel, state.right);
        int heads = shape.headsPerKeyValueHead();
        this.discarded = heads > 1 ? scratch.panels(shape.keyDim(), shape.valueDim()) : null;
      }

      void run(int end) {
        if (!operator.causal()) {
          keyValue.clear();
        }
        int count;
        for (; token < end; token += count) {
          count = Math.min(Tiles.CHUNK, end - token);
          if (operator.causal()) {
            keyValue.load(token, count);
          }
          keySum.begin();
          valueSum.begin();
          int group = shape.headsPerKeyValueHead();
          for (int member = 0; member < group; member++) {
            attend(member, count);
          }
          if (operator.causal()) {
            keySum.end();
            valueSum.end();
            growing.addRows(kernel, count, keyValue.k, keyValue.v);
            growing.passed(kernel, count);
          }
        }
      }

      private void attend(int member, int count) {
        int group = shape.headsPerKeyValueHead();
        int head = lane.keyValueHead() * group + member;
        boolean causal = operator.causal();
        load(head, count);
        if (causal) {
          Panels after = discarded == null || member == group - 1 ? growing.matrix() : discarded;
          output.clear();
          announce(member, count);
          kernel.recur(
              count, keyValue.k, keyValue.v, query, growing.matrix(), after, output, upcoming);
        } else {
          kernel.multiply(Tiles.roundUp(count, MatrixKernel.ROW_STEP), query, state.matrix, output);
        }
        kernel.dots(count, query, keySum.before, keyValue.k, keySum.part, alongKeys);
        for (int i = 0; i < count; i++) {
          normalizer[i] =
              (float) (operator.a(head) * (double) lane.seenBy(token + i, causal) + alongKeys[i]);
          inverses[i] = 1.0 / normalizer[i];
        }
        Arrays.fill(factors, operator.a(head));
        kernel.combine(
            count,
            inverses,
            output,
            factors,
            valueSum.before,
            keyValue.v,
            valueSum.part,
            o.target(lane.batch(), head, token, buffer));
        o.store(lane.batch(), head, token, count, buffer);
        g.store(lane.batch(), head, token, count, normalizer);
      }

      /** What is stored after the recurrence, and what is loaded then. */
      private void announce(int member, int count) {
        int group = shape.headsPerKeyValueHead();
        int firstHead = lane.keyValueHead() * group;
        upcoming.clear();
        o.announce(lane.batch(), firstHead + member, token, count, upcoming);
        if (member < group - 1) {
          q.announce(lane.batch(), firstHead + member + 1, token, count, upcoming);
        } else {
          int next = token + count;
          int rows = Math.min(Tiles.CHUNK, segment.end() - next);
          keyValue.announce(next, rows, upcoming);
          q.announce(lane.batch(), firstHead, next, rows, upcoming);
        }
      }

      private void load(int head, int count) {
        float b = operator.b(head);
        Rows rows = q.load(lane.batch(), head, token, count, buffer);
        if (operator.normalize()) {
          Tiles.findInverseNorms(kernel, count, shape.keyDim(), rows, factors);
          for (int i = 0; i < count; i++) {
            factors[i] *= b;
          }
          kernel.pack(count, Order.FORWARD, factors, rows, zeros, query);
        } else if (b == 1) {
          kernel.pack(count, Order.FORWARD, rows, zeros, query);
        } else {
          Arrays.fill(factors, b);
          kernel.pack(count, Order.FORWARD, factors, rows, zeros, query);
        }
      }
    }
  }
}
