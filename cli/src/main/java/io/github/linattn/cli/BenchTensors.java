package io.github.linattn.cli;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.AttentionState;
import io.github.linattn.Backend;
import io.github.linattn.DType;
import io.github.linattn.Forward;
import io.github.linattn.Gradients;
import io.github.linattn.LinearAttention;
import io.github.linattn.MemoryKind;
import io.github.linattn.Stream;
import io.github.linattn.Tensor;
import io.github.linattn.TensorShape;
import java.util.EnumMap;
import java.util.Map;
import java.util.Objects;
import org.jspecify.annotations.Nullable;

/** What one call reads and writes in one piece of memory, which a copy can use instead. */
final class BenchTensors implements AutoCloseable {
  private static final int ALIGNMENT = 256;

  private final BenchCase problem;
  private final Backend backend;
  private final Resources owned = new Resources();
  private final Tensor memory;
  private long used;
  private final AttentionInput input;
  private final @Nullable AttentionState state;
  private final @Nullable Derivatives derivatives;
  private final Tensor copySource;
  private final Tensor copyTarget;

  /** Null until {@link #prepare}, where it keeps its state. */
  private @Nullable Forward y;

  BenchTensors(Backend backend, BenchCase problem) {
    this.problem = problem;
    this.backend = backend;
    this.memory =
        owned.add(
            backend.allocate(
                DType.BF16, TensorShape.of(sharedBytes(problem) / DType.BF16.bytes())));
    try {
      AttentionShape shape = problem.shape();
      DType dtype = problem.precision().dtype();
      Tensor q = next(dtype, shape.q());
      Tensor k = next(dtype, shape.k());
      Tensor v = next(dtype, shape.v());
      this.state = problem.decode() ? nextState(shape) : null;
      AttentionInput plain = AttentionInput.of(q, k, v);
      this.input = state == null ? plain : plain.from(state);
      this.y =
          problem.keepsState()
              ? null
              : Forward.over(
                  input, next(dtype, shape.output()), next(DType.F32, shape.normalizer()), null);
      this.derivatives =
          problem.pass().hasBackward()
              ? new Derivatives(
                  next(dtype, shape.output()),
                  Gradients.over(
                      next(dtype, shape.q()),
                      next(dtype, shape.k()),
                      next(dtype, shape.v()),
                      next(DType.F32, shape.coefficients()),
                      next(DType.F32, shape.coefficients())))
              : null;
      used = 0;
      this.copySource = next(DType.BF16, half());
      this.copyTarget = next(DType.BF16, half());
    } catch (RuntimeException | Error e) {
      owned.close();
      throw e;
    }
  }

  /** What a backward reads and writes besides. */
  private record Derivatives(Tensor dO, Gradients gradients) {}

  /** Device memory of one set, at most. */
  static long bytes(BenchCase problem) {
    AttentionShape shape = problem.shape();
    long rows = shape.q().elements() + shape.k().elements() + shape.v().elements();
    long checkpoints = rows * problem.precision().dtype().bytes() / 10;
    return sharedBytes(problem)
        + (problem.keepsState() ? problem.with(BenchPass.FORWARD).memoryBytes(checkpoints) : 0);
  }

  /** Of the memory that tensors, or the two of a copy, share. */
  private static long sharedBytes(BenchCase problem) {
    AttentionShape shape = problem.shape();
    int size = problem.precision().dtype().bytes();
    long rows =
        aligned(shape.q().elements() * size)
            + aligned(shape.k().elements() * size)
            + aligned(shape.v().elements() * size)
            + aligned(shape.output().elements() * size);
    long tensors =
        rows
            + aligned(shape.normalizer().elements() * Float.BYTES)
            + (problem.pass().hasBackward()
                ? rows + 2 * aligned(shape.coefficients().elements() * Float.BYTES)
                : 0)
            + (problem.stateBytes() > 0 ? aligned(problem.stateBytes()) + 3 * ALIGNMENT : 0);
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
        backend.memoryKind() == MemoryKind.DEVICE
            ? backend.wrapDeviceMemory(memory.segment().address() + used, dtype, shape)
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
        problem.context());
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
    if (derivatives != null) {
      BenchData.fill(stream, derivatives.dO, data.dO());
    }
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
    outputs().values().forEach(tensor -> BenchData.poison(stream, tensor));
  }

  /**
   * Queues what a call needs to be done before it: the forward of a backward. Inputs are filled.
   */
  void prepare(LinearAttention attention) {
    if (y == null) {
      y = owned.add(attention.forward(input));
    } else if (!problem.pass().hasForward()) {
      attention.forwardInto(y);
    }
  }

  /** Queues one call. */
  void run(LinearAttention attention) {
    if (problem.pass().hasForward()) {
      if (state == null) {
        attention.forwardInto(forward());
      } else {
        attention.forwardInto(input, forward().output(), forward().normalizer(), state);
      }
    }
    if (derivatives != null) {
      attention.backwardInto(forward(), derivatives.dO, null, derivatives.gradients);
    }
  }

  private Forward forward() {
    return Objects.requireNonNull(y, "prepared");
  }

  /** What a call writes, but for a state. */
  Map<Quantity, Tensor> outputs() {
    Map<Quantity, Tensor> outputs = new EnumMap<>(Quantity.class);
    if (problem.pass().hasForward()) {
      outputs.put(Quantity.O, forward().output());
      outputs.put(Quantity.G, forward().normalizer());
    }
    if (derivatives != null) {
      Gradients gradients = derivatives.gradients;
      outputs.put(Quantity.DQ, gradients.dq());
      outputs.put(Quantity.DK, gradients.dk());
      outputs.put(Quantity.DV, gradients.dv());
      outputs.put(Quantity.DA, gradients.da());
      outputs.put(Quantity.DB, gradients.db());
    }
    return outputs;
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
