package io.github.linattn.test.contract;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.catchThrowable;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.AttentionState;
import io.github.linattn.Backend;
import io.github.linattn.DType;
import io.github.linattn.Event;
import io.github.linattn.Forward;
import io.github.linattn.Gradients;
import io.github.linattn.LinearAttention;
import io.github.linattn.MemoryKind;
import io.github.linattn.Mode;
import io.github.linattn.Sequences;
import io.github.linattn.StateGradient;
import io.github.linattn.Stream;
import io.github.linattn.Tensor;
import io.github.linattn.TensorShape;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.function.BiConsumer;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/**
 * Breaks when a mistake of a caller is answered by a raw exception of the JDK, by a sentence that
 * does not name it, by a change of the inputs, or by nothing at all.
 */
final class BadInputTest {

  /** A mistake and the answer to it. */
  record Mistake(String name, Class<? extends Throwable> type, String sentence, Action action) {
    @Override
    public String toString() {
      return name;
    }
  }

  interface Action {
    void run(Fixture f);
  }

  private static final Class<IllegalArgumentException> ARGUMENT = IllegalArgumentException.class;
  private static final Class<UnsupportedOperationException> UNSUPPORTED =
      UnsupportedOperationException.class;

  /** A valid problem on the CPU: B=1, H=4, K=2, N=6, D=16, Dv=32. */
  static final class Fixture implements AutoCloseable {
    final List<Tensor> tensors = new ArrayList<>();
    final Backend cpu = Backend.cpu(2);
    final AttentionShape shape = new AttentionShape(1, 4, 2, 6, 16, 32);
    final Tensor q = tensor(shape.q());
    final Tensor k = tensor(shape.k());
    final Tensor v = tensor(shape.v());
    final Tensor dO = tensor(shape.output());
    final Tensor o = tensor(shape.output());
    final Tensor g = tensor(shape.normalizer());
    final Tensor dq = tensor(shape.q());
    final Tensor dk = tensor(shape.k());
    final Tensor dv = tensor(shape.v());
    final Tensor da = tensor(shape.coefficients());
    final Tensor db = tensor(shape.coefficients());
    final LinearAttention attention = LinearAttention.builder().on(cpu);

    Tensor tensor(TensorShape shape) {
      return tensor(DType.F32, shape);
    }

    Tensor tensor(long... extents) {
      return tensor(TensorShape.of(extents));
    }

    /** Elements 0.01, 0.02, ... */
    Tensor tensor(DType dtype, TensorShape shape) {
      Tensor tensor = cpu.allocate(dtype, shape);
      float[] values = new float[Math.toIntExact(shape.elements())];
      for (int i = 0; i < values.length; i++) {
        values[i] = (i % 100 + 1) * 0.01f;
      }
      tensor.copyFrom(values);
      tensors.add(tensor);
      return tensor;
    }

    AttentionInput input() {
      return AttentionInput.of(q, k, v);
    }

    void forward(Tensor q, Tensor k, Tensor v, Tensor o, Tensor g) {
      attention.forwardInto(q, k, v, o, g);
    }

    void backward(Tensor o, Tensor g, Tensor dO, Gradients gradients) {
      attention.backwardInto(input(), o, g, dO, gradients);
    }

    Gradients gradients() {
      return Gradients.over(dq, dk, dv, da, db);
    }

    AttentionState state(AttentionShape shape, int sequences) {
      AttentionState state = cpu.newState(shape, sequences);
      tensors.addAll(List.of(state.s(), state.z(), state.u()));
      return state;
    }

    StateGradient stateGradient(AttentionShape shape, int sequences) {
      StateGradient gradient = cpu.newStateGradient(shape, sequences);
      tensors.addAll(List.of(gradient.ds(), gradient.dz(), gradient.du()));
      return gradient;
    }

    void backwardFrom(StateGradient finalState) {
      attention.backwardInto(input(), o, g, dO, finalState, gradients());
    }

    void backwardTo(StateGradient initialState) {
      backwardThrough(null, initialState);
    }

    void backwardThrough(@Nullable StateGradient finalState, StateGradient initialState) {
      Gradients written = Gradients.over(dq, dk, dv, da, db, initialState);
      attention.backwardInto(input(), o, g, dO, finalState, written);
    }

    float[][] inputs() {
      return new float[][] {q.toFloats(), k.toFloats(), v.toFloats(), dO.toFloats()};
    }

    @Override
    public void close() {
      tensors.forEach(Tensor::close);
      cpu.close();
    }
  }

  /** What a caller outside the reach of a null checker may pass. */
  @SuppressWarnings("NullAway")
  private static <T> T nothing() {
    return null;
  }

  static List<Mistake> mistakes() {
    List<Mistake> list = new ArrayList<>();
    addMissing(list);
    addClosed(list);
    addShapes(list);
    addOutputs(list);
    addOverlaps(list);
    addStateOverlaps(list);
    addPackings(list);
    addStates(list);
    addStateGradients(list);
    addOperators(list);
    addTensors(list);
    addMemory(list);
    return list;
  }

  private static void add(
      List<Mistake> list,
      String name,
      Class<? extends Throwable> type,
      String sentence,
      Action action) {
    list.add(new Mistake(name, type, sentence, action));
  }

  private static void addMissing(List<Mistake> list) {
    add(list, "q is null", ARGUMENT, "q is null", f -> f.forward(nothing(), f.k, f.v, f.o, f.g));
    add(list, "k is null", ARGUMENT, "k is null", f -> f.forward(f.q, nothing(), f.v, f.o, f.g));
    add(list, "v is null", ARGUMENT, "v is null", f -> f.forward(f.q, f.k, nothing(), f.o, f.g));
    add(list, "o is null", ARGUMENT, "o is null", f -> f.forward(f.q, f.k, f.v, nothing(), f.g));
    add(list, "g is null", ARGUMENT, "g is null", f -> f.forward(f.q, f.k, f.v, f.o, nothing()));
    add(
        list,
        "dO is null",
        ARGUMENT,
        "dO is null",
        f -> f.backward(f.o, f.g, nothing(), f.gradients()));
    add(
        list,
        "dk is null",
        ARGUMENT,
        "dk is null",
        f -> f.backward(f.o, f.g, f.dO, Gradients.over(f.dq, nothing(), f.dv, f.da, f.db)));
    add(
        list,
        "input is null",
        ARGUMENT,
        "input is null",
        f -> f.attention.forwardInto(nothing(), f.o, f.g, null));
    add(
        list,
        "backend is null",
        ARGUMENT,
        "backend is null",
        f -> LinearAttention.builder().on(nothing()));
    add(list, "state is null", ARGUMENT, "state is null", f -> f.input().from(nothing()));
    missing(list, "memory", f -> Tensor.wrap(nothing(), DType.F32, f.shape.q()));
    missing(list, "dtype", f -> f.cpu.allocate(nothing(), f.shape.q()));
    missing(list, "shape", f -> Tensor.allocate(DType.F32, nothing()));
    missing(list, "values", f -> Tensor.copyOf(nothing(), f.shape.q()));
    missing(list, "source", f -> f.q.copyFrom((MemorySegment) nothing()));
    missing(list, "values", f -> f.q.copyFrom((float[]) nothing()));
    missing(list, "target", f -> f.q.copyTo(nothing()));
    missing(list, "axes", f -> f.q.permuted((int[]) nothing()));
    missing(list, "other", f -> f.q.reshaped(nothing()));
    missing(list, "lengths", f -> Sequences.ofLengths((int[]) nothing()));
    missing(list, "extents", f -> TensorShape.of((long[]) nothing()));
    missing(
        list,
        "counts",
        f -> {
          AttentionState state = f.state(f.shape, 1);
          AttentionState.over(state.s(), state.z(), state.u(), (long[]) nothing());
        });
    missing(list, "shape", f -> f.attention.plan(nothing(), DType.F32));
    missing(list, "dtype", f -> f.attention.plan(f.shape, nothing()));
    missing(list, "packing", f -> f.attention.plan(f.shape, DType.F32, nothing()));
    missing(list, "shape", f -> f.cpu.newState(nothing(), 1));
    missing(list, "shape", f -> f.cpu.newStateGradient(nothing(), 1));
    missing(list, "source", f -> copy(f, nothing(), f.q));
    missing(list, "target", f -> copy(f, f.q, nothing()));
    missing(
        list,
        "event",
        f -> {
          try (Stream stream = f.cpu.newStream()) {
            stream.waitFor(nothing());
          }
        });
    missing(
        list,
        "earlier",
        f -> {
          try (Stream stream = f.cpu.newStream();
              Event event = stream.record()) {
            event.millisSince(nothing());
          }
        });
  }

  private static void missing(List<Mistake> list, String argument, Action action) {
    String sentence = argument + " is null";
    add(list, "%s, %d".formatted(sentence, list.size()), ARGUMENT, sentence, action);
  }

  private static void copy(Fixture f, Tensor source, Tensor target) {
    try (Stream stream = f.cpu.newStream()) {
      stream.copy(source, target);
    }
  }

  private static void addClosed(List<Mistake> list) {
    add(
        list,
        "k is closed",
        ARGUMENT,
        "k (F32[1, 2, 6, 16]) is closed; see the cause for where",
        f -> {
          Tensor k = f.tensor(f.shape.k());
          k.close();
          f.forward(f.q, k, f.v, f.o, f.g);
        });
    add(
        list,
        "o is closed",
        ARGUMENT,
        "o (F32[1, 4, 6, 32]) is closed",
        f -> {
          Tensor o = f.tensor(f.shape.output());
          o.close();
          f.forward(f.q, f.k, f.v, o, f.g);
        });
    add(
        list,
        "a view of a closed tensor",
        ARGUMENT,
        "v (F32[1, 2, 6, 32]) is closed",
        f -> {
          Tensor v = f.tensor(f.shape.v());
          Tensor view = v.sliced(0, 0, 1);
          v.close();
          f.forward(f.q, f.k, view, f.o, f.g);
        });
    add(
        list,
        "a forward that is closed",
        ARGUMENT,
        "o (F32[1, 4, 6, 32]) is closed",
        f -> {
          Forward y = f.attention.forward(f.q, f.k, f.v);
          y.close();
          f.attention.backward(y, f.dO);
        });
    add(
        list,
        "no forward",
        ARGUMENT,
        "y is null",
        f -> f.attention.backwardInto(nothing(), f.dO, null, f.gradients()));
    add(
        list,
        "a forward without an output",
        ARGUMENT,
        "o is null",
        f -> Forward.over(f.input(), nothing(), f.g, null));
    add(
        list,
        "a gradient over the state that the backward starts from",
        ARGUMENT,
        "dS of the initial state is written and overlaps final state S",
        f -> {
          AttentionState last = f.state(f.shape, 1);
          f.attention.forwardInto(f.input(), f.o, f.g, last);
          StateGradient over = StateGradient.over(last.s(), last.z(), last.u());
          Gradients written = Gradients.over(f.dq, f.dk, f.dv, f.da, f.db, over);
          f.attention.backwardInto(Forward.over(f.input(), f.o, f.g, last), f.dO, null, written);
        });
    add(
        list,
        "reading a closed tensor",
        IllegalStateException.class,
        "is closed; see the cause for where",
        f -> {
          Tensor tensor = f.tensor(4);
          tensor.close();
          tensor.toFloats();
        });
    onClosedStream(list, "a forward", (f, s) -> on(f, s).forward(f.q, f.k, f.v).close());
    onClosedStream(
        list,
        "a backward",
        (f, s) -> on(f, s).backwardInto(f.input(), f.o, f.g, f.dO, f.gradients()));
    onClosedStream(list, "a mark", (f, s) -> s.record().close());
    onClosedStream(
        list,
        "a wait",
        (f, s) -> {
          try (Stream other = f.cpu.newStream();
              Event event = other.record()) {
            s.waitFor(event);
          }
        });
    onClosedStream(list, "a copy", (f, s) -> s.copy(f.q, f.dq));
  }

  private static LinearAttention on(Fixture f, Stream stream) {
    return LinearAttention.builder().on(f.cpu, stream);
  }

  private static void onClosedStream(
      List<Mistake> list, String what, BiConsumer<Fixture, Stream> use) {
    add(
        list,
        what + " on a closed stream",
        IllegalStateException.class,
        "the stream is closed; see the cause for where",
        f -> {
          Stream stream = f.cpu.newStream();
          stream.close();
          use.accept(f, stream);
        });
  }

  private static void addShapes(List<Mistake> list) {
    add(
        list,
        "q of rank 3",
        ARGUMENT,
        "q must be [batch, heads, tokens, dim], got F32[4, 6, 16]",
        f -> f.forward(f.q.reshaped(TensorShape.of(4, 6, 16)), f.k, f.v, f.o, f.g));
    add(
        list,
        "v of rank 5",
        ARGUMENT,
        "v must be [batch, heads, tokens, dim], got F32[1, 1, 2, 6, 32]",
        f -> f.forward(f.q, f.k, f.v.reshaped(TensorShape.of(1, 1, 2, 6, 32)), f.o, f.g));
    add(
        list,
        "other batch",
        ARGUMENT,
        "q, k and v must agree in batch, got 1, 2 and 1",
        f -> f.forward(f.q, f.tensor(2, 2, 6, 16), f.v, f.o, f.g));
    add(
        list,
        "other tokens",
        ARGUMENT,
        "q, k and v must agree in tokens, got 6, 6 and 7",
        f -> f.forward(f.q, f.k, f.tensor(1, 2, 7, 32), f.o, f.g));
    add(
        list,
        "heads of v unlike those of k",
        ARGUMENT,
        "k has 2 heads and v has 4; they must agree",
        f -> f.forward(f.q, f.k, f.tensor(1, 4, 6, 32), f.o, f.g));
    add(
        list,
        "rows of k unlike those of q",
        ARGUMENT,
        "rows of q have 16 elements and rows of k 32; they must agree",
        f -> f.forward(f.q, f.tensor(1, 2, 6, 32), f.v, f.o, f.g));
    add(
        list,
        "heads that can't be shared evenly",
        ARGUMENT,
        "4 query heads can't share 3 key/value heads evenly",
        f -> f.forward(f.q, f.tensor(1, 3, 6, 16), f.tensor(1, 3, 6, 32), f.o, f.g));
    add(
        list,
        "a dimension that is no multiple of 16",
        ARGUMENT,
        "keyDim must be a multiple of 16 from 16 to 512, got 24",
        f -> f.forward(f.tensor(1, 4, 6, 24), f.tensor(1, 2, 6, 24), f.v, f.o, f.g));
    add(
        list,
        "a dimension above 512",
        ARGUMENT,
        "valueDim must be a multiple of 16 from 16 to 512, got 528",
        f -> f.forward(f.q, f.k, f.tensor(1, 2, 6, 528), f.o, f.g));
    add(
        list,
        "types that differ",
        ARGUMENT,
        "q, k and v must have one type, got F32, BF16 and F32",
        f -> f.forward(f.q, f.tensor(DType.BF16, f.shape.k()), f.v, f.o, f.g));
    add(
        list,
        "rows with gaps between elements",
        ARGUMENT,
        "q must be contiguous along its last axis, its stride there is 16",
        f ->
            f.forward(
                f.tensor(1, 4, 16, 16).sliced(2, 0, 16).permuted(0, 1, 3, 2),
                tall(f, 2, 16),
                tall(f, 2, 32),
                f.tensor(1, 4, 16, 32),
                f.tensor(1, 4, 16)));
    add(
        list,
        "no heads",
        ARGUMENT,
        "heads must be at least 1, got 0",
        f -> AttentionShape.of(1, 0, 6, 16));
    add(
        list,
        "no tokens",
        ARGUMENT,
        "tokens must be at least 1, got 0",
        f -> AttentionShape.of(1, 1, 0, 16));
    add(
        list,
        "more heads of batch rows than a GPU has blocks",
        ARGUMENT,
        "batch times heads must be at most 2^26, got 2147483647 times 2",
        f -> AttentionShape.of(Integer.MAX_VALUE, 2, 1, 16));
    add(
        list,
        "more elements than bytes can count",
        ARGUMENT,
        "1 batch rows of 67108864 heads and 1073741824 tokens would have more than 2^56 elements",
        f -> AttentionShape.of(1, 1 << 26, 1 << 30, 512));
    add(
        list,
        "more packed sequences of heads than a GPU has blocks",
        ARGUMENT,
        "sequences times heads must be at most 2^26, got 70000 times 1000",
        f ->
            LinearAttention.builder()
                .on(f.cpu)
                .plan(
                    AttentionShape.of(1, 1000, 70_000, 16),
                    DType.F32,
                    Sequences.ofLengths(IntStream.generate(() -> 1).limit(70_000).toArray())));
    add(
        list,
        "many packed sequences of other tokens",
        ARGUMENT,
        "sequence lengths [1, 1, 1, 1, 1, 1, 1, 1, ... 100 in all] sum to 100, but there are 6",
        f ->
            f.input()
                .packed(Sequences.ofLengths(IntStream.generate(() -> 1).limit(100).toArray())));
  }

  private static Tensor tall(Fixture f, int heads, int dim) {
    return f.tensor(1, heads, 16, dim);
  }

  private static void addOutputs(List<Mistake> list) {
    add(
        list,
        "o of another shape",
        ARGUMENT,
        "o must be F32[1, 4, 6, 32], got F32[1, 4, 6, 16]",
        f -> f.forward(f.q, f.k, f.v, f.tensor(1, 4, 6, 16), f.g));
    add(
        list,
        "o of another type",
        ARGUMENT,
        "o must be F32[1, 4, 6, 32], got F16[1, 4, 6, 32]",
        f -> f.forward(f.q, f.k, f.v, f.tensor(DType.F16, f.shape.output()), f.g));
    add(
        list,
        "g of another shape",
        ARGUMENT,
        "g must be F32[1, 4, 6], got F32[1, 6, 4]",
        f -> f.forward(f.q, f.k, f.v, f.o, f.tensor(1, 6, 4)));
    add(
        list,
        "g in 16 bits",
        ARGUMENT,
        "g must be F32[1, 4, 6], got BF16[1, 4, 6]",
        f -> f.forward(f.q, f.k, f.v, f.o, f.tensor(DType.BF16, f.shape.normalizer())));
    add(
        list,
        "dO of another shape",
        ARGUMENT,
        "dO must be F32[1, 4, 6, 32], got F32[1, 4, 6, 16]",
        f -> f.backward(f.o, f.g, f.tensor(1, 4, 6, 16), f.gradients()));
    add(
        list,
        "dO of another type",
        ARGUMENT,
        "dO must be F32[1, 4, 6, 32], got BF16[1, 4, 6, 32]",
        f -> f.backward(f.o, f.g, f.tensor(DType.BF16, f.shape.output()), f.gradients()));
    add(
        list,
        "da for one head",
        ARGUMENT,
        "da must be F32[1, 4], got F32[1, 1]",
        f -> f.backward(f.o, f.g, f.dO, Gradients.over(f.dq, f.dk, f.dv, f.tensor(1, 1), f.db)));
    add(
        list,
        "dk of the shape of dq",
        ARGUMENT,
        "dk must be F32[1, 2, 6, 16], got F32[1, 4, 6, 16]",
        f ->
            f.backward(
                f.o, f.g, f.dO, Gradients.over(f.dq, f.tensor(f.shape.q()), f.dv, f.da, f.db)));
  }

  private static void addOverlaps(List<Mistake> list) {
    add(
        list,
        "o between the last rows of v",
        ARGUMENT,
        "o is written and may overlap v; give it memory of its own",
        f -> {
          Tensor flat = f.tensor(2528);
          Tensor v = flat.sliced(0, 0, 1152).reshaped(TensorShape.of(1, 2, 6, 96)).sliced(3, 0, 32);
          Tensor o =
              flat.sliced(0, 992, 1536).reshaped(TensorShape.of(1, 2, 6, 128)).sliced(3, 0, 32);
          f.forward(f.tensor(1, 2, 6, 16), f.k, v, o, f.tensor(1, 2, 6));
        });
    add(
        list,
        "o over q",
        ARGUMENT,
        "o is written and overlaps q; give it memory of its own",
        f -> {
          AttentionShape square = AttentionShape.of(1, 2, 6, 16);
          Tensor q = f.tensor(square.q());
          f.forward(q, f.k, f.tensor(square.v()), q, f.tensor(square.normalizer()));
        });
    add(
        list,
        "o partly over v",
        ARGUMENT,
        "o is written and overlaps v; give it memory of its own",
        f -> {
          Tensor memory = f.tensor(1, 6, 6, 32);
          Tensor v = memory.sliced(1, 0, 2);
          f.forward(f.q, f.k, v, memory.sliced(1, 1, 4), f.g);
        });
    add(
        list,
        "g over k",
        ARGUMENT,
        "g is written and overlaps k",
        f -> {
          Tensor k = f.tensor(f.shape.k());
          Tensor flat = k.reshaped(TensorShape.of(k.shape().elements()));
          Tensor g = flat.sliced(0, 0, 24).reshaped(f.shape.normalizer());
          f.forward(f.q, k, f.v, f.o, g);
        });
    add(
        list,
        "g over o",
        ARGUMENT,
        "g is written and overlaps o",
        f -> {
          Tensor flat = f.o.reshaped(TensorShape.of(f.o.shape().elements()));
          f.forward(f.q, f.k, f.v, f.o, flat.sliced(0, 700, 24).reshaped(f.shape.normalizer()));
        });
    add(
        list,
        "dq over q",
        ARGUMENT,
        "dq is written and overlaps q",
        f -> f.backward(f.o, f.g, f.dO, Gradients.over(f.q, f.dk, f.dv, f.da, f.db)));
    add(
        list,
        "dv over dO",
        ARGUMENT,
        "dv is written and overlaps dO",
        f -> {
          Tensor dv = f.dO.sliced(1, 0, 2);
          f.backward(f.o, f.g, f.dO, Gradients.over(f.dq, f.dk, dv, f.da, f.db));
        });
    add(
        list,
        "dv over o",
        ARGUMENT,
        "dv is written and overlaps o",
        f ->
            f.backward(
                f.o, f.g, f.dO, Gradients.over(f.dq, f.dk, f.o.sliced(1, 2, 2), f.da, f.db)));
    add(
        list,
        "dk over dq",
        ARGUMENT,
        "dk is written and overlaps dq",
        f ->
            f.backward(
                f.o, f.g, f.dO, Gradients.over(f.dq, f.dq.sliced(1, 0, 2), f.dv, f.da, f.db)));
    add(
        list,
        "db is da",
        ARGUMENT,
        "db is written and overlaps da",
        f -> f.backward(f.o, f.g, f.dO, Gradients.over(f.dq, f.dk, f.dv, f.da, f.da)));
    add(
        list,
        "o over the initial state",
        ARGUMENT,
        "o is written and overlaps the initial state S",
        f -> {
          AttentionState state = f.state(f.shape, 1);
          Tensor s = state.s().reshaped(TensorShape.of(1024));
          Tensor o = s.sliced(0, 0, 768).reshaped(f.shape.output());
          f.attention.forwardInto(f.input().from(state), o, f.g, null);
        });
    add(
        list,
        "a final state over q",
        ARGUMENT,
        "final state z is written and overlaps q",
        f -> {
          Tensor flat = f.q.reshaped(TensorShape.of(384));
          Tensor z = flat.sliced(0, 0, 32).reshaped(TensorShape.of(1, 2, 1, 16));
          AttentionState whole = f.state(f.shape, 1);
          AttentionState state = AttentionState.over(whole.s(), z, whole.u(), 0);
          f.attention.forwardInto(f.input(), f.o, f.g, state);
        });
    add(
        list,
        "a final state over o",
        ARGUMENT,
        "final state u is written and overlaps o",
        f -> {
          Tensor flat = f.o.reshaped(TensorShape.of(768));
          Tensor u = flat.sliced(0, 0, 64).reshaped(TensorShape.of(1, 2, 1, 32));
          AttentionState whole = f.state(f.shape, 1);
          AttentionState state = AttentionState.over(whole.s(), whole.z(), u, 0);
          f.attention.forwardInto(f.input(), f.o, f.g, state);
        });
  }

  private static void addStateOverlaps(List<Mistake> list) {
    add(
        list,
        "a final state whose u lies in its S",
        ARGUMENT,
        "final state u is written and overlaps final state S",
        f -> {
          AttentionState whole = f.state(f.shape, 1);
          Tensor flat = whole.s().reshaped(TensorShape.of(1024));
          Tensor u = flat.sliced(0, 0, 64).reshaped(TensorShape.of(1, 2, 1, 32));
          AttentionState state = AttentionState.over(whole.s(), whole.z(), u, 0);
          f.attention.forwardInto(f.input(), f.o, f.g, state);
        });
    add(
        list,
        "another state over the tensors of the initial one",
        ARGUMENT,
        "final state S is written and overlaps the initial state S",
        f -> {
          AttentionState initial = f.state(f.shape, 1);
          AttentionState same = AttentionState.over(initial.s(), initial.z(), initial.u(), 0);
          f.attention.forwardInto(f.input().from(initial), f.o, f.g, same);
        });
  }

  private static void addPackings(List<Mistake> list) {
    add(
        list,
        "lengths that don't sum to N",
        ARGUMENT,
        "sequence lengths [2, 3] sum to 5, but there are 6 tokens",
        f -> f.input().packed(Sequences.ofLengths(2, 3)));
    add(
        list,
        "a plan for lengths that don't sum to N",
        ARGUMENT,
        "sequence lengths [2, 3] sum to 5, but there are 6 tokens",
        f ->
            f.attention.plan(AttentionShape.of(1, 2, 6, 16), DType.F32, Sequences.ofLengths(2, 3)));
    add(
        list,
        "a plan for a packed batch",
        ARGUMENT,
        "packed sequences need batch 1, got batch 2",
        f -> f.attention.plan(AttentionShape.of(2, 2, 6, 16), DType.F32, Sequences.ofLengths(6)));
    add(
        list,
        "a packed batch",
        ARGUMENT,
        "packed sequences need batch 1, got batch 2",
        f -> {
          Tensor q = f.tensor(2, 2, 6, 16);
          AttentionInput.of(q, q, q).packed(Sequences.ofLengths(6));
        });
    add(
        list,
        "a negative length",
        ARGUMENT,
        "sequence length 1 is negative: -1",
        f -> Sequences.ofLengths(3, -1));
    add(
        list,
        "no length",
        ARGUMENT,
        "packing needs at least one sequence length",
        f -> Sequences.ofLengths());
    add(
        list,
        "the length of a sequence that is not there",
        ARGUMENT,
        "a packing of 2 sequences has no sequence 2",
        f -> Sequences.ofLengths(1, 2).length(2));
    add(
        list,
        "the start of a sequence that is not there",
        ARGUMENT,
        "a packing of 2 sequences has no sequence 3",
        f -> Sequences.ofLengths(1, 2).start(3));
    add(
        list,
        "the start of a sequence before the first",
        ARGUMENT,
        "a packing of 2 sequences has no sequence -1",
        f -> Sequences.ofLengths(1, 2).start(-1));
    add(
        list,
        "too many tokens",
        ARGUMENT,
        "sequence lengths sum to more than 2^31-1 tokens",
        f -> Sequences.ofLengths(Integer.MAX_VALUE, 1));
  }

  private static void addStates(List<Mistake> list) {
    add(
        list,
        "a state of another head dimension",
        ARGUMENT,
        "the initial state must have S [1, 2, 1, 16, 32] for this input",
        f -> {
          AttentionState state = f.state(f.shape.withValueDim(48), 1);
          f.attention.forwardInto(f.input().from(state), f.o, f.g, null);
        });
    add(
        list,
        "a state for too few sequences",
        ARGUMENT,
        "the final state must have S [1, 2, 3, 16, 32] for this input",
        f ->
            f.attention.forwardInto(
                f.input().packed(Sequences.ofLengths(1, 2, 3)), f.o, f.g, f.state(f.shape, 2)));
    add(
        list,
        "a state of rank 4",
        ARGUMENT,
        "state S must be [batch, keyValueHeads, sequences, keyDim, valueDim], got F32[1, 2, 16, 32]",
        f -> AttentionState.over(f.tensor(1, 2, 16, 32), f.k, f.v, 0));
    add(
        list,
        "z that does not fit S",
        ARGUMENT,
        "state z must have the shape [1, 2, 1, 16] to fit S",
        f -> {
          AttentionState state = f.state(f.shape, 1);
          AttentionState.over(state.s(), state.u(), state.u(), 0);
        });
    add(
        list,
        "a state in 16 bits",
        ARGUMENT,
        "state is fp32, got S F16[1, 2, 1, 16, 32]",
        f -> {
          AttentionState state = f.state(f.shape, 1);
          Tensor s = f.tensor(DType.F16, state.s().shape());
          AttentionState.over(s, state.z(), state.u(), 0);
        });
    add(
        list,
        "counts that don't fit",
        ARGUMENT,
        "state of 1 sequences needs as many counts, got 2",
        f -> {
          AttentionState state = f.state(f.shape, 1);
          AttentionState.over(state.s(), state.z(), state.u(), 0, 0);
        });
    add(
        list,
        "a negative count",
        ARGUMENT,
        "a token count can't be negative: -3",
        f -> {
          AttentionState state = f.state(f.shape, 1);
          AttentionState.over(state.s(), state.z(), state.u(), -3);
        });
    add(
        list,
        "a count that the next tokens would overflow",
        ARGUMENT,
        "a token count can't be above 2^53: 9223372036854775807",
        f -> {
          AttentionState state = f.state(f.shape, 1);
          AttentionState.over(state.s(), state.z(), state.u(), Long.MAX_VALUE);
        });
    add(
        list,
        "the count of a sequence that is not there",
        ARGUMENT,
        "a state of 2 sequences has no sequence 2",
        f -> f.state(f.shape, 2).count(2));
    add(
        list,
        "a decode step of six tokens",
        ARGUMENT,
        "a decode step takes one token, got 6",
        f -> f.attention.decodeInto(f.q, f.k, f.v, f.state(f.shape, 1), f.o, f.g));
    add(
        list,
        "no sequences in a state",
        ARGUMENT,
        "a state needs at least 1 sequence, got 0",
        f -> f.cpu.newState(f.shape, 0));
    add(
        list,
        "no coefficients",
        ARGUMENT,
        "a is null",
        f -> LinearAttention.builder().coefficients(null, null));
  }

  private static void addStateGradients(List<Mistake> list) {
    add(
        list,
        "a gradient of S of rank 4",
        ARGUMENT,
        "state gradient dS must be [batch, keyValueHeads, sequences, keyDim, valueDim], got F32[1,"
            + " 2, 16, 32]",
        f -> StateGradient.over(f.tensor(1, 2, 16, 32), f.tensor(1, 2, 1, 16), f.o));
    add(
        list,
        "a gradient of z that does not fit that of S",
        ARGUMENT,
        "state gradient dz must have the shape [1, 2, 1, 16] to fit dS [1, 2, 1, 16, 32], got"
            + " F32[1, 2, 1, 32]",
        f -> {
          Tensor ds = f.tensor(1, 2, 1, 16, 32);
          StateGradient.over(ds, f.tensor(1, 2, 1, 32), f.tensor(1, 2, 1, 32));
        });
    add(
        list,
        "a gradient of u in 16 bits",
        ARGUMENT,
        "state gradient is fp32, got dS F32[1, 2, 1, 16, 32], dz F32[1, 2, 1, 16], du BF16[1, 2, 1,"
            + " 32]",
        f -> {
          Tensor du = f.tensor(DType.BF16, TensorShape.of(1, 2, 1, 32));
          StateGradient.over(f.tensor(1, 2, 1, 16, 32), f.tensor(1, 2, 1, 16), du);
        });
    add(
        list,
        "a gradient of nothing for the initial state",
        ARGUMENT,
        "initialState is null",
        f -> f.backwardTo(nothing()));
    add(
        list,
        "a final gradient for other heads",
        ARGUMENT,
        "the gradient of the final state must have dS [1, 2, 1, 16, 32] for this input, got F32[1,"
            + " 4, 1, 16, 32]",
        f -> f.backwardFrom(f.stateGradient(new AttentionShape(1, 4, 4, 6, 16, 32), 1)));
    add(
        list,
        "an initial gradient for other sequences",
        ARGUMENT,
        "the gradient of the initial state must have dS [1, 2, 1, 16, 32] for this input, got F32[1,"
            + " 2, 3, 16, 32]",
        f -> f.backwardTo(f.stateGradient(f.shape, 3)));
    add(
        list,
        "a final gradient that is closed",
        ARGUMENT,
        "dz of the final state (F32[1, 2, 1, 16]) is closed; see the cause for where",
        f -> {
          StateGradient gradient = f.stateGradient(f.shape, 1);
          gradient.dz().close();
          f.backwardFrom(gradient);
        });
    add(
        list,
        "an initial gradient that is closed",
        ARGUMENT,
        "dS of the initial state (F32[1, 2, 1, 16, 32]) is closed; see the cause for where",
        f -> {
          StateGradient gradient = f.stateGradient(f.shape, 1);
          gradient.close();
          f.backwardTo(gradient);
        });
    add(
        list,
        "the initial gradient is the final one",
        ARGUMENT,
        "dS of the initial state is written and overlaps dS of the final state",
        f -> {
          StateGradient gradient = f.stateGradient(f.shape, 1);
          f.backwardThrough(gradient, gradient);
        });
    add(
        list,
        "the initial gradient over the initial state",
        ARGUMENT,
        "dz of the initial state is written and overlaps the initial state z",
        f -> {
          AttentionState state = f.state(f.shape, 1);
          StateGradient own = f.stateGradient(f.shape, 1);
          StateGradient over = StateGradient.over(own.ds(), state.z(), own.du());
          Gradients written = Gradients.over(f.dq, f.dk, f.dv, f.da, f.db, over);
          f.attention.backwardInto(f.input().from(state), f.o, f.g, f.dO, written);
        });
    add(
        list,
        "the initial gradient over dq",
        ARGUMENT,
        "du of the initial state is written and overlaps dq",
        f -> {
          StateGradient own = f.stateGradient(f.shape, 1);
          Tensor flat = f.dq.reshaped(TensorShape.of(384));
          Tensor du = flat.sliced(0, 0, 64).reshaped(TensorShape.of(1, 2, 1, 32));
          f.backwardTo(StateGradient.over(own.ds(), own.dz(), du));
        });
    add(
        list,
        "dk over the final gradient",
        ARGUMENT,
        "dk is written and overlaps dS of the final state",
        f -> {
          StateGradient last = f.stateGradient(f.shape, 1);
          Tensor flat = last.ds().reshaped(TensorShape.of(1024));
          Tensor dk = flat.sliced(0, 0, 192).reshaped(f.shape.k());
          Gradients written = Gradients.over(f.dq, dk, f.dv, f.da, f.db);
          f.attention.backwardInto(f.input(), f.o, f.g, f.dO, last, written);
        });
  }

  private static void addOperators(List<Mistake> list) {
    add(
        list,
        "a that is NaN",
        ARGUMENT,
        "coefficient a must be finite, got NaN",
        f -> LinearAttention.builder().coefficients(Float.NaN, 1));
    add(
        list,
        "b that is infinite",
        ARGUMENT,
        "coefficient b must be finite, got Infinity",
        f -> LinearAttention.builder().coefficients(1, Float.POSITIVE_INFINITY));
    add(
        list,
        "more a than b",
        ARGUMENT,
        "a and b need one value each, or one for each query head; got 2 and 1",
        f -> LinearAttention.builder().coefficients(new float[2], new float[1]));
    add(
        list,
        "coefficients for other heads",
        ARGUMENT,
        "3 coefficients for 4 query heads: give one for all, or one for each",
        f ->
            LinearAttention.builder()
                .coefficients(new float[] {1, 1, 1}, new float[] {1, 1, 1})
                .on(f.cpu)
                .forwardInto(f.q, f.k, f.v, f.o, f.g));
    add(
        list,
        "an exact mode of 16-bit tensors",
        ARGUMENT,
        "mode ACCURATE is for fp32 tensors; BF16 tensors know DEFAULT only",
        f -> {
          DType bf16 = DType.BF16;
          LinearAttention.builder()
              .mode(Mode.ACCURATE)
              .on(f.cpu)
              .forward(
                  f.tensor(bf16, f.shape.q()),
                  f.tensor(bf16, f.shape.k()),
                  f.tensor(bf16, f.shape.v()))
              .close();
        });
    add(
        list,
        "no threads",
        ARGUMENT,
        "the CPU needs at least 1 thread, got 0",
        f -> Backend.cpu(0).close());
  }

  private static void addTensors(List<Mistake> list) {
    add(
        list,
        "a slice past the end",
        ARGUMENT,
        "F32[1, 4, 6, 16] has no 3 entries from entry 4 on along axis 2",
        f -> f.q.sliced(2, 4, 3));
    add(
        list,
        "a slice of an axis that is not there",
        ARGUMENT,
        "F32[1, 4, 6, 16] has no axis 4",
        f -> f.q.sliced(4, 0, 1));
    add(
        list,
        "the stride of an axis that is not there",
        ARGUMENT,
        "F32[1, 4, 6, 16] has no axis 4",
        f -> f.q.stride(4));
    add(
        list,
        "the extent of an axis that is not there",
        ARGUMENT,
        "[1, 4, 6, 16] has no axis -1",
        f -> f.q.shape().extent(-1));
    add(
        list,
        "more elements than an array has",
        ARGUMENT,
        "BF16[2, 1073741824] has more elements than an array, 2^31-1",
        f -> {
          TensorShape shape = TensorShape.of(2, 1 << 30);
          MemorySegment nowhere = MemorySegment.ofAddress(64).reinterpret(2 * shape.elements());
          Tensor.wrap(nowhere, DType.BF16, shape).toFloats();
        });
    add(
        list,
        "an empty slice",
        ARGUMENT,
        "F32[1, 4, 6, 16] has no 0 entries from entry 3 on along axis 2",
        f -> f.q.sliced(2, 3, 0));
    add(
        list,
        "an axis twice",
        ARGUMENT,
        "[0, 1, 1, 3] is not a permutation of the 4 axes of F32[1, 4, 6, 16]",
        f -> f.q.permuted(0, 1, 1, 3));
    add(
        list,
        "too few axes",
        ARGUMENT,
        "[1, 0] is not a permutation of the 4 axes",
        f -> f.q.permuted(1, 0));
    add(
        list,
        "a shape of other size",
        ARGUMENT,
        "F32[1, 4, 6, 16] has 384 elements and can't become [383]",
        f -> f.q.reshaped(TensorShape.of(383)));
    add(
        list,
        "a new shape for a view with axes in another order",
        ARGUMENT,
        "reshaped needs a tensor that lies row-major without gaps; this view of",
        f -> f.q.permuted(0, 2, 1, 3).reshaped(TensorShape.of(384)));
    add(
        list,
        "an array of other size",
        ARGUMENT,
        "F32[1, 4, 6, 16] has 384 elements, the array has 3",
        f -> f.q.copyFrom(new float[3]));
    add(
        list,
        "a segment of other size",
        ARGUMENT,
        "F32[1, 4, 6, 16] has 1536 bytes, the segment has 8",
        f -> f.q.copyTo(MemorySegment.ofArray(new float[2])));
    add(
        list,
        "a copy into a view with gaps",
        ARGUMENT,
        "copyFrom needs a tensor that lies row-major without gaps; this view of",
        f -> f.q.sliced(2, 0, 3).copyFrom(MemorySegment.ofArray(new float[192])));
    add(
        list,
        "a shape of nothing",
        ARGUMENT,
        "a shape needs at least one extent",
        f -> TensorShape.of());
    add(
        list,
        "a shape that overflows",
        ARGUMENT,
        "has more than 2^63 elements",
        f -> TensorShape.of(1L << 40, 1L << 40));
    add(
        list,
        "a tensor whose bytes overflow",
        ARGUMENT,
        "has more than 2^63 bytes",
        f -> f.cpu.allocate(DType.F32, TensorShape.of(1L << 62)).close());
    add(
        list,
        "a tensor for which the host has no memory",
        OutOfMemoryError.class,
        "no memory for the 1152921504606846976 bytes of F32[288230376151711744]",
        f -> Tensor.allocate(DType.F32, TensorShape.of(1L << 58)).close());
    add(
        list,
        "a tensor for which a backend has no memory",
        OutOfMemoryError.class,
        "no memory for the 576460752303423488 bytes of BF16[288230376151711744]",
        f -> f.cpu.allocate(DType.BF16, TensorShape.of(1L << 58)).close());
    add(
        list,
        "a state for which the host has no memory",
        OutOfMemoryError.class,
        "no memory for the 288230376017494016 bytes of F32[1, 128, 2147483647, 512, 512]",
        f -> f.cpu.newState(AttentionShape.of(1, 128, 1, 512), Integer.MAX_VALUE).close());
  }

  private static void addMemory(List<Mistake> list) {
    add(
        list,
        "an array of the heap",
        ARGUMENT,
        "a tensor can't wrap an array of the Java heap; copy it with Tensor.copyOf",
        f -> Tensor.wrap(MemorySegment.ofArray(new float[8]), DType.F32, TensorShape.of(8)));
    add(
        list,
        "a segment that is too short",
        ARGUMENT,
        "F32[8] needs 32 bytes, the segment has 31",
        f ->
            Tensor.wrap(MemorySegment.ofAddress(64).reinterpret(31), DType.F32, TensorShape.of(8)));
    add(
        list,
        "memory that is not aligned",
        ARGUMENT,
        "q must start at a multiple of 4 bytes",
        f -> {
          try (Arena arena = Arena.ofShared()) {
            MemorySegment memory = arena.allocate(1600, 64).asSlice(2);
            f.forward(Tensor.wrap(memory, DType.F32, f.shape.q()), f.k, f.v, f.o, f.g);
          }
        });
    add(
        list,
        "memory of one thread",
        ARGUMENT,
        "the segment belongs to one thread, but a backend works with several",
        f -> {
          try (Arena arena = Arena.ofConfined()) {
            Tensor.wrap(arena.allocate(64, 4), DType.F32, TensorShape.of(16));
          }
        });
    add(
        list,
        "memory whose arena is closed",
        ARGUMENT,
        "q (F32[1, 4, 6, 16]) looks into memory whose arena is closed",
        f -> {
          Tensor stale;
          try (Arena arena = Arena.ofShared()) {
            stale = Tensor.wrap(arena.allocate(1536, 4), DType.F32, f.shape.q());
          }
          f.forward(stale, f.k, f.v, f.o, f.g);
        });
    add(
        list,
        "memory to wrap whose arena is closed",
        ARGUMENT,
        "the segment is of an arena that is closed",
        f -> {
          MemorySegment stale;
          try (Arena arena = Arena.ofShared()) {
            stale = arena.allocate(64, 4);
          }
          Tensor.wrap(stale, DType.F32, TensorShape.of(16));
        });
    add(
        list,
        "a copy out of memory whose arena is closed",
        IllegalStateException.class,
        "the memory of 64 bytes behind this tensor is of an arena that is closed",
        f -> {
          Tensor stale;
          try (Arena arena = Arena.ofShared()) {
            stale = Tensor.wrap(arena.allocate(64, 4), DType.F32, TensorShape.of(16));
          }
          stale.toFloats();
        });
    add(
        list,
        "a copy into memory that can only be read",
        ARGUMENT,
        "the memory of 1536 bytes behind this tensor is read-only",
        f -> {
          MemorySegment readOnly = f.q.segment().asReadOnly();
          Tensor.wrap(readOnly, DType.F32, f.shape.q()).copyFrom(f.q.segment());
        });
    add(
        list,
        "an output that can only be read",
        ARGUMENT,
        "o is written, but its memory can only be read",
        f -> {
          MemorySegment readOnly = f.o.segment().asReadOnly();
          f.forward(f.q, f.k, f.v, Tensor.wrap(readOnly, DType.F32, f.shape.output()), f.g);
        });
    add(
        list,
        "a state in place that lies over v",
        ARGUMENT,
        "final state S is written and overlaps v",
        f -> {
          AttentionShape shape = AttentionShape.of(1, 1, 16, 16);
          Tensor x = f.tensor(shape.q());
          Tensor v = f.tensor(shape.v());
          AttentionState state =
              AttentionState.over(
                  v.reshaped(TensorShape.of(1, 1, 1, 16, 16)),
                  f.tensor(1, 1, 1, 16),
                  f.tensor(1, 1, 1, 16),
                  0);
          AttentionInput input = AttentionInput.of(x, x, v).from(state);
          Tensor g = f.tensor(shape.normalizer());
          f.attention.forwardInto(input, f.tensor(shape.output()), g, state);
        });
    add(
        list,
        "a stream's copy between other shapes",
        ARGUMENT,
        "a copy needs two tensors of one shape and type that lie row-major without gaps",
        f -> {
          try (Stream stream = f.cpu.newStream()) {
            stream.copy(f.tensor(2, 3).permuted(1, 0), f.tensor(3, 2));
          }
        });
    add(
        list,
        "a stream's copy within a tensor",
        ARGUMENT,
        "a copy needs memory that does not overlap",
        f -> {
          Tensor x = f.tensor(6, 16);
          try (Stream stream = f.cpu.newStream()) {
            stream.copy(x.sliced(0, 0, 5), x.sliced(0, 1, 5));
          }
        });
    add(
        list,
        "a stream of another backend",
        ARGUMENT,
        "the stream belongs to another backend than",
        f -> {
          try (Backend other = Backend.cpu(2);
              Stream stream = other.newStream()) {
            LinearAttention.builder().on(f.cpu, stream);
          }
        });
    add(
        list,
        "a closed backend",
        IllegalStateException.class,
        "the backend cpu is closed; see the cause for where",
        f -> {
          Backend closed = Backend.cpu(1);
          LinearAttention attention = LinearAttention.builder().on(closed);
          closed.close();
          attention.forward(f.q, f.k, f.v);
        });
    add(
        list,
        "pinned memory without a GPU",
        UNSUPPORTED,
        "PINNED memory needs a GPU",
        f -> f.cpu.allocatePinned(DType.F32, TensorShape.of(8)).close());
    add(
        list,
        "device memory without a GPU",
        UNSUPPORTED,
        "device memory needs a GPU",
        f -> f.cpu.wrapDeviceMemory(4096, DType.F32, TensorShape.of(8)).close());
    add(
        list,
        "page-locking without a GPU",
        UNSUPPORTED,
        "pinned memory needs a GPU",
        f -> f.cpu.pin(f.q.segment(), DType.F32, f.shape.q()).close());
    add(
        list,
        "a plan for coefficients of other heads",
        ARGUMENT,
        "2 coefficients for 4 query heads",
        f ->
            LinearAttention.builder()
                .coefficients(new float[2], new float[2])
                .on(f.cpu)
                .plan(f.shape, DType.F32));
  }

  @ParameterizedTest
  @MethodSource("mistakes")
  void isAnsweredWithItsOwnSentenceAndNoHarm(Mistake mistake) {
    try (Fixture f = new Fixture()) {
      float[][] before = f.inputs();
      Throwable thrown = catchThrowable(() -> mistake.action.run(f));
      assertThat(thrown).as(mistake.name).isInstanceOf(mistake.type);
      assertThat(thrown).hasMessageContaining(mistake.sentence);
      if (mistake.sentence.contains("closed; see the cause")) {
        assertThat(thrown.getCause()).as("where it was closed").hasMessage("closed here");
        assertThat(Arrays.toString(thrown.getCause().getStackTrace()))
            .contains(BadInputTest.class.getName());
      }
      assertThat(f.inputs()).as("inputs").isDeepEqualTo(before);
      try (Forward y = f.attention.forward(f.q, f.k, f.v)) {
        f.attention.backward(y, f.dO).close();
        assertThat(y.output().memoryKind()).isEqualTo(MemoryKind.HOST);
        for (float element : y.output().toFloats()) {
          assertThat(element).as("a valid call afterwards").isFinite();
        }
      }
    }
  }

  @Test
  void noTwoMistakesAreTheSame() {
    Set<String> names = new HashSet<>();
    mistakes().forEach(mistake -> assertThat(names.add(mistake.name)).as(mistake.name).isTrue());
    assertThat(names).hasSizeGreaterThanOrEqualTo(40);
  }
}
