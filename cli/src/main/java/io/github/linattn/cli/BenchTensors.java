package io.github.linattn.cli;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.AttentionState;
import io.github.linattn.Backend;
import io.github.linattn.DType;
import io.github.linattn.LinearAttention;
import io.github.linattn.MemoryKind;
import io.github.linattn.Stream;
import io.github.linattn.Tensor;
import io.github.linattn.TensorShape;
import org.jspecify.annotations.Nullable;

/** Inputs and outputs of one call in one piece of memory, which a copy can use instead. */
final class BenchTensors implements AutoCloseable {
  private static final int ALIGNMENT = 256;

  private final BenchCase problem;
  private final Backend gpu;
  private final Resources owned = new Resources();
  private final Tensor memory;
  private long used;
  private final AttentionInput input;
  private final Tensor o;
  private final Tensor g;
  private final @Nullable AttentionState state;
  private final Tensor copySource;
  private final Tensor copyTarget;

  BenchTensors(Backend gpu, BenchCase problem) {
    this.problem = problem;
    this.gpu = gpu;
    this.memory =
        owned.add(gpu.allocate(DType.BF16, TensorShape.of(bytes(problem) / DType.BF16.bytes())));
    try {
      AttentionShape shape = problem.shape();
      DType dtype = problem.precision().dtype();
      Tensor q = next(dtype, shape.q());
      Tensor k = next(dtype, shape.k());
      Tensor v = next(dtype, shape.v());
      this.o = next(dtype, shape.output());
      this.g = next(DType.F32, shape.normalizer());
      this.state = problem.decode() ? nextState(shape) : null;
      AttentionInput plain = AttentionInput.of(q, k, v);
      this.input = state == null ? plain : plain.from(state);
      used = 0;
      this.copySource = next(DType.BF16, half());
      this.copyTarget = next(DType.BF16, half());
    } catch (RuntimeException e) {
      owned.close();
      throw e;
    }
  }

  /** Device memory of one set. */
  static long bytes(BenchCase problem) {
    AttentionShape shape = problem.shape();
    int size = problem.precision().dtype().bytes();
    long tensors =
        aligned(shape.q().elements() * size)
            + aligned(shape.k().elements() * size)
            + aligned(shape.v().elements() * size)
            + aligned(shape.output().elements() * size)
            + aligned(shape.normalizer().elements() * Float.BYTES)
            + (problem.decode() ? aligned(problem.stateBytes()) + 3 * ALIGNMENT : 0);
    return Math.max(tensors, 2 * aligned(problem.traffic() / 2 + 1));
  }

  private static long aligned(long bytes) {
    return Math.ceilDiv(bytes, (long) ALIGNMENT) * ALIGNMENT;
  }

  /** A copy reads half of the traffic and writes half. */
  private TensorShape half() {
    return TensorShape.of(Math.ceilDiv(problem.traffic() / 2, (long) DType.BF16.bytes()));
  }

  private Tensor next(DType dtype, TensorShape shape) {
    Tensor tensor =
        gpu.memoryKind() == MemoryKind.DEVICE
            ? gpu.wrapDeviceMemory(memory.segment().address() + used, dtype, shape)
            : Tensor.wrap(memory.segment().asSlice(used), dtype, shape);
    used += aligned(shape.elements() * dtype.bytes());
    return owned.add(tensor);
  }

  private AttentionState nextState(AttentionShape shape) {
    long batch = shape.batch();
    long heads = shape.keyValueHeads();
    return AttentionState.over(
        next(DType.F32, TensorShape.of(batch, heads, 1, shape.keyDim(), shape.valueDim())),
        next(DType.F32, TensorShape.of(batch, heads, 1, shape.keyDim())),
        next(DType.F32, TensorShape.of(batch, heads, 1, shape.valueDim())),
        BenchData.STATE_COUNT);
  }

  /** Queues the copy that takes as many bytes as the call. */
  void copy(Stream stream) {
    stream.copy(copySource, copyTarget);
  }

  /** Fills the inputs; queued. */
  void fill(Stream stream, BenchData data) {
    BenchData.fill(stream, input.q(), data.q());
    BenchData.fill(stream, input.k(), data.k());
    BenchData.fill(stream, input.v(), data.v());
    fillState(stream, data);
  }

  /** Brings the sums of a state back to what they were; queued. */
  void fillState(Stream stream, BenchData data) {
    if (state != null) {
      BenchData.fill(stream, state.s(), data.s());
      BenchData.fill(stream, state.z(), data.z());
      BenchData.fill(stream, state.u(), data.u());
    }
  }

  /** Fills the outputs with NaN; queued. */
  void poison(Stream stream) {
    BenchData.poison(stream, o);
    BenchData.poison(stream, g);
  }

  /** Queues one call. */
  void run(LinearAttention attention) {
    attention.forwardInto(input, o, g, state);
  }

  Tensor o() {
    return o;
  }

  Tensor g() {
    return g;
  }

  /** Tokens that the state counts by now; 0 without one. */
  long stateCount() {
    return state == null ? 0 : state.count(0);
  }

  @Override
  public void close() {
    owned.close();
  }
}
