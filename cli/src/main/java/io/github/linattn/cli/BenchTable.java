package io.github.linattn.cli;

import io.github.linattn.Backend;
import io.github.linattn.DType;
import io.github.linattn.cli.points.Point;
import io.github.linattn.cli.points.PointFile;
import io.github.linattn.cli.points.Run;
import io.github.linattn.cuda.CudaOutOfMemoryException;
import java.io.IOException;
import java.util.ArrayList;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Set;
import java.util.function.Supplier;
import org.jspecify.annotations.Nullable;

/** Times cases on GPU 0 one after the other, shows a row of each and writes the file. */
final class BenchTable {
  /** The runtime reads it when it opens a GPU. */
  private static final String FAMILY = "linattn.family";

  private static final String PAPER = "paper";

  /** The figure that these points belong to: none. */
  private static final String NO_SWEEP = "";

  private final Console console;
  private final BenchOptions options;
  private final BenchPass pass;
  private final boolean allPlans;

  /**
   * For one command.
   *
   * @param pass whose figures the columns are
   * @param allPlans whether to time what the planner did not choose, too
   */
  BenchTable(Console console, BenchOptions options, BenchPass pass, boolean allPlans) {
    this.console = console;
    this.options = options;
    this.pass = pass;
    this.allPlans = allPlans;
  }

  /** Gives the exit code. */
  int run(List<BenchCase> cases) throws IOException {
    try (Backend gpu = open(options.family);
        Backend paper = options.besidePaper ? open(PAPER) : null) {
      return run(gpu, paper, cases);
    }
  }

  private Backend open(String family) {
    return withFamily(family, () -> BackendChoice.CUDA.open(console));
  }

  private static <T> T withFamily(String family, Supplier<T> work) {
    String before = System.setProperty(FAMILY, family);
    try {
      return work.get();
    } finally {
      if (before == null) {
        System.clearProperty(FAMILY);
      } else {
        System.setProperty(FAMILY, before);
      }
    }
  }

  private int run(Backend gpu, @Nullable Backend paper, List<BenchCase> cases) throws IOException {
    Run here = Machine.gpu();
    var output = options.json == null ? null : new Output(PointFile.open(options.json), here);
    List<BenchResult> results = new ArrayList<>();
    BenchReport.head(here, options.family, pass).forEach(line -> console.result("%s", line));
    try (var progress = new Progress(console.err(), "timing")) {
      progress.expect(cases.size());
      var run = BenchRun.onGpu(gpu, allPlans);
      var beside = paper == null ? null : BenchRun.onGpu(paper, false);
      String method = options.family.equals(PAPER) ? BenchPoints.PAPER : BenchPoints.OURS;
      for (BenchCase each : cases) {
        time(run, each, method, results, output);
        if (beside != null && beside.does(each)) {
          time(beside, each, BenchPoints.PAPER, results, output);
        }
        progress.step(each.name());
      }
      timeHost(gpu, cases, output);
    }
    if (allPlans) {
      console.result("%s", BenchReport.planner(results));
    }
    boolean right = !results.isEmpty() && results.stream().allMatch(BenchResult::right);
    return right ? ExitCode.DONE : ExitCode.FAILED;
  }

  /** Where the points of this run go. */
  private static final class Output {
    private final PointFile file;
    private final int run;

    Output(PointFile file, Run run) {
      this.file = file;
      this.run = file.add(run);
    }

    void put(List<Point> points) throws IOException {
      for (Point point : points) {
        file.put(run, point);
      }
    }
  }

  private void time(
      BenchRun run,
      BenchCase each,
      String method,
      List<BenchResult> results,
      @Nullable Output output)
      throws IOException {
    List<Point> points;
    try {
      BenchResult result = run.run(each);
      results.add(result);
      BenchReport.rows(result).forEach(row -> console.result("%s", row));
      points = BenchPoints.of(result, NO_SWEEP, method);
    } catch (UnsupportedOperationException
        | BenchRun.NoRoomException
        | CudaOutOfMemoryException no) {
      console.result("%s", BenchReport.leftOut(each, Text.firstClause(no)));
      points = List.of(BenchPoints.of(each, NO_SWEEP, method, no));
    }
    if (output != null) {
      output.put(points);
    }
  }

  /** Once for each type among the cases. */
  private void timeHost(Backend gpu, List<BenchCase> cases, @Nullable Output output)
      throws IOException {
    Set<DType> types = new LinkedHashSet<>();
    cases.forEach(each -> types.add(each.precision().dtype()));
    for (DType dtype : types) {
      try {
        HostTime host = HostTime.measure(gpu, dtype, pass);
        console.result("%s", BenchReport.host(host));
        if (output != null) {
          output.put(List.of(BenchPoints.of(host)));
        }
      } catch (UnsupportedOperationException notBuilt) {
        console.note(Text.format("no host time of %s: %s", Text.id(dtype), Text.message(notBuilt)));
      }
    }
  }
}
