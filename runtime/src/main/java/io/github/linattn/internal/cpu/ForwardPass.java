package io.github.linattn.internal.cpu;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.AttentionState;
import io.github.linattn.internal.ForwardCall;
import io.github.linattn.internal.Operator;
import io.github.linattn.internal.cpu.MatrixKernel.Part;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Forward of one call. With the prefix sums S, z, u and count c over all earlier chunks, a chunk's
 * rows Q, K, V give
 *
 * <pre>
 *   W = T∘(a + b Q Kᵀ)    g = W 1 + b Q z + a c    O = (W V + b Q S + a 1 uᵀ) / g
 * </pre>
 *
 * where T keeps n ≤ i; without causality S, z, u, c are over the whole sequence and W is absent.
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
    Segments.waves(input, parallel).forEach(this::run);
  }

  private void run(Segments wave) {
    List<OuterSum> starts =
        wave.starts(
            operator.causal() ? Segments.Start.BEFORE : Segments.Start.WHOLE,
            StateRows.initial(input.initialState(), shape.keyDim(), shape.valueDim()),
            segment -> KeyValueTile.of(kernel, operator, input, segment.lane()).sumOver(segment));
    wave.forEach(i -> new Sweep(wave.get(i), starts.get(i)).run());
  }

  /** One segment; owns its tiles. */
  private final class Sweep {
    private final Segments.Segment segment;
    private final Lane lane;
    private final OuterSum state;
    private final KeyValueTile keyValue;

    /** b Q. */
    private final float[] query = new float[Tiles.CHUNK * shape.keyDim()];

    private final float[] keyTransposed = new float[shape.keyDim() * Tiles.CHUNK];
    private final float[] weights = new float[Tiles.CHUNK * Tiles.CHUNK];
    private final double[] weightSums = new double[Tiles.CHUNK]; // zeros unless causal
    private final float[] output = new float[Tiles.CHUNK * shape.valueDim()];
    private final float[] normalizer = new float[Tiles.CHUNK];
    private final double[] inverses = new double[Tiles.CHUNK];
    private final double[] alongKeys = new double[Tiles.CHUNK];
    private final ReadAhead readAhead;
    private final float[] z = new float[shape.keyDim()];
    private final float[] u = new float[shape.valueDim()];

    Sweep(Segments.Segment segment, OuterSum state) {
      this.segment = segment;
      this.lane = segment.lane();
      this.state = state;
      this.keyValue = KeyValueTile.of(kernel, operator, input, lane);
      int heads = shape.headsPerKeyValueHead();
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
      int rows;
      for (int token = segment.start(); token < segment.end(); token += rows) {
        rows = Math.min(Tiles.CHUNK, segment.end() - token);
        readAhead.forward(token, token + rows);
        if (operator.causal()) {
          rows = keyValue.loadSafely(token, rows);
          kernel.transpose(
              rows, shape.keyDim(), keyValue.k, shape.keyDim(), keyTransposed, Tiles.CHUNK);
        }
        Tiles.toFloats(state.left, z);
        Tiles.toFloats(state.right, u);
        int group = shape.headsPerKeyValueHead();
        for (int member = 0; member < group; member++) {
          attend(lane.keyValueHead() * group + member, token, rows);
        }
        if (operator.causal()) {
          keyValue.addTo(state, rows);
        }
      }
      if (finalState != null && segment.isLast()) {
        StateRows.store(state, finalState, lane);
      }
    }

    private void attend(int head, int token, int rows) {
      int d = shape.keyDim();
      int dv = shape.valueDim();
      int paddedRows = Tiles.roundUp(rows, MatrixKernel.ROW_STEP);
      q.load(lane.batch(), head, token, rows, query);
      if (operator.normalize()) {
        Tiles.normalize(kernel, query, rows, d, operator.b(head), inverses);
      } else if (operator.b(head) != 1) {
        kernel.scaleRows(rows, d, Tiles.repeated(operator.b(head), rows), query);
      }
      kernel.multiply(
          Part.ALL, paddedRows, dv, d, query, d, 1, state.matrix, dv, output, dv, false);
      if (operator.causal()) {
        addChunk(operator.a(head), rows);
      }
      double seen = operator.causal() ? lane.seenBefore(token) : lane.length();
      kernel.dots(rows, d, false, query, d, z, 0, alongKeys);
      for (int i = 0; i < rows; i++) {
        normalizer[i] = (float) (operator.a(head) * seen + alongKeys[i] + weightSums[i]);
        inverses[i] = 1.0 / normalizer[i];
      }
      double[] a = Tiles.repeated(operator.a(head), rows);
      kernel.combineRows(rows, dv, inverses, output, a, u, 0);
      o.store(lane.batch(), head, token, rows, output);
      g.store(lane.batch(), head, token, rows, normalizer);
    }

    /** W = T∘(a 1 1ᵀ + b Q Kᵀ) with its row sums, output += W V. */
    private void addChunk(float a, int rows) {
      int dv = shape.valueDim();
      int chunk = Tiles.CHUNK;
      Tiles.multiplyLower(kernel, query, shape.keyDim(), keyTransposed, rows, weights);
      kernel.lower(rows, 1, Tiles.repeated(a, rows), weights, chunk, weightSums);
      kernel.multiply(
          Part.LEFT_LOWER,
          Tiles.roundUp(rows, MatrixKernel.ROW_STEP),
          dv,
          rows,
          weights,
          chunk,
          1,
          keyValue.v,
          dv,
          output,
          dv,
          true);
    }
  }
}
