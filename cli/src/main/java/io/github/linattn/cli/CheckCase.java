package io.github.linattn.cli;

import io.github.linattn.AttentionShape;
import io.github.linattn.LinearAttention;
import io.github.linattn.Sequences;
import org.jspecify.annotations.Nullable;

/**
 * One problem to check.
 *
 * @param packing sequences along the tokens, or null for one per batch row
 * @param tokenMajor whether q, k, v lie as [batch, tokens, heads, dim] and are read through strides
 * @param prefix tokens that run first and hand over their state; 0 for none
 * @param throughStates whether the loss sees the final state, and the gradient of the initial one
 *     is checked
 */
record CheckCase(
    String name,
    AttentionShape shape,
    @Nullable Sequences packing,
    float[] a,
    float[] b,
    boolean causal,
    boolean normalize,
    boolean tokenMajor,
    int prefix,
    boolean throughStates) {

  static CheckCase of(String name, AttentionShape shape) {
    float[] one = {1};
    return new CheckCase(name, shape, null, one, one, true, false, false, 0, false);
  }

  CheckCase coefficients(float[] newA, float[] newB) {
    return new CheckCase(
        name, shape, packing, newA, newB, causal, normalize, tokenMajor, prefix, throughStates);
  }

  CheckCase packed(int... lengths) {
    return new CheckCase(
        name,
        shape,
        Sequences.ofLengths(lengths),
        a,
        b,
        causal,
        normalize,
        tokenMajor,
        prefix,
        throughStates);
  }

  CheckCase nonCausal() {
    return new CheckCase(
        name, shape, packing, a, b, false, normalize, tokenMajor, prefix, throughStates);
  }

  CheckCase normalized() {
    return new CheckCase(
        name, shape, packing, a, b, causal, true, tokenMajor, prefix, throughStates);
  }

  CheckCase strided() {
    return new CheckCase(
        name, shape, packing, a, b, causal, normalize, true, prefix, throughStates);
  }

  CheckCase after(int tokens) {
    return new CheckCase(
        name, shape, packing, a, b, causal, normalize, tokenMajor, tokens, throughStates);
  }

  CheckCase gradientsThroughStates() {
    return new CheckCase(name, shape, packing, a, b, causal, normalize, tokenMajor, prefix, true);
  }

  Sequences sequences() {
    return packing != null ? packing : Sequences.ofLengths(shape.tokens());
  }

  LinearAttention.Builder operator(Precision precision) {
    return LinearAttention.builder()
        .coefficients(a, b)
        .causal(causal)
        .normalizeQueriesAndKeys(normalize)
        .keepState(true)
        .mode(precision.mode());
  }
}
