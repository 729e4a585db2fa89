package io.github.linattn.cli.points;

import java.util.List;
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
 * @param pass forward, backward, or both; with "from state" where it began from one
 * @param tokens of each sequence; the size of the matrices for a matrix product
 * @param context tokens that a decode step finds in its state; 0 where it is no decode step
 * @param dtype bf16, f16 or f32
 * @param mode of arithmetic: default, tf32 or accurate
 * @param data how inputs are drawn: normal or positive
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
  /** Behind the pass of what begins from the state that a forward kept. */
  public static final String FROM_STATE = " from state";

  private static final List<String> PASSES = List.of("forward", "backward", "both");
  private static final List<String> DTYPES = List.of("bf16", "f16", "f32");
  private static final List<String> MODES = List.of("default", "tf32", "accurate");
  private static final List<String> DATA = List.of("normal", "positive");

  /** Refuses what a file left out, names that nothing has, and sizes that nothing has. */
  public Problem {
    Objects.requireNonNull(sweep, "sweep");
    Objects.requireNonNull(method, "method");
    Objects.requireNonNull(plan, "plan");
    Objects.requireNonNull(pass, "pass");
    requireOneOf(PASSES, "pass", pass.replace(FROM_STATE, ""));
    requireOneOf(DTYPES, "dtype", dtype);
    requireOneOf(MODES, "mode", mode);
    requireOneOf(DATA, "data", data);
    int least =
        IntStream.of(batch, heads, keyValueHeads, tokens, keyDim, valueDim).min().getAsInt();
    if (least < 1 || context < 0) {
      throw new IllegalArgumentException(
          "%s %s has a size of %d".formatted(method, pass, Math.min(least, context)));
    }
  }

  private static void requireOneOf(List<String> names, String field, String name) {
    if (!names.contains(Objects.requireNonNull(name, field))) {
      throw new IllegalArgumentException(
          "%s is '%s'; it is one of %s".formatted(field, name, String.join(", ", names)));
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
