package io.github.linattn.internal.cpu;

import io.github.linattn.internal.cpu.BackwardPass.CoefficientGradients;
import io.github.linattn.internal.cpu.MatrixKernel.Order;
import java.util.List;

/** Both sweeps over one lane, and what the first leaves for the second. */
final class BackwardLane {
  final BackwardPass pass;

  /** What centred tiles of k and v lack. */
  final Center center;

  private final Segments segments;
  private final Lane lane;

  /** δ of every query, [query heads of the lane][tokens of the lane]. */
  private final double[][] deltas;

  /** 1/|q|, likewise, where queries are normalised. */
  private final double[][] inverseNorms;

  /** 1/|k| of every token of the lane, where keys are normalised. */
  private final double[] keyInverseNorms;

  BackwardLane(BackwardPass pass, Segments segments, Scratch scratch) {
    this.pass = pass;
    this.segments = segments;
    this.lane = segments.lane();
    this.center = KeyValueTile.of(pass.operator, pass.input, lane, scratch).findCenter();
    int heads = pass.shape.headsPerKeyValueHead();
    this.deltas = new double[heads][lane.length()];
    int norms = pass.operator.normalize() ? lane.length() : 0;
    this.inverseNorms = new double[heads][norms];
    this.keyInverseNorms = new double[norms];
  }

  CoefficientGradients run() {
    boolean causal = pass.operator.causal();
    List<OuterSum> keyValueSums =
        segments.starts(
            causal ? Segments.Start.BEFORE : Segments.Start.WHOLE,
            () -> center.center(StateRows.initial(pass.input, lane), lane.countBefore()),
            (segment, free) -> centered(free).sumOver(segment));
    CoefficientGradients[] parts = new CoefficientGradients[segments.count()];
    segments.forEach(
        (i, free) ->
            parts[i] =
                new QuerySweep(this, segments.get(i), keyValueSums.get(i).transposed(), free)
                    .run());
    List<OuterSum> gradientSums =
        segments.starts(
            causal ? Segments.Start.AFTER : Segments.Start.WHOLE,
            this::afterLast,
            (segment, free) -> new QueryTile(this, Order.FORWARD, free).sumOver(segment));
    segments.forEach(
        (i, free) -> new KeyValueSweep(this, segments.get(i), gradientSums.get(i), free).run());
    for (int i = 1; i < parts.length; i++) {
      parts[i].addTo(parts[0].da(), parts[0].db(), 0);
    }
    return parts[0];
  }

  /** R, r and y after the last token. */
  private OuterSum afterLast() {
    OuterSum sum = new OuterSum(pass.shape.keyDim(), pass.shape.valueDim());
    if (pass.finalState == null) {
      return sum;
    }
    StateRows.load(pass.finalState, lane, sum);
    return center.exchange(sum);
  }

  /** Tiles of k and v in token order, both centred. */
  KeyValueTile centered(Scratch scratch) {
    return tile(Order.FORWARD, center, scratch);
  }

  /**
   * Tiles against token order of k as it is and v centred, once centred ones have been loaded for
   * all tokens.
   */
  KeyValueTile withCenteredValues(Scratch scratch) {
    return tile(Order.BACKWARD, center.ofValues(), scratch);
  }

  private KeyValueTile tile(Order order, Center center, Scratch scratch) {
    return KeyValueTile.centered(
        pass.operator, pass.input, lane, order, center, keyInverseNorms, scratch);
  }

  /** δ of the queries of a head, the lane's first token being at 0. */
  double[] deltas(int head) {
    return deltas[head - lane.keyValueHead() * deltas.length];
  }

  /** 1/|q| of the queries of a head, likewise. */
  double[] inverseNorms(int head) {
    return inverseNorms[head - lane.keyValueHead() * inverseNorms.length];
  }
}
