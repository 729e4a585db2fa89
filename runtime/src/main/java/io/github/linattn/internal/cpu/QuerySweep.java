package io.github.linattn.internal.cpu;

import io.github.linattn.AttentionShape;
import io.github.linattn.internal.Operator;
import io.github.linattn.internal.cpu.MatrixKernel.Part;

/**
 * First sweep of the backward over one segment, in token order. Per chunk, with E = T∘(Ω Vᵀ − δ
 * 1ᵀ):
 *
 * <pre>
 *   δ = (rowsum(W∘Ω Vᵀ) + b q·(Ω Sᵀ) + a Ω u)/g    dQ = b (E K + Ω Sᵀ − δ zᵀ)
 *   da += rowsum(E) + Ω u − δ c                     db += q·dQ/b
 * </pre>
 */
final class QuerySweep {
  private final double[] da;
  private final double[] db;

  private final BackwardPass pass;
  private final Segments.Segment segment;
  private final Lane lane;
  private final Operator operator;
  private final AttentionShape shape;
  private final MatrixKernel kernel;
  private final OuterSum state;
  private final KeyValueTile keyValue;
  private final QueryTile query;
  private final ReadAhead readAhead;
  private final TensorRows dq;
  private final ChunkWeights chunk;
  private final float[] gradient;
  private final float[] z;
  private final float[] u;
  private final double[] alongKeys = new double[Tiles.CHUNK];
  private final double[] alongValues = new double[Tiles.CHUNK];
  private final double[] deltas = new double[Tiles.CHUNK];
  private final double[] minusDeltas = new double[Tiles.CHUNK];
  private final double[] none = new double[Tiles.CHUNK];

  /**
   * @param state sums that the segment starts from, with v on their left and k on their right
   */
  QuerySweep(BackwardPass pass, Segments.Segment segment, OuterSum state) {
    this.pass = pass;
    this.segment = segment;
    this.lane = segment.lane();
    this.operator = pass.operator;
    this.shape = pass.shape;
    this.kernel = pass.kernel;
    this.state = state;
    this.keyValue = pass.keyValueTile(lane);
    this.query = new QueryTile(pass);
    this.dq = new TensorRows(pass.gradients.dq());
    long tokenBytes =
        keyValue.tokenBytes() + query.tokenBytes() + dq.tokenBytes(shape.headsPerKeyValueHead());
    this.readAhead = new ReadAhead(segment, tokenBytes, this::touch);
    this.chunk = new ChunkWeights(pass);
    this.gradient = new float[Tiles.CHUNK * shape.keyDim()];
    this.z = new float[shape.keyDim()];
    this.u = new float[shape.valueDim()];
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
    int rows;
    for (int token = segment.start(); token < segment.end(); token += rows) {
      rows = Math.min(Tiles.CHUNK, segment.end() - token);
      readAhead.forward(token, token + rows);
      if (operator.causal()) {
        rows = keyValue.loadSafely(token, rows);
        chunk.load(keyValue, rows);
      }
      Tiles.toFloats(state.left, u);
      Tiles.toFloats(state.right, z);
      for (int member = 0; member < da.length; member++) {
        differentiate(member, token, rows);
      }
      if (operator.causal()) {
        keyValue.addTransposedTo(state, rows);
      }
    }
    return new BackwardPass.CoefficientGradients(da, db);
  }

  private void differentiate(int member, int token, int rows) {
    int d = shape.keyDim();
    int dv = shape.valueDim();
    int head = lane.keyValueHead() * da.length + member;
    int paddedRows = Tiles.roundUp(rows, MatrixKernel.ROW_STEP);
    query.load(lane, head, token, rows, 1);
    kernel.multiply(
        Part.ALL,
        paddedRows,
        d,
        dv,
        query.omega,
        dv,
        1,
        state.matrix,
        d,
        gradient,
        d,
        false); // Ω Sᵀ
    if (operator.causal()) {
      chunk.form(query, operator.a(head), operator.b(head), rows);
    }
    formDeltas(member, head, token, rows);
    kernel.combineRows(rows, d, Tiles.repeated(1, rows), gradient, minusDeltas, z, 0);
    if (operator.causal()) {
      kernel.multiply(
          Part.LEFT_LOWER,
          paddedRows,
          d,
          rows,
          chunk.gradients,
          Tiles.CHUNK,
          1,
          keyValue.k,
          d,
          gradient,
          d,
          true);
    }
    kernel.dots(rows, d, false, query.q, d, gradient, d, alongKeys);
    for (int i = 0; i < rows; i++) {
      db[member] += alongKeys[i];
    }
    if (operator.normalize()) {
      for (int i = 0; i < rows; i++) {
        query.inverseNorms[i] *= operator.b(head);
        alongKeys[i] = -alongKeys[i];
      }
      kernel.combineRows(rows, d, query.inverseNorms, gradient, alongKeys, query.q, d);
    } else {
      kernel.scaleRows(rows, d, Tiles.repeated(operator.b(head), rows), gradient);
    }
    dq.store(lane.batch(), head, token, rows, gradient);
  }

  /** δ from Ω Sᵀ and, if causal, from the chunk's Ω Vᵀ, which becomes E; adds to da. */
  private void formDeltas(int member, int head, int token, int rows) {
    int d = shape.keyDim();
    int dv = shape.valueDim();
    double seen = operator.causal() ? lane.seenBefore(token) : lane.length();
    kernel.dots(rows, dv, false, query.omega, dv, u, 0, alongValues);
    kernel.dots(rows, d, false, query.q, d, gradient, d, alongKeys);
    double[] chunkPart = operator.causal() ? chunk.weightedGradients(rows) : none;
    for (int i = 0; i < rows; i++) {
      double outputAlongOmega = // g o·Ω
          operator.b(head) * alongKeys[i] + operator.a(head) * alongValues[i] + chunkPart[i];
      deltas[i] = outputAlongOmega / query.g[i];
      minusDeltas[i] = -deltas[i];
    }
    System.arraycopy(deltas, 0, pass.deltas(lane, head), token, rows);
    double[] chunkSums = operator.causal() ? chunk.shift(minusDeltas, rows) : none;
    for (int i = 0; i < rows; i++) {
      da[member] += chunkSums[i] + alongValues[i] - deltas[i] * seen;
    }
  }
}
