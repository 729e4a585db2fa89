package io.github.linattn.cli;

import io.github.linattn.AttentionShape;
import io.github.linattn.Backend;
import io.github.linattn.DType;
import io.github.linattn.Diagnostics;
import io.github.linattn.Mode;
import io.github.linattn.files.FileReason;
import io.github.linattn.files.LockedFile;
import io.github.linattn.io.Tuning;
import io.github.linattn.io.Tuning.Choice;
import io.github.linattn.io.Tuning.Entry;
import io.github.linattn.kernelgen.Architecture;
import io.github.linattn.kernelgen.Catalogue;
import io.github.linattn.kernelgen.KernelSpec;
import io.github.linattn.kernels.KernelBuild;
import io.github.linattn.kernels.KernelBuildException;
import io.github.linattn.kernels.KernelCache;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.function.Function;
import java.util.stream.Collectors;
import picocli.CommandLine.Command;
import picocli.CommandLine.Option;

/** {@code linattn tune}: the plans that are fastest on this GPU. */
@Command(
    name = "tune",
    mixinStandardHelpOptions = true,
    versionProvider = Version.class,
    sortOptions = false,
    description = {
      "Time plans that the planner could choose for a head dimension on GPU 0, and keep the fastest"
          + " in a tuning file, by classes of B x H and N.",
      "Kernels that are missing are compiled first, where nvcc is found. Other commands take the"
          + " file with --tuning FILE. Lists are separated by commas."
    })
final class TuneCommand implements Callable<Integer> {
  private final Console console;

  @Option(
      names = "--head-dim",
      required = true,
      paramLabel = "D",
      description = "width of keys and values: a multiple of 16 from 16 to 256")
  private int headDim;

  @Option(
      names = "--pass",
      paramLabel = "PASS",
      split = ",",
      converter = Spelling.OfPass.class,
      description = "forward, backward; both if left out")
  private List<Tuning.Pass> passes = List.of(Tuning.Pass.values());

  @Option(
      names = "--dtype",
      paramLabel = "TYPE",
      converter = Spelling.OfDType.class,
      description = "bf16 (if left out), f16, f32")
  private DType dtype = DType.BF16;

  @Option(
      names = "--mode",
      paramLabel = "MODE",
      converter = Spelling.OfMode.class,
      description = "for f32: tf32, default (if left out), accurate")
  private Mode mode = Mode.DEFAULT;

  @Option(names = "--normalize", description = "divide rows of q and k by their length first")
  private boolean normalize;

  @Option(
      names = "--heads",
      paramLabel = "B*H",
      split = ",",
      description = "borders of the classes of B x H; powers of two from 1 to 256 if left out")
  private List<Integer> heads = List.of(1, 2, 4, 8, 16, 32, 64, 128, 256);

  @Option(
      names = "--tokens",
      paramLabel = "N",
      split = ",",
      description = "borders of the classes of N; powers of two from 1024 to 131072 if left out")
  private List<Integer> tokens = List.of(1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072);

  @Option(
      names = "--out",
      required = true,
      paramLabel = "FILE",
      description =
          "tuning file; what it holds of other GPUs, head dimensions, types and passes stays")
  private Path out;

  @SuppressWarnings("NullAway.Init") // picocli fills in the path
  TuneCommand(Console console) {
    this.console = console;
  }

  @Override
  public Integer call() throws IOException {
    check();
    System.setProperty(Tuning.PROPERTY, ""); // nor is the file that the environment names asked
    BackendChoice.CUDA.open(console).close(); // refuses where there is no GPU to tune for
    Diagnostics.Gpu gpu = Diagnostics.gpu(0).orElseThrow();
    compileMissing(gpu.architecture());
    try (Backend backend = BackendChoice.CUDA.open(console)) {
      tune(gpu.name(), onDevice(BenchRun.onGpu(backend)));
    }
    return ExitCode.DONE;
  }

  private void check() {
    if (dtype != DType.F32 && mode != Mode.DEFAULT) {
      throw CommandFailure.misuse("--mode is for f32, --dtype is %s", Text.id(dtype));
    }
    if (!System.getProperty(Tuning.PROPERTY, "").isBlank()) {
      throw CommandFailure.misuse(
          "--tuning: plans are tuned beside the planner's own; leave it out");
    }
    OutFile.check(out);
    known(); // what is no tuning file is refused before anything is timed
    new TuningGrid(heads, tokens);
    int step = KernelSpec.HEAD_DIM_STEP;
    int most = KernelSpec.MAX_CHUNKED_HEAD_DIM;
    if (headDim < step || headDim > most || headDim % step != 0) {
      throw CommandFailure.misuse(
          "a head dimension with plans to tune is a multiple of %d from %d to %d, not %d",
          step, step, most, headDim);
    }
  }

  /** Tunes what the options ask for, and writes the file after each pass. */
  void tune(String gpu, PlanClock clock) throws IOException {
    var grid = new TuningGrid(heads, tokens);
    int timed = 0;
    int kept = 0;
    try (var progress = new Progress(console.err(), "tuning")) {
      progress.expect(grid.points() * passes.size());
      for (Tuning.Pass pass : passes) {
        var problem = new Tuning.Problem(gpu, pass, headDim, dtype, mode, normalize);
        List<Entry> entries = grid.tune(problem, kind(pass), clock, listener(progress));
        List<Entry> faster =
            entries.stream().filter(entry -> !entry.choice().isPlanners()).toList();
        faster.forEach(this::show);
        timed += entries.size();
        kept += faster.size();
        if (!entries.isEmpty()) { // into what the file holds by now
          LockedFile.change(out, () -> known().without(problem).with(entries).write(out));
        }
      }
    }
    if (timed == 0) {
      throw CommandFailure.failed("no class could be timed; " + out + " is as it was");
    }
    console.result(
        "%d of %d classes have a faster plan than the planner's; %s tells the fastest of each",
        kept, timed, out);
  }

  /** What the file holds so far. */
  private Tuning known() {
    try {
      return Files.exists(out) ? Tuning.read(out) : Tuning.NONE;
    } catch (IllegalArgumentException other) {
      throw CommandFailure.misuse(other);
    } catch (IOException unreadable) {
      throw CommandFailure.misuse("can't read --out %s: %s", out, FileReason.of(unreadable));
    }
  }

  private BenchCase kind(Tuning.Pass pass) {
    BenchPass timed = pass == Tuning.Pass.FORWARD ? BenchPass.FORWARD : BenchPass.BACKWARD;
    try {
      return BenchCase.of(AttentionShape.of(1, 1, 1, headDim), new Precision(dtype, mode))
          .with(true, normalize)
          .with(timed);
    } catch (IllegalArgumentException impossible) {
      throw CommandFailure.misuse(impossible);
    }
  }

  private TuningGrid.Listener listener(Progress progress) {
    return new TuningGrid.Listener() {
      @Override
      public void timed(BenchCase point) {
        progress.step(point.name());
      }

      @Override
      public void leftOut(BenchCase point, RuntimeException why) {
        console.note(Text.format("left out: %s: %s", point.name(), Text.message(why)));
      }
    };
  }

  private void show(Entry entry) {
    console.result(
        "%-8s B x H %d to %d, N %d to %d: %s, %d segments%s, %d turns, %.2f of the planner's time",
        Text.id(entry.problem().pass()),
        entry.heads().least(),
        entry.heads().most(),
        entry.tokens().least(),
        entry.tokens().most(),
        entry.choice().technique(),
        entry.choice().segments(),
        entry.choice().relay() ? " that hand states on" : "",
        entry.choice().turns(),
        entry.ratio());
  }

  /** Kernels of this head dimension and type for this GPU, where there are none. */
  private void compileMissing(String architecture) {
    Set<Diagnostics.Task> tuned = Set.of(Diagnostics.Task.FORWARD, Diagnostics.Task.BACKWARD);
    boolean built =
        Diagnostics.support().stream()
            .filter(each -> each.architecture().equals(architecture) && each.headDim() == headDim)
            .filter(each -> each.dtype() == dtype && tuned.contains(each.task()))
            .anyMatch(each -> each.kernels().contains("mma"));
    if (built) {
      return;
    }
    int capability = Integer.parseInt(architecture.replaceFirst("^sm_", ""));
    Set<Architecture> targets =
        Arrays.stream(Architecture.values())
            .filter(each -> each.isMachineCode() && each.runsOn(capability))
            .collect(Collectors.toCollection(() -> EnumSet.noneOf(Architecture.class)));
    try {
      List<KernelSpec> specs =
          Catalogue.chunked(headDim, targets.isEmpty() ? EnumSet.of(Architecture.PTX) : targets)
              .stream()
              .filter(spec -> spec.elementType().id().equals(Text.id(dtype)))
              .toList();
      var compiled = KernelBuild.generate(specs, KernelCache.ofUser(), console.err());
      if (compiled.manifest().entries().isEmpty()) {
        throw CommandFailure.failed(
            Text.format("there are no kernels to tune for %s and D = %d", architecture, headDim));
      }
    } catch (IllegalArgumentException refused) {
      throw CommandFailure.misuse(refused);
    } catch (KernelBuildException failed) {
      throw CommandFailure.failed("can't compile kernels: " + Text.message(failed), failed);
    } catch (IOException failed) {
      throw CommandFailure.failed("can't compile kernels: " + FileReason.of(failed), failed);
    }
  }

  /** Device times, of plans whose results are right. */
  private static PlanClock onDevice(BenchRun run) {
    return (problem, choices) -> {
      Map<String, Choice> names =
          choices.stream()
              .collect(
                  Collectors.toMap(
                      choice -> choice.name(problem.shape().tokens()),
                      Function.identity(),
                      (first, same) -> first));
      BenchResult result = run.run(problem, List.copyOf(names.keySet()));
      if (!result.errors().within(problem.precision())) {
        throw CommandFailure.failed(
            problem.name() + ": the planner's plan gives wrong results; linattn verify says more");
      }
      Map<Choice, Double> times = new HashMap<>();
      for (BenchResult.Other other : result.others()) {
        DeviceTimes taken = other.times();
        if (taken != null) {
          times.put(names.get(other.name()), taken.median());
        }
      }
      return new PlanClock.Times(result.times().median(), times);
    };
  }
}
