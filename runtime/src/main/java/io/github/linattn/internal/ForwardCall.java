package io.github.linattn.internal;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionState;
import io.github.linattn.Stream;
import io.github.linattn.Tensor;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * A checked forward call. {@code finalState} may be the input's initial state. Its counts are not
 * the engine's business.
 *
 * @param checkpoints written too if not null; as {@link Engine#checkpoints} asks for
 */
public record ForwardCall(
    Operator operator,
    AttentionInput input,
    Tensor output,
    Tensor normalizer,
    @Nullable AttentionState finalState,
    @Nullable Checkpoints checkpoints,
    Stream stream) {

  /** All that it reads or writes. */
  public List<Tensor> tensors() {
    List<Tensor> tensors = new ArrayList<>();
    Collections.addAll(tensors, input.q(), input.k(), input.v(), output, normalizer);
    input.initialState().ifPresent(state -> addTo(tensors, state));
    if (finalState != null) {
      addTo(tensors, finalState);
    }
    if (checkpoints != null) {
      tensors.add(checkpoints.memory());
    }
    return List.copyOf(tensors);
  }

  static void addTo(List<Tensor> tensors, AttentionState state) {
    Collections.addAll(tensors, state.s(), state.z(), state.u());
  }

  /** The same with this memory for checkpoints. */
  public ForwardCall keeping(@Nullable Checkpoints memory) {
    return new ForwardCall(operator, input, output, normalizer, finalState, memory, stream);
  }

  /** Of so many tokens from {@code start} on, with views of its tensors and without states. */
  static AttentionInput window(AttentionInput input, int start, int tokens) {
    return AttentionInput.of(
        input.q().sliced(2, start, tokens),
        input.k().sliced(2, start, tokens),
        input.v().sliced(2, start, tokens));
  }

  /** The same of a call. */
  public ForwardCall window(int start, int tokens) {
    return new ForwardCall(
        operator,
        window(input, start, tokens),
        output.sliced(2, start, tokens),
        normalizer.sliced(2, start, tokens),
        null,
        null,
        stream);
  }
}
