package io.github.linattn.cli;

import io.github.linattn.AttentionShape;
import io.github.linattn.kernelgen.KernelSpec;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.SplittableRandom;

/**
 * Problems that are drawn: one batch row, up to 2^21 elements of q, every width and type, some with
 * grouped heads. Few heads and few tokens are where the fastest plan changes from one problem to
 * the next. The same seed draws the same problems.
 *
 * @param count how many, no two of them alike
 */
record BenchDraw(int count, long seed) {
  private static final int MOST = 10_000;
  private static final double LOG_ELEMENTS = 21;
  private static final int LEAST_TOKENS = 300;
  private static final int MOST_HEADS = 64;
  private static final int[] GROUPS = {1, 1, 1, 1, 1, 1, 1, 2, 4, 8};

  BenchDraw {
    if (count < 1 || count > MOST) {
      throw CommandFailure.misuse("--drawn is a number of problems up to %d, not %d", MOST, count);
    }
  }

  /**
   * The forwards.
   *
   * @param precisions to draw from
   */
  List<BenchCase> cases(List<Precision> precisions) {
    var random = new SplittableRandom(seed);
    Set<BenchCase> cases = new LinkedHashSet<>();
    while (cases.size() < count) {
      AttentionShape shape = shape(random);
      cases.add(BenchCase.of(shape, precisions.get(random.nextInt(precisions.size()))));
    }
    return List.copyOf(cases);
  }

  /** Rows of all heads, and tokens of each, are drawn evenly by their logarithms. */
  private static AttentionShape shape(SplittableRandom random) {
    int headDim = BenchPreset.SHIPPED[random.nextInt(BenchPreset.SHIPPED.length)];
    int group = GROUPS[random.nextInt(GROUPS.length)];
    double least = log2(LEAST_TOKENS);
    double rows = least + random.nextDouble() * (LOG_ELEMENTS - log2(headDim) - least);
    int tokens = (int) Math.round(Math.pow(2, least + random.nextDouble() * (rows - least)));
    if (random.nextBoolean()) {
      tokens = tokens / KernelSpec.CHUNK * KernelSpec.CHUNK;
    }
    int heads = (int) Math.clamp(Math.round(Math.pow(2, rows) / tokens), 1, MOST_HEADS);
    int keyValueHeads = Math.max(1, heads / group);
    return new AttentionShape(1, keyValueHeads * group, keyValueHeads, tokens, headDim, headDim);
  }

  private static double log2(double x) {
    return Math.log(x) / Math.log(2);
  }
}
