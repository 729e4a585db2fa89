package io.github.linattn.cli;

import io.github.linattn.AttentionShape;
import io.github.linattn.DType;
import io.github.linattn.Sequences;
import io.github.linattn.Tensor;
import io.github.linattn.reference.Reference;
import java.util.ArrayList;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * Compares outputs of a few heads with the double reference: all tokens where that is cheap, else
 * the first and the last. The sums before the last tokens follow from those of one period, because
 * the rows repeat, and so do the sums over the queries after the first.
 */
final class BenchCheck {
  /** Multiply-adds of one head that may be spent on all its tokens. */
  private static final long CHEAP = 200_000_000;

  private static final int MOST_TOKENS = 20_000;

  /** At least so many of the last tokens. */
  private static final int LAST = 500;

  private static final int SCAN_ELEMENTS = 1 << 18;
  private static final int MOST_SCANS = 16;

  /** Half the step that fp16 has below 2^-14, where gradients of long sequences are. */
  private static final double F16_QUANTUM = 0x1p-25;

  private final BenchCase problem;
  private final AttentionShape shape;
  private final BenchData data;

  /** Query heads, and how many of them in a row share keys and values here. */
  private final long[] heads;

  private final int group;
  private final List<Part> parts = new ArrayList<>();

  /** da and db of the heads, where the pass has them. */
  private final Map<Quantity, Coefficient> coefficients = new EnumMap<>(Quantity.class);

  /**
   * A gradient of each head that is a sum over tokens, and may vanish by chance.
   *
   * @param spread of each head, the root of the sum of the squares of the terms
   */
  private record Coefficient(double[] exact, double[] spread) {
    Coefficient(int heads) {
      this(new double[heads], new double[heads]);
    }

    double error(float[] got) {
      return Reference.error(exact, got, Reference.norm(spread));
    }
  }

  /** Results of some tokens of the heads. */
  private record Part(int firstToken, int tokens, Map<Quantity, double[]> exact) {}

  /** Solves what will be compared; a decode step is solved when it is known which it is. */
  BenchCheck(BenchCase problem, BenchData data) {
    this.problem = problem;
    this.shape = problem.shape();
    this.data = data;
    this.group = problem.pass().hasBackward() ? shape.headsPerKeyValueHead() : 1;
    this.heads = heads((long) shape.batch() * shape.heads() / group);
    if (!problem.decode()) {
      solve();
    }
  }

  /** The first group of heads, one in the middle and the last. */
  private long[] heads(long groups) {
    long[] chosen = groups < 3 ? new long[] {0} : new long[] {0, groups / 2, groups - 1};
    long[] members = new long[chosen.length * group];
    for (int i = 0; i < members.length; i++) {
      members[i] = chosen[i / group] * group + i % group;
    }
    return members;
  }

  private void solve() {
    int tokens = shape.tokens();
    long cost = (long) tokens * shape.keyDim() * shape.valueDim();
    boolean cheap = tokens <= MOST_TOKENS && cost <= CHEAP;
    if (cheap || tokens < BenchData.PERIOD + LAST) {
      Reference.Result whole = part(0, tokens, null, null);
      coefficients.put(Quantity.DA, new Coefficient(whole.da(), whole.daSpread()));
      coefficients.put(Quantity.DB, new Coefficient(whole.db(), whole.dbSpread()));
      return;
    }
    Reference.State period = solve(0, BenchData.PERIOD, null, null).state();
    int periods = (tokens - LAST) / BenchData.PERIOD;
    int from = periods * BenchData.PERIOD;
    Reference.State before = times(periods, period);
    if (problem.causal()) {
      part(0, BenchData.PERIOD, null, queries(BenchData.PERIOD, tokens, null));
      part(from, tokens - from, before, null);
    } else {
      Reference.State all = solve(from, tokens - from, before, null).state();
      part(from, tokens - from, before, queries(0, from, all));
    }
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

  /**
   * What queries [from, to) say to the keys and values that all of them see, and da and db; null
   * for a forward.
   *
   * @param all what each query sees, null for the tokens up to its own
   */
  private Reference.@Nullable StateGradient queries(
      int from, int to, Reference.@Nullable State all) {
    if (!problem.pass().hasBackward()) {
      return null;
    }
    int count = heads.length / group;
    var gradient =
        new Reference.StateGradient(
            new double[count * shape.keyDim() * shape.valueDim()],
            new double[count * shape.keyDim()],
            new double[count * shape.valueDim()]);
    var da = new Coefficient(heads.length);
    var db = new Coefficient(heads.length);
    for (int i = 0; i < heads.length; i++) {
      var queries =
          new BenchQueries(
              problem,
              rows(data.q(), shape.keyDim(), heads[i], problem.normalize()),
              rows(data.dO(), shape.valueDim(), heads[i], false));
      if (all == null) {
        queries.seePrefixes(
            rows(data.k(), shape.keyDim(), keyValueHead(i), problem.normalize()),
            rows(data.v(), shape.valueDim(), keyValueHead(i), false));
      } else {
        queries.seeAll(all, i / group);
      }
      queries.sum(from, to, gradient, i / group);
      da.exact[i] = queries.da();
      da.spread[i] = queries.daSpread();
      db.exact[i] = queries.db();
      db.spread[i] = queries.dbSpread();
    }
    coefficients.put(Quantity.DA, da);
    coefficients.put(Quantity.DB, db);
    return gradient;
  }

  /** The first rows of a head until they repeat. */
  private double[][] rows(float[] period, int width, long head, boolean unit) {
    float[] values = new float[BenchData.PERIOD * width];
    BenchData.copyRows(period, width, head * shape.tokens(), BenchData.PERIOD, values, 0);
    double[][] rows = new double[BenchData.PERIOD][width];
    for (int i = 0; i < rows.length; i++) {
      double squares = 0;
      for (int j = 0; j < width; j++) {
        rows[i][j] = values[i * width + j];
        squares += rows[i][j] * rows[i][j];
      }
      double length = unit && squares > 0 ? Math.sqrt(squares) : 1;
      for (int j = 0; j < width; j++) {
        rows[i][j] /= length;
      }
    }
    return rows;
  }

  private long keyValueHead(int index) {
    return heads[index] / shape.headsPerKeyValueHead();
  }

  private Reference.Result part(
      int firstToken,
      int tokens,
      Reference.@Nullable State initial,
      Reference.@Nullable StateGradient finalState) {
    Reference.Result result = solve(firstToken, tokens, initial, finalState);
    Map<Quantity, double[]> exact = new EnumMap<>(Quantity.class);
    exact.put(Quantity.O, result.o());
    exact.put(Quantity.G, result.g());
    exact.put(Quantity.DQ, result.dq());
    exact.put(Quantity.DK, result.dk());
    exact.put(Quantity.DV, result.dv());
    parts.add(new Part(firstToken, tokens, exact));
    return result;
  }

  /** The heads as a problem of their own, each group with its own keys and values. */
  private Reference.Result solve(
      int firstToken,
      int tokens,
      Reference.@Nullable State initial,
      Reference.@Nullable StateGradient finalState) {
    int count = heads.length;
    var part =
        new AttentionShape(1, count, count / group, tokens, shape.keyDim(), shape.valueDim());
    float[] q = new float[count * tokens * shape.keyDim()];
    float[] k = new float[count / group * tokens * shape.keyDim()];
    float[] v = new float[count / group * tokens * shape.valueDim()];
    float[] dO =
        problem.pass().hasBackward() ? new float[Math.toIntExact(part.output().elements())] : null;
    for (int i = 0; i < count; i++) {
      long row = heads[i] * shape.tokens() + firstToken;
      long source = keyValueHead(i) * shape.tokens() + firstToken;
      copyRows(data.q(), shape.keyDim(), row, tokens, q, i);
      copyRows(data.k(), shape.keyDim(), source, tokens, k, i / group);
      copyRows(data.v(), shape.valueDim(), source, tokens, v, i / group);
      if (dO != null) {
        copyRows(data.dO(), shape.valueDim(), row, tokens, dO, i);
      }
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
            dO,
            initial,
            finalState));
  }

  private static void copyRows(
      float[] period, int width, long firstRow, int rows, float[] target, int head) {
    BenchData.copyRows(period, width, firstRow, rows, target, head * rows * width);
  }

  /**
   * Relative errors of what the pass writes; NaN if an output still holds one.
   *
   * @param sets of outputs, all of the same inputs
   */
  Errors errors(List<BenchTensors> sets) {
    var errors = new Errors();
    parts.forEach(part -> compare(part, sets, errors));
    sets.getLast()
        .outputs()
        .forEach(
            (quantity, tensor) -> {
              Coefficient coefficient = coefficients.get(quantity);
              if (coefficient != null) {
                errors.put(quantity, coefficient.error(read(tensor)));
              }
            });
    findLeftOut(sets.getLast(), errors);
    return errors;
  }

  /** The heads' elements of a tensor with one for each head. */
  private float[] read(Tensor tensor) {
    float[] values = new float[heads.length];
    for (int i = 0; i < values.length; i++) {
      read(tensor, heads[i], 1, values, i);
    }
    return values;
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
    parts.clear();
    part(0, 1, initial, null);
    return errors(List.of(set));
  }

  private static double[] repeated(float[] values, int count) {
    double[] all = new double[count * values.length];
    for (int i = 0; i < all.length; i++) {
      all[i] = values[i % values.length];
    }
    return all;
  }

  private void compare(Part part, List<BenchTensors> sets, Errors errors) {
    part.exact.forEach(
        (quantity, exact) -> {
          if (!sets.getFirst().outputs().containsKey(quantity)) {
            return;
          }
          boolean ofKeys = quantity == Quantity.DK || quantity == Quantity.DV;
          int count = ofKeys ? heads.length / group : heads.length;
          int size = exact.length / count; // of a head
          int width = size / part.tokens;
          float[] got = new float[exact.length];
          for (int i = 0; i < count; i++) {
            BenchTensors set = sets.get(i % sets.size());
            long head = ofKeys ? keyValueHead(i * group) : heads[i];
            long row = head * shape.tokens() + part.firstToken;
            read(outputOf(set, quantity), row * width, size, got, i);
          }
          errors.put(quantity, error(quantity, exact, got));
        });
  }

  private static Tensor outputOf(BenchTensors set, Quantity quantity) {
    Tensor output = set.outputs().get(quantity);
    if (output == null) {
      throw new AssertionError("all sets have the outputs of one pass");
    }
    return output;
  }

  private double error(Quantity quantity, double[] exact, float[] got) {
    double error = Reference.error(exact, got);
    boolean small = quantity != Quantity.O && quantity != Quantity.G;
    if (!small || problem.precision().dtype() != DType.F16) {
      return error;
    }
    return Math.max(0, error - F16_QUANTUM * Math.sqrt(exact.length) / Reference.norm(exact));
  }

  private static void read(Tensor tensor, long start, int count, float[] target, int index) {
    float[] values = BenchData.flat(tensor).sliced(0, start, count).toFloats();
    System.arraycopy(values, 0, target, index * count, count);
  }

  /** The error is NaN where pieces of an output, from the first to the last, hold one. */
  private static void findLeftOut(BenchTensors set, Errors errors) {
    set.outputs()
        .forEach((quantity, tensor) -> errors.put(quantity, holdsNaN(tensor) ? Double.NaN : 0));
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
