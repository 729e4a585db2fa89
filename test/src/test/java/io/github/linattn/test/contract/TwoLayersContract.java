package io.github.linattn.test.contract;

import static org.assertj.core.api.Assertions.assertThat;

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
import io.github.linattn.test.harness.Seeds;
import io.github.linattn.test.harness.Subject;
import java.util.ArrayList;
import java.util.List;
import java.util.SplittableRandom;
import org.junit.jupiter.api.TestInstance;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * Breaks when gradients that are right one by one do not go through a network: forwards and
 * backwards as a trainer calls them, from a learned state, through two layers, to a loss that sees
 * the outputs and the last state.
 *
 * <pre>
 *   y = attention(q, k, v) from (S, z, u)      x = normalised attention(y, y, y)
 *   loss = Σ x·w + Σ S_N·m                     of x's state
 * </pre>
 */
@TestInstance(TestInstance.Lifecycle.PER_CLASS)
abstract class TwoLayersContract {
  private static final AttentionShape SHAPE = AttentionShape.of(1, 2, 70, 32);
  private static final TensorShape ROWS = SHAPE.q();
  private static final TensorShape MATRIX = TensorShape.of(1, 2, 1, 32, 32);
  private static final TensorShape VECTOR = TensorShape.of(1, 2, 1, 32);
  private static final long BEFORE = 10;

  /** The coefficients are those of the first layer. */
  private static final List<String> NAMES = List.of("q", "k", "v", "S", "z", "u", "a", "b");

  private static final List<TensorShape> EXTENTS =
      List.of(ROWS, ROWS, ROWS, MATRIX, VECTOR, VECTOR);
  private static final double[] DEVIATIONS = {0.3, 0.3, 1, 1, 0.5, 2};

  /** Of the length of an input; long, because what fp32 makes of a difference is over the step. */
  private static final double STEP = 1.0 / 64;

  private static final double BOUND = 1e-3;

  abstract List<Subject> subjects();

  @ParameterizedTest
  @MethodSource("subjects")
  void gradientsAreWhatFiniteDifferencesOfTheLossSay(Subject subject) {
    SplittableRandom random = Seeds.random("two layers");
    List<float[]> inputs = new ArrayList<>();
    for (int i = 0; i < EXTENTS.size(); i++) {
      inputs.add(gaussian(random, EXTENTS.get(i), DEVIATIONS[i]));
    }
    inputs.add(new float[] {1, 1.25f});
    inputs.add(new float[] {0.5f, 0.75f});
    float[] w = gaussian(random, ROWS, 1);
    float[] m = gaussian(random, MATRIX, 0.3);
    List<float[]> gradients;
    try (Network network = new Network(subject.backend(), inputs)) {
      gradients = network.gradients(w, m);
    } catch (UnsupportedOperationException refused) {
      assertThat(subject.isComplete()).as("%s: %s", subject, refused.getMessage()).isFalse();
      return;
    }
    for (int i = 0; i < inputs.size(); i++) {
      float[] gradient = gradients.get(i);
      // Along the gradient itself, made as long as the input: no direction says more.
      double length = norm(gradient) / norm(inputs.get(i));
      double near = 0;
      double far = 0;
      for (int side : new int[] {1, -1}) {
        double step = side * STEP / length;
        near += side * loss(subject.backend(), moved(inputs, i, gradient, step), w, m);
        far += side * loss(subject.backend(), moved(inputs, i, gradient, 2 * step), w, m);
      }
      double difference = (8 * near - far) / (12 * STEP / length); // of fourth order
      double expected = norm(gradient) * norm(gradient);
      assertThat(Math.abs(difference - expected) <= BOUND * expected)
          .as("d%s: %s, %s%s", NAMES.get(i), expected, difference, Seeds.replay())
          .isTrue();
    }
  }

  private static double loss(Backend backend, List<float[]> inputs, float[] w, float[] m) {
    try (Network network = new Network(backend, inputs)) {
      return network.loss(w, m);
    }
  }

  private static float[] gaussian(SplittableRandom random, TensorShape shape, double deviation) {
    float[] values = new float[Math.toIntExact(shape.elements())];
    for (int i = 0; i < values.length; i++) {
      values[i] = (float) (deviation * random.nextGaussian());
    }
    return values;
  }

  private static double norm(float[] values) {
    return Math.sqrt(along(values, values));
  }

  private static double along(float[] x, float[] y) {
    double sum = 0;
    for (int i = 0; i < x.length; i++) {
      sum += (double) x[i] * y[i];
    }
    return sum;
  }

  private static List<float[]> moved(
      List<float[]> inputs, int which, float[] direction, double step) {
    List<float[]> moved = new ArrayList<>(inputs);
    float[] values = inputs.get(which).clone();
    for (int i = 0; i < values.length; i++) {
      values[i] += (float) (step * direction[i]);
    }
    moved.set(which, values);
    return moved;
  }

  /** Both layers after their forwards. */
  private static final class Network implements AutoCloseable {
    private final Backend backend;
    private final List<AutoCloseable> owned = new ArrayList<>();
    private final LinearAttention first;
    private final LinearAttention second;
    private final Forward y;
    private final Forward x;

    Network(Backend backend, List<float[]> inputs) {
      this.backend = backend;
      LinearAttention.Builder operator = LinearAttention.builder().mode(Mode.ACCURATE);
      this.first = operator.coefficients(inputs.get(6), inputs.get(7)).on(backend);
      this.second =
          operator.coefficients(1, 0.5f).normalizeQueriesAndKeys(true).keepState(true).on(backend);
      AttentionState state =
          AttentionState.over(
              tensor(MATRIX, inputs.get(3)),
              tensor(VECTOR, inputs.get(4)),
              tensor(VECTOR, inputs.get(5)),
              BEFORE);
      AttentionInput input =
          AttentionInput.of(
              tensor(ROWS, inputs.get(0)),
              tensor(ROWS, inputs.get(1)),
              tensor(ROWS, inputs.get(2)));
      this.y = own(first.forward(input.from(state)));
      this.x = own(second.forward(y.output(), y.output(), y.output()));
    }

    private <T extends AutoCloseable> T own(T member) {
      owned.add(member);
      return member;
    }

    private Tensor tensor(TensorShape shape, float[] values) {
      Tensor tensor = own(backend.allocate(DType.F32, shape));
      tensor.copyFrom(values);
      return tensor;
    }

    double loss(float[] w, float[] m) {
      second.synchronize();
      AttentionState last = x.state().orElseThrow();
      return along(x.output().toFloats(), w) + along(last.s().toFloats(), m);
    }

    /** In the order of {@link #NAMES}. */
    List<float[]> gradients(float[] w, float[] m) {
      StateGradient last = own(backend.newStateGradient(SHAPE, 1));
      last.ds().copyFrom(m);
      Gradients dx = own(second.backward(x, tensor(ROWS, w), last));
      second.synchronize();
      float[] dy = dx.dq().toFloats();
      addTo(dy, dx.dk().toFloats());
      addTo(dy, dx.dv().toFloats());
      assertThat(dx.initialState()).as("gradient of no state").isEmpty();
      Gradients d = own(first.backward(y, tensor(ROWS, dy)));
      first.synchronize();
      StateGradient start = d.initialState().orElseThrow();
      return List.of(
          d.dq().toFloats(),
          d.dk().toFloats(),
          d.dv().toFloats(),
          start.ds().toFloats(),
          start.dz().toFloats(),
          start.du().toFloats(),
          d.da().toFloats(),
          d.db().toFloats());
    }

    private static void addTo(float[] sum, float[] more) {
      for (int i = 0; i < sum.length; i++) {
        sum[i] += more[i];
      }
    }

    @Override
    public void close() {
      for (AutoCloseable each : owned.reversed()) {
        try {
          each.close();
        } catch (Exception e) {
          throw new AssertionError(e);
        }
      }
    }
  }
}
