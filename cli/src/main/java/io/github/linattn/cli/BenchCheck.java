package io.github.linattn.cli;

import io.github.linattn.AttentionShape;
import io.github.linattn.Sequences;
import io.github.linattn.Tensor;
import io.github.linattn.reference.Reference;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Compares outputs of a few heads with the double reference: all tokens where that is cheap, else
 * the first and the last. The sums before the last tokens follow from those of one period, because
 * the rows repeat.
 */
final class BenchCheck {
  /** Multiply-adds of one head that may be spent on all its tokens. */
  private static final long CHEAP = 200_000_000;

  private static final int MOST_TOKENS = 20_000;

  /** At least so many of the last tokens. */
  private static final int LAST = 500;

  private static final int SCAN_ELEMENTS = 1 << 18;
  private static final int MOST_SCANS = 16;

  private final BenchCase problem;
  private final AttentionShape shape;
  private final BenchData data;
  private final long[] heads;
  private final List<Part> parts = new ArrayList<>();

  /** Results of some tokens of the heads. */
  private record Part(int firstToken, int tokens, double[] o, double[] g) {}

  /** Solves what will be compared; a decode step is solved when it is known which it is. */
  BenchCheck(BenchCase problem, BenchData data) {
    this.problem = problem;
    this.shape = problem.shape();
    this.data = data;
    long all = (long) shape.batch() * shape.heads();
    this.heads = all < 3 ? new long[] {0} : new long[] {0, all / 2, all - 1};
    if (!problem.decode()) {
      solve();
    }
  }

  private void solve() {
    int tokens = shape.tokens();
    long cost = (long) tokens * shape.keyDim() * shape.valueDim();
    boolean cheap = tokens <= MOST_TOKENS && cost <= CHEAP;
    if (cheap || tokens < BenchData.PERIOD + LAST) {
      part(0, tokens, null);
      return;
    }
    Reference.State period = solve(0, BenchData.PERIOD, null).state();
    if (problem.causal()) {
      part(0, BenchData.PERIOD, null);
    }
    int periods = (tokens - LAST) / BenchData.PERIOD;
    int from = periods * BenchData.PERIOD;
    part(from, tokens - from, times(periods, period));
  }

  private static Reference.State times(int factor, Reference.State state) {
    return new Reference.State(
        times(factor, state.s()),
        times(factor, state.z()),
        times(factor, state.u()),
        new long[] {factor * state.counts()[0]});
  }

  private static double[] times(double factor, double[] values) {
    double[] product = new double[values.length];
    for (int i = 0; i < values.length; i++) {
      product[i] = factor * values[i];
    }
    return product;
  }

  private void part(int firstToken, int tokens, Reference.@Nullable State initial) {
    Reference.Result result = solve(firstToken, tokens, initial);
    parts.add(new Part(firstToken, tokens, result.o(), result.g()));
  }

  /** The heads as a problem of their own, each with its own keys and values. */
  private Reference.Result solve(int firstToken, int tokens, Reference.@Nullable State initial) {
    int count = heads.length;
    var part = new AttentionShape(1, count, count, tokens, shape.keyDim(), shape.valueDim());
    float[] q = new float[count * tokens * shape.keyDim()];
    float[] k = new float[count * tokens * shape.keyDim()];
    float[] v = new float[count * tokens * shape.valueDim()];
    for (int i = 0; i < count; i++) {
      long row = heads[i] * shape.tokens() + firstToken;
      long source = heads[i] / shape.headsPerKeyValueHead() * shape.tokens() + firstToken;
      copyRows(data.q(), shape.keyDim(), row, tokens, q, i);
      copyRows(data.k(), shape.keyDim(), source, tokens, k, i);
      copyRows(data.v(), shape.valueDim(), source, tokens, v, i);
    }
    float[] one = {1};
    return Reference.of(
        new Reference.Problem(
            part,
            Sequences.ofLengths(tokens),
            one,
            one,
            problem.causal(),
            problem.normalize(),
            q,
            k,
            v,
            null,
            initial));
  }

  private static void copyRows(
      float[] period, int width, long firstRow, int rows, float[] target, int head) {
    BenchData.copyRows(period, width, firstRow, rows, target, head * rows * width);
  }

  /**
   * Relative errors of o and g; NaN if an output still holds one.
   *
   * @param sets of outputs, all of the same inputs
   */
  Errors errors(List<BenchTensors> sets) {
    var errors = new Errors();
    parts.forEach(part -> compare(part, sets, errors));
    findLeftOut(sets.getLast(), errors);
    return errors;
  }

  /**
   * Relative errors of a decode step from the state of {@link BenchData}.
   *
   * @param countBefore tokens that the state counted before the step
   */
  Errors errorsOfStep(BenchTensors set, long countBefore) {
    int count = heads.length;
    var initial =
        new Reference.State(
            repeated(data.s(), count),
            repeated(data.z(), count),
            repeated(data.u(), count),
            new long[] {countBefore});
    Reference.Result step = solve(0, 1, initial);
    var errors = new Errors();
    compare(new Part(0, 1, step.o(), step.g()), List.of(set), errors);
    findLeftOut(set, errors);
    return errors;
  }

  private static double[] repeated(float[] values, int count) {
    double[] all = new double[count * values.length];
    for (int i = 0; i < all.length; i++) {
      all[i] = values[i % values.length];
    }
    return all;
  }

  private void compare(Part part, List<BenchTensors> sets, Errors errors) {
    int width = shape.valueDim();
    float[] o = new float[part.o.length];
    float[] g = new float[part.g.length];
    for (int i = 0; i < heads.length; i++) {
      BenchTensors set = sets.get(i % sets.size());
      long row = heads[i] * shape.tokens() + part.firstToken;
      read(set.o(), row * width, part.tokens * width, o, i);
      read(set.g(), row, part.tokens, g, i);
    }
    errors.put(Quantity.O, Reference.error(part.o, o));
    errors.put(Quantity.G, Reference.error(part.g, g));
  }

  private static void read(Tensor tensor, long start, int count, float[] target, int index) {
    float[] values = BenchData.flat(tensor).sliced(0, start, count).toFloats();
    System.arraycopy(values, 0, target, index * count, count);
  }

  /** The error is NaN where pieces of an output, from the first to the last, hold one. */
  private static void findLeftOut(BenchTensors set, Errors errors) {
    errors.put(Quantity.O, holdsNaN(set.o()) ? Double.NaN : 0);
    errors.put(Quantity.G, holdsNaN(set.g()) ? Double.NaN : 0);
  }

  private static boolean holdsNaN(Tensor tensor) {
    Tensor flat = BenchData.flat(tensor);
    long all = flat.shape().elements();
    int size = (int) Math.min(SCAN_ELEMENTS, all);
    int scans = (int) Math.min(MOST_SCANS, Math.ceilDiv(all, (long) size));
    for (int i = 0; i < scans; i++) {
      long start = scans == 1 ? 0 : (all - size) / (scans - 1) * i;
      if (i == scans - 1) {
        start = all - size;
      }
      for (float value : flat.sliced(0, start, size).toFloats()) {
        if (Float.isNaN(value)) {
          return true;
        }
      }
    }
    return false;
  }
}
