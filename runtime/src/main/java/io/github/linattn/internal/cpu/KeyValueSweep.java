package io.github.linattn.internal.cpu;

import io.github.linattn.AttentionShape;
import io.github.linattn.internal.Operator;

/**
 * Second sweep of the backward over one segment, against token order. Per chunk, with R, r, y over
 * all later chunks and summed over the query heads that share the keys:
 *
 * <pre>
 *   dK = V Rᵀ − 1 rᵀ + Σ_heads b Eᵀ Q        dV = K R + 1 yᵀ + Σ_heads Wᵀ Ω
 * </pre>
 *
 * dK is formed transposed, so that R and E are read as they lie.
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
  private final TensorRows dk;
  private final TensorRows dv;
  private final ChunkWeights chunk;
  private final float[] keyGradientTransposed;
  private final float[] keyGradient;
  private final float[] valueGradient;

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
    this.chunk = new ChunkWeights(pass);
    this.keyGradientTransposed = new float[shape.keyDim() * Tiles.CHUNK];
    this.keyGradient = new float[Tiles.CHUNK * shape.keyDim()];
    this.valueGradient = new float[Tiles.CHUNK * shape.valueDim()];
  }

  void run() {
    int rows;
    for (int end = segment.end(); end > segment.start(); end -= rows) {
      rows = Math.min(Tiles.CHUNK, end - segment.start());
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

  private boolean queriesAreFinite(int token, int rows) {
    for (int head = firstHead(); head < firstHead() + group(); head++) {
      query.load(lane, head, token, rows);
      if (!query.isFinite(rows)) {
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
        query.load(lane, head, token, rows);
        addChunk(head, token, rows);
      }
    }
    Tiles.transposeBack(keyGradientTransposed, rows, shape.keyDim(), keyGradient);
    if (operator.normalize()) {
      Tiles.normalizeGradient(keyGradient, keyValue.k, keyValue.keyNorms, rows, shape.keyDim());
    }
    dk.store(lane.batch(), lane.keyValueHead(), token, rows, keyGradient);
    dv.store(lane.batch(), lane.keyValueHead(), token, rows, valueGradient);
  }

  /** dKᵀ = R Vᵀ − r 1ᵀ and dV = K R + 1 yᵀ. */
  private void startFromSums(int rows) {
    int d = shape.keyDim();
    int width = shape.valueDim();
    int paddedRows = Tiles.roundUp(rows, MatrixKernel.ROW_STEP);
    int columns = Tiles.roundUp(rows, MatrixKernel.COLUMN_STEP);
    kernel.multiply(
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
    for (int j = 0; j < d; j++) {
      for (int p = 0; p < rows; p++) {
        keyGradientTransposed[j * Tiles.CHUNK + p] -= (float) sums.left[j];
      }
    }
    kernel.multiply(
        paddedRows, width, d, keyValue.k, d, 1, sums.matrix, width, valueGradient, width, false);
    for (int p = 0; p < rows; p++) {
      for (int j = 0; j < width; j++) {
        valueGradient[p * width + j] += (float) sums.right[j];
      }
    }
  }

  /** Adds what the chunk's own queries of one head give, then takes them into R, r and y. */
  private void addChunk(int head, int token, int rows) {
    int d = shape.keyDim();
    int width = shape.valueDim();
    int paddedRows = Tiles.roundUp(rows, MatrixKernel.ROW_STEP);
    int columns = Tiles.roundUp(rows, MatrixKernel.COLUMN_STEP);
    chunk.form(query, operator.a(head), operator.b(head), rows);
    float[] deltas = pass.deltas(lane, head);
    for (int i = 0; i < rows; i++) {
      chunk.subtractDelta(i, deltas[token + i]);
    }
    kernel.multiply( // Wᵀ Ω
        paddedRows,
        width,
        rows,
        chunk.weights,
        1,
        Tiles.CHUNK,
        query.omega,
        width,
        valueGradient,
        width,
        true);
    query.addTo(sums, lane, head, token, rows); // scales q by b, as dK wants it too
    kernel.multiply( // b Qᵀ E
        d,
        columns,
        rows,
        query.q,
        1,
        d,
        chunk.gradients,
        Tiles.CHUNK,
        keyGradientTransposed,
        Tiles.CHUNK,
        true);
  }
}
