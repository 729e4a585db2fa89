package io.github.linattn;

import java.util.Arrays;

/**
 * Sequences of different lengths packed one after the other along the token axis. Tokens attend
 * within their own sequence only. A length may be 0. Immutable.
 */
public final class Sequences {
  private final int[] starts;

  private Sequences(int[] starts) {
    this.starts = starts;
  }

  /**
   * Sequences of these lengths.
   *
   * @throws IllegalArgumentException if there is none, one is negative, or the sum is above 2^31-1
   */
  public static Sequences ofLengths(int... lengths) {
    if (Checks.present("lengths", lengths).length == 0) {
      throw new IllegalArgumentException("packing needs at least one sequence length");
    }
    int[] starts = new int[lengths.length + 1];
    for (int i = 0; i < lengths.length; i++) {
      if (lengths[i] < 0) {
        throw new IllegalArgumentException(
            "sequence length %d is negative: %d".formatted(i, lengths[i]));
      }
      long end = (long) starts[i] + lengths[i];
      if (end > Integer.MAX_VALUE) {
        throw new IllegalArgumentException("sequence lengths sum to more than 2^31-1 tokens");
      }
      starts[i + 1] = (int) end;
    }
    return new Sequences(starts);
  }

  /** Number of sequences. */
  public int count() {
    return starts.length - 1;
  }

  /**
   * First token of sequence {@code i}; {@code start(count())} is the number of tokens.
   *
   * @throws IllegalArgumentException if there is no such sequence
   */
  public int start(int i) {
    requireSequence(i, count());
    return starts[i];
  }

  /**
   * Tokens of sequence {@code i}.
   *
   * @throws IllegalArgumentException if there is no such sequence
   */
  public int length(int i) {
    requireSequence(i, count() - 1);
    return starts[i + 1] - starts[i];
  }

  private void requireSequence(int i, int last) {
    if (i < 0 || i > last) {
      throw new IllegalArgumentException(
          "a packing of %d sequences has no sequence %d".formatted(count(), i));
    }
  }

  /** Tokens of all sequences. */
  public int tokens() {
    return starts[count()];
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof Sequences that && Arrays.equals(starts, that.starts);
  }

  @Override
  public int hashCode() {
    return Arrays.hashCode(starts);
  }

  /** The lengths, for example {@code [3, 0, 200]}; of many the first and how many there are. */
  @Override
  public String toString() {
    return Checks.listed(count(), this::length);
  }
}
