package io.github.linattn.internal;

import io.github.linattn.AttentionShape;
import io.github.linattn.DType;
import io.github.linattn.MemoryKind;
import io.github.linattn.Plan;
import io.github.linattn.Stream;
import io.github.linattn.Tensor;
import java.lang.foreign.MemorySegment;

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

  /** Queues a backward pass. */
  void backward(BackwardCall call);

  /** What {@link #forward} would do. */
  Plan.Pass planForward(Operator operator, AttentionShape shape, DType dtype);

  /** What {@link #backward} would do. */
  Plan.Pass planBackward(Operator operator, AttentionShape shape, DType dtype);

  @Override
  void close();
}
