package io.github.linattn.internal;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.AttentionState;
import io.github.linattn.DType;
import io.github.linattn.Gradients;
import io.github.linattn.MemoryKind;
import io.github.linattn.Plan;
import io.github.linattn.Sequences;
import io.github.linattn.StateGradient;
import io.github.linattn.Stream;
import io.github.linattn.Tensor;
import java.lang.foreign.MemorySegment;
import java.util.Optional;
import org.jspecify.annotations.Nullable;

/**
 * One way of computing linear attention. Arguments have passed the checks that hold for every
 * engine; what an engine can't do it refuses itself, before it changes anything. Thread-safe.
 */
public interface Engine extends AutoCloseable {

  /** Short name for messages and tables. */
  String name();

  /** One line for a person: device, sizes, versions. */
  String describe();

  /** Memory in which this engine computes. */
  MemoryKind memoryKind();

  /** New memory of the given kind; its content is unspecified. */
  Storage allocate(MemoryKind kind, long bytes);

  /** New memory of the kind in which this engine computes, filled with zero bits. */
  Storage allocateZeroed(long bytes);

  /** Page-locks memory of the caller until the storage closes. */
  Storage pin(MemorySegment memory);

  /** Somebody else's device memory. */
  Storage wrapDeviceMemory(long address, long bytes);

  /**
   * Throws if this engine can't read the tensor where it lives.
   *
   * @throws IllegalArgumentException naming the tensor, where it is and where it should be
   */
  void requireReachable(String name, Tensor tensor);

  /** A queue of its own. */
  Stream newStream();

  /** Whether {@link #newStream} of this engine made the stream. */
  boolean owns(Stream stream);

  /** Queues a forward pass. */
  void forward(ForwardCall call);

  /**
   * What this forward would write on its way, if it had memory for it, so that a backward need not
   * compute it again; empty where there is nothing. It takes at most a tenth of the memory of q, k
   * and v.
   */
  default Optional<Checkpoints.Form> checkpoints(ForwardCall call) {
    return Optional.empty();
  }

  /**
   * Queues a forward once more if this very call, with the same objects, is one of the last of the
   * stream and all of them are open. Takes no memory.
   *
   * @return whether it did; if not, {@link #forward} does it
   */
  default boolean repeat(
      Operator operator,
      Tensor q,
      Tensor k,
      Tensor v,
      @Nullable Sequences packing,
      @Nullable AttentionState initial,
      Tensor o,
      Tensor g,
      @Nullable AttentionState finalState,
      @Nullable Checkpoints checkpoints,
      Stream stream) {
    return false;
  }

  /** Queues a backward pass. */
  void backward(BackwardCall call);

  /**
   * Queues a backward once more, as {@link #repeat} does a forward. An equal input serves as well
   * as the same.
   *
   * @return whether it did; if not, {@link #backward} does it
   */
  default boolean repeatBackward(
      Operator operator,
      AttentionInput input,
      Tensor output,
      Tensor normalizer,
      Tensor outputGradient,
      @Nullable AttentionState lastState,
      @Nullable Checkpoints checkpoints,
      @Nullable StateGradient finalStateGradient,
      Gradients gradients,
      Stream stream) {
    return false;
  }

  /**
   * What {@link #forward} would do.
   *
   * @param packing null for one sequence of each batch row
   * @param keepsState whether it would give the state after the last token, too
   */
  Plan.Pass planForward(
      Operator operator,
      AttentionShape shape,
      DType dtype,
      @Nullable Sequences packing,
      boolean keepsState);

  /** Bytes of o and g, and of S, z and u where a forward keeps them. */
  static long resultBytes(
      AttentionShape shape, DType dtype, @Nullable Sequences packing, boolean keepsState) {
    long sequences = packing == null ? shape.batch() : packing.count();
    long d = shape.keyDim();
    long width = shape.valueDim();
    long sums = sequences * shape.keyValueHeads() * (d * width + d + width);
    long state = keepsState ? sums * Float.BYTES : 0;
    return shape.output().elements() * dtype.bytes()
        + shape.normalizer().elements() * Float.BYTES
        + state;
  }

  /** Bytes of dq, dk, dv, da and db. */
  static long gradientBytes(AttentionShape shape, DType dtype) {
    long rows = shape.q().elements() + shape.k().elements() + shape.v().elements();
    return rows * dtype.bytes() + 2 * shape.coefficients().elements() * Float.BYTES;
  }

  /**
   * What {@link #backward} would do.
   *
   * @param packing null for one sequence of each batch row
   * @param lastState whether the state after the last token would be at hand
   */
  Plan.Pass planBackward(
      Operator operator,
      AttentionShape shape,
      DType dtype,
      @Nullable Sequences packing,
      boolean lastState);

  @Override
  void close();
}
