package io.github.linattn.internal;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionState;
import io.github.linattn.Stream;
import io.github.linattn.Tensor;
import org.jspecify.annotations.Nullable;

/**
 * A checked forward call. {@code finalState} may be the input's initial state. Its counts are not
 * the engine's business.
 */
public record ForwardCall(
    Operator operator,
    AttentionInput input,
    Tensor output,
    Tensor normalizer,
    @Nullable AttentionState finalState,
    Stream stream) {}
