package io.github.linattn.internal.cpu;

/**
 * One sequence of one key/value head: what a state belongs to.
 *
 * @param start first token, in the tensors' token axis
 * @param end one past the last token; may be {@code start}
 * @param countBefore tokens that the initial state has seen
 */
record Lane(int batch, int keyValueHead, int sequence, int start, int end, long countBefore) {

  /** Tokens that a query sees before those of the chunk that begins at {@code token}. */
  long seenBefore(int token) {
    return countBefore + token - start;
  }

  int length() {
    return end - start;
  }
}
