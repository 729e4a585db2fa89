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
import io.github.linattn.StateGradient;
import io.github.linattn.Tensor;
import io.github.linattn.TensorShape;
import io.github.linattn.reference.Reference;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.jspecify.annotations.Nullable;

/** Runs one problem on a backend, forward and backward, and compares it with the reference. */
final class ReferenceCheck {
  private final CheckCase problem;
  private final DType dtype;
  private final CheckData data;
  private final @Nullable CheckData before;
  private final Reference.Result expected;

  /**
   * Solves the problem with the reference.
   *
   * @param data inputs; rounded to {@code dtype} here
   * @param before inputs of the tokens before, where the problem continues from a state
   */
  ReferenceCheck(CheckCase problem, DType dtype, CheckData data, @Nullable CheckData before) {
    this.problem = problem;
    this.dtype = dtype;
    this.data = data.rounded(dtype);
    this.before = before == null ? null : before.rounded(dtype);
    Reference.State initial =
        this.before == null ? null : solve(prefixOf(problem), this.before, null).state();
    this.expected = solve(problem, this.data, initial);
  }

  /** The problem of the tokens that come before those of {@code problem}. */
  static CheckCase prefixOf(CheckCase problem) {
    AttentionShape shape = problem.shape();
    var shorter =
        new AttentionShape(
            shape.batch(),
            shape.heads(),
            shape.keyValueHeads(),
            problem.prefix(),
            shape.keyDim(),
            shape.valueDim());
    return new CheckCase(
        problem.name(),
        shorter,
        null,
        problem.a(),
        problem.b(),
        problem.causal(),
        problem.normalize(),
        problem.tokenMajor(),
        0,
        false);
  }

  private static Reference.Result solve(
      CheckCase problem, CheckData data, Reference.@Nullable State initial) {
    return Reference.of(
        new Reference.Problem(
            problem.shape(),
            problem.sequences(),
            problem.a(),
            problem.b(),
            problem.causal(),
            problem.normalize(),
            data.q(),
            data.k(),
            data.v(),
            data.dO(),
            initial,
            exact(data.finalState())));
  }

  private static Reference.@Nullable StateGradient exact(
      CheckData.@Nullable StateGradientValues values) {
    return values == null
        ? null
        : new Reference.StateGradient(exact(values.ds()), exact(values.dz()), exact(values.du()));
  }

  private static double[] exact(float[] values) {
    double[] exact = new double[values.length];
    for (int i = 0; i < exact.length; i++) {
      exact[i] = values[i];
    }
    return exact;
  }

  /**
   * Runs on a backend; without gradients where it has no backward for such a problem.
   *
   * @throws UnsupportedOperationException if the backend does not do such a forward
   */
  Errors run(Backend backend, Precision precision) {
    LinearAttention attention = problem.operator(precision).on(backend);
    if (before == null) {
      return run(backend, attention, null);
    }
    CheckCase prefix = prefixOf(problem);
    try (Operands operands = new Operands(backend, prefix, before);
        Forward earlier = attention.forward(operands.input())) {
      return run(backend, attention, earlier.state().orElseThrow());
    }
  }

  private Errors run(Backend backend, LinearAttention attention, @Nullable AttentionState initial) {
    try (Operands operands = new Operands(backend, problem, data);
        Resources owned = new Resources()) {
      AttentionInput input = operands.input();
      if (initial != null) {
        input = input.from(initial);
      }
      AttentionShape shape = problem.shape();
      Tensor o = owned.add(poisoned(backend, dtype, shape.output()));
      Tensor g = owned.add(poisoned(backend, DType.F32, shape.normalizer()));
      AttentionState last = owned.add(backend.newState(shape, problem.sequences().count()));
      attention.forwardInto(input, o, g, last);
      Errors errors = compare(o, g, last);
      StateGradient lastGradient = finalState(backend, owned);
      List<Forward> forwards = new ArrayList<>();
      forwards.add(Forward.over(input, o, g, null));
      if (backend.memoryKind() == MemoryKind.DEVICE) {
        forwards.add(Forward.over(input, o, g, last)); // a GPU may go another way from there
      }
      for (Forward y : forwards) {
        Gradients d = gradients(backend, owned);
        try {
          attention.backwardInto(y, operands.dO, lastGradient, d);
        } catch (UnsupportedOperationException forwardOnly) {
          return errors;
        }
        attention.synchronize();
        compare(d, errors);
      }
      return errors;
    }
  }

  /** NaN in every element: what a call leaves out shows. */
  private static Tensor poisoned(Backend backend, DType dtype, TensorShape shape) {
    Tensor tensor = backend.allocate(dtype, shape);
    poison(tensor);
    return tensor;
  }

  private static void poison(Tensor tensor) {
    float[] values = new float[Math.toIntExact(tensor.shape().elements())];
    Arrays.fill(values, Float.NaN);
    tensor.copyFrom(values);
  }

  private Gradients gradients(Backend backend, Resources owned) {
    AttentionShape shape = problem.shape();
    Tensor dq = owned.add(poisoned(backend, dtype, shape.q()));
    Tensor dk = owned.add(poisoned(backend, dtype, shape.k()));
    Tensor dv = owned.add(poisoned(backend, dtype, shape.v()));
    Tensor da = owned.add(poisoned(backend, DType.F32, shape.coefficients()));
    Tensor db = owned.add(poisoned(backend, DType.F32, shape.coefficients()));
    if (!problem.throughStates()) {
      return Gradients.over(dq, dk, dv, da, db);
    }
    StateGradient initialState = stateGradient(backend, owned);
    poison(initialState.ds());
    poison(initialState.dz());
    poison(initialState.du());
    return Gradients.over(dq, dk, dv, da, db, initialState);
  }

  private @Nullable StateGradient finalState(Backend backend, Resources owned) {
    CheckData.@Nullable StateGradientValues values = data.finalState();
    if (values == null) {
      return null;
    }
    StateGradient gradient = stateGradient(backend, owned);
    gradient.ds().copyFrom(values.ds());
    gradient.dz().copyFrom(values.dz());
    gradient.du().copyFrom(values.du());
    return gradient;
  }

  private StateGradient stateGradient(Backend backend, Resources owned) {
    return owned.add(backend.newStateGradient(problem.shape(), problem.sequences().count()));
  }

  private Errors compare(Tensor o, Tensor g, AttentionState last) {
    var errors = new Errors();
    errors.put(Quantity.O, Reference.error(expected.o(), o.toFloats()));
    errors.put(Quantity.G, Reference.error(expected.g(), g.toFloats()));
    errors.put(Quantity.STATE, stateError(last));
    return errors;
  }

  private void compare(Gradients d, Errors errors) {
    errors.put(Quantity.DQ, gradientError(expected.dq(), d.dq(), 0));
    errors.put(Quantity.DK, gradientError(expected.dk(), d.dk(), 0));
    errors.put(Quantity.DV, Reference.error(expected.dv(), d.dv().toFloats()));
    double ofA = Reference.norm(expected.daSpread());
    double ofB = Reference.norm(expected.dbSpread());
    errors.put(Quantity.DA, gradientError(expected.da(), d.da(), ofA));
    errors.put(Quantity.DB, gradientError(expected.db(), d.db(), ofB));
    Reference.StateGradient exact = expected.initialState();
    d.initialState()
        .ifPresent(
            got -> {
              errors.put(Quantity.DSTATE, Reference.error(exact.ds(), got.ds().toFloats()));
              errors.put(Quantity.DSTATE, Reference.error(exact.dz(), got.dz().toFloats()));
              errors.put(Quantity.DSTATE, Reference.error(exact.du(), got.du().toFloats()));
            });
  }

  /**
   * The error relative to the gradient, or to its terms where these cancel: the first token of a
   * sequence adds nothing to dq, dk, da and db, because o is v there, and its terms are of the size
   * of dO. With few tokens little else is left.
   *
   * @param ofTerms the norm of the terms of sums over tokens, which may cancel by chance
   */
  private double gradientError(double[] exact, Tensor tensor, double ofTerms) {
    double squares = 0;
    for (float value : data.dO()) {
      squares += (double) value * value;
    }
    double ofFirst = Math.sqrt(squares) / problem.shape().tokens();
    return Reference.error(exact, tensor.toFloats(), Math.max(ofTerms, ofFirst));
  }

  private double stateError(AttentionState state) {
    Reference.State exact = expected.state();
    for (int i = 0; i < state.sequences(); i++) {
      if (state.count(i) != exact.counts()[i]) {
        return Double.NaN;
      }
    }
    double s = Reference.error(exact.s(), state.s().toFloats());
    double z = Reference.error(exact.z(), state.z().toFloats());
    double u = Reference.error(exact.u(), state.u().toFloats());
    return Math.max(s, Math.max(z, u));
  }

  /** Inputs in a backend's memory. */
  private final class Operands implements AutoCloseable {
    private final Resources owned = new Resources();
    private final Backend backend;
    private final CheckCase problem;
    private final Tensor q;
    private final Tensor k;
    private final Tensor v;
    private final Tensor dO;

    Operands(Backend backend, CheckCase problem, CheckData data) {
      this.backend = backend;
      this.problem = problem;
      AttentionShape shape = problem.shape();
      try {
        this.q = operand(data.q(), shape.q());
        this.k = operand(data.k(), shape.k());
        this.v = operand(data.v(), shape.v());
        this.dO = operand(data.dO(), shape.output());
      } catch (RuntimeException e) {
        owned.close();
        throw e;
      }
    }

    private Tensor operand(float[] values, TensorShape shape) {
      if (!problem.tokenMajor()) {
        Tensor tensor = owned.add(backend.allocate(dtype, shape));
        tensor.copyFrom(values);
        return tensor;
      }
      TensorShape moved =
          TensorShape.of(shape.extent(0), shape.extent(2), shape.extent(1), shape.extent(3));
      Tensor tensor = owned.add(backend.allocate(dtype, moved));
      tensor.copyFrom(tokenMajor(values, shape));
      return tensor.permuted(0, 2, 1, 3);
    }

    AttentionInput input() {
      AttentionInput input = AttentionInput.of(q, k, v);
      return problem.packing() == null ? input : input.packed(problem.sequences());
    }

    @Override
    public void close() {
      owned.close();
    }
  }

  private static float[] tokenMajor(float[] values, TensorShape shape) {
    int heads = (int) shape.extent(1);
    int tokens = (int) shape.extent(2);
    int dim = (int) shape.extent(3);
    float[] moved = new float[values.length];
    for (int row = 0; row < values.length / dim; row++) {
      int token = row % tokens;
      int head = row / tokens % heads;
      int batch = row / tokens / heads;
      int target = (batch * tokens + token) * heads + head;
      System.arraycopy(values, row * dim, moved, target * dim, dim);
    }
    return moved;
  }
}
