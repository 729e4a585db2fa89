package io.github.linattn.internal.cpu;

import io.github.linattn.AttentionShape;
import java.util.Arrays;

/**
 * Rows of q and of Ω = dO/g of one chunk and query head, q normalised if asked. One worker's own.
 */
final class QueryTile {
  private final BackwardLane backward;
  private final BackwardPass pass;
  private final AttentionShape shape;
  final float[] q;
  final float[] omega;
  final double[] inverseNorms = new double[Tiles.CHUNK];
  final float[] g = new float[Tiles.CHUNK];

  /** δ, where {@link #weigh} has read it. */
  final float[] delta = new float[Tiles.CHUNK];

  /** a of the head that {@link #weigh} was told. */
  final float[] a = new float[Tiles.CHUNK];

  private final float[] deltaSum;
  private final float[] omegaSum;

  QueryTile(BackwardLane backward) {
    this.backward = backward;
    this.pass = backward.pass;
    this.shape = pass.shape;
    this.q = new float[Tiles.CHUNK * shape.keyDim()];
    this.omega = new float[Tiles.CHUNK * shape.valueDim()];
    this.deltaSum = new float[shape.keyDim()];
    this.omegaSum = new float[shape.valueDim()];
  }

  long tokenBytes() {
    int heads = shape.headsPerKeyValueHead();
    return pass.query.tokenBytes(heads) + pass.outputGradient.tokenBytes(heads);
  }

  int touch(Lane lane, int start, int end) {
    int heads = shape.headsPerKeyValueHead();
    int first = lane.keyValueHead() * heads;
    return pass.query.touch(lane.batch(), first, heads, start, end)
        + pass.outputGradient.touch(lane.batch(), first, heads, start, end);
  }

  /** Loads Ω, and q as it is. */
  void load(Lane lane, int head, int token, int rows) {
    pass.query.load(lane.batch(), head, token, rows, q);
    pass.normalizer.load(lane.batch(), head, token, rows, g);
    pass.outputGradient.load(lane.batch(), head, token, rows, omega);
    double[] inverses = new double[rows];
    for (int i = 0; i < rows; i++) {
      inverses[i] = 1.0 / g[i];
    }
    pass.kernel.scaleRows(rows, shape.valueDim(), inverses, omega);
  }

  /** Loads Ω and b q, normalised if asked, of rows whose norms the first sweep has found. */
  void loadWeighted(Lane lane, int head, int token, int rows) {
    load(lane, head, token, rows);
    double b = pass.operator.b(head);
    if (pass.operator.normalize()) {
      double[] inverses = backward.inverseNorms(head);
      double[] factors = new double[rows];
      for (int i = 0; i < rows; i++) {
        factors[i] = b * inverses[token - lane.start() + i];
      }
      pass.kernel.scaleRows(rows, shape.keyDim(), factors, q);
    } else if (b != 1) {
      pass.kernel.scaleRows(rows, shape.keyDim(), Tiles.repeated(b, rows), q);
    }
  }

  /** Makes the weights of q and Ω in r = Σ b δ q and y = Σ a Ω of rows loaded with the factor b. */
  void weigh(Lane lane, int head, int token, int rows) {
    double[] deltas = backward.deltas(head);
    for (int i = 0; i < rows; i++) {
      delta[i] = (float) deltas[token - lane.start() + i];
    }
    Arrays.fill(a, pass.operator.a(head));
  }

  /** R = Σ b q⊗Ω, r and y over a segment alone, of all query heads of its key/value head. */
  OuterSum sumOver(Segments.Segment segment) {
    OuterSum sum = new OuterSum(shape.keyDim(), shape.valueDim());
    Lane lane = segment.lane();
    int group = shape.headsPerKeyValueHead();
    for (int token = segment.start(); token < segment.end(); token += Tiles.CHUNK) {
      int rows = Math.min(Tiles.CHUNK, segment.end() - token);
      for (int head = lane.keyValueHead() * group;
          head < (lane.keyValueHead() + 1) * group;
          head++) {
        loadWeighted(lane, head, token, rows);
        weigh(lane, head, token, rows);
        pass.kernel.sumRows(rows, delta, q, deltaSum);
        pass.kernel.sumRows(rows, a, omega, omegaSum);
        sum.addRows(pass.kernel, rows, q, deltaSum, omega, omegaSum);
      }
    }
    return sum;
  }
}
