package io.github.linattn.internal.cpu;

import io.github.linattn.internal.cpu.BackwardPass.CoefficientGradients;
import io.github.linattn.internal.cpu.MatrixKernel.Order;
import java.util.List;
import java.util.Objects;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

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

  private final List<QuerySweep> querySweeps;

  /** Null until the first sweep is over. */
  private @Nullable List<KeyValueSweep> keyValueSweeps;

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
    List<OuterSum> starts =
        segments.starts(
            pass.operator.causal() ? Segments.Start.BEFORE : Segments.Start.WHOLE,
            () -> center.center(StateRows.initial(pass.input, lane), lane.countBefore()),
            scratch,
            (segment, free) -> centered(center, free).sumOver(segment));
    this.querySweeps =
        IntStream.range(0, segments.count())
            .mapToObj(i -> new QuerySweep(this, segments.get(i), starts.get(i).transposed()))
            .toList();
  }

  /** The first sweep in the first steps; the second from the step on in which the first ends. */
  void step(int index, Scratch scratch) {
    int last = segments.steps() - 1;
    int tokens = segments.stepTokens();
    if (index <= last) {
      segments.forEach(scratch, (i, free) -> querySweeps.get(i).advance(tokens, free));
    }
    if (index == last) {
      keyValueSweeps = newKeyValueSweeps(scratch);
    }
    if (index >= last) {
      List<KeyValueSweep> sweeps = Objects.requireNonNull(keyValueSweeps);
      segments.forEach(scratch, (i, free) -> sweeps.get(i).advance(tokens, free));
    }
  }

  private List<KeyValueSweep> newKeyValueSweeps(Scratch scratch) {
    List<OuterSum> starts =
        segments.starts(
            pass.operator.causal() ? Segments.Start.AFTER : Segments.Start.WHOLE,
            this::afterLast,
            scratch,
            (segment, free) -> new QueryTile(this, Order.FORWARD, free).sumOver(segment));
    return IntStream.range(0, segments.count())
        .mapToObj(i -> new KeyValueSweep(this, segments.get(i), starts.get(i)))
        .toList();
  }

  /** da and db over all tokens, once the first sweep is over. */
  CoefficientGradients coefficients() {
    CoefficientGradients all = querySweeps.getFirst().coefficients();
    for (QuerySweep sweep : querySweeps.subList(1, querySweeps.size())) {
      sweep.coefficients().addTo(all.da(), all.db(), 0);
    }
    return all;
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
  KeyValueTile centered(Center center, Scratch scratch) {
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
