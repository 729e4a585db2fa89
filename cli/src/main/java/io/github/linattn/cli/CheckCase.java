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
    int prefix) {

  static CheckCase of(String name, AttentionShape shape) {
    float[] one = {1};
    return new CheckCase(name, shape, null, one, one, true, false, false, 0);
  }

  CheckCase coefficients(float[] newA, float[] newB) {
    return new CheckCase(name, shape, packing, newA, newB, causal, normalize, tokenMajor, prefix);
  }

  CheckCase packed(int... lengths) {
    return new CheckCase(
        name, shape, Sequences.ofLengths(lengths), a, b, causal, normalize, tokenMajor, prefix);
  }

  CheckCase nonCausal() {
    return new CheckCase(name, shape, packing, a, b, false, normalize, tokenMajor, prefix);
  }

  CheckCase normalized() {
    return new CheckCase(name, shape, packing, a, b, causal, true, tokenMajor, prefix);
  }

  CheckCase strided() {
    return new CheckCase(name, shape, packing, a, b, causal, normalize, true, prefix);
  }

  CheckCase after(int tokens) {
    return new CheckCase(name, shape, packing, a, b, causal, normalize, tokenMajor, tokens);
  }

  Sequences sequences() {
    return packing != null ? packing : Sequences.ofLengths(shape.tokens());
  }

  LinearAttention.Builder operator(Precision precision) {
    return LinearAttention.builder()
        .coefficients(a, b)
        .causal(causal)
        .normalizeQueriesAndKeys(normalize)
        .keepState(causal)
        .mode(precision.mode());
  }
}
