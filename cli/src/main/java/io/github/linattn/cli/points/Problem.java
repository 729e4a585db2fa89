package io.github.linattn.cli.points;

import java.util.Locale;
import java.util.Objects;
import java.util.stream.IntStream;

/**
 * What a point is about: two points of one file never have the same problem.
 *
 * @param sweep the figure or table it belongs to, such as "tokens"; empty if none, or how long
 *     calls had gone on
 * @param method who computes: linattn, copy, softmax flash, ...
 * @param plan the plan that was asked for; empty where the method chose
 * @param pass forward, backward, or both
 * @param tokens of each sequence; the size of the matrices for a matrix product
 * @param context tokens that a decode step finds in its state; 0 where it is no decode step
 * @param dtype bf16, f16 or f32
 * @param mode of arithmetic: default, tf32 or accurate
 * @param data how inputs are drawn
 */
public record Problem(
    String sweep,
    String method,
    String plan,
    String pass,
    int batch,
    int heads,
    int keyValueHeads,
    int tokens,
    int keyDim,
    int valueDim,
    long context,
    String dtype,
    String mode,
    boolean causal,
    boolean normalize,
    String data) {

  /** Refuses what a file left out, and sizes that nothing has. */
  public Problem {
    Objects.requireNonNull(sweep, "sweep");
    Objects.requireNonNull(method, "method");
    Objects.requireNonNull(plan, "plan");
    Objects.requireNonNull(pass, "pass");
    Objects.requireNonNull(dtype, "dtype");
    Objects.requireNonNull(mode, "mode");
    Objects.requireNonNull(data, "data");
    int least =
        IntStream.of(batch, heads, keyValueHeads, tokens, keyDim, valueDim).min().getAsInt();
    if (least < 1 || context < 0) {
      throw new IllegalArgumentException(
          "%s %s has a size of %d".formatted(method, pass, Math.min(least, context)));
    }
  }

  /** The same problem for another method, or another plan of it; empty for its own choice. */
  public Problem by(String newMethod, String newPlan) {
    return new Problem(
        sweep,
        newMethod,
        newPlan,
        pass,
        batch,
        heads,
        keyValueHeads,
        tokens,
        keyDim,
        valueDim,
        context,
        dtype,
        mode,
        causal,
        normalize,
        data);
  }

  /** The type, and the mode where the type has several. */
  public String precision() {
    return dtype.equals("f32") ? dtype + " " + mode : dtype;
  }

  /** In a line of progress. */
  public String title() {
    return String.format(
        Locale.ROOT, "%s %s %s N=%d D=%d", method, precision(), pass, tokens, keyDim);
  }
}
