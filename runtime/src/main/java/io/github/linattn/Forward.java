package io.github.linattn;

import java.util.Arrays;
import java.util.Optional;
import org.jspecify.annotations.Nullable;

/**
 * Result of a forward pass, and all that the backward needs of it. Owns its tensors if {@link
 * LinearAttention#forward} made them; the input's tensors stay the caller's and must be open and
 * unchanged for a backward.
 */
public final class Forward implements AutoCloseable {
  private final AttentionInput input;
  private final Tensor output;
  private final Tensor normalizer;
  private final @Nullable AttentionState state;
  private final boolean owner;

  private Forward(
      AttentionInput input,
      Tensor output,
      Tensor normalizer,
      @Nullable AttentionState state,
      boolean owner) {
    this.input = Checks.present("input", input);
    this.output = Checks.present("o", output);
    this.normalizer = Checks.present("g", normalizer);
    this.state = state;
    this.owner = owner;
  }

  static Forward owning(
      AttentionInput input, Tensor output, Tensor normalizer, @Nullable AttentionState state) {
    return new Forward(input, output, normalizer, state, true);
  }

  /**
   * What {@link LinearAttention#forwardInto} writes into the caller's tensors, which stay the
   * caller's.
   *
   * @param o output of the forward
   * @param g normalizer of the forward
   * @param state the final state that the forward wrote, or null
   */
  public static Forward over(
      AttentionInput input, Tensor o, Tensor g, @Nullable AttentionState state) {
    return new Forward(input, o, g, state, false);
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

  /**
   * min_i |g_i| of each query head, [batch, heads] row-major: where it is near 0, rows of o lose
   * digits. Waits for the work and copies g to the host.
   */
  public float[] smallestNormalizers() {
    int tokens = input.shape().tokens();
    float[] g = normalizer.toFloats();
    float[] smallest = new float[g.length / tokens];
    Arrays.fill(smallest, Float.POSITIVE_INFINITY);
    for (int i = 0; i < g.length; i++) {
      smallest[i / tokens] = Math.min(smallest[i / tokens], Math.abs(g[i]));
    }
    return smallest;
  }

  /** State after the last token, where {@link LinearAttention.Builder#keepState} asked for it. */
  public Optional<AttentionState> state() {
    return Optional.ofNullable(state);
  }

  /**
   * The state after the last token, or null where it was not kept, is closed, or has been moved on
   * by a later call.
   */
  @Nullable AttentionState lastState() {
    return state != null && state.isOpen() && state.isAfter(input) ? state : null;
  }

  @Override
  public void close() {
    if (!owner) {
      return;
    }
    if (state == null) {
      TensorGroup.closeAll(output, normalizer);
    } else {
      TensorGroup.closeAll(output, normalizer, state);
    }
  }
}
