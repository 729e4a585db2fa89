package io.github.linattn.cli;

import io.github.linattn.AttentionShape;
import io.github.linattn.Backend;
import io.github.linattn.DType;
import io.github.linattn.Mode;
import io.github.linattn.cuda.CudaOutOfMemoryException;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Option;

/** {@code linattn bench forward}: the forward beside a copy of as many bytes. */
@Command(
    name = "forward",
    mixinStandardHelpOptions = true,
    versionProvider = Version.class,
    sortOptions = false,
    description = {
      "Time forwards on GPU 0 beside a copy of as many bytes in the same process, and check their"
          + " outputs against a plain computation in double precision.",
      "Exit code 1 if an output is wrong. Lists are separated by commas."
    })
final class BenchForwardCommand implements Callable<Integer> {
  private static final String FAMILY = "linattn.family";
  private static final int BATCH = 4;
  private static final int HEADS = 16;
  private static final int TOKENS = 10_000;
  private static final int HEAD_DIM = 128;

  private final Console console;

  @Option(
      names = "--preset",
      paramLabel = "NAME",
      converter = BenchPreset.Converter.class,
      description =
          "shapes that are often wanted: targets, head-dims, tokens, heads, grid (implies"
              + " --all-plans), or accuracy (up to 2^20 tokens, both kinds of data)")
  private @Nullable BenchPreset preset;

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
      names = "--all-plans",
      description = "time every plan that the planner could have chosen, too")
  private boolean allPlans;

  @Option(
      names = "--family",
      paramLabel = "FAMILY",
      description = "kernels: chunked (if left out) or paper")
  private String family = "chunked";

  @Option(names = "--json", paramLabel = "FILE", description = "write all samples there")
  private @Nullable Path json;

  BenchForwardCommand(Console console) {
    this.console = console;
  }

  @Override
  public Integer call() throws IOException {
    List<BenchCase> cases = cases();
    requireFamily();
    String before = System.setProperty(FAMILY, family);
    try (Backend gpu = BackendChoice.CUDA.open(console)) {
      return run(gpu, cases);
    } finally {
      if (before == null) {
        System.clearProperty(FAMILY);
      } else {
        System.setProperty(FAMILY, before);
      }
    }
  }

  private void requireFamily() {
    if (!family.equals("chunked") && !family.equals("paper")) {
      throw CommandFailure.misuse("--family is chunked or paper, not '%s'", family);
    }
    if (family.equals("paper") && isAllPlans()) {
      throw CommandFailure.misuse("the family paper has one plan only; leave out the other plans");
    }
  }

  private boolean isAllPlans() {
    return allPlans || preset == BenchPreset.GRID;
  }

  /** What the options ask for, in the order of the table. */
  List<BenchCase> cases() {
    List<Precision> precisions = precisions();
    List<BenchCase> cases;
    if (preset == null) {
      cases = product(precisions.isEmpty() ? precisions(List.of(DType.BF16)) : precisions);
    } else {
      requireNoExtents();
      cases = preset.cases(precisions);
    }
    if (cases.isEmpty()) {
      throw CommandFailure.misuse("the preset has no case of this type and mode");
    }
    BenchData.Kind asked = data;
    return cases.stream()
        .map(each -> each.with(!nonCausal, normalize))
        .map(each -> asked == null ? each : each.with(asked))
        .distinct() // a preset may have both kinds of data
        .toList();
  }

  private void requireNoExtents() {
    boolean lists = heads.isEmpty() && tokens.isEmpty() && headDims.isEmpty();
    if (!lists || batch != null || keyValueHeads != null || valueDim != null) {
      throw CommandFailure.misuse(
          "a preset has shapes of its own; leave out --preset or --batch, --heads, --kv-heads,"
              + " --tokens, --head-dim and --value-dim");
    }
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

  private int run(Backend gpu, List<BenchCase> cases) throws IOException {
    BenchMachine machine = BenchMachine.here(family);
    List<BenchResult> results = new ArrayList<>();
    List<HostTime> hosts = new ArrayList<>();
    BenchReport.head(machine).forEach(line -> console.result("%s", line));
    try (var progress = new Progress(console.err(), "timing")) {
      progress.expect(cases.size());
      var run = BenchRun.onGpu(gpu, isAllPlans());
      for (BenchCase each : cases) {
        time(run, each, results);
        progress.step(each.name());
      }
      timeHost(gpu, cases, hosts);
    } finally {
      if (json != null) {
        Files.writeString(json, BenchJson.text(machine, results, hosts));
      }
    }
    if (isAllPlans()) {
      console.result("%s", BenchReport.planner(results));
    }
    boolean right = !results.isEmpty() && results.stream().allMatch(BenchResult::right);
    return right ? ExitCode.DONE : ExitCode.FAILED;
  }

  private void time(BenchRun run, BenchCase each, List<BenchResult> results) {
    try {
      BenchResult result = run.run(each);
      results.add(result);
      BenchReport.rows(result).forEach(row -> console.result("%s", row));
    } catch (UnsupportedOperationException | CudaOutOfMemoryException no) {
      console.result("%s", BenchReport.leftOut(each, Text.firstClause(no)));
    }
  }

  /** Once for each type among the cases. */
  private void timeHost(Backend gpu, List<BenchCase> cases, List<HostTime> hosts) {
    Set<DType> types = new LinkedHashSet<>();
    cases.forEach(each -> types.add(each.precision().dtype()));
    for (DType dtype : types) {
      try {
        HostTime host = HostTime.measure(gpu, dtype);
        hosts.add(host);
        console.result("%s", BenchReport.host(host));
      } catch (UnsupportedOperationException notBuilt) {
        console.note(Text.format("no host time of %s: %s", Text.id(dtype), Text.message(notBuilt)));
      }
    }
  }
}
