package io.github.linattn.cli;

import io.github.linattn.DType;
import io.github.linattn.LinearAttention;
import io.github.linattn.Mode;
import java.util.Arrays;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Option;

/** Options that say which operator, and how the rows of a file are heads and sequences. */
final class OperatorOptions {
  @Option(
      names = "--heads",
      paramLabel = "H",
      description = "query heads of one batch row; all rows of q if left out")
  private @Nullable Integer heads;

  @Option(
      names = "--kv-heads",
      paramLabel = "K",
      description = "key/value heads of one batch row, a divisor of H; H if left out")
  private @Nullable Integer keyValueHeads;

  @Option(
      names = "--a",
      paramLabel = "A",
      split = ",",
      description = "constant of the kernel, one or one per query head; 1 if left out")
  private float[] a = {1};

  @Option(
      names = "--b",
      paramLabel = "B",
      split = ",",
      description = "slope of the kernel, one or one per query head; 1 if left out")
  private float[] b = {1};

  @Option(names = "--non-causal", description = "each token sees all of its sequence")
  private boolean nonCausal;

  @Option(names = "--normalize", description = "divide rows of q and k by their length first")
  private boolean normalize;

  @Option(
      names = "--seqlens",
      paramLabel = "N",
      split = ",",
      description = "lengths of sequences packed along the tokens; 0 is allowed")
  private int @Nullable [] lengths;

  @Option(
      names = "--dtype",
      paramLabel = "TYPE",
      converter = Spelling.OfDType.class,
      description = "storage to compute with: f32 (if left out), bf16 or f16")
  private DType dtype = DType.F32;

  @Option(
      names = "--mode",
      paramLabel = "MODE",
      converter = Spelling.OfMode.class,
      description = "exactness of f32 products: accurate, default (if left out) or tf32")
  private Mode mode = Mode.DEFAULT;

  @Nullable Integer heads() {
    return heads;
  }

  @Nullable Integer keyValueHeads() {
    return keyValueHeads;
  }

  int @Nullable [] lengths() {
    return lengths;
  }

  private boolean causal() {
    return !nonCausal;
  }

  boolean normalize() {
    return normalize;
  }

  DType dtype() {
    return dtype;
  }

  Mode mode() {
    return mode;
  }

  /** Refuses what does not go together whatever the input is. */
  void check() {
    if (dtype != DType.F32 && mode != Mode.DEFAULT) {
      throw CommandFailure.misuse(
          "--dtype %s has the mode default only; --mode %s is for f32",
          Text.id(dtype), Text.id(mode));
    }
    requireFinite("--a", a);
    requireFinite("--b", b);
  }

  private static void requireFinite(String option, float[] values) {
    for (float value : values) {
      if (!Float.isFinite(value)) {
        throw CommandFailure.misuse("%s must be finite, got %s", option, value);
      }
    }
  }

  /**
   * The operator for this many query heads.
   *
   * @throws CommandFailure if there are neither one nor {@code queryHeads} coefficients, or a head
   *     has none but 0
   */
  LinearAttention.Builder operator(int queryHeads) {
    requireOneOrEach("--a", a, queryHeads);
    requireOneOrEach("--b", b, queryHeads);
    int count = Math.max(a.length, b.length);
    float[] constants = repeated(a, count);
    float[] slopes = repeated(b, count);
    for (int head = 0; head < count; head++) {
      if (constants[head] == 0 && slopes[head] == 0) {
        throw CommandFailure.misuse(
            "--a and --b are both 0%s: every g would be 0",
            count == 1 ? "" : " for head " + head + ", counted from 0");
      }
    }
    return LinearAttention.builder()
        .coefficients(constants, slopes)
        .causal(causal())
        .normalizeQueriesAndKeys(normalize)
        .mode(mode);
  }

  private static void requireOneOrEach(String option, float[] values, int queryHeads) {
    if (values.length != 1 && values.length != queryHeads) {
      throw CommandFailure.misuse(
          "%s has %d values; give one, or one for each of the %d query heads",
          option, values.length, queryHeads);
    }
  }

  private static float[] repeated(float[] values, int count) {
    if (values.length == count) {
      return values;
    }
    float[] all = new float[count];
    Arrays.fill(all, values[0]);
    return all;
  }
}
