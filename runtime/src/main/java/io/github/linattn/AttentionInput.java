package io.github.linattn;

import java.util.Objects;
import java.util.Optional;
import org.jspecify.annotations.Nullable;

/**
 * What one call reads. Tensors stay the caller's and are not changed, but for an initial state that
 * a call is given as its final one, too; the last axis is contiguous, the others have any stride. A
 * GPU asks for more: rows of q, k and v begin at multiples of 16 bytes, as do the tensors of a
 * state, which have no gaps. The same holds for o and for gradients.
 *
 * <p>Immutable; any thread.
 */
public final class AttentionInput {
  private final Tensor q;
  private final Tensor k;
  private final Tensor v;
  private final AttentionShape shape;
  private final @Nullable Sequences packing;
  private final @Nullable AttentionState initialState;

  private AttentionInput(
      Tensor q,
      Tensor k,
      Tensor v,
      AttentionShape shape,
      @Nullable Sequences packing,
      @Nullable AttentionState initialState) {
    this.q = q;
    this.k = k;
    this.v = v;
    this.shape = shape;
    this.packing = packing;
    this.initialState = initialState;
  }

  /**
   * One sequence per batch row, starting from nothing.
   *
   * @param q [batch, heads, tokens, keyDim]
   * @param k [batch, keyValueHeads, tokens, keyDim]
   * @param v [batch, keyValueHeads, tokens, valueDim]
   * @throws IllegalArgumentException if the shapes or types don't fit together
   */
  public static AttentionInput of(Tensor q, Tensor k, Tensor v) {
    return new AttentionInput(q, k, v, Checks.shapeOf(q, k, v), null, null);
  }

  /**
   * The same tensors, read as sequences one after the other along the token axis.
   *
   * @throws IllegalArgumentException if batch is not 1 or the lengths don't sum to the tokens
   */
  public AttentionInput packed(Sequences sequences) {
    Checks.packing(Checks.present("sequences", sequences), shape);
    return new AttentionInput(q, k, v, shape, sequences, initialState);
  }

  /** The same tensors, continuing where {@code state} ended. The state stays the caller's. */
  public AttentionInput from(AttentionState state) {
    return new AttentionInput(q, k, v, shape, packing, Checks.present("state", state));
  }

  /** Queries. */
  public Tensor q() {
    return q;
  }

  /** Keys. */
  public Tensor k() {
    return k;
  }

  /** Values. */
  public Tensor v() {
    return v;
  }

  /** Extents, read off the tensors. */
  public AttentionShape shape() {
    return shape;
  }

  /** The packing, or null. */
  @Nullable Sequences packing() {
    return packing;
  }

  /** The state to continue from, or null. */
  @Nullable AttentionState initial() {
    return initialState;
  }

  /** Whether the token axis holds packed sequences. */
  public boolean isPacked() {
    return packing != null;
  }

  /** The packing, or one sequence over all tokens. */
  public Sequences sequences() {
    return packing != null ? packing : Sequences.ofLengths(shape.tokens());
  }

  /** The state to continue from, or empty. */
  public Optional<AttentionState> initialState() {
    return Optional.ofNullable(initialState);
  }

  /** Whether the other reads the very same tensors and state, as the same sequences. */
  @Override
  public boolean equals(Object other) {
    return other instanceof AttentionInput that
        && q.equals(that.q)
        && k.equals(that.k)
        && v.equals(that.v)
        && Objects.equals(packing, that.packing)
        && Objects.equals(initialState, that.initialState);
  }

  @Override
  public int hashCode() {
    return Objects.hash(q, k, v, packing, initialState);
  }
}
