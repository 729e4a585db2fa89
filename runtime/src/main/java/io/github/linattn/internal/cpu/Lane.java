package io.github.linattn.internal.cpu;

/**
 * One sequence of one key/value head: what a state belongs to.
 *
 * @param start first token, in the tensors' token axis
 * @param end one past the last token; may be {@code start}
 * @param countBefore tokens that the initial state has seen
 */
record Lane(int batch, int keyValueHead, int sequence, int start, int end, long countBefore) {

  /** Tokens that the query at {@code token} sees. */
  long seenBy(int token, boolean causal) {
    return countBefore + (causal ? token + 1 : end) - start;
  }

  int length() {
    return end - start;
  }
}
