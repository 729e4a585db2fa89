package io.github.linattn;

import io.github.linattn.internal.Copies;

/**
 * What linear attention remembers of the tokens before: S = Σ k⊗v, z = Σ k, u = Σ v and the count
 * of tokens, per key/value head and sequence (equation 9 of the paper with its constant term). All
 * sums are fp32. With normalised keys the sums are over k/|k|.
 *
 * <p>A causal run that starts from the state of another equals one run over both, up to the
 * rounding of these sums to fp32. Where v has a mean of many of its deviations dq is a small
 * difference of them: of the second half of 1000 tokens that rounding has been 2.4e-6 of dq with a
 * mean of ten deviations, 2.3e-5 with a hundred. Written by one call at a time; closing frees the
 * tensors if {@link Backend#newState} made them, or a forward, which closes the state that it has
 * kept.
 */
public final class AttentionState implements AutoCloseable {
  /**
   * The most tokens that a state may start with. Up to here a count is the same number as a double,
   * in which it is multiplied, and no run of calls is long enough to overflow it.
   */
  public static final long MOST_TOKENS = 1L << 53;

  private final Tensor s;
  private final Tensor z;
  private final Tensor u;
  private final long[] counts;
  private final boolean owner;
  private long writes;
  private boolean torn;

  private AttentionState(Tensor s, Tensor z, Tensor u, long[] counts, boolean owner) {
    this.s = s;
    this.z = z;
    this.u = u;
    this.counts = counts;
    this.owner = owner;
  }

  static AttentionState owning(Tensor s, Tensor z, Tensor u, int sequences) {
    return new AttentionState(s, z, u, new long[sequences], true);
  }

  /**
   * A state in the caller's tensors, which stay the caller's.
   *
   * @param s [batch, keyValueHeads, sequences, keyDim, valueDim], fp32
   * @param z [batch, keyValueHeads, sequences, keyDim], fp32
   * @param u [batch, keyValueHeads, sequences, valueDim], fp32
   * @param counts tokens seen by each sequence, 2^53 at most
   * @throws IllegalArgumentException if shapes or types don't fit together, or a count can't be
   */
  public static AttentionState over(Tensor s, Tensor z, Tensor u, long... counts) {
    Checks.stateTensors("state ", "", s, z, u);
    long sequences = s.shape().extent(2);
    if (Checks.present("counts", counts).length != sequences) {
      throw new IllegalArgumentException(
          "state of %d sequences needs as many counts, got %d".formatted(sequences, counts.length));
    }
    for (long count : counts) {
      requireCount(count);
    }
    return new AttentionState(s, z, u, counts.clone(), false);
  }

  private static void requireCount(long count) {
    if (count < 0) {
      throw new IllegalArgumentException("a token count can't be negative: " + count);
    }
    if (count > MOST_TOKENS) {
      throw new IllegalArgumentException("a token count can't be above 2^53: " + count);
    }
  }

  /** Σ k⊗v, [batch, keyValueHeads, sequences, keyDim, valueDim]. */
  public Tensor s() {
    return s;
  }

  /** Σ k, [batch, keyValueHeads, sequences, keyDim]. */
  public Tensor z() {
    return z;
  }

  /** Σ v, [batch, keyValueHeads, sequences, valueDim]. */
  public Tensor u() {
    return u;
  }

  /** Number of sequences. */
  public int sequences() {
    return counts.length;
  }

  /**
   * Tokens that sequence {@code i} has seen.
   *
   * @throws IllegalArgumentException if there is no such sequence
   */
  public long count(int i) {
    if (i < 0 || i >= counts.length) {
      throw new IllegalArgumentException(
          "a state of %d sequences has no sequence %d".formatted(counts.length, i));
    }
    return counts[i];
  }

  void setCount(int i, long count) {
    counts[i] = count;
  }

  /** Whether a call that was to write it failed, and none has written it since. */
  boolean isTorn() {
    return torn;
  }

  void setTorn(boolean torn) {
    this.torn = torn;
  }

  /** How often a call has set out to write it. */
  long writes() {
    return writes;
  }

  void countWrite() {
    writes++;
  }

  /**
   * Queues a copy of it all, counts too, into another state: to go on from here twice, or again.
   *
   * @param target takes over the sums and counts; of as many sequences and as wide
   * @param stream of the backend in whose reach both are
   * @throws IllegalArgumentException if they differ in shape, overlap or are out of reach; nothing
   *     is copied
   * @throws IllegalStateException if a tensor is closed, or the call that was to write this state
   *     failed
   * @throws io.github.linattn.cuda.CudaException if the GPU refuses
   */
  public void copyTo(AttentionState target, Stream stream) {
    Checks.present("target", target);
    Checks.present("stream", stream);
    if (torn) {
      throw new IllegalStateException("the call that was to write this state failed");
    }
    Copies.requireAlike(s, target.s);
    Copies.requireAlike(z, target.z);
    Copies.requireAlike(u, target.u);
    target.countWrite();
    boolean begun = false;
    try {
      stream.copy(s, target.s);
      begun = true;
      stream.copy(z, target.z);
      stream.copy(u, target.u);
    } catch (RuntimeException | Error e) {
      target.torn = target.torn || begun;
      throw e;
    }
    System.arraycopy(counts, 0, target.counts, 0, counts.length);
    target.torn = false;
  }

  boolean isOpen() {
    return s.isOpen() && z.isOpen() && u.isOpen();
  }

  /** Whether it counts the tokens that a run over {@code input} ends with. */
  boolean isAfter(AttentionInput input) {
    Sequences packing = input.packing();
    AttentionState initial = input.initial();
    if (counts.length != (packing == null ? 1 : packing.count())) {
      return false;
    }
    for (int i = 0; i < counts.length; i++) {
      long before = initial == null ? 0 : initial.count(i);
      int tokens = packing == null ? input.shape().tokens() : packing.length(i);
      if (counts[i] != before + tokens) {
        return false;
      }
    }
    return true;
  }

  @Override
  public void close() {
    if (owner) {
      TensorGroup.closeAll(s, z, u);
    }
  }

  @Override
  public String toString() {
    return "state S " + s + ", counts " + Checks.listed(counts.length, i -> counts[i]);
  }
}
