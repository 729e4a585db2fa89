package io.github.linattn.cli;

import static io.github.linattn.cli.BenchData.Kind.NORMAL;
import static io.github.linattn.cli.BenchPass.FORWARD;

import io.github.linattn.AttentionShape;

/**
 * One call to time.
 *
 * @param decode whether it is a decode step from and to a state, in place; forward only
 * @param data what the inputs are
 * @param pass forward, backward or both
 */
record BenchCase(
    AttentionShape shape,
    Precision precision,
    boolean causal,
    boolean normalize,
    boolean decode,
    BenchData.Kind data,
    BenchPass pass) {

  static BenchCase of(AttentionShape shape, Precision precision) {
    return new BenchCase(shape, precision, true, false, false, NORMAL, FORWARD);
  }

  static BenchCase decode(AttentionShape shape, Precision precision) {
    return new BenchCase(shape, precision, true, false, true, NORMAL, FORWARD);
  }

  /** With these switches; a decode step stays causal. */
  BenchCase with(boolean newCausal, boolean newNormalize) {
    return new BenchCase(shape, precision, newCausal || decode, newNormalize, decode, data, pass);
  }

  BenchCase with(BenchData.Kind newData) {
    return new BenchCase(shape, precision, causal, normalize, decode, newData, pass);
  }

  BenchCase with(BenchPass newPass) {
    return new BenchCase(shape, precision, causal, normalize, decode, data, newPass);
  }

  /** The extents, those that follow from others left out. */
  String name() {
    var name = new StringBuilder();
    name.append(Text.format("B=%d H=%d", shape.batch(), shape.heads()));
    if (shape.keyValueHeads() != shape.heads()) {
      name.append(Text.format(" K=%d", shape.keyValueHeads()));
    }
    name.append(Text.format(" N=%d D=%d", shape.tokens(), shape.keyDim()));
    if (shape.valueDim() != shape.keyDim()) {
      name.append(Text.format(" Dv=%d", shape.valueDim()));
    }
    return name
        + (causal ? "" : " full")
        + (normalize ? " unit" : "")
        + (data == NORMAL ? "" : " " + Text.id(data))
        + (pass == BenchPass.BOTH ? " and forward" : "");
  }

  /** Of q, k, v and o. */
  private long elements() {
    return shape.q().elements()
        + shape.k().elements()
        + shape.v().elements()
        + shape.output().elements();
  }

  /** Bytes of q, k, v, o and g. */
  private long forwardBytes() {
    return elements() * precision.dtype().bytes() + shape.normalizer().elements() * Float.BYTES;
  }

  /** Bytes of those and of dq, dk, dv, dO, da and db. */
  private long backwardBytes() {
    return 2 * elements() * precision.dtype().bytes()
        + (shape.normalizer().elements() + 2 * shape.coefficients().elements()) * Float.BYTES;
  }

  /** Bytes of S, z and u, where there are any. */
  long stateBytes() {
    long heads = (long) shape.batch() * shape.keyValueHeads();
    long sums = (long) shape.keyDim() * shape.valueDim() + shape.keyDim() + shape.valueDim();
    return decode ? heads * sums * Float.BYTES : 0;
  }

  /** Memory that a call touches. */
  long footprint() {
    return pass.hasBackward() ? backwardBytes() : forwardBytes() + stateBytes();
  }

  /**
   * What has to be read and written: by a forward q, k, v, o and g once and a state twice, by a
   * backward q, k, v, o, g and dO and the gradients once.
   */
  long traffic() {
    return (pass.hasForward() ? forwardBytes() + 2 * stateBytes() : 0)
        + (pass.hasBackward() ? backwardBytes() : 0);
  }
}
