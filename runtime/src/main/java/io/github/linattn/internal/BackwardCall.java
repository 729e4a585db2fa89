package io.github.linattn.internal;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionState;
import io.github.linattn.Gradients;
import io.github.linattn.StateGradient;
import io.github.linattn.Stream;
import io.github.linattn.Tensor;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * A checked backward call.
 *
 * @param lastState the state after the last token, as the forward left it, or null where it is not
 *     at hand; read. An engine may do without.
 * @param checkpoints of that forward, or null; read, likewise
 * @param finalStateGradient gradient of the loss with respect to the state after the last token,
 *     null for zeros. It overlaps nothing that is written.
 * @param gradients with those of the initial state where they are wanted
 */
public record BackwardCall(
    Operator operator,
    AttentionInput input,
    Tensor output,
    Tensor normalizer,
    Tensor outputGradient,
    @Nullable AttentionState lastState,
    @Nullable Checkpoints checkpoints,
    @Nullable StateGradient finalStateGradient,
    Gradients gradients,
    Stream stream) {

  /** All that it reads or writes. */
  public List<Tensor> tensors() {
    List<Tensor> tensors = new ArrayList<>();
    Collections.addAll(tensors, input.q(), input.k(), input.v(), output, normalizer);
    Collections.addAll(tensors, outputGradient, gradients.dq(), gradients.dk(), gradients.dv());
    Collections.addAll(tensors, gradients.da(), gradients.db());
    input.initialState().ifPresent(state -> ForwardCall.addTo(tensors, state));
    if (lastState != null) {
      ForwardCall.addTo(tensors, lastState);
    }
    if (checkpoints != null) {
      tensors.add(checkpoints.memory());
    }
    addTo(tensors, finalStateGradient);
    addTo(tensors, gradients.initialState().orElse(null));
    return List.copyOf(tensors);
  }

  /** Of so many tokens from {@code start} on, with views of its tensors and without states. */
  public BackwardCall window(int start, int tokens) {
    Gradients written =
        Gradients.over(
            gradients.dq().sliced(2, start, tokens),
            gradients.dk().sliced(2, start, tokens),
            gradients.dv().sliced(2, start, tokens),
            gradients.da(),
            gradients.db());
    return new BackwardCall(
        operator,
        ForwardCall.window(input, start, tokens),
        output.sliced(2, start, tokens),
        normalizer.sliced(2, start, tokens),
        outputGradient.sliced(2, start, tokens),
        null,
        null,
        null,
        written,
        stream);
  }

  private static void addTo(List<Tensor> tensors, @Nullable StateGradient gradient) {
    if (gradient != null) {
      Collections.addAll(tensors, gradient.ds(), gradient.dz(), gradient.du());
    }
  }
}
