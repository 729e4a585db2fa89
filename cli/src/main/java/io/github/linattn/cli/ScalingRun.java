package io.github.linattn.cli;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.Backend;
import io.github.linattn.DType;
import io.github.linattn.Gradients;
import io.github.linattn.LinearAttention;
import io.github.linattn.MemoryKind;
import io.github.linattn.Tensor;
import io.github.linattn.TensorShape;
import java.util.ArrayList;
import java.util.List;

/** Times forward and backward over a growing number of tokens. */
final class ScalingRun {
  private static final int FIRST_TOKENS = 1024;
  private static final int LEAST_POINTS = 5;
  private static final int PASSES = 3;
  private static final int RUNS_PER_PASS = 2;
  private static final int WARM_UP_TOKENS = 4096;
  private static final int MOST_TOKENS_ON_HOST = 1 << 16;
  static final int MOST_TOKENS_ON_DEVICE = 1 << 18;

  private final Backend backend;
  private final LinearAttention attention;
  private final TextRows text;
  private final int heads;
  private final int dim;
  private final Effort effort;

  /**
   * How long to measure.
   *
   * @param warmUpSeconds before the first number of tokens
   * @param longestSeconds the tokens no longer double once a forward and backward take this
   */
  record Effort(double warmUpSeconds, double longestSeconds) {
    static final Effort USUAL = new Effort(1.5, 0.5);
  }

  /**
   * Times for one number of tokens, the best of a few runs: whatever else a machine does can only
   * add to a time.
   *
   * @param forwardBytes q, k, v and o, once each
   * @param backwardBytes q, k, v, o, dO, dq, dk and dv, once each
   */
  record Point(
      int tokens,
      double forwardSeconds,
      double backwardSeconds,
      long forwardBytes,
      long backwardBytes) {

    Point orBetter(Point other) {
      return new Point(
          tokens,
          Math.min(forwardSeconds, other.forwardSeconds),
          Math.min(backwardSeconds, other.backwardSeconds),
          forwardBytes,
          backwardBytes);
    }
  }

  ScalingRun(
      Backend backend,
      LinearAttention attention,
      TextRows text,
      int heads,
      int dim,
      Effort effort) {
    this.backend = backend;
    this.attention = attention;
    this.text = text;
    this.heads = heads;
    this.dim = dim;
    this.effort = effort;
  }

  private int mostTokens() {
    return backend.memoryKind() == MemoryKind.DEVICE ? MOST_TOKENS_ON_DEVICE : MOST_TOKENS_ON_HOST;
  }

  /**
   * Doubles the tokens until a run takes long, then times the same numbers again: a disturbance
   * that lasts does not fall on one of them alone.
   */
  List<Point> run(Progress progress) {
    progress.expect(PASSES * (Integer.numberOfTrailingZeros(mostTokens() / FIRST_TOKENS) + 1));
    warmUp();
    List<Point> points = firstPass(progress);
    progress.expect(PASSES * points.size());
    for (int pass = 1; pass < PASSES; pass++) {
      for (int i = 0; i < points.size(); i++) {
        points.set(i, points.get(i).orBetter(time(points.get(i).tokens())));
        progress.step("N = " + points.get(i).tokens());
      }
    }
    return points;
  }

  private List<Point> firstPass(Progress progress) {
    List<Point> points = new ArrayList<>();
    double seconds = 0;
    for (int tokens = FIRST_TOKENS;
        tokens <= mostTokens() && (seconds < effort.longestSeconds || points.size() < LEAST_POINTS);
        tokens *= 2) {
      Point point = time(tokens);
      points.add(point);
      seconds = point.forwardSeconds + point.backwardSeconds;
      progress.step("N = " + tokens);
    }
    return points;
  }

  /** The JVM compiles loops while they run; the first runs say nothing about the machine. */
  private void warmUp() {
    long start = System.nanoTime();
    while ((System.nanoTime() - start) * 1e-9 < effort.warmUpSeconds) {
      time(WARM_UP_TOKENS);
    }
  }

  private Point time(int tokens) {
    AttentionShape shape = AttentionShape.of(1, heads, tokens, dim);
    try (Resources owned = new Resources()) {
      Tensor q = filled(owned, shape.q(), 1);
      Tensor k = filled(owned, shape.k(), 2);
      Tensor v = filled(owned, shape.v(), 3);
      Tensor dO = filled(owned, shape.output(), 4);
      Tensor o = empty(owned, shape.output());
      Tensor g = empty(owned, shape.normalizer());
      var gradients =
          Gradients.over(
              empty(owned, shape.q()),
              empty(owned, shape.k()),
              empty(owned, shape.v()),
              empty(owned, shape.coefficients()),
              empty(owned, shape.coefficients()));
      AttentionInput input = AttentionInput.of(q, k, v);
      double forward = best(() -> attention.forwardInto(input, o, g, null));
      double backward = best(() -> attention.backwardInto(input, o, g, dO, gradients));
      long tensor = q.byteSpan();
      return new Point(tokens, forward, backward, 4 * tensor, 8 * tensor);
    }
  }

  private Tensor filled(Resources owned, TensorShape shape, long seed) {
    Tensor tensor = empty(owned, shape);
    text.fill(tensor, seed);
    return tensor;
  }

  private Tensor empty(Resources owned, TensorShape shape) {
    return owned.add(backend.allocate(DType.F32, shape));
  }

  /** Seconds. */
  private double best(Runnable work) {
    double best = Double.POSITIVE_INFINITY;
    for (int i = 0; i < RUNS_PER_PASS; i++) {
      long start = System.nanoTime();
      work.run();
      attention.synchronize();
      best = Math.min(best, (System.nanoTime() - start) * 1e-9);
    }
    return best;
  }
}
