package io.github.linattn.test.contract;

import static org.assertj.core.api.Assertions.assertThat;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.AttentionState;
import io.github.linattn.Backend;
import io.github.linattn.DType;
import io.github.linattn.Forward;
import io.github.linattn.LinearAttention;
import io.github.linattn.Mode;
import io.github.linattn.Stream;
import io.github.linattn.Tensor;
import io.github.linattn.reference.ErrorBudget;
import io.github.linattn.reference.Reference;
import io.github.linattn.test.harness.Backends;
import io.github.linattn.test.harness.GpuTest;
import io.github.linattn.test.harness.Subject;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * Breaks when a state that grows over a whole long sequence loses what accumulators of the tensor
 * cores truncate: of elements of one sign up to 1.1e-8 a token, 3e-3 here.
 */
@GpuTest
final class GpuLongSequencesTest {
  private static final String PLAN = "linattn.plan";
  private static final int TOKENS = 300_000;
  private static final long SEED = 20_261_130;

  static List<Arguments> modes() {
    List<Arguments> rows = new ArrayList<>();
    for (Subject subject : Backends.gpu()) {
      if (subject.isHopper()) {
        for (int headDim : new int[] {64, 128}) {
          rows.add(Arguments.of(DType.F16, Mode.DEFAULT, headDim, false, subject));
          for (boolean normalize : new boolean[] {false, true}) {
            rows.add(Arguments.of(DType.F32, Mode.TF32, headDim, normalize, subject));
            rows.add(Arguments.of(DType.F32, Mode.DEFAULT, headDim, normalize, subject));
          }
        }
      }
    }
    return rows;
  }

  @AfterEach
  void choosesFreelyAgain() {
    System.clearProperty(PLAN);
  }

  @ParameterizedTest(name = "{0} {1}, D = {2}, normalised: {3}, on {4}")
  @MethodSource("modes")
  void theLastRowHasAllTokensInIt(
      DType dtype, Mode mode, int headDim, boolean normalize, Subject subject) {
    System.setProperty(PLAN, "wgmma"); // one pass
    var shape = AttentionShape.of(1, 1, TOKENS, headDim).q();
    Backend gpu = subject.backend();
    try (Stream stream = gpu.newStream();
        Tensor q = gpu.allocate(dtype, shape);
        Tensor k = gpu.allocate(dtype, shape);
        Tensor v = gpu.allocate(dtype, shape)) {
      draw(q, k, v);
      LinearAttention attention =
          LinearAttention.builder()
              .coefficients(1, 1)
              .mode(mode)
              .normalizeQueriesAndKeys(normalize)
              .on(gpu, stream);
      try (Forward forward = attention.forward(q, k, v);
          Tensor lastRow = forward.output().sliced(2, TOKENS - 1, 1)) {
        stream.synchronize();
        double[] expected =
            row(TOKENS - 1, q.toFloats(), k.toFloats(), v.toFloats(), headDim, normalize);
        assertThat(Reference.error(expected, lastRow.toFloats()))
            .as("seed %d", SEED)
            .isLessThan(ErrorBudget.of(dtype, mode));
      }
    }
  }

  static List<Arguments> plans() {
    List<Arguments> rows = new ArrayList<>();
    for (Subject subject : Backends.gpu()) {
      if (subject.isHopper()) {
        for (int headDim : new int[] {64, 96, 128}) {
          rows.add(Arguments.of(headDim, "wgmma", subject));
          rows.add(Arguments.of(headDim, "wgmma*2", subject));
        }
      }
    }
    return rows;
  }

  /** Of fp16, whose S is put by: it starts from what was given, and all of it is handed on. */
  @ParameterizedTest(name = "D = {0}, {1}, on {2}")
  @MethodSource("plans")
  void aStateHasAllTokensInIt(int headDim, String plan, Subject subject) {
    System.setProperty(PLAN, plan);
    int first = TOKENS / 3;
    int last = TOKENS - 1;
    AttentionShape all = AttentionShape.of(1, 1, TOKENS, headDim);
    Backend gpu = subject.backend();
    try (Stream stream = gpu.newStream();
        Tensor q = gpu.allocate(DType.F16, all.q());
        Tensor k = gpu.allocate(DType.F16, all.k());
        Tensor v = gpu.allocate(DType.F16, all.v());
        Tensor o = gpu.allocate(DType.F16, all.output());
        Tensor g = gpu.allocate(DType.F32, all.normalizer());
        AttentionState state = gpu.newState(all, 1)) {
      draw(q, k, v);
      LinearAttention attention = LinearAttention.builder().coefficients(1, 1).on(gpu, stream);
      for (int[] part : new int[][] {{0, first}, {first, last - first}, {last, 1}}) {
        AttentionInput input = AttentionInput.of(window(q, part), window(k, part), window(v, part));
        attention.forwardInto(
            part[0] == 0 ? input : input.from(state), window(o, part), window(g, part), state);
      }
      stream.synchronize();
      float[] queries = q.toFloats();
      float[] keys = k.toFloats();
      float[] values = v.toFloats();
      for (int token : new int[] {first - 1, last - 1, last}) {
        double[] expected = row(token, queries, keys, values, headDim, false);
        assertThat(Reference.error(expected, o.sliced(2, token, 1).toFloats()))
            .as("seed %d, token %d", SEED, token)
            .isLessThan(ErrorBudget.of(DType.F16, Mode.DEFAULT));
      }
    }
  }

  private static Tensor window(Tensor tensor, int[] part) {
    return tensor.sliced(2, part[0], part[1]);
  }

  /** Elements of one sign, each tensor from a seed of its own. */
  private static void draw(Tensor... tensors) {
    for (int i = 0; i < tensors.length; i++) {
      var random = new SplittableRandom(SEED + i);
      float[] values = new float[(int) tensors[i].shape().elements()];
      for (int j = 0; j < values.length; j++) {
        values[j] = (float) random.nextDouble();
      }
      tensors[i].copyFrom(values);
    }
  }

  /** o of a token, a = b = 1: of all rows of v up to its own by their weights. */
  private static double[] row(
      int token, float[] q, float[] k, float[] v, int headDim, boolean normalize) {
    int last = token * headDim;
    double length = normalize ? length(q, last, headDim) : 1;
    double[] sum = new double[headDim];
    double weights = 0;
    for (int row = 0; row <= last; row += headDim) {
      double dot = 0;
      for (int i = 0; i < headDim; i++) {
        dot += (double) q[last + i] * k[row + i];
      }
      double weight = 1 + dot / length / (normalize ? length(k, row, headDim) : 1);
      weights += weight;
      for (int i = 0; i < headDim; i++) {
        sum[i] += weight * v[row + i];
      }
    }
    for (int i = 0; i < headDim; i++) {
      sum[i] /= weights;
    }
    return sum;
  }

  private static double length(float[] rows, int at, int headDim) {
    double squares = 0;
    for (int i = at; i < at + headDim; i++) {
      squares += (double) rows[i] * rows[i];
    }
    return Math.sqrt(squares);
  }
}
