package io.github.linattn.internal.cuda;

import io.github.linattn.AttentionShape;
import io.github.linattn.DType;
import io.github.linattn.Mode;
import io.github.linattn.Sequences;
import io.github.linattn.internal.Checkpoints;
import io.github.linattn.kernelgen.ElementType;
import io.github.linattn.kernelgen.Precision;
import org.jspecify.annotations.Nullable;

/**
 * What a planner is asked. Of a backward {@code inPlace} is false.
 *
 * @param packing null for one sequence of each batch row
 * @param finalState whether the state after the last token is wanted; of a backward, which walks
 *     the other way, the gradient of the initial state
 * @param tensorMaps whether the strides suit the copy engine, as most wgmma kernels need
 * @param sumsSlope whether db is summed with dq, of this backward or of that of this forward
 * @param lastState of a backward: whether the state after the last token is at hand
 * @param lastGradient of a backward without causality: whether that state has a gradient
 * @param kept of a backward: what its forward has kept for it, or null; of a forward what it keeps
 *     if that is a chain
 */
record Question(
    AttentionShape shape,
    DType dtype,
    Mode mode,
    boolean causal,
    boolean normalize,
    @Nullable Sequences packing,
    boolean initialState,
    boolean finalState,
    boolean inPlace,
    boolean tensorMaps,
    boolean sumsSlope,
    boolean lastState,
    boolean lastGradient,
    Checkpoints.@Nullable Form kept) {
  /** A question about a forward with a backward that sums no db. */
  Question(
      AttentionShape shape,
      DType dtype,
      Mode mode,
      boolean causal,
      boolean normalize,
      @Nullable Sequences packing,
      boolean initialState,
      boolean finalState,
      boolean inPlace,
      boolean tensorMaps) {
    this(
        shape,
        dtype,
        mode,
        causal,
        normalize,
        packing,
        initialState,
        finalState,
        inPlace,
        tensorMaps,
        false,
        false,
        false,
        null);
  }

  /** A question about a shape alone, with tensors without gaps. */
  static Question of(
      AttentionShape shape, DType dtype, Mode mode, boolean causal, boolean normalize) {
    return new Question(shape, dtype, mode, causal, normalize, null, false, false, false, true);
  }

  /** The same of these sequences. */
  Question packed(@Nullable Sequences sequences) {
    return with(shape, sequences, initialState, finalState, inPlace, sumsSlope, lastState, kept);
  }

  /** The same of a forward that gives the state after the last token, or does not. */
  Question keeping(boolean state) {
    return with(shape, packing, initialState, state, inPlace, sumsSlope, lastState, kept);
  }

  /** The same with a db that does not follow from da, or does. */
  Question summingSlope(boolean summed) {
    return with(shape, packing, initialState, finalState, inPlace, summed, lastState, kept);
  }

  /** The same of a backward. */
  Question ofBackward(boolean stateIsAtHand, Checkpoints.@Nullable Form keptStates) {
    return with(
        shape, packing, initialState, finalState, inPlace, sumsSlope, stateIsAtHand, keptStates);
  }

  /** The same of a forward that writes these. */
  Question keeping(Checkpoints.Form written) {
    return ofBackward(lastState, written);
  }

  /** The same of fewer tokens, with other states and nothing kept. */
  Question window(int tokens, boolean hasInitialState, boolean hasFinalState) {
    var window =
        new AttentionShape(
            shape.batch(),
            shape.heads(),
            shape.keyValueHeads(),
            tokens,
            shape.keyDim(),
            shape.valueDim());
    return with(window, packing, hasInitialState, hasFinalState, false, sumsSlope, lastState, null);
  }

  private Question with(
      AttentionShape ofShape,
      @Nullable Sequences sequences,
      boolean hasInitialState,
      boolean hasFinalState,
      boolean replaced,
      boolean summed,
      boolean stateIsAtHand,
      Checkpoints.@Nullable Form keptStates) {
    return new Question(
        ofShape,
        dtype,
        mode,
        causal,
        normalize,
        sequences,
        hasInitialState,
        hasFinalState,
        replaced,
        tensorMaps,
        summed,
        stateIsAtHand,
        lastGradient,
        keptStates);
  }

  /** Of a forward: whether it may keep things that go with the state after the last token. */
  boolean keepsForBackward() {
    return finalState && !inPlace;
  }

  /** Whether a forward has kept the lengths of rows, or they are not wanted. */
  boolean lengthsAreKept() {
    return !normalize || (kept != null && kept.lengths());
  }

  ElementType element() {
    return switch (dtype) {
      case F32 -> ElementType.F32;
      case BF16 -> ElementType.BF16;
      case F16 -> ElementType.F16;
    };
  }

  Precision precision() {
    if (dtype != DType.F32) {
      return Precision.NATIVE;
    }
    return switch (mode) {
      case TF32 -> Precision.TF32;
      case DEFAULT -> Precision.DEFAULT;
      case ACCURATE -> Precision.ACCURATE;
    };
  }

  /** Of the kernels by mma, where the accurate ones serve the mode DEFAULT too. */
  Precision warpPrecision() {
    return precision() == Precision.DEFAULT ? Precision.ACCURATE : precision();
  }

  /** Of the kernels that multiply in fp32. */
  Precision exactPrecision() {
    return dtype == DType.F32 ? Precision.ACCURATE : Precision.NATIVE;
  }

  long heads() {
    return (long) shape.batch() * shape.heads();
  }

  long keyValueHeads() {
    return (long) shape.batch() * shape.keyValueHeads();
  }

  /**
   * Its tokens, cut.
   *
   * @param segment tokens of a segment; 0 for whole sequences
   */
  Cut cut(int segment) {
    return new Cut(shape.tokens(), packing, segment);
  }

  /** Bytes of a state of one sequence of one key/value head. */
  long stateBytes() {
    long elements = (long) shape.keyDim() * shape.valueDim() + shape.keyDim() + shape.valueDim();
    return elements * Float.BYTES;
  }

  /** Bytes of one number for each row of q and k. */
  long lengthBytes() {
    return (heads() + keyValueHeads()) * shape.tokens() * Float.BYTES;
  }

  /** Bytes of k and v. */
  double keyValueBytes() {
    return (double) (shape.k().elements() + shape.v().elements()) * dtype.bytes();
  }

  /** Bytes of q. */
  double queryRowBytes() {
    return (double) shape.q().elements() * dtype.bytes();
  }

  /** Bytes of q, o and g. */
  double queryBytes() {
    return (double) (shape.q().elements() + shape.output().elements()) * dtype.bytes()
        + (double) shape.normalizer().elements() * Float.BYTES;
  }
}
