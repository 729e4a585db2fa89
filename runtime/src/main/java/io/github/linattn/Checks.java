package io.github.linattn;

import io.github.linattn.internal.Operator;
import java.lang.foreign.MemorySegment;
import java.util.Comparator;
import java.util.List;
import java.util.function.IntToLongFunction;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/** Refuses wrong arguments with a sentence, before anything is allocated or launched. */
final class Checks {
  private static final int MOST_LISTED = 8;

  private Checks() {}

  /** A tensor as messages call it. */
  record Named(String name, Tensor tensor) {}

  /** The argument itself, which callers outside the null checker's reach may have left out. */
  static <T> T present(String name, @Nullable T argument) {
    if (argument == null) {
      throw new IllegalArgumentException(name + " is null");
    }
    return argument;
  }

  static AttentionShape shapeOf(Tensor q, Tensor k, Tensor v) {
    present("q", q);
    present("k", k);
    present("v", v);
    requireRank("q", q);
    requireRank("k", k);
    requireRank("v", v);
    TensorShape qs = q.shape();
    TensorShape ks = k.shape();
    TensorShape vs = v.shape();
    requireSame("batch", qs.extent(0), ks.extent(0), vs.extent(0));
    requireSame("tokens", qs.extent(2), ks.extent(2), vs.extent(2));
    if (ks.extent(1) != vs.extent(1)) {
      throw new IllegalArgumentException(
          "k has %d heads and v has %d; they must agree".formatted(ks.extent(1), vs.extent(1)));
    }
    if (qs.extent(3) != ks.extent(3)) {
      throw new IllegalArgumentException(
          "rows of q have %d elements and rows of k %d; they must agree"
              .formatted(qs.extent(3), ks.extent(3)));
    }
    if (q.dtype() != k.dtype() || q.dtype() != v.dtype()) {
      throw new IllegalArgumentException(
          "q, k and v must have one type, got %s, %s and %s"
              .formatted(q.dtype(), k.dtype(), v.dtype()));
    }
    return new AttentionShape(
        intExtent("batch", qs.extent(0)),
        intExtent("heads", qs.extent(1)),
        intExtent("keyValueHeads", ks.extent(1)),
        intExtent("tokens", qs.extent(2)),
        intExtent("keyDim", qs.extent(3)),
        intExtent("valueDim", vs.extent(3)));
  }

  private static void requireRank(String name, Tensor tensor) {
    if (tensor.shape().rank() != 4) {
      throw new IllegalArgumentException(
          "%s must be [batch, heads, tokens, dim], got %s".formatted(name, tensor));
    }
  }

  private static void requireSame(String extent, long q, long k, long v) {
    if (q != k || q != v) {
      throw new IllegalArgumentException(
          "q, k and v must agree in %s, got %d, %d and %d".formatted(extent, q, k, v));
    }
  }

  private static int intExtent(String name, long extent) {
    if (extent > Integer.MAX_VALUE) {
      throw new IllegalArgumentException(name + " must be at most 2^31-1, got " + extent);
    }
    return (int) extent;
  }

  /** Checks what a forward and a backward read. */
  static void input(Operator operator, AttentionInput input, Backend backend) {
    AttentionShape shape = input.shape();
    coefficients(operator, shape);
    mode(operator, input.q().dtype());
    readable("q", input.q(), backend);
    readable("k", input.k(), backend);
    readable("v", input.v(), backend);
    input.initialState().ifPresent(state -> initialState(state, input, backend));
  }

  private static void initialState(AttentionState state, AttentionInput input, Backend backend) {
    state("initial", state, input, backend);
    if (state.isTorn()) {
      throw new IllegalArgumentException(
          "the call that was to write the initial state failed: let another fill it, or fill its"
              + " tensors and take a new state over them");
    }
  }

  static void mode(Operator operator, DType dtype) {
    if (dtype != DType.F32 && operator.mode() != Mode.DEFAULT) {
      throw new IllegalArgumentException(
          "mode %s is for fp32 tensors; %s tensors know DEFAULT only"
              .formatted(operator.mode(), dtype));
    }
  }

  static void coefficients(Operator operator, AttentionShape shape) {
    if (!operator.isUniform() && operator.a().length != shape.heads()) {
      throw new IllegalArgumentException(
          "%d coefficients for %d query heads: give one for all, or one for each"
              .formatted(operator.a().length, shape.heads()));
    }
  }

  static void packing(Sequences sequences, AttentionShape shape) {
    if (shape.batch() != 1) {
      throw new IllegalArgumentException(
          "packed sequences need batch 1, got batch " + shape.batch());
    }
    if (sequences.tokens() != shape.tokens()) {
      throw new IllegalArgumentException(
          "sequence lengths %s sum to %d, but there are %d tokens"
              .formatted(sequences, sequences.tokens(), shape.tokens()));
    }
    if ((long) sequences.count() * shape.heads() > AttentionShape.MOST_HEADS) {
      throw new IllegalArgumentException(
          "sequences times heads must be at most 2^26, got %d times %d"
              .formatted(sequences.count(), shape.heads()));
    }
  }

  /** A list for a message: of many the first, and how many there are. */
  static String listed(int count, IntToLongFunction element) {
    int shown = count > MOST_LISTED + 1 ? MOST_LISTED : count;
    String first =
        IntStream.range(0, shown)
            .mapToObj(i -> Long.toString(element.applyAsLong(i)))
            .collect(Collectors.joining(", "));
    return shown == count ? "[" + first + "]" : "[" + first + ", ... " + count + " in all]";
  }

  /**
   * Checks that three tensors have the shapes and the type of a state.
   *
   * @param role what they are, with a space after it
   * @param mark goes before S, z and u in messages
   */
  static void stateTensors(String role, String mark, Tensor s, Tensor z, Tensor u) {
    TensorShape shape = present(role + mark + "S", s).shape();
    if (shape.rank() != 5) {
      throw new IllegalArgumentException(
          "%sS must be [batch, keyValueHeads, sequences, keyDim, valueDim], got %s"
              .formatted(role + mark, s));
    }
    requireStateShape(role, mark, "z", z, shape, 3);
    requireStateShape(role, mark, "u", u, shape, 4);
    if (s.dtype() != DType.F32 || z.dtype() != DType.F32 || u.dtype() != DType.F32) {
      throw new IllegalArgumentException(
          "%1$sis fp32, got %2$sS %3$s, %2$sz %4$s, %2$su %5$s".formatted(role, mark, s, z, u));
    }
  }

  private static void requireStateShape(
      String role, String mark, String name, Tensor tensor, TensorShape s, int lastAxis) {
    present(role + mark + name, tensor);
    TensorShape expected =
        TensorShape.of(s.extent(0), s.extent(1), s.extent(2), s.extent(lastAxis));
    if (!tensor.shape().equals(expected)) {
      throw new IllegalArgumentException(
          "%s must have the shape %s to fit %sS %s, got %s"
              .formatted(role + mark + name, expected, mark, s, tensor));
    }
  }

  /** Checks a state that a call reads or writes, and gives its tensors. */
  static List<Named> state(
      String role, AttentionState state, AttentionInput input, Backend backend) {
    TensorShape expected = stateShape(input);
    if (!state.s().shape().equals(expected)) {
      throw new IllegalArgumentException(
          "the %s state must have S %s for this input, got %s".formatted(role, expected, state));
    }
    return List.of(
        readable(role + " state S", state.s(), backend),
        readable(role + " state z", state.z(), backend),
        readable(role + " state u", state.u(), backend));
  }

  private static TensorShape stateShape(AttentionInput input) {
    AttentionShape shape = input.shape();
    return TensorShape.of(
        shape.batch(),
        shape.keyValueHeads(),
        input.sequences().count(),
        shape.keyDim(),
        shape.valueDim());
  }

  /**
   * Checks the gradient of a state that a backward reads or writes, and gives its tensors.
   *
   * @param role the state: initial or final
   */
  static List<Named> stateGradient(
      String role, StateGradient gradient, AttentionInput input, Backend backend) {
    TensorShape expected = stateShape(input);
    if (!gradient.ds().shape().equals(expected)) {
      throw new IllegalArgumentException(
          "the gradient of the %s state must have dS %s for this input, got %s"
              .formatted(role, expected, gradient.ds()));
    }
    return List.of(
        readable("dS of the " + role + " state", gradient.ds(), backend),
        readable("dz of the " + role + " state", gradient.dz(), backend),
        readable("du of the " + role + " state", gradient.du(), backend));
  }

  static void output(
      String name,
      Tensor tensor,
      DType dtype,
      TensorShape shape,
      AttentionInput input,
      Backend backend) {
    expect(name, tensor, dtype, shape, backend);
    output(name, tensor, input);
  }

  private static void output(String name, Tensor tensor, AttentionInput input) {
    written(name, tensor, input);
    input
        .initialState()
        .ifPresent(
            state -> {
              requireDisjoint(name, tensor, "the initial state S", state.s());
              requireDisjoint(name, tensor, "the initial state z", state.z());
              requireDisjoint(name, tensor, "the initial state u", state.u());
            });
  }

  /** Checks tensors that a backward writes against all that it reads and against one another. */
  static void outputs(List<Named> written, List<Named> read, AttentionInput input) {
    for (int i = 0; i < written.size(); i++) {
      Named output = written.get(i);
      output(output.name, output.tensor, input);
      for (Named other : read) {
        requireDisjoint(output.name, output.tensor, other.name, other.tensor);
      }
      for (Named earlier : written.subList(0, i)) {
        requireDisjoint(output.name, output.tensor, earlier.name, earlier.tensor);
      }
    }
  }

  private static void written(String name, Tensor tensor, AttentionInput input) {
    requireWritable(name, tensor);
    requireDisjoint(name, tensor, "q", input.q());
    requireDisjoint(name, tensor, "k", input.k());
    requireDisjoint(name, tensor, "v", input.v());
  }

  private static void requireWritable(String name, Tensor tensor) {
    if (segment(name, tensor).isReadOnly()) {
      throw new IllegalArgumentException(
          "%s is written, but its memory can only be read".formatted(name));
    }
  }

  /** A final state may be the initial state itself, but must not lie partly over it. */
  static void finalState(
      AttentionState state, AttentionInput input, Tensor o, Tensor g, Backend backend) {
    state("final", state, input, backend);
    @Nullable AttentionState initial = input.initialState().orElse(null);
    String[] names = {"final state S", "final state z", "final state u"};
    Tensor[] written = {state.s(), state.z(), state.u()};
    for (int i = 0; i < written.length; i++) {
      if (initial == state) {
        written(names[i], written[i], input);
      } else {
        output(names[i], written[i], DType.F32, written[i].shape(), input, backend);
      }
      requireDisjoint(names[i], written[i], "o", o);
      requireDisjoint(names[i], written[i], "g", g);
      for (int earlier = 0; earlier < i; earlier++) {
        requireDisjoint(names[i], written[i], names[earlier], written[earlier]);
      }
    }
  }

  /** Checks a tensor that a call reads or writes, and gives it with its name. */
  static Named expect(String name, Tensor tensor, DType dtype, TensorShape shape, Backend backend) {
    present(name, tensor);
    if (tensor.dtype() != dtype || !tensor.shape().equals(shape)) {
      throw new IllegalArgumentException(
          "%s must be %s%s, got %s".formatted(name, dtype, shape, tensor));
    }
    return readable(name, tensor, backend);
  }

  private static Named readable(String name, Tensor tensor, Backend backend) {
    int last = tensor.shape().rank() - 1;
    if (tensor.shape().extent(last) > 1 && tensor.stride(last) != 1) {
      throw new IllegalArgumentException(
          "%s must be contiguous along its last axis, its stride there is %d"
              .formatted(name, tensor.stride(last)));
    }
    MemorySegment memory = segment(name, tensor);
    if (!memory.scope().isAlive()) {
      throw new IllegalArgumentException(
          "%s (%s) looks into memory whose arena is closed".formatted(name, tensor));
    }
    long address = memory.address();
    if (address % tensor.dtype().bytes() != 0) {
      throw new IllegalArgumentException(
          "%s must start at a multiple of %d bytes, it starts at 0x%x"
              .formatted(name, tensor.dtype().bytes(), address));
    }
    backend.requireReachable(name, tensor);
    return new Named(name, tensor);
  }

  /** Asked each time, since another thread may close the tensor between two checks. */
  private static MemorySegment segment(String name, Tensor tensor) {
    try {
      return tensor.segment();
    } catch (IllegalStateException closed) {
      throw new IllegalArgumentException(
          "%s (%s) is closed; see the cause for where".formatted(name, tensor), closed.getCause());
    }
  }

  private static long[][] axesByStride(Tensor tensor) {
    TensorShape shape = tensor.shape();
    return IntStream.range(0, shape.rank())
        .filter(axis -> shape.extent(axis) > 1)
        .mapToObj(axis -> new long[] {tensor.stride(axis), shape.extent(axis)})
        .sorted(Comparator.comparingLong(axis -> axis[0]))
        .toArray(long[][]::new);
  }

  static void requireDisjoint(String name, Tensor written, String otherName, Tensor other) {
    long start = segment(name, written).address();
    long otherStart = segment(otherName, other).address();
    if (overlap(written, start, other, otherStart)) {
      boolean certain = start == otherStart || written.isContiguous() && other.isContiguous();
      throw new IllegalArgumentException(
          "%s is written and %s %s; give it memory of its own"
              .formatted(name, certain ? "overlaps" : "may overlap", otherName));
    }
  }

  /**
   * Whether two tensors can share an element; true also of some views that interleave and share
   * none. Ranges that cross are still disjoint where both step by multiples of one period and their
   * runs fill different parts of it, as q, k and v do in one [tokens, 3, heads, dim] buffer.
   */
  private static boolean overlap(Tensor x, long xStart, Tensor y, long yStart) {
    if (x.device() != y.device()
        || xStart + x.byteSpan() <= yStart
        || yStart + y.byteSpan() <= xStart) {
      return false;
    }
    Steps xSteps = Steps.of(x);
    Steps ySteps = Steps.of(y);
    long period = gcd(xSteps.period, ySteps.period);
    if (period == 0) {
      return true;
    }
    long shift = Math.floorMod(yStart - xStart, period);
    return shift < xSteps.run || shift + ySteps.run > period;
  }

  /**
   * A tensor as equal runs of bytes without gaps, whose starts are multiples of a period apart.
   *
   * @param period 0 if there is one run
   */
  private record Steps(long run, long period) {
    static Steps of(Tensor tensor) {
      long bytes = tensor.dtype().bytes();
      long run = 1;
      long period = 0;
      for (long[] axis : axesByStride(tensor)) {
        if (period == 0 && axis[0] == run) {
          run *= axis[1];
        } else {
          period = gcd(period, axis[0]);
        }
      }
      return new Steps(run * bytes, period * bytes);
    }
  }

  private static long gcd(long a, long b) {
    return b == 0 ? a : gcd(b, a % b);
  }
}
