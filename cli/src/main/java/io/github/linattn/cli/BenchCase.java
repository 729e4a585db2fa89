package io.github.linattn.cli;

import static io.github.linattn.cli.BenchData.Kind.NORMAL;
import static io.github.linattn.cli.BenchPass.FORWARD;

import io.github.linattn.AttentionShape;
import io.github.linattn.cli.points.Problem;

/**
 * One call to time.
 *
 * @param context tokens in the state from which a decode step goes, in place; 0 where it is none
 * @param data what the inputs are
 * @param pass forward, backward or both
 * @param keepsState whether the backward is given the state that the forward ended with
 */
record BenchCase(
    AttentionShape shape,
    Precision precision,
    boolean causal,
    boolean normalize,
    long context,
    BenchData.Kind data,
    BenchPass pass,
    boolean keepsState) {

  /** In place of a figure's sweep: points of a few calls each. */
  static final String NO_SWEEP = "";

  private static final String SUSTAINED = "sustained";

  /** In place of a figure's sweep: points of calls that have gone on for so many seconds. */
  static String sustained(double seconds) {
    return SUSTAINED + Text.format(" %s s", seconds);
  }

  static BenchCase of(AttentionShape shape, Precision precision) {
    return new BenchCase(shape, precision, true, false, 0, NORMAL, FORWARD, false);
  }

  /** A decode step: a forward of one token from and to a state. */
  static BenchCase decode(AttentionShape shape, Precision precision, long context) {
    return new BenchCase(shape, precision, true, false, context, NORMAL, FORWARD, false);
  }

  boolean decode() {
    return context > 0;
  }

  /** With these switches; a decode step stays causal. */
  BenchCase with(boolean newCausal, boolean newNormalize) {
    boolean stays = newCausal || decode();
    return new BenchCase(shape, precision, stays, newNormalize, context, data, pass, keepsState);
  }

  BenchCase with(AttentionShape newShape) {
    return new BenchCase(newShape, precision, causal, normalize, context, data, pass, keepsState);
  }

  BenchCase with(BenchData.Kind newData) {
    return new BenchCase(shape, precision, causal, normalize, context, newData, pass, keepsState);
  }

  BenchCase with(BenchPass newPass) {
    return new BenchCase(shape, precision, causal, normalize, context, data, newPass, keepsState);
  }

  /** Of a backward that starts from the state that the forward keeps. */
  BenchCase keepingState() {
    return new BenchCase(shape, precision, causal, normalize, context, data, pass, true);
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
        + (keepsState ? Problem.FROM_STATE : "")
        + (pass == BenchPass.BOTH ? " and forward" : "");
  }

  /** What a point of ours says it is about; backwards of a figure all start from a state. */
  Problem problem(String sweep, String method) {
    boolean ofNoFigure = sweep.equals(NO_SWEEP) || sweep.startsWith(SUSTAINED);
    return new Problem(
        sweep,
        method,
        "",
        Text.id(pass) + (keepsState && ofNoFigure ? Problem.FROM_STATE : ""),
        shape.batch(),
        shape.heads(),
        shape.keyValueHeads(),
        shape.tokens(),
        shape.keyDim(),
        shape.valueDim(),
        context,
        Text.id(precision.dtype()),
        Text.id(precision.mode()),
        causal,
        normalize,
        Text.id(data));
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
    return decode() || keepsState ? heads * sums * Float.BYTES : 0;
  }

  /**
   * Memory above q, k, v and dO: the results, and o, g and the state that a backward goes back
   * through.
   *
   * @param workspaceBytes as planned
   */
  long memoryBytes(long workspaceBytes) {
    int size = precision.dtype().bytes();
    long inputs = shape.q().elements() + shape.k().elements() + shape.v().elements();
    long outputs = shape.output().elements() * size + shape.normalizer().elements() * Float.BYTES;
    long gradients = inputs * size + 2 * shape.coefficients().elements() * Float.BYTES;
    long kept = keepsState ? stateBytes() : 0;
    return outputs + kept + (pass.hasBackward() ? gradients : 0) + workspaceBytes;
  }

  /** Memory that a call touches. */
  long footprint() {
    return (pass.hasBackward() ? backwardBytes() : forwardBytes()) + stateBytes();
  }

  /**
   * What has to be read and written: by a forward q, k, v, o and g once and a state, which a decode
   * step reads too; by a backward q, k, v, o, g, dO, the state and the gradients once.
   */
  long traffic() {
    int states = decode() ? 2 : 1;
    return (pass.hasForward() ? forwardBytes() + states * stateBytes() : 0)
        + (pass.hasBackward() ? backwardBytes() + stateBytes() : 0);
  }
}
