package io.github.linattn.test.contract;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.AttentionState;
import io.github.linattn.Backend;
import io.github.linattn.DType;
import io.github.linattn.Forward;
import io.github.linattn.Gradients;
import io.github.linattn.LinearAttention;
import io.github.linattn.Mode;
import io.github.linattn.StateGradient;
import io.github.linattn.Tensor;
import io.github.linattn.TensorShape;
import java.util.Arrays;
import java.util.List;
import java.util.Random;

/**
 * A program for the sanitizers: forwards and backwards in segments, of which dq may have none, and
 * by blocks that hand states on, from a state and with the gradients of states, and one sweep by
 * such blocks and in chains, of few tokens, which no planner would cut; one sweep from what
 * forwards in stages kept, and backwards from lengths that a forward kept. Others look at results;
 * here they must be finite.
 */
public final class SegmentedRuns {
  private static final int TOKENS = 300;
  private static final String PLAN = "linattn.plan";
  private static final String GRADIENT_PLAN = "linattn.gradient.plan";

  private record Problem(DType dtype, Mode mode, int dim, boolean normalize) {
    boolean handsOnForDq() {
      return dtype == DType.F32 || !normalize;
    }
  }

  private static final List<Problem> PROBLEMS =
      List.of(
          new Problem(DType.BF16, Mode.DEFAULT, 128, false),
          new Problem(DType.BF16, Mode.DEFAULT, 256, false),
          new Problem(DType.F16, Mode.DEFAULT, 64, false),
          new Problem(DType.F16, Mode.DEFAULT, 192, true),
          new Problem(DType.BF16, Mode.DEFAULT, 64, true),
          new Problem(DType.F32, Mode.TF32, 128, false),
          new Problem(DType.F32, Mode.DEFAULT, 128, true),
          new Problem(DType.F32, Mode.ACCURATE, 64, false));

  private static final List<Problem> ONE_SWEEPS =
      List.of(
          new Problem(DType.BF16, Mode.DEFAULT, 64, false),
          new Problem(DType.BF16, Mode.DEFAULT, 128, false),
          new Problem(DType.F16, Mode.DEFAULT, 128, false));

  private int passed;
  private int failed;

  private SegmentedRuns() {}

  /**
   * Runs them all. All backends stay open to the end: where kernels have been unloaded before
   * others are loaded, synccheck of CUDA 13.0 may end a kernel that is right with an illegal
   * address (docs/performance.md, Relays).
   */
  public static void main(String[] args) {
    var all = new SegmentedRuns();
    try (Backend segments = Backend.cuda(0);
        Backend relays = Backend.cuda(0);
        Backend chains = Backend.cuda(0);
        Backend lengths = Backend.cuda(0)) {
      all.segments(segments);
      all.relays(relays);
      all.chains(chains);
      all.stages(chains);
      all.lengths(lengths);
    }
    System.out.println(all.passed + " passed, " + all.failed + " failed");
    System.exit(all.failed == 0 ? 0 : 1);
  }

  private void count(boolean isRight, String what) {
    if (isRight) {
      passed++;
    } else {
      failed++;
      System.out.println("not finite: " + what);
    }
  }

  private void segments(Backend gpu) {
    System.setProperty(PLAN, "wgmma:128");
    for (Problem problem : PROBLEMS) {
      System.setProperty(GRADIENT_PLAN, "wgmma:128");
      count(isRight(gpu, problem), problem.toString());
      count(isRight(gpu, problem, false), problem + ", whose first state has no gradient");
      System.setProperty(GRADIENT_PLAN, "wgmma:128:0");
      count(isRight(gpu, problem), problem + ", dq of whole sequences");
    }
  }

  private void relays(Backend gpu) {
    System.setProperty(PLAN, "wgmma:128+");
    for (Problem problem : PROBLEMS) {
      System.setProperty(GRADIENT_PLAN, problem.handsOnForDq() ? "wgmma:128+" : "wgmma:128");
      count(isRight(gpu, problem), "a relay of " + problem);
    }
  }

  private void chains(Backend gpu) {
    System.clearProperty(PLAN);
    for (Problem problem : ONE_SWEEPS) {
      System.setProperty(GRADIENT_PLAN, "one_sweep:128");
      for (int tokens : new int[] {257, 300}) { // the last segment is a step of decoding, or not
        String what = "a chain of " + problem + ", " + tokens + " tokens";
        count(isRightFromKept(gpu, problem, tokens), what);
      }
      System.setProperty(GRADIENT_PLAN, "one_sweep:128+");
      count(isRight(gpu, problem), "a relay of one sweep of " + problem);
      System.setProperty(GRADIENT_PLAN, "one_sweep:128*");
      count(isRight(gpu, problem), "one sweep of segments of " + problem);
    }
  }

  /** With so many tokens that states are a tenth of them. */
  private void stages(Backend gpu) {
    System.setProperty(PLAN, "wgmma:1024/");
    System.setProperty(GRADIENT_PLAN, "one_sweep:1024*");
    for (Problem problem : ONE_SWEEPS) {
      count(isRightFromKept(gpu, problem, 1800), "stages of " + problem);
    }
  }

  private void lengths(Backend gpu) {
    System.clearProperty(PLAN);
    System.clearProperty(GRADIENT_PLAN);
    for (Problem problem : PROBLEMS) {
      if (problem.normalize) {
        count(isRightFromKept(gpu, problem, TOKENS), "from lengths, " + problem);
      }
    }
  }

  private static LinearAttention attention(Backend gpu, Problem problem) {
    return LinearAttention.builder()
        .mode(problem.mode)
        .normalizeQueriesAndKeys(problem.normalize)
        .keepState(true)
        .on(gpu);
  }

  private static boolean isRight(Backend gpu, Problem problem) {
    return isRight(gpu, problem, true);
  }

  private static boolean isRight(Backend gpu, Problem problem, boolean ofInitial) {
    AttentionShape shape = AttentionShape.of(1, 2, TOKENS, problem.dim);
    var random = new Random(problem.dim);
    LinearAttention attention = attention(gpu, problem);
    try (Tensor q = filled(gpu, problem.dtype, shape.q(), random);
        Tensor k = filled(gpu, problem.dtype, shape.k(), random);
        Tensor v = filled(gpu, problem.dtype, shape.v(), random);
        Tensor dO = filled(gpu, problem.dtype, shape.output(), random);
        Tensor o = poisoned(gpu, problem.dtype, shape.output());
        Tensor g = poisoned(gpu, DType.F32, shape.normalizer());
        Tensor dq = poisoned(gpu, problem.dtype, shape.q());
        Tensor dk = poisoned(gpu, problem.dtype, shape.k());
        Tensor dv = poisoned(gpu, problem.dtype, shape.v());
        Tensor da = poisoned(gpu, DType.F32, shape.coefficients());
        Tensor db = poisoned(gpu, DType.F32, shape.coefficients());
        AttentionState first = gpu.newState(shape, 1);
        AttentionState state = gpu.newState(shape, 1);
        StateGradient last = gpu.newStateGradient(shape, 1);
        StateGradient initial = gpu.newStateGradient(shape, 1)) {
      AttentionInput input = AttentionInput.of(q, k, v).from(first);
      attention.forwardInto(input, o, g, state);
      Gradients gradients =
          ofInitial
              ? Gradients.over(dq, dk, dv, da, db, initial)
              : Gradients.over(dq, dk, dv, da, db);
      attention.backwardInto(Forward.over(input, o, g, state), dO, last, gradients);
      return List.of(o, g, dq, dk, dv, da, db).stream().allMatch(SegmentedRuns::isFinite)
          && isFinite(state.s())
          && (!ofInitial || isFinite(initial.ds()));
    }
  }

  /** Gradients of tensors that the forward has allocated with what it keeps. */
  private static boolean isRightFromKept(Backend gpu, Problem problem, int tokens) {
    AttentionShape shape = AttentionShape.of(1, 2, tokens, problem.dim);
    DType dtype = problem.dtype;
    var random = new Random(tokens);
    LinearAttention attention = attention(gpu, problem);
    try (Tensor q = filled(gpu, dtype, shape.q(), random);
        Tensor k = filled(gpu, dtype, shape.k(), random);
        Tensor v = filled(gpu, dtype, shape.v(), random);
        Tensor dO = filled(gpu, dtype, shape.output(), random);
        Tensor dq = poisoned(gpu, dtype, shape.q());
        Tensor dk = poisoned(gpu, dtype, shape.k());
        Tensor dv = poisoned(gpu, dtype, shape.v());
        Tensor da = poisoned(gpu, DType.F32, shape.coefficients());
        Tensor db = poisoned(gpu, DType.F32, shape.coefficients());
        Forward y = attention.forward(q, k, v)) {
      poison(y.output());
      attention.forwardInto(y);
      attention.backwardInto(y, dO, null, Gradients.over(dq, dk, dv, da, db));
      return List.of(dq, dk, dv, da, db).stream().allMatch(SegmentedRuns::isFinite);
    }
  }

  private static boolean isFinite(Tensor tensor) {
    for (float x : tensor.toFloats()) {
      if (!Float.isFinite(x)) {
        return false;
      }
    }
    return true;
  }

  /** NaN, so that what nobody writes shows; and initcheck does not see what tensor copies write. */
  private static Tensor poisoned(Backend gpu, DType dtype, TensorShape shape) {
    Tensor tensor = gpu.allocate(dtype, shape);
    poison(tensor);
    return tensor;
  }

  private static void poison(Tensor tensor) {
    float[] values = new float[Math.toIntExact(tensor.shape().elements())];
    Arrays.fill(values, Float.NaN);
    tensor.copyFrom(values);
  }

  private static Tensor filled(Backend gpu, DType dtype, TensorShape shape, Random random) {
    float[] values = new float[Math.toIntExact(shape.elements())];
    for (int i = 0; i < values.length; i++) {
      values[i] = random.nextFloat() * 0.2f;
    }
    Tensor tensor = gpu.allocate(dtype, shape);
    tensor.copyFrom(values);
    return tensor;
  }
}
