package io.github.linattn.cli;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.AttentionState;
import io.github.linattn.Backend;
import io.github.linattn.DType;
import io.github.linattn.Event;
import io.github.linattn.Forward;
import io.github.linattn.Gradients;
import io.github.linattn.Graph;
import io.github.linattn.LinearAttention;
import io.github.linattn.MemoryKind;
import io.github.linattn.Mode;
import io.github.linattn.Sequences;
import io.github.linattn.Stream;
import io.github.linattn.Tensor;
import io.github.linattn.TensorShape;
import java.util.concurrent.locks.ReadWriteLock;
import java.util.function.BooleanSupplier;
import java.util.random.RandomGenerator;
import java.util.random.RandomGeneratorFactory;

/** What one thread of a soak does: problems drawn by a seed, each in one of the ways to ask. */
final class SoakWork {
  private static final int[] HEAD_DIMS = {32, 64, 128, 128};
  private static final int[] TOKENS = {1, 63, 64, 65, 200, 1000, 2500};
  private static final int REPETITIONS = 3;
  private static final double DEVIATION = 0.2;

  private final Backend backend;
  private final ReadWriteLock capturing;
  private final RandomGenerator random;
  private long calls;
  private long refused;

  /**
   * The work of one thread.
   *
   * @param capturing held for writing by a thread that captures, for reading by the others: CUDA
   *     refuses to wait for a device of which a stream is being captured
   */
  SoakWork(Backend backend, ReadWriteLock capturing, long seed) {
    this.backend = backend;
    this.capturing = capturing;
    this.random = RandomGeneratorFactory.of("L64X128MixRandom").create(seed);
  }

  /** Problems that were computed. */
  long calls() {
    return calls;
  }

  /** Problems that the backend does not do. */
  long refused() {
    return refused;
  }

  /** Goes on for as long as it is told. */
  void run(BooleanSupplier more) {
    while (more.getAsBoolean()) {
      capturing.readLock().lock();
      try {
        one();
        calls++;
      } catch (UnsupportedOperationException no) {
        refused++;
      } finally {
        capturing.readLock().unlock();
      }
    }
  }

  private int pick(int... values) {
    return values[random.nextInt(values.length)];
  }

  private void one() {
    int dim = pick(HEAD_DIMS);
    int keyValueHeads = pick(1, 2);
    var shape =
        new AttentionShape(
            pick(1, 2), keyValueHeads * pick(1, 2), keyValueHeads, pick(TOKENS), dim, dim);
    DType dtype = DType.values()[random.nextInt(DType.values().length)];
    Mode mode =
        dtype == DType.F32 ? Mode.values()[random.nextInt(Mode.values().length)] : Mode.DEFAULT;
    LinearAttention.Builder operator =
        LinearAttention.builder().normalizeQueriesAndKeys(random.nextBoolean()).mode(mode);
    try (Stream stream = backend.newStream();
        Resources owned = new Resources()) {
      var inputs = new Inputs(shape, dtype, owned);
      switch (random.nextInt(4)) {
        case 0 -> results(inputs, operator.causal(random.nextBoolean()), stream);
        case 1 -> repeated(inputs, operator, stream);
        case 2 -> states(inputs, operator, stream);
        default -> graph(inputs, operator, stream);
      }
    }
  }

  /** q, k, v and dO of one problem. */
  private final class Inputs {
    private final AttentionShape shape;
    private final DType dtype;
    private final Resources owned;
    private final AttentionInput input;
    private final Tensor outputGradient;

    Inputs(AttentionShape shape, DType dtype, Resources owned) {
      this.shape = shape;
      this.dtype = dtype;
      this.owned = owned;
      this.input = AttentionInput.of(normal(shape.q()), normal(shape.k()), normal(shape.v()));
      this.outputGradient = normal(shape.output());
    }

    Tensor normal(TensorShape extents) {
      Tensor tensor = empty(dtype, extents);
      float[] values = new float[Math.toIntExact(extents.elements())];
      for (int i = 0; i < values.length; i++) {
        values[i] = (float) (DEVIATION * random.nextGaussian());
      }
      tensor.copyFrom(values);
      return tensor;
    }

    Tensor empty(DType type, TensorShape extents) {
      return owned.add(backend.allocate(type, extents));
    }

    Tensor output() {
      return empty(dtype, shape.output());
    }

    Tensor normalizer() {
      return empty(DType.F32, shape.normalizer());
    }

    Gradients gradients() {
      return Gradients.over(
          empty(dtype, shape.q()),
          empty(dtype, shape.k()),
          empty(dtype, shape.v()),
          empty(DType.F32, shape.coefficients()),
          empty(DType.F32, shape.coefficients()));
    }

    AttentionInput perhapsPacked() {
      int first = shape.tokens() / 3;
      return shape.batch() == 1 && random.nextBoolean()
          ? input.packed(Sequences.ofLengths(first, 0, shape.tokens() - first))
          : input;
    }
  }

  /** Into new tensors. */
  private void results(Inputs inputs, LinearAttention.Builder operator, Stream stream) {
    LinearAttention attention = operator.on(backend, stream);
    try (Forward y = attention.forward(inputs.perhapsPacked());
        Gradients gradients = attention.backward(y, inputs.outputGradient)) {
      attention.synchronize();
      gradients.da().toFloats();
    }
  }

  /** The same call again, which another stream awaits. */
  private void repeated(Inputs inputs, LinearAttention.Builder operator, Stream stream) {
    LinearAttention attention = operator.on(backend, stream);
    Tensor o = inputs.output();
    Tensor g = inputs.normalizer();
    Gradients gradients = inputs.gradients();
    try (Stream other = backend.newStream()) {
      for (int i = 0; i < REPETITIONS; i++) {
        attention.forwardInto(inputs.input, o, g, null);
        attention.backwardInto(inputs.input, o, g, inputs.outputGradient, gradients);
        try (Event done = stream.record()) {
          other.waitFor(done);
        }
      }
      other.synchronize();
    }
  }

  /** From a state on, and token by token. */
  private void states(Inputs inputs, LinearAttention.Builder operator, Stream stream) {
    LinearAttention attention = operator.keepState(true).on(backend, stream);
    AttentionShape s = inputs.shape;
    try (Forward first = attention.forward(inputs.input)) {
      AttentionState state = first.state().orElseThrow();
      try (Forward next = attention.forward(inputs.input.from(state));
          Gradients gradients = attention.backward(next, inputs.outputGradient)) {
        attention.synchronize();
        gradients.da().toFloats();
      }
      var token =
          new AttentionShape(s.batch(), s.heads(), s.keyValueHeads(), 1, s.keyDim(), s.valueDim());
      var one = new Inputs(token, inputs.dtype, inputs.owned);
      Tensor o = one.output();
      Tensor g = one.normalizer();
      AttentionInput in = one.input;
      for (int i = 0; i < REPETITIONS; i++) {
        attention.decodeInto(in.q(), in.k(), in.v(), state, o, g);
      }
      attention.synchronize();
    } catch (UnsupportedOperationException no) {
      stream.synchronize(); // what was queued before still uses the tensors
      throw no;
    }
  }

  /** From and to pinned memory, as a graph; only a GPU does so. */
  private void graph(Inputs inputs, LinearAttention.Builder operator, Stream stream) {
    if (backend.memoryKind() != MemoryKind.DEVICE) {
      repeated(inputs, operator, stream);
      return;
    }
    LinearAttention attention = operator.on(backend, stream);
    Tensor q = inputs.input.q();
    Tensor o = inputs.output();
    Tensor g = inputs.normalizer();
    Tensor pinned = inputs.owned.add(backend.allocatePinned(q.dtype(), q.shape()));
    stream.copy(q, pinned);
    attention.forwardInto(inputs.input, o, g, null); // loads the kernels
    Runnable work =
        () -> {
          stream.copy(pinned, q);
          attention.forwardInto(inputs.input, o, g, null);
        };
    try (Graph graph = captured(stream, work)) {
      for (int i = 0; i < REPETITIONS; i++) {
        graph.launch();
      }
    }
  }

  /** The caller holds the lock for reading before and after. */
  private Graph captured(Stream stream, Runnable work) {
    stream.synchronize();
    capturing.readLock().unlock();
    capturing.writeLock().lock();
    try {
      return stream.capture(work);
    } finally {
      capturing.readLock().lock();
      capturing.writeLock().unlock();
    }
  }
}
