package io.github.linattn.cli;

import io.github.linattn.AttentionShape;
import io.github.linattn.DType;
import io.github.linattn.TensorShape;
import java.util.random.RandomGenerator;
import java.util.random.RandomGeneratorFactory;
import org.jspecify.annotations.Nullable;

/**
 * Row-major inputs of one problem, rounded to a storage type.
 *
 * @param finalState gradient of the loss with respect to the final state, where the problem goes
 *     through states
 */
record CheckData(
    float[] q, float[] k, float[] v, float[] dO, @Nullable StateGradientValues finalState) {

  /** Inputs of a problem whose loss does not see the final state. */
  CheckData(float[] q, float[] k, float[] v, float[] dO) {
    this(q, k, v, dO, null);
  }

  /** Gradient of a state. */
  record StateGradientValues(float[] ds, float[] dz, float[] du) {}

  /** Standard deviation of q·k where rows are not normalised: keeps g = Σ (a + b q·k) off zero. */
  private static final double PRODUCT_DEVIATION = 0.2;

  static CheckData random(CheckCase problem, long seed) {
    AttentionShape shape = problem.shape();
    RandomGenerator random = RandomGeneratorFactory.of("L64X128MixRandom").create(seed);
    double scale = Math.sqrt(PRODUCT_DEVIATION / Math.sqrt(shape.keyDim()));
    return new CheckData(
        normal(random, shape.q(), scale),
        normal(random, shape.k(), scale),
        normal(random, shape.v(), 1),
        normal(random, shape.output(), 1),
        problem.throughStates() ? stateGradient(problem, random) : null);
  }

  private static StateGradientValues stateGradient(CheckCase problem, RandomGenerator random) {
    AttentionShape shape = problem.shape();
    long heads = shape.keyValueHeads();
    long sequences = problem.sequences().count();
    var rows = TensorShape.of(shape.batch(), heads, sequences, shape.keyDim());
    var values = TensorShape.of(shape.batch(), heads, sequences, shape.valueDim());
    var matrix = TensorShape.of(shape.batch(), heads, sequences, shape.keyDim(), shape.valueDim());
    return new StateGradientValues(
        normal(random, matrix, PRODUCT_DEVIATION),
        normal(random, rows, PRODUCT_DEVIATION),
        normal(random, values, PRODUCT_DEVIATION));
  }

  private static float[] normal(RandomGenerator random, TensorShape shape, double scale) {
    float[] values = new float[Math.toIntExact(shape.elements())];
    for (int i = 0; i < values.length; i++) {
      values[i] = (float) (scale * random.nextGaussian());
    }
    return values;
  }

  CheckData rounded(DType dtype) {
    return new CheckData(
        round(q, dtype), round(k, dtype), round(v, dtype), round(dO, dtype), finalState);
  }

  private static float[] round(float[] values, DType dtype) {
    float[] rounded = new float[values.length];
    for (int i = 0; i < values.length; i++) {
      rounded[i] = dtype.round(values[i]);
    }
    return rounded;
  }
}
