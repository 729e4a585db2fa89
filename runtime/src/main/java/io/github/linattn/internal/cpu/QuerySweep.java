package io.github.linattn.internal.cpu;

import io.github.linattn.AttentionShape;
import io.github.linattn.internal.Operator;
import java.util.Arrays;

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
  private final TensorRows dq;
  private final float[] keyTransposed;
  private final float[] valueTransposed;
  private final float[] weights = new float[Tiles.CHUNK * Tiles.CHUNK];
  private final float[] weightGradients = new float[Tiles.CHUNK * Tiles.CHUNK];
  private final double[] rowSums = new double[Tiles.CHUNK];
  private final float[] gradient;
  private final float[] z;
  private final float[] u;

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
    this.keyTransposed = new float[shape.keyDim() * Tiles.CHUNK];
    this.valueTransposed = new float[shape.valueDim() * Tiles.CHUNK];
    this.gradient = new float[Tiles.CHUNK * shape.keyDim()];
    this.z = new float[shape.keyDim()];
    this.u = new float[shape.valueDim()];
    this.da = new double[shape.headsPerKeyValueHead()];
    this.db = new double[shape.headsPerKeyValueHead()];
  }

  /** Writes dq and δ; gives da and db. */
  BackwardPass.CoefficientGradients run() {
    int rows;
    for (int token = segment.start(); token < segment.end(); token += rows) {
      rows = Math.min(Tiles.CHUNK, segment.end() - token);
      if (operator.causal()) {
        rows = keyValue.loadSafely(token, rows);
        Tiles.transpose(keyValue.k, rows, shape.keyDim(), keyTransposed);
        Tiles.transpose(keyValue.v, rows, shape.valueDim(), valueTransposed);
      }
      Tiles.toFloats(state.left, u);
      Tiles.toFloats(state.right, z);
      for (int member = 0; member < da.length; member++) {
        differentiate(member, token, rows);
      }
      if (operator.causal()) {
        keyValue.addTransposedTo(state, kernel, rows);
      }
    }
    return new BackwardPass.CoefficientGradients(da, db);
  }

  private void differentiate(int member, int token, int rows) {
    int d = shape.keyDim();
    int dv = shape.valueDim();
    int head = lane.keyValueHead() * da.length + member;
    int paddedRows = Tiles.roundUp(rows, MatrixKernel.ROW_STEP);
    query.load(lane, head, token, rows);
    kernel.multiply(
        paddedRows, d, dv, query.omega, dv, 1, state.matrix, d, gradient, d, false); // Ω Sᵀ
    if (operator.causal()) {
      findWeightGradients(head, rows);
    }
    double seen = operator.causal() ? lane.seenBefore(token) : lane.length();
    float[] deltas = pass.deltas(lane, head);
    for (int i = 0; i < rows; i++) {
      double alongValues = kernel.dot(dv, query.omega, i * dv, u);
      double alongKeys = dot(d, query.q, gradient, i * d);
      double outputAlongOmega = // g o·Ω
          rowSums[i] + operator.b(head) * alongKeys + operator.a(head) * alongValues;
      double delta = outputAlongOmega / query.g[i];
      deltas[token + i] = (float) delta;
      double chunkSum = operator.causal() ? subtractDelta(i, rows, delta) : 0;
      da[member] += chunkSum + alongValues - delta * seen;
      for (int j = 0; j < d; j++) {
        gradient[i * d + j] -= (float) (delta * z[j]);
      }
    }
    if (operator.causal()) {
      kernel.multiply(
          paddedRows, d, rows, weightGradients, Tiles.CHUNK, 1, keyValue.k, d, gradient, d, true);
    }
    for (int i = 0; i < rows; i++) {
      db[member] += dot(d, query.q, gradient, i * d);
    }
    Tiles.scale(gradient, rows * d, operator.b(head));
    if (operator.normalize()) {
      Tiles.normalizeGradient(gradient, query.q, query.norms, rows, d);
    }
    dq.store(lane.batch(), head, token, rows, gradient);
  }

  /** weightGradients = Ω Vᵀ, and row sums of W∘Ω Vᵀ. */
  private void findWeightGradients(int head, int rows) {
    int d = shape.keyDim();
    int dv = shape.valueDim();
    int chunk = Tiles.CHUNK;
    int paddedRows = Tiles.roundUp(rows, MatrixKernel.ROW_STEP);
    int columns = Tiles.roundUp(rows, MatrixKernel.COLUMN_STEP);
    kernel.multiply(
        paddedRows, columns, d, query.q, d, 1, keyTransposed, chunk, weights, chunk, false);
    Tiles.causalWeights(weights, rows, operator.a(head), operator.b(head), rowSums);
    kernel.multiply(
        paddedRows,
        columns,
        dv,
        query.omega,
        dv,
        1,
        valueTransposed,
        chunk,
        weightGradients,
        chunk,
        false);
    for (int i = 0; i < rows; i++) {
      double sum = 0;
      for (int at = i * chunk; at <= i * chunk + i; at++) {
        sum += (double) weights[at] * weightGradients[at];
      }
      rowSums[i] = sum;
    }
  }

  /** Turns row i of Ω Vᵀ into row i of E and returns its sum. */
  private double subtractDelta(int i, int rows, double delta) {
    double sum = 0;
    int row = i * Tiles.CHUNK;
    for (int n = 0; n <= i; n++) {
      double e = weightGradients[row + n] - delta;
      weightGradients[row + n] = (float) e;
      sum += e;
    }
    Arrays.fill(weightGradients, row + i + 1, row + rows, 0);
    return sum;
  }

  private static double dot(int n, float[] a, float[] b, int start) {
    double sum = 0;
    for (int j = start; j < start + n; j++) {
      sum += (double) a[j] * b[j];
    }
    return sum;
  }
}
