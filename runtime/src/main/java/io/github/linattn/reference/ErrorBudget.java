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

  /** Bound for o, g, dq, dk, dv, the state and its gradient. */
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

  /** Bound for da and db. */
  public static double ofCoefficients(DType dtype, Mode mode) {
    return COEFFICIENT_FACTOR * of(dtype, mode);
  }
}
