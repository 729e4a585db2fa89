package io.github.linattn.test.harness;

import io.github.linattn.reference.Reference;

/** Gradient of a state as fp32 numbers. */
public record StateGradientValues(float[] ds, float[] dz, float[] du) {

  Reference.StateGradient asDoubles() {
    return new Reference.StateGradient(
        StateValues.doubles(ds), StateValues.doubles(dz), StateValues.doubles(du));
  }
}
