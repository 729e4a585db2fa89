package io.github.linattn.internal.cuda;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.AttentionState;
import io.github.linattn.Gradients;
import io.github.linattn.Tensor;
import io.github.linattn.bindings.Cuda;
import io.github.linattn.bindings.DeviceMemory;
import io.github.linattn.internal.BackwardCall;
import io.github.linattn.internal.ForwardCall;
import io.github.linattn.internal.Operator;
import io.github.linattn.kernelgen.Operation;
import java.lang.foreign.Arena;
import java.lang.foreign.StructLayout;

/**
 * One forward or backward with the {@code paper} kernels: the launches, in order, on one stream.
 * The caller holds the queue's lock and has checked the arguments.
 */
final class PaperPass implements AutoCloseable {
  private final Kernels kernels;
  private final CudaQueue queue;
  private final Cuda cuda;
  private final Workspace workspace;
  private final Arena arena = Arena.ofConfined();
  private final Operator operator;
  private final AttentionInput input;
  private final AttentionShape shape;
  private final long heads;
  private final long rows;
  private final long q;
  private final long k;
  private final long v;

  PaperPass(Kernels kernels, CudaQueue queue, Operator operator, AttentionInput input) {
    this.kernels = kernels;
    this.queue = queue;
    this.cuda = queue.device().enter();
    this.workspace = new Workspace(cuda, queue.stream());
    this.operator = operator;
    this.input = input;
    this.shape = input.shape();
    this.heads = (long) shape.batch() * shape.heads();
    this.rows = heads * shape.tokens();
    try {
      this.q = operator.normalize() ? normalized(input.q()) : address(input.q());
      this.k = operator.normalize() ? normalized(input.k()) : address(input.k());
      this.v = address(input.v());
    } catch (RuntimeException | Error e) {
      close();
      throw e;
    }
  }

  void forward(ForwardCall call) {
    AttentionState initial = input.initialState().orElse(null);
    AttentionState last = call.finalState();
    Arguments scan = scan(q, k, v, call.output(), address(call.normalizer()));
    setInitialState(scan);
    if (last != null) {
      if (last == initial) {
        // every block of a head reads z and one writes it: they may not be the same memory
        scan.set("key_sum_in", copyOf(last.z()));
      }
      scan.setState("_out", StateArrays.of(last));
    }
    launch(Operation.FORWARD, heads, scan);
  }

  void backward(BackwardCall call) {
    Gradients gradients = call.gradients();
    long dO = address(call.outputGradient());
    long g = address(call.normalizer());
    long center = workspace.allocate(centerBytes(heads, shape.valueDim())).address();
    launch(
        Operation.VALUE_CENTER,
        heads,
        arguments(PaperStructs.VALUE_CENTER)
            .set("value", v)
            .set("value_center", center)
            .set("tokens", (long) shape.tokens()));
    long delta = workspace.allocate(rows * Float.BYTES).address();
    launch(
        Operation.ROW_DOT,
        rows,
        arguments(PaperStructs.ROW_DOT)
            .set("output", address(call.output()))
            .set("output_gradient", dO)
            .set("normalizer", g)
            .set("value_center", center)
            .set("delta", delta)
            .set("rows", rows)
            .set("tokens", (long) shape.tokens()));
    queryGradient(dO, g, delta, center, gradients);
    keyGradient(dO, g, delta, center, gradients);
    valueGradient(dO, g, gradients);
    if (operator.normalize()) {
      differentiateNormalization(input.q(), gradients.dq());
      differentiateNormalization(input.k(), gradients.dk());
    }
  }

  private void queryGradient(long dO, long g, long delta, long center, Gradients gradients) {
    int tiles = kernels.entry(Operation.QUERY_GRADIENT, shape.keyDim()).tiles();
    long partials = workspace.allocate(partialBytes(heads, tiles)).address();
    Arguments scan =
        scan(dO, v, k, gradients.dq(), g)
            .set("delta", delta)
            .set("value_center", center)
            .set("coefficient_query", q)
            .set("coefficient_partials", partials);
    setInitialState(scan);
    launch(Operation.QUERY_GRADIENT, heads, scan);
    launch(
        Operation.COEFFICIENT_GRADIENT,
        heads,
        arguments(PaperStructs.COEFFICIENT_GRADIENT)
            .set("partials", partials)
            .set("a_gradient", address(gradients.da()))
            .set("b_gradient", address(gradients.db()))
            .set("heads", heads));
  }

  private void keyGradient(long dO, long g, long delta, long center, Gradients gradients) {
    launch(
        Operation.KEY_GRADIENT,
        heads,
        scan(v, dO, q, gradients.dk(), g).set("delta", delta).set("value_center", center));
  }

  private void valueGradient(long dO, long g, Gradients gradients) {
    launch(Operation.VALUE_GRADIENT, heads, scan(k, q, dO, gradients.dv(), g));
  }

  private void differentiateNormalization(Tensor raw, Tensor gradient) {
    launch(
        Operation.NORMALIZE_GRADIENT,
        rows,
        arguments(PaperStructs.NORMALIZE_GRADIENT)
            .set("input", address(raw))
            .set("gradient", address(gradient))
            .set("rows", rows));
  }

  private Arguments scan(long x, long y, long z, Tensor out, long g) {
    return arguments(PaperStructs.SCAN)
        .setCoefficients(operator, queue.lists())
        .set("query", x)
        .set("key", y)
        .set("value", z)
        .set("out", address(out))
        .set("normalizer", g)
        .set("tokens", (long) shape.tokens())
        .set("initial_count", input.initialState().map(state -> state.count(0)).orElse(0L))
        .set("heads_per_batch", shape.heads());
  }

  private void setInitialState(Arguments scan) {
    input.initialState().ifPresent(state -> scan.setState("_in", StateArrays.of(state)));
  }

  /** Zeros, read before a launch returns. */
  private Arguments arguments(StructLayout layout) {
    return Arguments.allocate(arena, layout);
  }

  private void launch(Operation operation, long count, Arguments filled) {
    queue.launch(kernels.load(operation, shape.keyDim()), count, filled);
  }

  private static long address(Tensor tensor) {
    return tensor.segment().address();
  }

  private long normalized(Tensor raw) {
    long unit = workspace.allocate(raw.byteSpan()).address();
    launch(
        Operation.NORMALIZE,
        rows,
        arguments(PaperStructs.NORMALIZE)
            .set("input", address(raw))
            .set("output", unit)
            .set("rows", rows));
    return unit;
  }

  private long copyOf(Tensor tensor) {
    long bytes = tensor.byteSpan();
    DeviceMemory copy = workspace.allocate(bytes);
    DeviceMemory source = DeviceMemory.ofAddress(arena, address(tensor), bytes);
    cuda.copyOnDeviceAsync(copy, source, bytes, queue.stream());
    return copy.address();
  }

  /** Bytes of the vectors that are taken from v, one of each head. */
  static long centerBytes(long heads, long valueDim) {
    return heads * valueDim * Float.BYTES;
  }

  /** Bytes of the per-tile sums of da and db. */
  static long partialBytes(long heads, int tiles) {
    return heads * tiles * 2 * Double.BYTES;
  }

  @Override
  public void close() {
    arena.close();
    workspace.close();
  }
}
