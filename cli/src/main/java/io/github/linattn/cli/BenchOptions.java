package io.github.linattn.cli;

import io.github.linattn.AttentionShape;
import io.github.linattn.DType;
import io.github.linattn.Mode;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Option;

/** What {@code linattn bench forward} and {@code linattn bench backward} may be told. */
final class BenchOptions {
  private static final int BATCH = 4;
  private static final int HEADS = 16;
  private static final int TOKENS = 10_000;
  private static final int HEAD_DIM = 128;
  private static final double MOST_SUSTAINED_SECONDS = 600;

  @Option(
      names = "--preset",
      paramLabel = "NAME",
      converter = Spelling.OfPreset.class,
      description =
          "shapes that are often wanted: targets, head-dims, tokens, heads, grid (with"
              + " --all-plans), or accuracy (up to 2^20 tokens, both kinds of data)")
  @Nullable BenchPreset preset;

  @Option(
      names = "--drawn",
      paramLabel = "COUNT",
      description =
          "so many problems that are drawn, of few heads and few tokens, every width and type; with"
              + " --all-plans they show what the planner loses")
  private @Nullable Integer drawn;

  @Option(
      names = "--seed",
      paramLabel = "SEED",
      description = "which problems --drawn draws; 1 if left out")
  private @Nullable Long seed;

  @Option(
      names = "--dtype",
      paramLabel = "TYPE",
      split = ",",
      converter = Spelling.OfDType.class,
      description = "bf16 (if left out and the preset has no other), f16, f32")
  private List<DType> dtypes = List.of();

  @Option(
      names = "--mode",
      paramLabel = "MODE",
      split = ",",
      converter = Spelling.OfMode.class,
      description = "for f32: tf32, default (if left out), accurate; alone it means f32")
  private List<Mode> modes = List.of();

  @Option(names = "--batch", paramLabel = "B", description = "batch rows; 4 if left out")
  private @Nullable Integer batch;

  @Option(
      names = "--heads",
      paramLabel = "H",
      split = ",",
      description = "query heads of one batch row; 16 if left out")
  private List<Integer> heads = List.of();

  @Option(
      names = "--kv-heads",
      paramLabel = "K",
      description = "key/value heads of one batch row, a divisor of H; H if left out")
  private @Nullable Integer keyValueHeads;

  @Option(
      names = "--tokens",
      paramLabel = "N",
      split = ",",
      description = "tokens; 10000 if left out")
  private List<Integer> tokens = List.of();

  @Option(
      names = "--head-dim",
      paramLabel = "D",
      split = ",",
      description = "width of keys; 128 if left out")
  private List<Integer> headDims = List.of();

  @Option(names = "--value-dim", paramLabel = "DV", description = "width of values; D if left out")
  private @Nullable Integer valueDim;

  @Option(names = "--non-causal", description = "each token sees all of its sequence")
  private boolean nonCausal;

  @Option(names = "--normalize", description = "divide rows of q and k by their length first")
  private boolean normalize;

  @Option(
      names = "--data",
      paramLabel = "DATA",
      converter = Spelling.OfData.class,
      description =
          "normal (if left out and the preset has no other), or positive: their absolute values,"
              + " whose sums show what is rounded to one side")
  private BenchData.@Nullable Kind data;

  @Option(
      names = "--family",
      paramLabel = "FAMILY",
      description = "kernels: chunked (if left out) or paper")
  String family = KernelFamily.CHUNKED;

  @Option(
      names = "--beside-paper",
      description = "time the family paper in the same process, too, where it can do a case")
  boolean besidePaper;

  @Option(
      names = "--all-plans",
      description =
          "time other plans that the planner could have chosen, too: other kernels, segments down"
              + " to a chunk, blocks that take turns, relays")
  private boolean allPlans;

  @Option(
      names = "--sustained",
      paramLabel = "SECONDS",
      description =
          "keep the GPU at each call for so long before it is timed, and for as long while it is:"
              + " what a GPU at its power limit keeps up, as in training")
  private double sustainedSeconds;

  @Option(
      names = "--json",
      paramLabel = "FILE",
      description = "merge every point with its samples into this file, as it comes")
  @Nullable Path json;

  /** How long a GPU has had each call when it is timed; 0 where a few calls are enough. */
  double sustainedSeconds() {
    return sustainedSeconds;
  }

  /** Whether to time what the planner did not choose, too. */
  boolean allPlans() {
    return allPlans || preset == BenchPreset.GRID;
  }

  /** What the options ask for, in the order of the table. */
  List<BenchCase> cases(BenchPass pass) {
    requireFamily();
    requireOneSource();
    if (!(sustainedSeconds >= 0 && sustainedSeconds <= MOST_SUSTAINED_SECONDS)) {
      throw CommandFailure.misuse(
          "--sustained is 0 to %.0f seconds, not %s", MOST_SUSTAINED_SECONDS, sustainedSeconds);
    }
    List<Precision> precisions = precisions();
    List<BenchCase> cases;
    if (preset == null && drawn == null) {
      cases = product(precisions.isEmpty() ? precisions(List.of(DType.BF16)) : precisions);
    } else {
      requireNoExtents();
      cases = preset == null ? drawn(precisions) : preset.cases(precisions, pass);
    }
    if (cases.isEmpty()) {
      throw CommandFailure.misuse("the preset has no case of this type and mode");
    }
    BenchData.Kind asked = data;
    return cases.stream()
        .map(each -> each.with(!nonCausal, normalize).with(pass))
        .map(each -> asked == null ? each : each.with(asked))
        .distinct() // a preset may have both kinds of data
        .toList();
  }

  private void requireFamily() {
    if (!family.equals(KernelFamily.CHUNKED) && !family.equals(KernelFamily.PAPER)) {
      throw CommandFailure.misuse("--family is chunked or paper, not '%s'", family);
    }
    if (besidePaper && family.equals(KernelFamily.PAPER)) {
      throw CommandFailure.misuse("--beside-paper is for another family than paper");
    }
    if (allPlans() && family.equals(KernelFamily.PAPER)) {
      throw CommandFailure.misuse("the family paper has one plan only; leave out the other plans");
    }
  }

  private void requireNoExtents() {
    boolean lists = heads.isEmpty() && tokens.isEmpty() && headDims.isEmpty();
    if (!lists || batch != null || keyValueHeads != null || valueDim != null) {
      throw CommandFailure.misuse(
          "a preset has shapes of its own, as --drawn has; leave them out or --batch, --heads,"
              + " --kv-heads, --tokens, --head-dim and --value-dim");
    }
  }

  private void requireOneSource() {
    if (preset != null && drawn != null) {
      throw CommandFailure.misuse("--drawn draws problems in place of a preset");
    }
    if (seed != null && drawn == null) {
      throw CommandFailure.misuse("--seed is for --drawn");
    }
  }

  private List<BenchCase> drawn(List<Precision> precisions) {
    var draw = new BenchDraw(Objects.requireNonNull(drawn), seed == null ? 1 : seed);
    return draw.cases(precisions.isEmpty() ? BenchPreset.ALL : precisions);
  }

  /** Types and modes that were asked for; empty if none were. */
  private List<Precision> precisions() {
    if (!modes.isEmpty() && !dtypes.isEmpty() && !dtypes.contains(DType.F32)) {
      throw CommandFailure.misuse("--mode is for f32, which --dtype leaves out");
    }
    return precisions(dtypes.isEmpty() && !modes.isEmpty() ? List.of(DType.F32) : dtypes);
  }

  private List<Precision> precisions(List<DType> types) {
    List<Precision> precisions = new ArrayList<>();
    for (DType dtype : types) {
      boolean several = dtype == DType.F32 && !modes.isEmpty();
      for (Mode mode : several ? modes : List.of(Mode.DEFAULT)) {
        precisions.add(new Precision(dtype, mode));
      }
    }
    return precisions;
  }

  private List<BenchCase> product(List<Precision> precisions) {
    List<BenchCase> cases = new ArrayList<>();
    for (Precision precision : precisions) {
      for (int dim : headDims.isEmpty() ? List.of(HEAD_DIM) : headDims) {
        for (int count : heads.isEmpty() ? List.of(HEADS) : heads) {
          for (int length : tokens.isEmpty() ? List.of(TOKENS) : tokens) {
            cases.add(BenchCase.of(shape(count, length, dim), precision));
          }
        }
      }
    }
    return cases;
  }

  private AttentionShape shape(int queryHeads, int length, int dim) {
    try {
      return new AttentionShape(
          batch == null ? BATCH : batch,
          queryHeads,
          keyValueHeads == null ? queryHeads : keyValueHeads,
          length,
          dim,
          valueDim == null ? dim : valueDim);
    } catch (IllegalArgumentException impossible) {
      throw CommandFailure.misuse(impossible);
    }
  }
}
