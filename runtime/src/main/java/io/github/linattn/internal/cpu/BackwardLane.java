package io.github.linattn.internal.cpu;

import io.github.linattn.internal.cpu.BackwardPass.CoefficientGradients;
import io.github.linattn.internal.cpu.MatrixKernel.Order;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/** Both sweeps over one lane, and what the first leaves for the second. */
final class BackwardLane {
  /** First rows of a lane that tell where its centre is. */
  private static final int CENTER_ROWS = 256;

  final BackwardPass pass;
  private final Segments segments;
  private final Lane lane;

  /** δ of every query, [query heads of the lane][tokens of the lane]. */
  private final double[][] deltas;

  /** 1/|q|, likewise, where queries are normalised. */
  private final double[][] inverseNorms;

  /** 1/|k| of every token of the lane, where keys are normalised. */
  private final double[] keyInverseNorms;

  private final List<QuerySweep> querySweeps;

  /** Of all segments, once the first sweep is over. */
  private final Centers centers = new Centers();

  /** Null until the first sweep is over. */
  private @Nullable List<KeyValueSweep> keyValueSweeps;

  BackwardLane(BackwardPass pass, Segments segments, Scratch scratch) {
    this.pass = pass;
    this.segments = segments;
    this.lane = segments.lane();
    int heads = pass.shape.headsPerKeyValueHead();
    this.deltas = new double[heads][lane.length()];
    int norms = pass.operator.normalize() ? lane.length() : 0;
    this.inverseNorms = new double[heads][norms];
    this.keyInverseNorms = new double[norms];
    this.querySweeps = pass.operator.causal() ? causalSweeps(scratch) : wholeSweeps(scratch);
  }

  private List<QuerySweep> wholeSweeps(Scratch scratch) {
    Center center = findCenter(CENTER_ROWS, scratch);
    List<OuterSum> starts = starts(Segments.Start.WHOLE, center, scratch);
    return IntStream.range(0, segments.count())
        .mapToObj(i -> newQuerySweep(i, starts.get(i), center))
        .toList();
  }

  /** The tokens of the first segment do not see all of the rows that say where others begin. */
  private List<QuerySweep> causalSweeps(Scratch scratch) {
    List<QuerySweep> sweeps = new ArrayList<>();
    Center first = findCenter(lane.countBefore() == 0 ? 1 : 0, scratch);
    sweeps.add(newQuerySweep(0, initial(first), first));
    if (segments.count() > 1) {
      Center center = findCenter(CENTER_ROWS, scratch);
      List<OuterSum> starts = starts(Segments.Start.BEFORE, center, scratch);
      for (int i = 1; i < segments.count(); i++) {
        sweeps.add(newQuerySweep(i, starts.get(i), center));
      }
    }
    return sweeps;
  }

  /** The mean of what the initial state has seen and of some first rows. */
  private Center findCenter(int rows, Scratch scratch) {
    KeyValueTile tile = KeyValueTile.of(pass.operator, pass.input, lane, scratch);
    return tile.findCenter(StateRows.initial(pass.input, lane), rows);
  }

  private OuterSum initial(Center center) {
    return center.center(StateRows.initial(pass.input, lane), lane.countBefore());
  }

  private List<OuterSum> starts(Segments.Start start, Center center, Scratch scratch) {
    return segments.starts(
        start,
        () -> initial(center),
        scratch,
        (segment, free) -> centered(center, free).sumOver(segment));
  }

  private QuerySweep newQuerySweep(int segment, OuterSum start, Center center) {
    return new QuerySweep(this, segments.get(segment), start.transposed(), center);
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
    querySweeps.forEach(sweep -> centers.putAll(sweep.centers()));
    Segments.Segment first = segments.get(0);
    Center center = centers.at(Math.max(first.start(), first.end() - 1)); // later ones see it all
    List<OuterSum> starts =
        segments.starts(
            pass.operator.causal() ? Segments.Start.AFTER : Segments.Start.WHOLE,
            () -> afterLast(center, scratch),
            scratch,
            (segment, free) -> new QueryTile(this, Order.FORWARD, free).sumOver(segment, center));
    return IntStream.range(0, segments.count())
        .mapToObj(i -> new KeyValueSweep(this, segments.get(i), starts.get(i), center))
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

  /** Once the first sweep is over. */
  Centers centers() {
    return centers;
  }

  /** R, r and y after the last token, over values that lack {@code center}. */
  private OuterSum afterLast(Center center, Scratch scratch) {
    OuterSum sum = new OuterSum(pass.shape.keyDim(), pass.shape.valueDim());
    if (pass.finalState == null) {
      return sum;
    }
    StateRows.load(pass.finalState, lane, sum);
    return center.exchange(scratch.kernel, sum);
  }

  /** Tiles of k and v in token order, both centred. */
  KeyValueTile centered(Center center, Scratch scratch) {
    return tile(Order.FORWARD, center, scratch);
  }

  /**
   * Tiles against token order of k as it is and v centred, once centred ones have been loaded for
   * all tokens.
   */
  KeyValueTile withCenteredValues(Center center, Scratch scratch) {
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
