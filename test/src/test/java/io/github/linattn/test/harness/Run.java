package io.github.linattn.test.harness;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.AttentionState;
import io.github.linattn.Backend;
import io.github.linattn.DType;
import io.github.linattn.Forward;
import io.github.linattn.Gradients;
import io.github.linattn.LinearAttention;
import io.github.linattn.StateGradient;
import io.github.linattn.Stream;
import io.github.linattn.Tensor;
import io.github.linattn.TensorShape;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * Runs a problem forward and backward on a backend, in guarded buffers, and asserts on the way what
 * holds for every call: canaries live, and inputs keep their bits.
 */
public final class Run implements AutoCloseable {
  private final Case problem;
  private final Backend backend;
  private final @Nullable Stream stream;
  private final AttentionShape shape;
  private final List<Buffer> buffers = new ArrayList<>();
  private final List<Snapshot> inputs = new ArrayList<>();

  private record Snapshot(String name, Buffer buffer, byte[] bytes) {}

  private Run(Case problem, Backend backend, @Nullable Stream stream) {
    this.problem = problem;
    this.backend = backend;
    this.stream = stream;
    this.shape = problem.shape;
  }

  /** Everything the backend answers. */
  public static Results of(Case problem, Backend backend) {
    try (Run run = new Run(problem, backend, null)) {
      return run.execute();
    }
  }

  /** The same in a queue of its own. */
  public static Results inNewStream(Case problem, Backend backend) {
    try (Stream stream = backend.newStream();
        Run run = new Run(problem, backend, stream)) {
      return run.execute();
    }
  }

  private Results execute() {
    Triple read = triple("input", true);
    AttentionInput input = AttentionInput.of(read.q, read.k, read.v);
    if (problem.packing != null) {
      input = input.packed(problem.packing);
    }
    if (problem.initial != null) {
      input = input.from(initialState(problem.initial));
    }
    AttentionState finalState = problem.causal || problem.keepsState ? finalState() : null;
    Rows o = rows("o", shape.heads(), shape.valueDim());
    Rows dO = rows("dO", shape.heads(), shape.valueDim());
    dO.write(problem.dO);
    Buffer g = buffer("g", DType.F32, shape.normalizer());
    Buffer da = buffer("da", DType.F32, shape.coefficients());
    Buffer db = buffer("db", DType.F32, shape.coefficients());
    Triple written = triple("gradient", false);
    StateGradient finalGradient =
        problem.finalGradient == null ? null : finalGradient(problem.finalGradient);
    StateGradient initialGradient =
        problem.goesThroughStates() ? stateGradient("gradient of initial") : null;
    snapshotInputs(dO);

    LinearAttention attention =
        stream == null ? problem.operator().on(backend) : problem.operator().on(backend, stream);
    attention.forwardInto(input, o.tensor(), g.tensor(), finalState);
    Gradients gradients =
        initialGradient == null
            ? Gradients.over(written.q, written.k, written.v, da.tensor(), db.tensor())
            : Gradients.over(
                written.q, written.k, written.v, da.tensor(), db.tensor(), initialGradient);
    boolean differentiates = Subject.differentiates(problem, backend);
    // One that keeps states may keep more than the one into guarded buffers, and compute it
    // otherwise.
    try (Forward y =
        problem.keepsState
            ? attention.forward(input)
            : Forward.over(input, o.tensor(), g.tensor(), null)) {
      if (differentiates) {
        attention.backwardInto(y, dO.tensor(), finalGradient, gradients);
      } else {
        assertThatThrownBy(() -> attention.backwardInto(y, dO.tensor(), finalGradient, gradients))
            .as("gradients of %s on %s", problem, backend)
            .isInstanceOf(UnsupportedOperationException.class)
            .message()
            .hasSizeGreaterThan(40);
      }
      attention.synchronize();
      return results(
          problem.keepsState ? y.output().toFloats() : o.read(),
          y.normalizer(),
          y.state().orElse(finalState),
          written,
          differentiates ? da : null,
          differentiates ? db : null,
          initialGradient);
    }
  }

  private Results results(
      float[] o,
      Tensor g,
      @Nullable AttentionState finalState,
      Triple written,
      @Nullable Buffer da,
      @Nullable Buffer db,
      @Nullable StateGradient initialGradient) {
    boolean differentiates = da != null && db != null;
    for (Snapshot snapshot : inputs) {
      assertThat(snapshot.buffer.bytes())
          .as("%s: %s keeps its bits", problem, snapshot.name)
          .isEqualTo(snapshot.bytes);
    }
    buffers.forEach(Buffer::bytes); // asserts the canaries
    return new Results(
        o,
        g.toFloats(),
        differentiates ? written.readQ.get() : null,
        differentiates ? written.readK.get() : null,
        differentiates ? written.readV.get() : null,
        da == null ? null : da.tensor().toFloats(),
        db == null ? null : db.tensor().toFloats(),
        finalState == null ? null : values(finalState),
        differentiates && initialGradient != null ? values(initialGradient) : null,
        !backend.name().equals("cpu"));
  }

  private static StateValues values(AttentionState state) {
    long[] counts = new long[state.sequences()];
    for (int i = 0; i < counts.length; i++) {
      counts[i] = state.count(i);
    }
    return new StateValues(
        state.s().toFloats(), state.z().toFloats(), state.u().toFloats(), counts);
  }

  private static StateGradientValues values(StateGradient gradient) {
    return new StateGradientValues(
        gradient.ds().toFloats(), gradient.dz().toFloats(), gradient.du().toFloats());
  }

  private void snapshotInputs(Rows dO) {
    for (Buffer buffer : List.copyOf(buffers)) {
      String name = buffer.toString();
      if (name.startsWith("input")
          || name.startsWith("initial")
          || name.startsWith("gradient of final")
          || buffer == dO.buffer) {
        inputs.add(new Snapshot(name, buffer, buffer.bytes()));
      }
    }
  }

  private Buffer buffer(String name, DType dtype, TensorShape extents) {
    Buffer buffer = new Buffer(name, backend, dtype, extents);
    buffers.add(buffer);
    return buffer;
  }

  private AttentionState initialState(StateValues values) {
    AttentionState state = state("initial", values.counts());
    state.s().copyFrom(values.s());
    state.z().copyFrom(values.z());
    state.u().copyFrom(values.u());
    return state;
  }

  private AttentionState finalState() {
    return state("final", new long[problem.sequences().count()]);
  }

  private AttentionState state(String role, long[] counts) {
    Tensor[] tensors = stateTensors(role);
    return AttentionState.over(tensors[0], tensors[1], tensors[2], counts);
  }

  private StateGradient finalGradient(StateGradientValues values) {
    StateGradient gradient = stateGradient("gradient of final");
    gradient.ds().copyFrom(values.ds());
    gradient.dz().copyFrom(values.dz());
    gradient.du().copyFrom(values.du());
    return gradient;
  }

  private StateGradient stateGradient(String role) {
    Tensor[] tensors = stateTensors(role);
    return StateGradient.over(tensors[0], tensors[1], tensors[2]);
  }

  /** S, z and u. */
  private Tensor[] stateTensors(String role) {
    int b = shape.batch();
    int h = shape.keyValueHeads();
    int n = problem.sequences().count();
    TensorShape s = TensorShape.of(b, h, n, shape.keyDim(), shape.valueDim());
    TensorShape z = TensorShape.of(b, h, n, shape.keyDim());
    TensorShape u = TensorShape.of(b, h, n, shape.valueDim());
    return new Tensor[] {
      buffer(role + " S", DType.F32, s).tensor(),
      buffer(role + " z", DType.F32, z).tensor(),
      buffer(role + " u", DType.F32, u).tensor()
    };
  }

  /** q, k and v, or their gradients. */
  private record Triple(
      Tensor q,
      Tensor k,
      Tensor v,
      java.util.function.Supplier<float[]> readQ,
      java.util.function.Supplier<float[]> readK,
      java.util.function.Supplier<float[]> readV) {}

  private Triple triple(String role, boolean fill) {
    int h = shape.heads();
    int kv = shape.keyValueHeads();
    if (problem.layout != Layout.INTERLEAVED) {
      Rows q = rows(role + " q", h, shape.keyDim());
      Rows k = rows(role + " k", kv, shape.keyDim());
      Rows v = rows(role + " v", kv, shape.valueDim());
      if (fill) {
        q.write(problem.q);
        k.write(problem.k);
        v.write(problem.v);
      }
      return new Triple(q.tensor(), k.tensor(), v.tensor(), q::read, k::read, v::read);
    }
    int all = h + 2 * kv;
    int d = shape.keyDim();
    Buffer buffer =
        buffer(role + " qkv", problem.dtype, TensorShape.of(shape.batch(), shape.tokens(), all, d));
    if (fill) {
      float[] values = new float[shape.batch() * shape.tokens() * all * d];
      interleave(problem.q, h, 0, all, values, true);
      interleave(problem.k, kv, h, all, values, true);
      interleave(problem.v, kv, h + kv, all, values, true);
      buffer.tensor().copyFrom(values);
    }
    return new Triple(
        heads(buffer, 0, h),
        heads(buffer, h, kv),
        heads(buffer, h + kv, kv),
        () -> separate(buffer, h, 0, all),
        () -> separate(buffer, kv, h, all),
        () -> separate(buffer, kv, h + kv, all));
  }

  private static Tensor heads(Buffer buffer, int first, int count) {
    return buffer.tensor().sliced(2, first, count).permuted(0, 2, 1, 3);
  }

  private float[] separate(Buffer buffer, int heads, int first, int all) {
    float[] values = new float[shape.batch() * heads * shape.tokens() * shape.keyDim()];
    interleave(values, heads, first, all, buffer.tensor().toFloats(), false);
    return values;
  }

  /** Copies rows between [batch, heads, tokens, dim] and heads of [batch, tokens, all, dim]. */
  private void interleave(
      float[] headMajor, int heads, int first, int all, float[] tokenMajor, boolean into) {
    int width = headMajor.length / (shape.batch() * heads * shape.tokens());
    for (int b = 0; b < shape.batch(); b++) {
      for (int h = 0; h < heads; h++) {
        for (int n = 0; n < shape.tokens(); n++) {
          int row = ((b * heads + h) * shape.tokens() + n) * width;
          int other = ((b * shape.tokens() + n) * all + first + h) * width;
          if (into) {
            System.arraycopy(headMajor, row, tokenMajor, other, width);
          } else {
            System.arraycopy(tokenMajor, other, headMajor, row, width);
          }
        }
      }
    }
  }

  private Rows rows(String name, int heads, int width) {
    boolean tokenMajor = problem.layout != Layout.HEAD_MAJOR;
    TensorShape extents =
        tokenMajor
            ? TensorShape.of(shape.batch(), shape.tokens(), heads, width)
            : TensorShape.of(shape.batch(), heads, shape.tokens(), width);
    return new Rows(buffer(name, problem.dtype, extents), heads, tokenMajor);
  }

  /** One tensor of rows in a buffer of its own. */
  private final class Rows {
    private final Buffer buffer;
    private final int heads;
    private final boolean tokenMajor;

    Rows(Buffer buffer, int heads, boolean tokenMajor) {
      this.buffer = buffer;
      this.heads = heads;
      this.tokenMajor = tokenMajor;
    }

    Tensor tensor() {
      return tokenMajor ? buffer.tensor().permuted(0, 2, 1, 3) : buffer.tensor();
    }

    void write(float[] headMajor) {
      float[] values = headMajor;
      if (tokenMajor) {
        values = new float[headMajor.length];
        interleave(headMajor, heads, 0, heads, values, true);
      }
      buffer.tensor().copyFrom(values);
    }

    float[] read() {
      float[] values = buffer.tensor().toFloats();
      if (!tokenMajor) {
        return values;
      }
      float[] headMajor = new float[values.length];
      interleave(headMajor, heads, 0, heads, values, false);
      return headMajor;
    }
  }

  @Override
  public void close() {
    buffers.forEach(Buffer::close);
  }
}
