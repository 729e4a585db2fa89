package io.github.linattn.cli;

import io.github.linattn.AttentionState;
import io.github.linattn.Forward;
import io.github.linattn.StateGradient;
import io.github.linattn.Tensor;
import java.util.ArrayDeque;
import java.util.Deque;

/** Closes what was added to it, last first. */
final class Resources implements AutoCloseable {
  private final Deque<Runnable> closers = new ArrayDeque<>();

  Tensor add(Tensor tensor) {
    closers.push(tensor::close);
    return tensor;
  }

  StateGradient add(StateGradient gradient) {
    closers.push(gradient::close);
    return gradient;
  }

  Forward add(Forward forward) {
    closers.push(forward::close);
    return forward;
  }

  AttentionState add(AttentionState state) {
    closers.push(state::close);
    return state;
  }

  @Override
  public void close() {
    while (!closers.isEmpty()) {
      closers.pop().run();
    }
  }
}
