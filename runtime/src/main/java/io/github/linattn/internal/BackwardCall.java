package io.github.linattn.internal;

import io.github.linattn.AttentionInput;
import io.github.linattn.Gradients;
import io.github.linattn.Stream;
import io.github.linattn.Tensor;

/** A checked backward call. */
public record BackwardCall(
    Operator operator,
    AttentionInput input,
    Tensor output,
    Tensor normalizer,
    Tensor outputGradient,
    Gradients gradients,
    Stream stream) {}
