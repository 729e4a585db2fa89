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

  /** Heads times tokens times D²: what the reference has in a second or two. */
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
    int[] lengths = new int[random.nextInt(3) == 0 ? random.nextInt(2, 6) : 1];
    int tokens = 0;
    for (int j = 0; j < lengths.length; j++) {
      lengths[j] = length(random) / lengths.length + (j == 0 ? 1 : 0);
      tokens += lengths[j];
    }
    int group = 1 << Math.max(0, random.nextInt(-2, 5));
    long heads = Math.max(1, MOST_WORK / ((long) tokens * keyDim * valueDim) / group);
    int keyValueHeads = random.nextInt(1, (int) Math.min(heads, 48) + 1);
    int batch = lengths.length == 1 && keyValueHeads % 2 == 0 && random.nextBoolean() ? 2 : 1;
    var shape =
        new AttentionShape(
            batch, keyValueHeads / batch * group, keyValueHeads / batch, tokens, keyDim, valueDim);
    DType dtype = of(List.of(DType.values()), random);
    Mode mode = dtype == DType.F32 ? of(MODES, random) : Mode.DEFAULT;
    Case.Builder problem =
        Case.of("%s %s %s %s".formatted(name, shape, dtype, mode), shape).dtype(dtype).mode(mode);
    if (lengths.length > 1) {
      problem.packed(lengths);
    }
    Layout layout = of(List.of(Layout.values()), random);
    problem.layout(
        layout == Layout.INTERLEAVED && keyDim != valueDim ? Layout.TOKEN_MAJOR : layout);
    int coefficients = random.nextInt(4) == 0 ? shape.heads() : 1;
    float[] a = new float[coefficients];
    float[] b = new float[coefficients];
    for (int j = 0; j < coefficients; j++) {
      a[j] = random.nextInt(1, 4);
      b[j] = random.nextInt(8) == 0 ? 0 : (float) random.nextDouble(-1, 1);
    }
    problem.coefficients(a, b);
    if (random.nextInt(3) == 0) {
      problem.normalized();
    }
    return switch (random.nextInt(8)) {
      case 0 -> problem.nonCausal();
      case 1 -> problem.throughStates();
      case 2 -> problem.afterTokens(random.nextInt(1, 100)).throughStates();
      case 3, 4 -> problem.keepingState();
      case 5 -> problem.afterTokens(random.nextInt(1, 100)).keepingState();
      default -> problem;
    };
  }

  /** As many short ones as long ones. */
  private static int length(SplittableRandom random) {
    return (int) Math.exp(random.nextDouble(Math.log(MOST_TOKENS)));
  }

  private static <T> T of(List<T> values, SplittableRandom random) {
    return values.get(random.nextInt(values.size()));
  }
}
