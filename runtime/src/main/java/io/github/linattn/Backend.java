package io.github.linattn;

import io.github.linattn.cuda.CudaException;
import io.github.linattn.internal.ClosedException;
import io.github.linattn.internal.Engine;
import io.github.linattn.internal.Leaks;
import io.github.linattn.internal.cpu.CpuEngine;
import io.github.linattn.internal.cuda.CudaEngine;
import java.lang.foreign.MemorySegment;
import java.util.Optional;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;

/**
 * Where attention is computed, and the memory for it. May be used from many threads. Closing it
 * ends its own stream and its kernels; tensors that it made are closed by whoever asked for them,
 * before the backend. Once it is closed calls that need it throw {@link IllegalStateException}.
 */
public final class Backend implements AutoCloseable {
  private static final System.Logger LOG = System.getLogger(Backend.class.getName());

  private final Engine engine;
  private final Stream stream;
  private final @Nullable String fallbackReason;
  private final Leaks.Claim claim;
  private volatile @Nullable Throwable closedAt;

  private Backend(Engine engine, @Nullable String fallbackReason) {
    this.engine = engine;
    this.stream = engine.newStream();
    this.fallbackReason = fallbackReason;
    this.claim = Leaks.withoutBackend().claim(this, "a backend");
  }

  /** The CPU, with one thread per processor. */
  public static Backend cpu() {
    return cpu(Runtime.getRuntime().availableProcessors());
  }

  /**
   * The CPU, with this many threads for a call: the caller's, and others that all callers share.
   * Results have the same bits for the same number of threads.
   *
   * @throws IllegalArgumentException if {@code threads} is less than 1
   */
  public static Backend cpu(int threads) {
    return new Backend(new CpuEngine(threads), null);
  }

  /**
   * One NVIDIA GPU. Never falls back.
   *
   * @throws NoGpuException if there is no usable GPU; says why, what was tried and the cure
   * @throws IllegalArgumentException if there is no GPU of this ordinal, or if a folder of kernels,
   *     a tuning file or a family of kernels that properties or the environment name is none
   */
  public static Backend cuda(int ordinal) {
    Engine engine = CudaEngine.open(ordinal);
    try {
      return new Backend(engine, null);
    } catch (RuntimeException | Error e) {
      engine.close();
      throw e;
    }
  }

  /**
   * GPU 0 if it is usable, else the CPU; {@link #fallbackReason} and one log line then say why.
   *
   * @throws IllegalArgumentException if GPU 0 is usable, and what properties or the environment
   *     name for it is wrong, as for {@link #cuda}: a mistake, for which the CPU is no answer
   */
  public static Backend auto() {
    try {
      return cuda(0);
    } catch (NoGpuException | CudaException e) {
      String reason = String.valueOf(e.getMessage()).split("\n", 2)[0];
      LOG.log(System.Logger.Level.INFO, "using the CPU: {0}", reason);
      return new Backend(new CpuEngine(Runtime.getRuntime().availableProcessors()), reason);
    }
  }

  /** Why {@link #auto} chose the CPU, or empty. */
  public Optional<String> fallbackReason() {
    return Optional.ofNullable(fallbackReason);
  }

  /** Short name: {@code cpu} or {@code cuda:0}. */
  public String name() {
    return engine.name();
  }

  /** One line for a person: device, sizes, versions. */
  public String describe() {
    return engine.describe();
  }

  /** The kind of memory in which this backend computes. */
  public MemoryKind memoryKind() {
    return engine.memoryKind();
  }

  /**
   * A new row-major tensor in the memory in which this backend computes; its elements are
   * unspecified.
   *
   * @throws io.github.linattn.cuda.CudaOutOfMemoryException with the bytes needed and free
   * @throws OutOfMemoryError on the CPU, with type, shape and bytes
   */
  public Tensor allocate(DType dtype, TensorShape shape) {
    return Tensor.in(bytes -> engine().allocate(engine.memoryKind(), bytes), dtype, shape);
  }

  /**
   * A new row-major tensor in page-locked host memory, for asynchronous copies and for the GPU.
   * Another GPU may use it as well; closing waits for the one of this backend alone.
   *
   * @throws UnsupportedOperationException if this backend is the CPU
   * @throws io.github.linattn.cuda.CudaOutOfMemoryException if the host has no such memory left
   */
  public Tensor allocatePinned(DType dtype, TensorShape shape) {
    long bytes = Tensor.bytesOf(dtype, shape);
    return Tensor.over(engine().allocate(MemoryKind.PINNED, bytes), dtype, shape);
  }

  /**
   * Page-locks the caller's off-heap memory in place until the tensor closes. The memory stays the
   * caller's and must outlive the tensor. Closing waits for the GPU of this backend alone.
   *
   * @throws UnsupportedOperationException if this backend is the CPU
   * @throws IllegalArgumentException if the memory is on the Java heap, one thread's own or shorter
   *     than the shape
   */
  public Tensor pin(MemorySegment memory, DType dtype, TensorShape shape) {
    return Tensor.over(engine().pin(pinnable(memory, dtype, shape)), dtype, shape);
  }

  private static MemorySegment pinnable(MemorySegment memory, DType dtype, TensorShape shape) {
    try (Tensor checked = Tensor.wrap(memory, dtype, shape)) {
      return checked.segment();
    }
  }

  /**
   * A tensor over device memory of somebody else, row-major, at {@code address}; it must outlive
   * the tensor. Nothing orders the work of the streams here by that of others, the default stream
   * of CUDA among them: wait for it first, or order it by {@link Stream#nativeHandle}.
   *
   * @throws UnsupportedOperationException if this backend is the CPU
   * @throws IllegalArgumentException if CUDA knows the first or the last byte as no memory of this
   *     GPU
   */
  public Tensor wrapDeviceMemory(long address, DType dtype, TensorShape shape) {
    long bytes = Tensor.bytesOf(dtype, shape);
    return Tensor.over(engine().wrapDeviceMemory(address, bytes), dtype, shape);
  }

  /**
   * An empty state (all sums and counts 0) in the memory in which this backend computes; {@link
   * AttentionState#copyTo} fills it from another.
   *
   * @param sequences for each batch row, 1 unless it holds packed sequences
   * @throws IllegalArgumentException if there is no sequence
   * @throws io.github.linattn.cuda.CudaOutOfMemoryException with the bytes needed and free
   * @throws OutOfMemoryError on the CPU, as {@link #allocate} does
   */
  public AttentionState newState(AttentionShape shape, int sequences) {
    return state(shape, sequences, this::zeros);
  }

  /** A state for a call to fill in; its sums are unspecified. */
  AttentionState unsetState(AttentionShape shape, int sequences) {
    return state(shape, sequences, extents -> allocate(DType.F32, extents));
  }

  private static AttentionState state(
      AttentionShape shape, int sequences, Function<TensorShape, Tensor> tensor) {
    return stateTensors(
        shape, sequences, tensor, (s, z, u) -> AttentionState.owning(s, z, u, sequences));
  }

  /**
   * A gradient of a state (all elements 0) in the memory in which this backend computes, with the
   * exceptions of {@link #newState}.
   *
   * @param sequences for each batch row, 1 unless it holds packed sequences
   */
  public StateGradient newStateGradient(AttentionShape shape, int sequences) {
    return stateTensors(shape, sequences, this::zeros, StateGradient::owning);
  }

  /** A gradient of a state for a call to fill in; its elements are unspecified. */
  StateGradient unsetStateGradient(AttentionShape shape, int sequences) {
    return stateTensors(
        shape, sequences, extents -> allocate(DType.F32, extents), StateGradient::owning);
  }

  /** Takes over the tensors of a state or of its gradient. */
  private interface StateOwner<T> {
    T own(Tensor s, Tensor z, Tensor u);
  }

  private static <T> T stateTensors(
      AttentionShape shape,
      int sequences,
      Function<TensorShape, Tensor> tensor,
      StateOwner<T> owner) {
    Checks.present("shape", shape);
    if (sequences < 1) {
      throw new IllegalArgumentException("a state needs at least 1 sequence, got " + sequences);
    }
    long batch = shape.batch();
    long heads = shape.keyValueHeads();
    var tensors = new TensorGroup();
    try {
      return owner.own(
          tensors.add(
              tensor.apply(
                  TensorShape.of(batch, heads, sequences, shape.keyDim(), shape.valueDim()))),
          tensors.add(tensor.apply(TensorShape.of(batch, heads, sequences, shape.keyDim()))),
          tensors.add(tensor.apply(TensorShape.of(batch, heads, sequences, shape.valueDim()))));
    } catch (RuntimeException | Error e) {
      tensors.closeAfter(e);
      throw e;
    }
  }

  private Tensor zeros(TensorShape shape) {
    return Tensor.in(bytes -> engine().allocateZeroed(bytes), DType.F32, shape);
  }

  /** A new queue of work, closed by the caller before the backend. */
  public Stream newStream() {
    return engine().newStream();
  }

  Stream stream() {
    return stream;
  }

  /** The engine, for any work. */
  Engine engine() {
    Throwable where = closedAt;
    if (where != null) {
      throw new ClosedException(
          "the backend %s is closed; see the cause for where".formatted(name()), where);
    }
    return engine;
  }

  void requireReachable(String name, Tensor tensor) {
    engine().requireReachable(name, tensor);
  }

  @Override
  public void close() {
    if (closedAt == null) {
      closedAt = new Throwable("closed here");
    }
    claim.end();
    TensorGroup.closeAll(stream, engine);
  }

  @Override
  public String toString() {
    return name();
  }
}
