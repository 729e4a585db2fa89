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
   * Of |a / b|. Beyond it weights are so flat, mostly, that db from da would have lost its digits.
   */
  private static final float MOST_RATIO = 16;

  /** The same of rows that are normalised, whose |q·k| is at most 1. */
  private static final float MOST_RATIO_NORMALIZED = 4;

  /** a of a query head. */
  public float a(int head) {
    return a.length == 1 ? a[0] : a[head];
  }

  /** b of a query head. */
  public float b(int head) {
    return b.length == 1 ? b[0] : b[head];
  }

  /** Whether db is to be summed with dq, since it is expected to tell da, of one head at least. */
  public boolean sumsSlope() {
    float most = normalize ? MOST_RATIO_NORMALIZED : MOST_RATIO;
    for (int head = 0; head < a.length; head++) {
      if (Math.abs(b[head]) < Math.abs(a[head]) / most) {
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
