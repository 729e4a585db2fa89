package io.github.linattn.internal.cpu;

import io.github.linattn.internal.cpu.BackwardPass.CoefficientGradients;
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

  BackwardLane(BackwardPass pass, Segments segments) {
    this.pass = pass;
    this.segments = segments;
    this.lane = segments.lane();
    this.center =
        KeyValueTile.of(pass.kernel, pass.operator, pass.input, lane).findCenter();
    this.deltas = new double[pass.shape.headsPerKeyValueHead()][lane.length()];
  }

  CoefficientGradients run() {
    boolean causal = pass.operator.causal();
    List<OuterSum> keyValueSums =
        segments.starts(
            causal ? Segments.Start.BEFORE : Segments.Start.WHOLE,
            () -> centered().center(StateRows.initial(pass.input, lane)),
            segment -> centered().sumOver(segment));
    CoefficientGradients[] parts = new CoefficientGradients[segments.count()];
    segments.forEach(
        i ->
            parts[i] =
                new QuerySweep(this, segments.get(i), keyValueSums.get(i).transposed()).run());
    List<OuterSum> gradientSums =
        segments.starts(
            causal ? Segments.Start.AFTER : Segments.Start.WHOLE,
            this::afterLast,
            segment -> new QueryTile(this).sumOver(segment));
    segments.forEach(i -> new KeyValueSweep(this, segments.get(i), gradientSums.get(i)).run());
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
    return withCenteredValues().exchange(sum);
  }

  /** Tiles of k and v, both centred. */
  KeyValueTile centered() {
    return KeyValueTile.centered(pass.kernel, pass.operator, pass.input, lane, center);
  }

  /** Tiles of k as it is and v centred. */
  KeyValueTile withCenteredValues() {
    return KeyValueTile.centered(pass.kernel, pass.operator, pass.input, lane, center.ofValues());
  }

  /** δ of the queries of a head, the lane's first token being at 0. */
  double[] deltas(int head) {
    return deltas[head - lane.keyValueHead() * deltas.length];
  }
}
