package io.github.linattn;

/**
 * How exactly fp32 tensors are multiplied. 16-bit tensors know {@link #DEFAULT} only.
 *
 * <p>The mode is a floor, not a promise to be inexact: a backend may compute more exactly than
 * asked. The CPU backend and the {@code paper} kernels multiply in fp32 in every mode; the CPU
 * backend sums more exactly in {@link #ACCURATE}, and takes up to 1.7 times as long.
 */
public enum Mode {
  /**
   * fp32 products: relative error at most 2e-6 for sequences up to 10,000 tokens. On the GPU dq and
   * dk can pass it, as in other modes, where q and k have elements of one sign only, rows of k and
   * of v repeat, or v has a mean of several of its deviations; docs/performance.md has the figures.
   * On the CPU o and dq can come to 4e-6 where a row of k repeats whose elements are alike. Errors
   * of da and db, in which terms of either sign cancel, can be fifty times as large, in every mode.
   */
  ACCURATE,
  /** Products of at least 16 significant bits: relative error at most 2e-5. */
  DEFAULT,
  /** Products of at least 10 significant bits: relative error at most 1e-3. */
  TF32
}
