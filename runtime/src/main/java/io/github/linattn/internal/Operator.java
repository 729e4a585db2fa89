package io.github.linattn.internal;

import io.github.linattn.Mode;

/**
 * What is computed: the coefficients of f(x) = a + b·x and the switches that change the result.
 *
 * @param a one value for all query heads, or one for each
 * @param b as long as {@code a}
 */
public record Operator(float[] a, float[] b, boolean causal, boolean normalize, Mode mode) {
  /**
   * The smaller |b / a| is, the more the terms of da cancel, and db from da has that error times |a
   * / b|: beyond this ratio db is summed, and da follows from it.
   */
  private static final float MOST_RATIO = 8;

  /** a of a query head. */
  public float a(int head) {
    return a.length == 1 ? a[0] : a[head];
  }

  /** b of a query head. */
  public float b(int head) {
    return b.length == 1 ? b[0] : b[head];
  }

  /** Whether db is better summed than taken from a da + b db = 0, for one head at least. */
  public boolean sumsSlope() {
    for (int head = 0; head < a.length; head++) {
      if (Math.abs(b[head]) < Math.abs(a[head]) / MOST_RATIO) {
        return true;
      }
    }
    return false;
  }

  /** Whether all heads share one a and one b. */
  public boolean isUniform() {
    return a.length == 1;
  }
}
