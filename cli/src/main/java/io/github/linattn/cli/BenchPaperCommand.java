package io.github.linattn.cli;

import com.sun.management.OperatingSystemMXBean;
import io.github.linattn.Backend;
import io.github.linattn.DType;
import io.github.linattn.MemoryKind;
import io.github.linattn.Mode;
import io.github.linattn.cli.points.Point;
import io.github.linattn.cli.points.PointFile;
import io.github.linattn.cli.points.Problem;
import io.github.linattn.cli.points.Run;
import io.github.linattn.cli.points.Status;
import io.github.linattn.cuda.CudaException;
import io.github.linattn.cuda.CudaOutOfMemoryException;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.function.Function;
import java.util.function.Predicate;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Option;

/** {@code linattn bench paper}: the paper's evaluation on the machine at hand. */
@Command(
    name = "paper",
    mixinStandardHelpOptions = true,
    versionProvider = Version.class,
    sortOptions = false,
    description = {
      "Measure what the paper's figures 2 to 4 and its table 1 show: time and memory of forward and"
          + " backward against tokens and head dimension, beside the paper's kernels and a copy of"
          + " as many bytes; and errors, short sequences and decode steps. Attention of PyTorch and"
          + " flash-linear-attention is timed beside it where Python can import them. Where ncu is"
          + " installed, it counts for figure 4 what moves between the GPU and its memory.",
      "Each point goes to DIR/points.json as it comes. A run that was broken off goes on where it"
          + " was: points that stand are not measured again.",
      "Exit code 1 if a result is wrong."
    })
final class BenchPaperCommand implements Callable<Integer> {
  static final String FILE = "points.json";

  private static final Precision EXACT = new Precision(DType.F32, Mode.ACCURATE);

  private final Console console;

  @Option(
      names = "--out",
      paramLabel = "DIR",
      description = "folder of points.json; bench-results if left out")
  private Path out = Path.of("bench-results");

  @Option(names = "--quick", description = "few small shapes, which a CPU does in seconds, too")
  private boolean quick;

  @Option(
      names = "--backend",
      paramLabel = "BACKEND",
      converter = Spelling.OfBackend.class,
      description = "auto (if left out), cpu or cuda")
  private BackendChoice backend = BackendChoice.AUTO;

  @Option(
      names = "--sweep",
      paramLabel = "NAME",
      split = ",",
      converter = Spelling.OfSweep.class,
      description =
          "tokens, head-dims, few-heads, crossover, accuracy, decode, movement (needs ncu); all if"
              + " left out")
  private List<PaperSweep> sweeps = List.of(PaperSweep.values());

  @Option(
      names = "--tokens",
      paramLabel = "N",
      split = ",",
      description =
          "of these sweeps the points of so many tokens alone, such as 10000 for table 1; all if"
              + " left out")
  private List<Integer> tokens = List.of();

  @Option(
      names = "--dtype",
      paramLabel = "TYPE",
      split = ",",
      converter = Spelling.OfDType.class,
      description = "of these sweeps the points of bf16, f16 or f32 alone; all if left out")
  private List<DType> dtypes = List.of();

  @Option(
      names = "--no-peers",
      description = "leave out what PyTorch and flash-linear-attention do")
  private boolean withoutPeers;

  @Option(
      names = "--peers",
      paramLabel = "NAME",
      split = ",",
      description =
          "what they do, by its name in points.json (softmax flash, fla gla, ...); all if left out")
  private List<String> peers = List.of();

  @Option(
      names = "--python",
      paramLabel = "FILE",
      description = "the Python that may import torch and fla; python3 if left out")
  private @Nullable String python;

  BenchPaperCommand(Console console) {
    this.console = console;
  }

  /** A case to time here. */
  private record Task(Method method, PaperSweep sweep, BenchCase each) {
    Problem problem() {
      return each.problem(sweep.title(), method.title());
    }
  }

  @Override
  public Integer call() throws IOException {
    if (withoutPeers && (python != null || !peers.isEmpty())) {
      throw CommandFailure.misuse(
          "%s is for peers, which --no-peers leaves out", python == null ? "--peers" : "--python");
    }
    OutFolder.requireName(out);
    requireKnown(peers);
    sweeps = sweeps.stream().distinct().toList();
    requireMeasured("--tokens", tokens, each -> each.shape().tokens());
    List<String> types = dtypes.stream().map(Text::id).toList();
    requireMeasured("--dtype", types, each -> Text.id(each.precision().dtype()));
    List<PaperSweep> withPoints =
        sweeps.stream().filter(sweep -> !wanted(sweep.ours(quick)).isEmpty()).toList();
    if (withPoints.isEmpty()) {
      throw CommandFailure.misuse("no point has both what --tokens and what --dtype names");
    }
    if (backend == BackendChoice.CPU && withPoints.stream().noneMatch(BenchPaperCommand::isTimed)) {
      throw CommandFailure.misuse(
          "of these points movement alone is left, which is counted on a GPU; --backend is cpu");
    }
    if (python != null) {
      Peers.requireRuns(python);
    }
    PointFile file = BenchPoints.open(out.resolve(FILE));
    try (var progress = new Progress(console.err(), "timing")) {
      boolean gpu;
      Run run;
      boolean answers;
      List<Task> counted;
      List<Problem> ofPeers;
      Optional<DataMovement> movement;
      try (Backend here = KernelFamily.open(KernelFamily.CHUNKED, backend, console)) {
        gpu = here.memoryKind() == MemoryKind.DEVICE;
        run = gpu ? Machine.gpu() : Machine.cpu();
        requireSameMachine(file, run);
        OutFolder.make(out);
        List<Task> tasks =
            missing(file, gpu ? Method.LINATTN : Method.CPU, BenchPaperCommand::isTimed);
        List<Task> ofPaper =
            gpu ? missing(file, Method.PAPER, BenchPaperCommand::isTimed) : List.of();
        counted = missingCounts(file);
        movement = counted.isEmpty() ? Optional.empty() : DataMovement.find(gpu, console);
        ofPeers = withoutPeers ? List.of() : missingOfPeers(file, gpu);
        int counts = movement.isPresent() ? counted.size() : 0;
        progress.expect(tasks.size() + ofPaper.size() + counts + ofPeers.size());
        answers = time(here, tasks, run, file, progress);
        if (answers && !ofPaper.isEmpty()) {
          try (Backend paper = KernelFamily.open(KernelFamily.PAPER, BackendChoice.CUDA, console)) {
            answers = time(paper, ofPaper, run, file, progress);
          }
        }
      }
      if (answers && movement.isPresent()) {
        count(movement.get(), counted, run, file, progress);
      }
      // by now nothing of ours is left on the GPU
      timePeers(ofPeers, gpu, run, file, progress);
    }
    PaperTable.lines(file.points()).forEach(line -> console.result("%s", line));
    boolean wrong = file.points().stream().anyMatch(BenchPaperCommand::isWrong);
    return wrong ? ExitCode.FAILED : ExitCode.DONE;
  }

  /** One of ours that failed; a peer may. */
  private static boolean isWrong(Point point) {
    return point.status() == Status.FAILED && Method.isOurs(point.problem().method());
  }

  /** Points of two GPUs in one figure would be compared. */
  private void requireSameMachine(PointFile file, Run here) {
    for (Run run : file.runs()) {
      boolean sameKind = run.architecture().isEmpty() == here.architecture().isEmpty();
      if (sameKind && !run.machine().equals(here.machine())) {
        throw CommandFailure.misuse(
            "%s was measured on %s, this is %s; name another folder with --out",
            out.resolve(FILE), run.machine(), here.machine());
      }
    }
  }

  /** What does not stand in the file yet; what was tried in vain comes last. */
  private List<Task> missing(PointFile file, Method method, Predicate<PaperSweep> wantedSweep) {
    List<Task> tasks = new ArrayList<>();
    for (PaperSweep sweep : sweeps.stream().filter(wantedSweep).toList()) {
      for (BenchCase each : wanted(sweep.ours(quick))) {
        var task = new Task(method, sweep, each);
        boolean wanted = method != Method.PAPER || each.precision().equals(EXACT);
        if (wanted && !file.stands(task.problem())) {
          tasks.add(task);
        }
      }
    }
    tasks.sort(Comparator.comparing(task -> file.has(task.problem())));
    return tasks;
  }

  private List<BenchCase> wanted(List<BenchCase> cases) {
    return cases.stream()
        .filter(each -> tokens.isEmpty() || tokens.contains(each.shape().tokens()))
        .filter(each -> dtypes.isEmpty() || dtypes.contains(each.precision().dtype()))
        .toList();
  }

  private static boolean isTimed(PaperSweep sweep) {
    return sweep != PaperSweep.MOVEMENT;
  }

  private List<Task> missingCounts(PointFile file) {
    List<Task> tasks = new ArrayList<>();
    for (Method method : List.of(Method.LINATTN, Method.PAPER)) {
      tasks.addAll(missing(file, method, PaperSweep.MOVEMENT::equals));
    }
    return tasks;
  }

  /** Counts until ncu refuses; what has no kernels here gets no point. */
  private void count(
      DataMovement movement, List<Task> tasks, Run run, PointFile file, Progress progress)
      throws IOException {
    Run counted = run.with(Map.of("ncu", movement.version()));
    Map<Task, List<String>> kernels = kernels(tasks);
    for (Task task : tasks) {
      List<String> ofCall = kernels.getOrDefault(task, List.of());
      try {
        if (!ofCall.isEmpty()) {
          Ncu.Call call = movement.count(task.each, task.method, ofCall);
          file.put(counted, BenchPoints.of(task.each, task.sweep.title(), task.method, call));
        }
      } catch (Ncu.RefusedException refused) {
        console.note(Text.format("movement ends here: %s", Text.message(refused)));
        return;
      }
      progress.step(task.problem().title());
    }
  }

  /** As planned; the GPU is free again when ncu begins. */
  private Map<Task, List<String>> kernels(List<Task> tasks) {
    Map<Task, List<String>> kernels = new HashMap<>();
    for (Method method : tasks.stream().map(Task::method).distinct().toList()) {
      String family = method == Method.PAPER ? KernelFamily.PAPER : KernelFamily.CHUNKED;
      try (Backend gpu = KernelFamily.open(family, BackendChoice.CUDA, console)) {
        var bench = BenchRun.onGpu(gpu);
        tasks.stream()
            .filter(task -> task.method == method)
            .forEach(task -> kernels.put(task, bench.kernels(task.each)));
      }
    }
    return kernels;
  }

  private static void requireKnown(List<String> peers) {
    for (String peer : peers) {
      if (!Peers.METHODS.contains(peer)) {
        throw CommandFailure.misuse(
            "--peers knows no '%s'; there are %s", peer, String.join(", ", Peers.METHODS));
      }
    }
  }

  private <T extends Comparable<? super T>> void requireMeasured(
      String option, List<T> wanted, Function<BenchCase, T> axis) {
    List<T> measured =
        sweeps.stream()
            .flatMap(sweep -> sweep.ours(quick).stream())
            .map(axis)
            .distinct()
            .sorted()
            .toList();
    for (T each : wanted) {
      if (!measured.contains(each)) {
        throw CommandFailure.misuse("%s: no point has %s; there are %s", option, each, measured);
      }
    }
  }

  /**
   * One peer after the other, and each with one type after the other: what some compile and tune
   * for minutes holds up nothing else.
   */
  private List<Problem> missingOfPeers(PointFile file, boolean gpu) {
    List<Problem> problems = new ArrayList<>();
    List<String> wanted =
        Peers.METHODS.stream().filter(each -> peers.isEmpty() || peers.contains(each)).toList();
    for (String method : wanted) {
      String name = gpu ? method : Method.onCpu(method);
      sweeps.stream()
          .flatMap(
              sweep ->
                  wanted(sweep.peers(quick)).stream()
                      .map(each -> each.problem(sweep.title(), name)))
          .filter(problem -> !file.stands(problem))
          .sorted(Comparator.comparing(Problem::dtype))
          .forEach(problems::add);
    }
    problems.sort(Comparator.comparing(file::has));
    return problems;
  }

  private void timePeers(
      List<Problem> problems, boolean gpu, Run run, PointFile file, Progress progress)
      throws IOException {
    Path home = Path.of(System.getProperty("linattn.home", ""));
    Set<String> told = new HashSet<>();
    new Peers(python == null ? "python3" : python, home, out.resolve("peers.log"))
        .time(
            problems,
            gpu ? "cuda" : "cpu",
            (point, versions) -> {
              file.put(run.with(versions), point);
              tellMissing(point, versions, told);
              progress.step(point.problem().title());
            });
  }

  /** One note for each package that peers need and Python can't import. */
  private void tellMissing(Point point, Map<String, String> versions, Set<String> told) {
    boolean ofFla = point.problem().method().startsWith("fla ") && versions.containsKey("torch");
    String needed = ofFla ? "fla" : "torch";
    boolean missing = point.status() == Status.MISSING && !versions.containsKey(needed);
    if (missing && told.add(needed)) {
      String cure = versions.isEmpty() ? "" : "; --python names another Python";
      console.note("peers that need " + needed + " are left out: " + point.why() + cure);
    }
  }

  /** Whether the device still answers; after a failure of CUDA it does no more in this process. */
  private boolean time(
      Backend backend, List<Task> tasks, Run run, PointFile file, Progress progress)
      throws IOException {
    BenchRun bench =
        backend.memoryKind() == MemoryKind.DEVICE
            ? BenchRun.onGpu(backend)
            : new BenchRun(backend, BenchPaperCommand::freeMemory);
    for (Task task : tasks) {
      try {
        for (Point point : points(bench, task)) {
          file.put(run, point);
        }
      } catch (CudaException failure) {
        file.put(run, BenchPoints.of(task.each, task.sweep.title(), task.method, failure));
        console.note(
            Text.format(
                "%s: %s; run the command again for the points left",
                task.problem().title(), Text.message(failure)));
        return false;
      }
      progress.step(task.problem().title());
    }
    return true;
  }

  /** Bytes that can be had without swapping, where the system tells; else those that are unused. */
  private static long freeMemory() {
    try (Stream<String> lines = Files.lines(Path.of("/proc/meminfo"))) {
      Optional<Long> available =
          lines
              .filter(line -> line.startsWith("MemAvailable:"))
              .map(line -> Long.parseLong(line.replaceAll("\\D", "")) * 1024)
              .findFirst();
      if (available.isPresent()) {
        return available.get();
      }
    } catch (IOException | UncheckedIOException e) {
      // not Linux
    }
    return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean())
        .getFreeMemorySize();
  }

  private static List<Point> points(BenchRun bench, Task task) {
    try {
      return BenchPoints.of(bench.run(task.each), task.sweep.title(), task.method);
    } catch (UnsupportedOperationException
        | BenchRun.NoRoomException
        | CudaOutOfMemoryException no) {
      return List.of(BenchPoints.of(task.each, task.sweep.title(), task.method, no));
    }
  }
}
