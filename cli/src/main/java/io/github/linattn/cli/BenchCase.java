package io.github.linattn.cli;

import static io.github.linattn.cli.BenchData.Kind.NORMAL;

import io.github.linattn.AttentionShape;

/**
 * One forward to time.
 *
 * @param decode whether it is a decode step from and to a state, in place
 * @param data what the inputs are
 */
record BenchCase(
    AttentionShape shape,
    Precision precision,
    boolean causal,
    boolean normalize,
    boolean decode,
    BenchData.Kind data) {

  static BenchCase of(AttentionShape shape, Precision precision) {
    return new BenchCase(shape, precision, true, false, false, NORMAL);
  }

  static BenchCase decode(AttentionShape shape, Precision precision) {
    return new BenchCase(shape, precision, true, false, true, NORMAL);
  }

  /** With these switches; a decode step stays causal. */
  BenchCase with(boolean newCausal, boolean newNormalize) {
    return new BenchCase(shape, precision, newCausal || decode, newNormalize, decode, data);
  }

  BenchCase with(BenchData.Kind newData) {
    return new BenchCase(shape, precision, causal, normalize, decode, newData);
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
        + (data == NORMAL ? "" : " " + Text.id(data));
  }

  private long elements() {
    return shape.q().elements()
        + shape.k().elements()
        + shape.v().elements()
        + shape.output().elements();
  }

  /** Bytes of S, z and u, where there are any. */
  long stateBytes() {
    long heads = (long) shape.batch() * shape.keyValueHeads();
    long sums = (long) shape.keyDim() * shape.valueDim() + shape.keyDim() + shape.valueDim();
    return decode ? heads * sums * Float.BYTES : 0;
  }

  /** Memory that a call touches. */
  long footprint() {
    return traffic() - stateBytes();
  }

  /** What has to be read and written: q, k, v, o and g once, a state twice. */
  long traffic() {
    return elements() * precision.dtype().bytes()
        + shape.normalizer().elements() * Float.BYTES
        + 2 * stateBytes();
  }
}
