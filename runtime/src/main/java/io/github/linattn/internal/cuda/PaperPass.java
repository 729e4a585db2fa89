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
import io.github.linattn.internal.cuda.ArgumentStructs.ScanPointer;
import io.github.linattn.kernelgen.Operation;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/**
 * One forward or backward with the {@code paper} kernels: the launches, in order, on one stream.
 * The caller holds the queue's lock and has checked the arguments.
 */
final class PaperPass implements AutoCloseable {
  private final Kernels kernels;
  private final CudaQueue queue;
  private final Cuda cuda;
  private final Workspace workspace;
  private final Operator operator;
  private final AttentionInput input;
  private final AttentionShape shape;
  private final long heads;
  private final long rows;
  private final long aPerHead;
  private final long bPerHead;
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
      this.aPerHead = operator.isUniform() ? 0 : queue.lists().floats(operator.a());
      this.bPerHead = operator.isUniform() ? 0 : queue.lists().floats(operator.b());
      this.q = operator.normalize() ? normalized(input.q()) : address(input.q());
      this.k = operator.normalize() ? normalized(input.k()) : address(input.k());
      this.v = address(input.v());
    } catch (RuntimeException | Error e) {
      workspace.close();
      throw e;
    }
  }

  void forward(ForwardCall call) {
    AttentionState initial = input.initialState().orElse(null);
    AttentionState last = call.finalState();
    MemorySegment scan = scan(q, k, v, call.output(), address(call.normalizer()));
    setInitialState(scan);
    if (last != null) {
      if (last == initial) {
        // every block of a head reads z and one writes it: they may not be the same memory
        ArgumentStructs.set(scan, ScanPointer.KEY_SUM_IN, copyOf(last.z()));
      }
      ArgumentStructs.set(scan, ScanPointer.STATE_OUT, address(last.s()));
      ArgumentStructs.set(scan, ScanPointer.KEY_SUM_OUT, address(last.z()));
      ArgumentStructs.set(scan, ScanPointer.VALUE_SUM_OUT, address(last.u()));
    }
    launch(Operation.FORWARD, heads, scan);
  }

  void backward(BackwardCall call) {
    Gradients gradients = call.gradients();
    long dO = address(call.outputGradient());
    long g = address(call.normalizer());
    long center = workspace.allocate(centerBytes(heads, shape.valueDim())).address();
    launch(Operation.VALUE_CENTER, heads, queue.arguments().valueCenter(v, center, shape.tokens()));
    long delta = workspace.allocate(rows * Float.BYTES).address();
    long o = address(call.output());
    launch(
        Operation.ROW_DOT,
        rows,
        queue.arguments().rowDot(o, dO, g, center, delta, rows, shape.tokens()));
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
    MemorySegment scan = scan(dO, v, k, gradients.dq(), g);
    ArgumentStructs.set(scan, ScanPointer.DELTA, delta);
    ArgumentStructs.set(scan, ScanPointer.VALUE_CENTER, center);
    ArgumentStructs.set(scan, ScanPointer.COEFFICIENT_QUERY, q);
    ArgumentStructs.set(scan, ScanPointer.COEFFICIENT_PARTIALS, partials);
    setInitialState(scan);
    launch(Operation.QUERY_GRADIENT, heads, scan);
    long da = address(gradients.da());
    long db = address(gradients.db());
    launch(
        Operation.COEFFICIENT_GRADIENT,
        heads,
        queue.arguments().coefficientGradient(partials, da, db, heads));
  }

  private void keyGradient(long dO, long g, long delta, long center, Gradients gradients) {
    MemorySegment scan = scan(v, dO, q, gradients.dk(), g);
    ArgumentStructs.set(scan, ScanPointer.DELTA, delta);
    ArgumentStructs.set(scan, ScanPointer.VALUE_CENTER, center);
    launch(Operation.KEY_GRADIENT, heads, scan);
  }

  private void valueGradient(long dO, long g, Gradients gradients) {
    MemorySegment scan = scan(k, q, dO, gradients.dv(), g);
    launch(Operation.VALUE_GRADIENT, heads, scan);
  }

  private void differentiateNormalization(Tensor raw, Tensor gradient) {
    launch(
        Operation.NORMALIZE_GRADIENT,
        rows,
        queue.arguments().normalizeGradient(address(raw), address(gradient), rows));
  }

  private MemorySegment scan(long x, long y, long z, Tensor out, long g) {
    long before = input.initialState().map(state -> state.count(0)).orElse(0L);
    float a = operator.isUniform() ? operator.a(0) : 0;
    float b = operator.isUniform() ? operator.b(0) : 0;
    MemorySegment scan = queue.arguments().scan(shape.tokens(), before, shape.heads(), a, b);
    ArgumentStructs.set(scan, ScanPointer.QUERY, x);
    ArgumentStructs.set(scan, ScanPointer.KEY, y);
    ArgumentStructs.set(scan, ScanPointer.VALUE, z);
    ArgumentStructs.set(scan, ScanPointer.OUT, address(out));
    ArgumentStructs.set(scan, ScanPointer.NORMALIZER, g);
    ArgumentStructs.set(scan, ScanPointer.A_PER_HEAD, aPerHead);
    ArgumentStructs.set(scan, ScanPointer.B_PER_HEAD, bPerHead);
    return scan;
  }

  private void setInitialState(MemorySegment scan) {
    input
        .initialState()
        .ifPresent(
            state -> {
              ArgumentStructs.set(scan, ScanPointer.STATE_IN, address(state.s()));
              ArgumentStructs.set(scan, ScanPointer.KEY_SUM_IN, address(state.z()));
              ArgumentStructs.set(scan, ScanPointer.VALUE_SUM_IN, address(state.u()));
            });
  }

  private void launch(Operation operation, long count, MemorySegment argumentStruct) {
    queue.launch(kernels.load(operation, shape.keyDim()), count, argumentStruct);
  }

  private static long address(Tensor tensor) {
    return tensor.segment().address();
  }

  private long normalized(Tensor raw) {
    long unit = workspace.allocate(raw.byteSpan()).address();
    launch(Operation.NORMALIZE, rows, queue.arguments().normalize(address(raw), unit, rows));
    return unit;
  }

  private long copyOf(Tensor tensor) {
    long bytes = tensor.byteSpan();
    DeviceMemory copy = workspace.allocate(bytes);
    try (Arena scratch = Arena.ofConfined()) {
      DeviceMemory source = DeviceMemory.ofAddress(scratch, address(tensor), bytes);
      cuda.copyOnDeviceAsync(copy, 0, source, 0, bytes, queue.stream());
    }
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
    workspace.close();
  }
}
