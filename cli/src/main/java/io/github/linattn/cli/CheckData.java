package io.github.linattn.cli;

import io.github.linattn.AttentionShape;
import io.github.linattn.DType;
import io.github.linattn.TensorShape;
import java.util.random.RandomGenerator;
import java.util.random.RandomGeneratorFactory;

/** Row-major inputs of one problem, rounded to a storage type. */
record CheckData(float[] q, float[] k, float[] v, float[] dO) {

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
        normal(random, shape.output(), 1));
  }

  private static float[] normal(RandomGenerator random, TensorShape shape, double scale) {
    float[] values = new float[Math.toIntExact(shape.elements())];
    for (int i = 0; i < values.length; i++) {
      values[i] = (float) (scale * random.nextGaussian());
    }
    return values;
  }

  CheckData rounded(DType dtype) {
    return new CheckData(round(q, dtype), round(k, dtype), round(v, dtype), round(dO, dtype));
  }

  private static float[] round(float[] values, DType dtype) {
    float[] rounded = new float[values.length];
    for (int i = 0; i < values.length; i++) {
      rounded[i] = dtype.round(values[i]);
    }
    return rounded;
  }
}
