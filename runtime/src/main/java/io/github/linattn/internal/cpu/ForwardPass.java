package io.github.linattn.internal.cpu;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.AttentionState;
import io.github.linattn.internal.ForwardCall;
import io.github.linattn.internal.Operator;
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
            segment -> KeyValueTile.of(operator, input, segment.lane()).sumOver(segment, kernel));
    wave.forEach(i -> new Sweep(wave.get(i), starts.get(i)).run());
  }

  /** One segment; owns its tiles. */
  private final class Sweep {
    private final Segments.Segment segment;
    private final Lane lane;
    private final OuterSum state;
    private final KeyValueTile keyValue;
    private final float[] query = new float[Tiles.CHUNK * shape.keyDim()];
    private final float[] keyTransposed = new float[shape.keyDim() * Tiles.CHUNK];
    private final float[] weights = new float[Tiles.CHUNK * Tiles.CHUNK];
    private final double[] weightSums = new double[Tiles.CHUNK]; // zeros unless causal
    private final float[] output = new float[Tiles.CHUNK * shape.valueDim()];
    private final float[] normalizer = new float[Tiles.CHUNK];
    private final double[] norms = new double[Tiles.CHUNK];
    private final float[] z = new float[shape.keyDim()];

    Sweep(Segments.Segment segment, OuterSum state) {
      this.segment = segment;
      this.lane = segment.lane();
      this.state = state;
      this.keyValue = KeyValueTile.of(operator, input, lane);
    }

    void run() {
      int rows;
      for (int token = segment.start(); token < segment.end(); token += rows) {
        rows = Math.min(Tiles.CHUNK, segment.end() - token);
        if (operator.causal()) {
          rows = keyValue.loadSafely(token, rows);
          Tiles.transpose(keyValue.k, rows, shape.keyDim(), keyTransposed);
        }
        Tiles.toFloats(state.left, z);
        int group = shape.headsPerKeyValueHead();
        for (int member = 0; member < group; member++) {
          attend(lane.keyValueHead() * group + member, token, rows);
        }
        if (operator.causal()) {
          keyValue.addTo(state, kernel, rows);
        }
      }
      if (finalState != null && segment.isLast()) {
        StateRows.store(state, finalState, lane);
      }
    }

    private void attend(int head, int token, int rows) {
      q.load(lane.batch(), head, token, rows, query);
      if (operator.normalize()) {
        Tiles.normalize(query, rows, shape.keyDim(), norms);
      }
      addPrefix(head, rows);
      if (operator.causal()) {
        addChunk(head, rows);
      }
      double seen = operator.causal() ? lane.seenBefore(token) : lane.length();
      for (int i = 0; i < rows; i++) {
        double alongKeys = kernel.dot(shape.keyDim(), query, i * shape.keyDim(), z);
        double prefix = operator.a(head) * seen + operator.b(head) * alongKeys;
        normalizer[i] = (float) (prefix + weightSums[i]);
      }
      divideByNormalizer(rows);
      o.store(lane.batch(), head, token, rows, output);
      g.store(lane.batch(), head, token, rows, normalizer);
    }

    /** output = b Q S + a 1 uᵀ. */
    private void addPrefix(int head, int rows) {
      int d = shape.keyDim();
      int dv = shape.valueDim();
      int paddedRows = Tiles.roundUp(rows, MatrixKernel.ROW_STEP);
      kernel.multiply(paddedRows, dv, d, query, d, 1, state.matrix, dv, output, dv, false);
      float a = operator.a(head);
      float b = operator.b(head);
      for (int i = 0; i < rows; i++) {
        for (int j = 0; j < dv; j++) {
          output[i * dv + j] = b * output[i * dv + j] + (float) (a * state.right[j]);
        }
      }
    }

    /** weights = W with its row sums, output += W V. */
    private void addChunk(int head, int rows) {
      int d = shape.keyDim();
      int dv = shape.valueDim();
      int chunk = Tiles.CHUNK;
      int paddedRows = Tiles.roundUp(rows, MatrixKernel.ROW_STEP);
      int columns = Tiles.roundUp(rows, MatrixKernel.COLUMN_STEP);
      kernel.multiply(
          paddedRows, columns, d, query, d, 1, keyTransposed, chunk, weights, chunk, false);
      Tiles.causalWeights(weights, rows, operator.a(head), operator.b(head), weightSums);
      kernel.multiply(paddedRows, dv, rows, weights, chunk, 1, keyValue.v, dv, output, dv, true);
    }

    private void divideByNormalizer(int rows) {
      int dv = shape.valueDim();
      for (int i = 0; i < rows; i++) {
        for (int j = 0; j < dv; j++) {
          output[i * dv + j] /= normalizer[i];
        }
      }
    }
  }
}
