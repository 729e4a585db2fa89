package io.github.linattn.test.harness;

/** How the tensors of a problem lie in memory. */
public enum Layout {
  /** [batch, heads, tokens, dim], each tensor in a buffer of its own. */
  HEAD_MAJOR,
  /** [batch, tokens, heads, dim], each tensor in a buffer of its own. */
  TOKEN_MAJOR,
  /**
   * [batch, tokens, heads + 2 keyValueHeads, dim]: q, k and v side by side in one buffer, and dq,
   * dk and dv in another. Needs values as wide as keys.
   */
  INTERLEAVED
}
