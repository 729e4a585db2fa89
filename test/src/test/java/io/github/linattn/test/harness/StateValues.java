package io.github.linattn.test.harness;

import io.github.linattn.reference.Reference;

/** A state as fp32 numbers. */
public record StateValues(float[] s, float[] z, float[] u, long[] counts) {

  static StateValues rounded(Reference.State state) {
    return new StateValues(
        floats(state.s()), floats(state.z()), floats(state.u()), state.counts().clone());
  }

  private static float[] floats(double[] values) {
    float[] rounded = new float[values.length];
    for (int i = 0; i < values.length; i++) {
      rounded[i] = (float) values[i];
    }
    return rounded;
  }

  Reference.State asDoubles() {
    return new Reference.State(doubles(s), doubles(z), doubles(u), counts.clone());
  }

  static double[] doubles(float[] values) {
    double[] exact = new double[values.length];
    for (int i = 0; i < values.length; i++) {
      exact[i] = values[i];
    }
    return exact;
  }
}
