package io.github.linattn;

import java.util.Optional;
import org.jspecify.annotations.Nullable;

/**
 * Result of a forward pass, and all that the backward needs of it. Owns its tensors; the input's
 * tensors stay the caller's and must be open and unchanged for a backward.
 */
public final class Forward implements AutoCloseable {
  private final AttentionInput input;
  private final Tensor output;
  private final Tensor normalizer;
  private final @Nullable AttentionState state;

  Forward(AttentionInput input, Tensor output, Tensor normalizer, @Nullable AttentionState state) {
    this.input = input;
    this.output = output;
    this.normalizer = normalizer;
    this.state = state;
  }

  /** What the pass read. */
  public AttentionInput input() {
    return input;
  }

  /** o = f/g, [batch, heads, tokens, valueDim], of the input's type. */
  public Tensor output() {
    return output;
  }

  /** g, [batch, heads, tokens], fp32. No epsilon is added to it. */
  public Tensor normalizer() {
    return normalizer;
  }

  /** State after the last token, where {@link LinearAttention.Builder#keepState} asked for it. */
  public Optional<AttentionState> state() {
    return Optional.ofNullable(state);
  }

  @Override
  public void close() {
    output.close();
    normalizer.close();
    if (state != null) {
      state.close();
    }
  }
}
