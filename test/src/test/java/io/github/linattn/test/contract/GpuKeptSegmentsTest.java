package io.github.linattn.test.contract;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.AttentionState;
import io.github.linattn.Backend;
import io.github.linattn.DType;
import io.github.linattn.Forward;
import io.github.linattn.Gradients;
import io.github.linattn.LinearAttention;
import io.github.linattn.StateGradient;
import io.github.linattn.Tensor;
import io.github.linattn.TensorShape;
import io.github.linattn.test.harness.GpuTest;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Random;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/**
 * Breaks when a backward from the states that a forward kept before its segments gives other
 * gradients than one that sums them, or takes states that are not of its forward.
 */
@GpuTest
final class GpuKeptSegmentsTest {
  private static final int HEADS = 2;
  private static final String PLAN = "linattn.plan";
  private static final String GRADIENT_PLAN = "linattn.gradient.plan";

  @AfterEach
  void choosesFreelyAgain() {
    System.clearProperty(PLAN);
    System.clearProperty(GRADIENT_PLAN);
  }

  @ParameterizedTest(name = "{0} D={1} N={2} normalised {3}")
  @CsvSource({
    "BF16, 128, 40000, false",
    "F16, 64, 30001, false",
    "F32, 128, 40000, false",
    "F32, 32, 20000, true",
    "BF16, 256, 60000, false"
  })
  void gradientsAreThoseWithoutKeptStates(DType dtype, int dim, int tokens, boolean normalize) {
    AttentionShape shape = AttentionShape.of(1, HEADS, tokens, dim);
    LinearAttention.Builder operator =
        LinearAttention.builder().normalizeQueriesAndKeys(normalize).coefficients(1, 0.5f);
    var random = new Random(dim + tokens);
    try (Backend gpu = Backend.cuda(0);
        Tensor q = filled(gpu, dtype, shape.q(), random);
        Tensor k = filled(gpu, dtype, shape.k(), random);
        Tensor v = filled(gpu, dtype, shape.v(), random);
        Tensor dO = filled(gpu, dtype, shape.output(), random);
        AttentionState first = gpu.newState(shape, 1);
        StateGradient last = gpu.newStateGradient(shape, 1)) {
      fill(first.s(), random);
      fill(last.ds(), random);
      AttentionInput input = AttentionInput.of(q, k, v).from(first);
      LinearAttention summing = operator.on(gpu);
      LinearAttention keeping = operator.keepState(true).on(gpu);
      double bound = dtype == DType.F32 ? 2e-5 : 2e-3; // of sums cut elsewhere
      long state = 4L * HEADS * (dim * dim + 2 * dim);
      assertThat(keeping.plan(shape, dtype).forward().resultBytes())
          .as("there are segments to keep")
          .isGreaterThan(summing.plan(shape, dtype).forward().resultBytes() + state);
      assertThat(keeping.plan(shape, dtype).backward().reason()).contains("forward kept");
      try (Forward y = keeping.forward(input)) {
        assertSame(keeping.backward(y, dO, last), summing, input, dO, last, bound);
        fill(k, random);
        keeping.forwardInto(y);
        assertSame(keeping.backward(y, dO, last), summing, input, dO, last, bound);
        fill(v, random);
        try (Forward other = summing.forward(input)) { // its state is the one of y from here on
          keeping.forwardInto(input, other.output(), other.normalizer(), y.state().orElseThrow());
          y.output().copyFrom(other.output().toFloats());
          y.normalizer().copyFrom(other.normalizer().toFloats());
        }
        assertSame(keeping.backward(y, dO, last), summing, input, dO, last, bound);
      }
    }
  }

  @ParameterizedTest(name = "{0} D={1}, forward {2}, with states {3}")
  @CsvSource({
    "BF16, 128, wgmma:1280, true",
    "BF16, 128, wgmma:1280, false",
    "F16, 128, wgmma:1280, true",
    "F16, 128, wgmma:1280, false",
    "BF16, 64, wgmma:640, false",
    "BF16, 128, wgmma:3392/, true",
    "BF16, 128, wgmma:3392/, false",
    "F16, 128, wgmma:5056/, true",
    "F16, 128, wgmma:5056/, false",
    "BF16, 64, wgmma:2560/, true"
  })
  void oneSweepOfSegmentsStartsFromKeptStates(
      DType dtype, int dim, String forward, boolean states) {
    AttentionShape shape = AttentionShape.of(1, 8, 10_000, dim);
    LinearAttention.Builder operator = LinearAttention.builder().coefficients(1, 0.5f);
    var random = new Random(dim);
    try (Backend gpu = Backend.cuda(0);
        Tensor q = filled(gpu, dtype, shape.q(), random);
        Tensor k = filled(gpu, dtype, shape.k(), random);
        Tensor v = filled(gpu, dtype, shape.v(), random);
        Tensor dO = filled(gpu, dtype, shape.output(), random);
        AttentionState first = gpu.newState(shape, 1);
        StateGradient last = gpu.newStateGradient(shape, 1)) {
      fill(first.s(), random);
      fill(last.ds(), random);
      AttentionInput plain = AttentionInput.of(q, k, v);
      AttentionInput input = states ? plain.from(first) : plain;
      @Nullable StateGradient after = states ? last : null;
      LinearAttention summing = operator.on(gpu);
      LinearAttention keeping = operator.keepState(true).on(gpu);
      String segment = forward.replaceAll("\\D", "");
      System.setProperty(GRADIENT_PLAN, "one_sweep:" + segment + "*");
      assumeTrue(
          !keeping.plan(shape, dtype).backward().steps().isEmpty(),
          "left out: this GPU has no one sweep");
      System.setProperty(PLAN, forward);
      assertThat(keeping.plan(shape, dtype).backward().reason())
          .contains("from the states that the forward kept, with a scan before one sweep of all");
      try (Forward y = keeping.forward(input)) {
        Gradients swept = keeping.backward(y, dO, after);
        System.clearProperty(PLAN);
        System.setProperty(GRADIENT_PLAN, "wgmma");
        double bound = dtype == DType.F16 ? 2e-3 : 5e-3; // other products than of two sweeps
        assertSame(swept, summing, input, dO, after, bound);
      }
    }
  }

  /** Closes the gradients. */
  private static void assertSame(
      Gradients kept,
      LinearAttention summing,
      AttentionInput input,
      Tensor dO,
      @Nullable StateGradient last,
      double bound) {
    try (kept;
        Forward y = summing.forward(input);
        Gradients summed = summing.backward(y, dO, last)) {
      Map<String, Tensor> expected = tensors(summed, input);
      tensors(kept, input)
          .forEach(
              (name, tensor) ->
                  assertThat(distance(tensor, expected.get(name))).as(name).isLessThan(bound));
    }
  }

  private static Map<String, Tensor> tensors(Gradients gradients, AttentionInput input) {
    Map<String, Tensor> tensors = new LinkedHashMap<>();
    tensors.put("dq", gradients.dq());
    tensors.put("dk", gradients.dk());
    tensors.put("dv", gradients.dv());
    if (input.initialState().isPresent()) {
      tensors.put("dS0", gradients.initialState().orElseThrow().ds());
    }
    return tensors;
  }

  /** Relative, of Frobenius norms. */
  private static double distance(Tensor actual, Tensor expected) {
    float[] a = actual.toFloats();
    float[] e = expected.toFloats();
    double difference = 0;
    double length = 0;
    for (int i = 0; i < a.length; i++) {
      difference += ((double) a[i] - e[i]) * ((double) a[i] - e[i]);
      length += (double) e[i] * e[i];
    }
    return Math.sqrt(difference / length);
  }

  private static Tensor filled(Backend gpu, DType dtype, TensorShape shape, Random random) {
    Tensor tensor = gpu.allocate(dtype, shape);
    fill(tensor, random);
    return tensor;
  }

  private static void fill(Tensor tensor, Random random) {
    float[] values = new float[Math.toIntExact(tensor.shape().elements())];
    for (int i = 0; i < values.length; i++) {
      values[i] = (float) random.nextGaussian() * 0.3f;
    }
    tensor.copyFrom(values);
  }
}
