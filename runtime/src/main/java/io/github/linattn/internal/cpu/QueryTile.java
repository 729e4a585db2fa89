package io.github.linattn.internal.cpu;

import io.github.linattn.AttentionShape;

/**
 * Rows of q and of Ω = dO/g of one chunk and query head, q normalised if asked. One worker's own.
 */
final class QueryTile {
  private final BackwardPass pass;
  private final AttentionShape shape;
  final float[] q;
  final float[] omega;
  final double[] norms = new double[Tiles.CHUNK];
  final float[] g = new float[Tiles.CHUNK];
  private final float[] delta = new float[Tiles.CHUNK];

  QueryTile(BackwardPass pass) {
    this.pass = pass;
    this.shape = pass.shape;
    this.q = new float[Tiles.CHUNK * shape.keyDim()];
    this.omega = new float[Tiles.CHUNK * shape.valueDim()];
  }

  void load(Lane lane, int head, int token, int rows) {
    pass.query.load(lane.batch(), head, token, rows, q);
    if (pass.operator.normalize()) {
      Tiles.normalize(q, rows, shape.keyDim(), norms);
    }
    pass.normalizer.load(lane.batch(), head, token, rows, g);
    pass.outputGradient.load(lane.batch(), head, token, rows, omega);
    int dv = shape.valueDim();
    for (int i = 0; i < rows; i++) {
      for (int j = 0; j < dv; j++) {
        omega[i * dv + j] /= g[i];
      }
    }
  }

  boolean isFinite(int rows) {
    return Tiles.isFinite(q, rows * shape.keyDim())
        && Tiles.isFinite(omega, rows * shape.valueDim());
  }

  /**
   * Takes the loaded rows into R, r and y of a query head. Scales q by b in place.
   *
   * @param sum its matrix is R = Σ b q⊗Ω, its left r = Σ b δ q, its right y = Σ a Ω
   */
  void addTo(OuterSum sum, Lane lane, int head, int token, int rows) {
    Tiles.scale(q, rows * shape.keyDim(), pass.operator.b(head));
    System.arraycopy(pass.deltas(lane, head), token, delta, 0, rows);
    sum.addRows(pass.kernel, rows, q, delta, omega, pass.operator.a(head));
  }

  /** R, r and y over a segment alone, of all query heads of the lane's key/value head. */
  OuterSum sumOver(Segments.Segment segment) {
    OuterSum sum = new OuterSum(shape.keyDim(), shape.valueDim());
    Lane lane = segment.lane();
    int group = shape.headsPerKeyValueHead();
    for (int token = segment.start(); token < segment.end(); token += Tiles.CHUNK) {
      int rows = Math.min(Tiles.CHUNK, segment.end() - token);
      for (int head = lane.keyValueHead() * group;
          head < (lane.keyValueHead() + 1) * group;
          head++) {
        load(lane, head, token, rows);
        addTo(sum, lane, head, token, rows);
      }
    }
    return sum;
  }
}
