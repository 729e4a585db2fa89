package io.github.linattn.reference;

import io.github.linattn.DType;
import io.github.linattn.Mode;

/**
 * The largest relative Frobenius error that a backend may have against {@link Reference}, for
 * sequences of up to 10,000 tokens. One table for tests, the command line and applications.
 */
public final class ErrorBudget {
  /** da and db are small differences of large sums, so that they keep fewer digits. */
  private static final double COEFFICIENT_FACTOR = 50;

  private ErrorBudget() {}

  /** Half a unit in the last place of bf16. */
  private static final double BF16_ROUNDING = 0x1p-9;

  /** Bound for o, g, the state and its gradient. */
  public static double of(DType dtype, Mode mode) {
    return switch (dtype) {
      case F32 ->
          switch (mode) {
            case ACCURATE -> 2e-6;
            case DEFAULT -> 2e-5;
            case TF32 -> 1e-3;
          };
      case BF16 -> 5e-3;
      case F16 -> 1e-3;
    };
  }

  /**
   * Bound for dq, dk and dv. In bf16 o, which they are formed of, was rounded before, and the
   * results are rounded once more.
   */
  public static double ofGradients(DType dtype, Mode mode) {
    return of(dtype, mode) + (dtype == DType.BF16 ? BF16_ROUNDING : 0);
  }

  /** Bound for da and db. */
  public static double ofCoefficients(DType dtype, Mode mode) {
    return COEFFICIENT_FACTOR * of(dtype, mode);
  }
}
