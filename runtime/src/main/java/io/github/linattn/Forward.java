package io.github.linattn;

import io.github.linattn.internal.Checkpoints;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import org.jspecify.annotations.Nullable;

/**
 * Result of a forward pass, and all that the backward needs of it. Owns its tensors if {@link
 * LinearAttention#forward} made them; the input's tensors stay the caller's and must be open and
 * unchanged for a backward. {@link LinearAttention#forwardInto(Forward)} computes it once more. Not
 * thread-safe.
 */
public final class Forward implements AutoCloseable {
  private static final long NONE = -1;

  private final AttentionInput input;
  private final Tensor output;
  private final Tensor normalizer;
  private final @Nullable AttentionState state;
  private final @Nullable Checkpoints checkpoints;
  private final boolean owner;

  /** Of the state, that which left it as this forward ends; any later one moves it on. */
  private long write = NONE;

  /** Whether that write was one of the checkpoints too. */
  private boolean kept;

  private Forward(
      AttentionInput input,
      Tensor output,
      Tensor normalizer,
      @Nullable AttentionState state,
      @Nullable Checkpoints checkpoints,
      boolean owner) {
    this.input = Checks.present("input", input);
    this.output = Checks.present("o", output);
    this.normalizer = Checks.present("g", normalizer);
    this.state = state;
    this.checkpoints = checkpoints;
    this.owner = owner;
  }

  static Forward owning(
      AttentionInput input,
      Tensor output,
      Tensor normalizer,
      @Nullable AttentionState state,
      @Nullable Checkpoints checkpoints) {
    return new Forward(input, output, normalizer, state, checkpoints, true);
  }

  /**
   * A forward into the caller's tensors, which stay the caller's: one that has been computed, or
   * one that {@link LinearAttention#forwardInto(Forward)} will compute.
   *
   * @param o output of the forward
   * @param g normalizer of the forward
   * @param state the final state of the forward as it is now, if it counts the tokens of one, or
   *     null; once another call writes it, a backward does without, until {@link
   *     LinearAttention#forwardInto(Forward)} has computed this forward again
   */
  public static Forward over(
      AttentionInput input, Tensor o, Tensor g, @Nullable AttentionState state) {
    Forward y = new Forward(input, o, g, state, null, false);
    if (state != null && state.isAfter(input)) {
      y.written(false);
    }
    return y;
  }

  /** What the pass read. */
  public AttentionInput input() {
    return input;
  }

  /** o = f/g, [batch, heads, tokens, valueDim], of the input's type. */
  public Tensor output() {
    return output;
  }

  /**
   * g_i = Σ_n (a + b q_i·k_n) over the tokens n that query i sees, those before an initial state
   * among them; [batch, heads, tokens], fp32. Of normalised rows if the operator normalises. No
   * epsilon is added to it.
   */
  public Tensor normalizer() {
    return normalizer;
  }

  /**
   * min_i |g_i| of each query head, [batch, heads] row-major: where it is near 0, rows of o lose
   * digits. Waits for the work and copies g to the host, row by row.
   */
  public float[] smallestNormalizers() {
    AttentionShape shape = input.shape();
    float[] smallest = new float[shape.batch() * shape.heads()];
    for (int i = 0; i < smallest.length; i++) {
      Tensor row = normalizer.sliced(0, i / shape.heads(), 1).sliced(1, i % shape.heads(), 1);
      smallest[i] = Float.POSITIVE_INFINITY;
      for (float g : row.toFloats()) {
        smallest[i] = Math.min(smallest[i], Math.abs(g));
      }
    }
    return smallest;
  }

  /**
   * State after the last token, where {@link LinearAttention.Builder#keepState} asked for it. It is
   * closed with this forward, which has to stay open while tokens are decoded from it.
   */
  public Optional<AttentionState> state() {
    return Optional.ofNullable(state);
  }

  /** The same without an object of the heap, for a call that is repeated. */
  @Nullable AttentionState stateOrNull() {
    return state;
  }

  /**
   * The state after the last token, or null where it was not kept, is closed, or has been written
   * by another call since.
   */
  @Nullable AttentionState lastState() {
    return state != null && state.isOpen() && state.writes() == write ? state : null;
  }

  /** Memory for the states before segments, if there is any. */
  @Nullable Checkpoints checkpoints() {
    return checkpoints;
  }

  /** The state is that of this forward as it is now, and the checkpoints where it has kept them. */
  void written(boolean kept) {
    this.write = state == null ? NONE : state.writes();
    this.kept = kept;
  }

  /** The checkpoints if they are of the forward that {@link #lastState} is of, else null. */
  @Nullable Checkpoints keptCheckpoints() {
    return kept && lastState() != null ? checkpoints : null;
  }

  @Override
  public void close() {
    if (!owner) {
      return;
    }
    List<AutoCloseable> owned = new ArrayList<>(List.of(output, normalizer));
    if (state != null) {
      owned.add(state);
    }
    if (checkpoints != null) {
      owned.add(checkpoints.memory());
    }
    TensorGroup.closeAll(owned.toArray(AutoCloseable[]::new));
  }
}
