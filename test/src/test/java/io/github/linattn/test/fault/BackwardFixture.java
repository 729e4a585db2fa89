package io.github.linattn.test.fault;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.AttentionState;
import io.github.linattn.Backend;
import io.github.linattn.DType;
import io.github.linattn.Forward;
import io.github.linattn.Gradients;
import io.github.linattn.LinearAttention;
import io.github.linattn.Sequences;
import io.github.linattn.StateGradient;
import io.github.linattn.Tensor;
import io.github.linattn.TensorShape;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/** Tensors of a backward of one shape on one GPU. */
final class BackwardFixture implements AutoCloseable {
  private final List<AutoCloseable> made = new ArrayList<>();
  final Backend gpu;
  final AttentionInput input;
  final Tensor o;
  final Tensor g;
  final Tensor dO;
  final Gradients gradients;

  BackwardFixture(AttentionShape shape, DType dtype) {
    gpu = Backend.cuda(0);
    made.add(gpu);
    try {
      input =
          AttentionInput.of(
              tensor(dtype, shape.q()), tensor(dtype, shape.k()), tensor(dtype, shape.v()));
      o = tensor(dtype, shape.output());
      g = tensor(DType.F32, shape.normalizer());
      dO = tensor(dtype, shape.output());
      gradients =
          Gradients.over(
              tensor(dtype, shape.q()),
              tensor(dtype, shape.k()),
              tensor(dtype, shape.v()),
              tensor(DType.F32, shape.coefficients()),
              tensor(DType.F32, shape.coefficients()));
    } catch (RuntimeException e) {
      close();
      throw e;
    }
  }

  private Tensor tensor(DType dtype, TensorShape shape) {
    Tensor tensor = gpu.allocate(dtype, shape);
    made.add(tensor);
    return tensor;
  }

  StateGradient stateGradient(int sequences) {
    StateGradient gradient = gpu.newStateGradient(input.shape(), sequences);
    made.add(gradient);
    return gradient;
  }

  AttentionState state(int sequences) {
    AttentionState state = gpu.newState(input.shape(), sequences);
    made.add(state);
    return state;
  }

  /** What a forward that kept its state leaves. */
  Forward forward(AttentionInput from) {
    Sequences sequences = from.sequences();
    long[] counts = new long[sequences.count()];
    for (int i = 0; i < counts.length; i++) {
      counts[i] = from.initialState().map(state -> state.count(0)).orElse(0L) + sequences.length(i);
    }
    AttentionState last = state(counts.length);
    return Forward.over(from, o, g, AttentionState.over(last.s(), last.z(), last.u(), counts));
  }

  /** What a forward gives that owns its results. */
  Forward kept(LinearAttention attention) {
    Forward y = attention.forward(input);
    made.add(y);
    return y;
  }

  /** With the gradient of the initial state. */
  Gradients with(StateGradient initial) {
    return Gradients.over(
        gradients.dq(), gradients.dk(), gradients.dv(), gradients.da(), gradients.db(), initial);
  }

  void backward(LinearAttention.Builder builder) {
    builder.on(gpu).backwardInto(input, o, g, dO, gradients);
  }

  void backward(
      LinearAttention.Builder builder,
      AttentionInput from,
      @Nullable StateGradient last,
      Gradients into) {
    builder.on(gpu).backwardInto(from, o, g, dO, last, into);
  }

  @Override
  public void close() {
    RuntimeException failure = null;
    for (AutoCloseable member : made.reversed()) {
      try {
        member.close();
      } catch (Exception e) {
        failure = e instanceof RuntimeException known ? known : new IllegalStateException(e);
      }
    }
    if (failure != null) {
      throw failure;
    }
  }
}
