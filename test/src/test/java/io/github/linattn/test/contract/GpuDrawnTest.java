package io.github.linattn.test.contract;

import io.github.linattn.AttentionShape;
import io.github.linattn.DType;
import io.github.linattn.Mode;
import io.github.linattn.test.harness.Backends;
import io.github.linattn.test.harness.Case;
import io.github.linattn.test.harness.GpuTest;
import io.github.linattn.test.harness.Layout;
import io.github.linattn.test.harness.Seeds;
import io.github.linattn.test.harness.Subject;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.SplittableRandom;

/**
 * {@link SweepContract} on the GPU of problems that the seed draws, of all that kernels are built
 * for: breaks where two things that are right alone are wrong together. The system property {@code
 * linattn.drawn} says how many.
 */
@GpuTest
final class GpuDrawnTest extends SweepContract {
  private static final List<Integer> DIMS = List.of(32, 64, 96, 128, 192, 256);
  private static final List<Mode> MODES = List.of(Mode.values());
  private static final int MOST_TOKENS = 4096;
  private static final int MOST_HEADS = 48;

  /** Query heads times tokens times D²: what the reference has in a second or two. */
  private static final long MOST_WORK = 1L << 27;

  @Override
  List<Subject> subjects() {
    return Backends.gpu();
  }

  @Override
  List<Case.Builder> cases() {
    SplittableRandom random = Seeds.random("problems on a GPU");
    List<Case.Builder> cases = new ArrayList<>();
    for (int i = 0; i < Integer.getInteger("linattn.drawn", 32); i++) {
      cases.add(draw("drawn " + i, random));
    }
    return cases;
  }

  private static Case.Builder draw(String name, SplittableRandom random) {
    int keyDim = of(DIMS, random);
    int valueDim = random.nextInt(4) == 0 ? of(DIMS, random) : keyDim;
    int group = 1 << Math.max(0, random.nextInt(-2, 5));
    long mostRows = MOST_WORK / ((long) keyDim * valueDim); // of a head of k and v, and its group
    int[] lengths = new int[random.nextInt(3) == 0 ? random.nextInt(2, 6) : 1];
    for (int j = 0; j < lengths.length; j++) {
      int length = length(Math.min(MOST_TOKENS, mostRows / group), random) / lengths.length;
      lengths[j] = Math.max(j == 0 ? 1 : 0, length);
    }
    int tokens = Arrays.stream(lengths).sum();
    int mostHeads = (int) Math.min(MOST_HEADS, mostRows / group / tokens);
    int keyValueHeads = random.nextInt(1, mostHeads + 1);
    int batch = lengths.length == 1 && keyValueHeads % 2 == 0 && random.nextBoolean() ? 2 : 1;
    int heads = keyValueHeads / batch;
    var shape = new AttentionShape(batch, heads * group, heads, tokens, keyDim, valueDim);
    DType dtype = of(List.of(DType.values()), random);
    Mode mode = dtype == DType.F32 ? of(MODES, random) : Mode.DEFAULT;
    boolean normalizes = random.nextInt(3) == 0;
    boolean interleaves = keyDim == valueDim;
    Layout layout = of(List.of(Layout.values()).subList(0, interleaves ? 3 : 2), random);
    float[] a = new float[random.nextInt(4) == 0 ? shape.heads() : 1];
    float[] b = new float[a.length];
    for (int j = 0; j < a.length; j++) {
      a[j] = random.nextInt(1, 4);
      b[j] = random.nextInt(8) == 0 ? 0 : (float) random.nextDouble(-1, 1);
    }
    int states = random.nextInt(8);
    int before = random.nextInt(1, 100);
    String what =
        "%s %s %s %s, sequences %s, %s%s, a %s, b %s, states %d"
            .formatted(
                name,
                shape,
                dtype,
                mode,
                Arrays.toString(lengths),
                layout,
                normalizes ? ", normalized" : "",
                Arrays.toString(a),
                Arrays.toString(b),
                states);
    Case.Builder problem = Case.of(what, shape).dtype(dtype).mode(mode);
    problem.layout(layout).coefficients(a, b);
    if (lengths.length > 1) {
      problem.packed(lengths);
    }
    if (normalizes) {
      problem.normalized();
    }
    // dz of bf16 has a known limit: docs/performance.md, "Accuracy on the GPU"
    boolean differentiatesStates = dtype != DType.BF16;
    return switch (states) {
      case 0 -> withoutCausality(problem, before, differentiatesStates, random);
      case 1 -> differentiatesStates ? problem.throughStates() : problem;
      case 2 -> differentiatesStates ? problem.afterTokens(before).throughStates() : problem;
      case 3, 4 -> problem.keepingState();
      case 5 -> problem.afterTokens(before).keepingState();
      default -> problem;
    };
  }

  private static Case.Builder withoutCausality(
      Case.Builder problem, int before, boolean differentiatesStates, SplittableRandom random) {
    problem.nonCausal();
    return switch (random.nextInt(4)) {
      case 0 -> problem.keepingState();
      case 1 -> problem.afterTokens(before).keepingState();
      case 2 -> differentiatesStates ? problem.afterTokens(before).throughStates() : problem;
      default -> problem;
    };
  }

  /** As many short ones as long ones. */
  private static int length(long most, SplittableRandom random) {
    return (int) Math.exp(random.nextDouble(Math.log(most)));
  }

  private static <T> T of(List<T> values, SplittableRandom random) {
    return values.get(random.nextInt(values.size()));
  }
}
