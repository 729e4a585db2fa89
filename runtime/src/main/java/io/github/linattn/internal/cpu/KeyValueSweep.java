package io.github.linattn.internal.cpu;

import io.github.linattn.AttentionShape;
import io.github.linattn.internal.Operator;
import io.github.linattn.internal.cpu.MatrixKernel.Part;

/**
 * Second sweep of the backward over one segment, against token order. Per chunk, with R, r, y over
 * all later chunks and summed over the query heads that share the keys:
 *
 * <pre>
 *   dK = V Rᵀ − 1 rᵀ + Σ_heads b Eᵀ Q        dV = K R + 1 yᵀ + Σ_heads Wᵀ Ω
 * </pre>
 */
final class KeyValueSweep {
  private final BackwardPass pass;
  private final Segments.Segment segment;
  private final Lane lane;
  private final Operator operator;
  private final AttentionShape shape;
  private final MatrixKernel kernel;
  private final OuterSum sums;
  private final KeyValueTile keyValue;
  private final QueryTile query;
  private final ReadAhead readAhead;
  private final TensorRows dk;
  private final TensorRows dv;
  private final ChunkWeights chunk;
  private final float[] keyGradientTransposed;
  private final float[] keyGradient;
  private final float[] valueGradient;
  private final double[] minusDeltas = new double[Tiles.CHUNK];
  private final float[] r;
  private final float[] y;

  /**
   * @param sums R, r and y that the segment starts from, see {@link QueryTile#addTo}
   */
  KeyValueSweep(BackwardPass pass, Segments.Segment segment, OuterSum sums) {
    this.pass = pass;
    this.segment = segment;
    this.lane = segment.lane();
    this.operator = pass.operator;
    this.shape = pass.shape;
    this.kernel = pass.kernel;
    this.sums = sums;
    this.keyValue = pass.keyValueTile(lane);
    this.query = new QueryTile(pass);
    this.dk = new TensorRows(pass.gradients.dk());
    this.dv = new TensorRows(pass.gradients.dv());
    this.readAhead =
        new ReadAhead(segment, 2 * keyValue.tokenBytes() + query.tokenBytes(), this::touch);
    this.chunk = new ChunkWeights(pass);
    this.keyGradientTransposed = new float[shape.keyDim() * Tiles.CHUNK];
    this.keyGradient = new float[Tiles.CHUNK * shape.keyDim()];
    this.valueGradient = new float[Tiles.CHUNK * shape.valueDim()];
    this.r = new float[shape.keyDim()];
    this.y = new float[shape.valueDim()];
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
      if (operator.causal() && !queriesAreFinite(end - rows, rows)) {
        rows = 1; // 0 times NaN in a product would carry it to later tokens
      }
      differentiate(end - rows, rows);
    }
    if (segment.isFirst()) {
      pass.gradients
          .initialState()
          .ifPresent(initial -> StateRows.store(keyValue.exchange(sums), initial, lane));
    }
  }

  /** Whether q and Ω of these rows are; where one is not, neither is the δ that it went into. */
  private boolean queriesAreFinite(int token, int rows) {
    for (int head = firstHead(); head < firstHead() + group(); head++) {
      double sum = 0;
      for (int i = token; i < token + rows; i++) {
        sum += pass.deltas(lane, head)[i];
      }
      if (!Double.isFinite(sum)) {
        return false;
      }
    }
    return true;
  }

  private int group() {
    return shape.headsPerKeyValueHead();
  }

  private int firstHead() {
    return lane.keyValueHead() * group();
  }

  private void differentiate(int token, int rows) {
    keyValue.load(token, rows);
    chunk.load(keyValue, rows);
    startFromSums(rows);
    if (operator.causal()) {
      for (int head = firstHead(); head < firstHead() + group(); head++) {
        query.load(lane, head, token, rows, operator.b(head));
        addChunk(head, token, rows);
      }
    }
    if (operator.normalize()) {
      Tiles.normalizeGradient(
          kernel, keyGradient, keyValue.k, keyValue.inverseNorms, rows, shape.keyDim());
    }
    dk.store(lane.batch(), lane.keyValueHead(), token, rows, keyGradient);
    dv.store(lane.batch(), lane.keyValueHead(), token, rows, valueGradient);
  }

  /** dK = V Rᵀ − 1 rᵀ, by way of its transpose, and dV = K R + 1 yᵀ. */
  private void startFromSums(int rows) {
    int d = shape.keyDim();
    int width = shape.valueDim();
    int paddedRows = Tiles.roundUp(rows, MatrixKernel.ROW_STEP);
    int columns = Tiles.roundUp(rows, MatrixKernel.COLUMN_STEP);
    kernel.multiply(
        Part.ALL,
        d,
        columns,
        width,
        sums.matrix,
        width,
        1,
        chunk.valueTransposed(),
        Tiles.CHUNK,
        keyGradientTransposed,
        Tiles.CHUNK,
        false);
    kernel.transpose(d, rows, keyGradientTransposed, Tiles.CHUNK, keyGradient, d);
    Tiles.toFloats(sums.left, r);
    Tiles.addToRows(kernel, keyGradient, rows, -1, r);
    kernel.multiply(
        Part.ALL,
        paddedRows,
        width,
        d,
        keyValue.k,
        d,
        1,
        sums.matrix,
        width,
        valueGradient,
        width,
        false);
    Tiles.toFloats(sums.right, y);
    Tiles.addToRows(kernel, valueGradient, rows, 1, y);
  }

  /** Adds what the chunk's own queries of one head give, then takes them into R, r and y. */
  private void addChunk(int head, int token, int rows) {
    chunk.form(query, operator.a(head), 1, rows);
    double[] deltas = pass.deltas(lane, head);
    for (int i = 0; i < rows; i++) {
      minusDeltas[i] = -deltas[token + i];
    }
    chunk.shift(minusDeltas, rows);
    addTransposedProduct(chunk.weights, query.omega, shape.valueDim(), rows, valueGradient); // Wᵀ Ω
    query.addTo(sums, lane, head, token, rows);
    addTransposedProduct(chunk.gradients, query.q, shape.keyDim(), rows, keyGradient); // b Eᵀ Q
  }

  private void addTransposedProduct(
      float[] lower, float[] tile, int width, int rows, float[] result) {
    int paddedRows = Tiles.roundUp(rows, MatrixKernel.ROW_STEP);
    kernel.multiply(
        Part.LEFT_UPPER,
        paddedRows,
        width,
        rows,
        lower,
        1,
        Tiles.CHUNK,
        tile,
        width,
        result,
        width,
        true);
  }
}
