package io.github.linattn.internal;

import io.github.linattn.AttentionInput;
import io.github.linattn.Gradients;
import io.github.linattn.StateGradient;
import io.github.linattn.Stream;
import io.github.linattn.Tensor;
import org.jspecify.annotations.Nullable;

/**
 * A checked backward call.
 *
 * @param finalStateGradient gradient of the loss with respect to the state after the last token,
 *     null for zeros; causal only. It overlaps nothing that is written.
 * @param gradients with those of the initial state where they are wanted; causal only
 */
public record BackwardCall(
    Operator operator,
    AttentionInput input,
    Tensor output,
    Tensor normalizer,
    Tensor outputGradient,
    @Nullable StateGradient finalStateGradient,
    Gradients gradients,
    Stream stream) {}
