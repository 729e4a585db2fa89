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
import org.jspecify.annotations.Nullable;

/**
 * Times forward and backward over a growing number of tokens. Fewer tokens are the first ones of
 * the largest tensors so far, since new memory can take longer to come than all that is timed.
 */
final class ScalingRun {
  private static final int FIRST_TOKENS = 1024;
  private static final int LEAST_POINTS = 5;
  private static final int PASSES = 3;
  private static final int RUNS_PER_PASS = 2;
  private static final int WARM_UP_TOKENS = 4096;

  /** Tensors that are too small make room for some with so many times as many tokens as asked. */
  private static final int GROWTH = 4;

  private static final int MOST_TOKENS_ON_HOST = 1 << 16;
  static final int MOST_TOKENS_ON_DEVICE = 1 << 18;

  private final Backend backend;
  private final LinearAttention attention;
  private final TextRows text;
  private final int heads;
  private final int dim;
  private final Effort effort;
  private @Nullable Tensors tensors;

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
    try {
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
    } finally {
      release();
    }
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
    Tensors used = tensorsOf(tokens);
    AttentionInput input = used.input(tokens);
    Tensor o = used.first(used.o, tokens);
    Tensor g = used.first(used.g, tokens);
    Tensor dO = used.first(used.dO, tokens);
    Gradients gradients = used.gradients(tokens);
    double forward = best(() -> attention.forwardInto(input, o, g, null));
    double backward = best(() -> attention.backwardInto(input, o, g, dO, gradients));
    long tensor = o.shape().elements() * DType.F32.bytes();
    return new Point(tokens, forward, backward, 4 * tensor, 8 * tensor);
  }

  private Tensors tensorsOf(int tokens) {
    if (tensors == null || tensors.tokens < tokens) {
      release();
      tensors = new Tensors(Math.min(GROWTH * tokens, mostTokens()));
    }
    return tensors;
  }

  private void release() {
    if (tensors != null) {
      tensors.close();
      tensors = null;
    }
  }

  /** What forward and backward of up to so many tokens read and write. */
  private final class Tensors implements AutoCloseable {
    private static final int TOKEN_AXIS = 2;

    private final int tokens;
    private final Resources owned = new Resources();
    private final Tensor q;
    private final Tensor k;
    private final Tensor v;
    private final Tensor o;
    private final Tensor g;
    private final Tensor dO;
    private final Tensor dq;
    private final Tensor dk;
    private final Tensor dv;
    private final Tensor da;
    private final Tensor db;

    Tensors(int tokens) {
      this.tokens = tokens;
      AttentionShape shape = AttentionShape.of(1, heads, tokens, dim);
      try {
        this.q = filled(shape.q(), 1);
        this.k = filled(shape.k(), 2);
        this.v = filled(shape.v(), 3);
        this.dO = filled(shape.output(), 4);
        this.o = empty(shape.output());
        this.g = empty(shape.normalizer());
        this.dq = empty(shape.q());
        this.dk = empty(shape.k());
        this.dv = empty(shape.v());
        this.da = empty(shape.coefficients());
        this.db = empty(shape.coefficients());
      } catch (RuntimeException | Error e) {
        owned.close();
        throw e;
      }
    }

    private Tensor filled(TensorShape shape, long seed) {
      Tensor tensor = empty(shape);
      text.fill(tensor, seed);
      return tensor;
    }

    private Tensor empty(TensorShape shape) {
      return owned.add(backend.allocate(DType.F32, shape));
    }

    Tensor first(Tensor tensor, int count) {
      return tensor.sliced(TOKEN_AXIS, 0, count);
    }

    AttentionInput input(int count) {
      return AttentionInput.of(first(q, count), first(k, count), first(v, count));
    }

    Gradients gradients(int count) {
      return Gradients.over(first(dq, count), first(dk, count), first(dv, count), da, db);
    }

    @Override
    public void close() {
      owned.close();
    }
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
