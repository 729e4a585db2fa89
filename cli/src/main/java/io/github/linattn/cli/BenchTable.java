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
import org.jspecify.annotations.Nullable;

/** Times cases on GPU 0 one after the other, shows a row of each and writes the file. */
final class BenchTable {
  private final Console console;
  private final BenchOptions options;
  private final BenchPass pass;

  /**
   * For one command.
   *
   * @param pass whose figures the columns are
   */
  BenchTable(Console console, BenchOptions options, BenchPass pass) {
    this.console = console;
    this.options = options;
    this.pass = pass;
  }

  /** Gives the exit code. */
  int run(List<BenchCase> cases) throws IOException {
    PointFile file = options.json == null ? null : BenchPoints.open(options.json);
    try (Backend gpu = open(options.family);
        Backend paper = options.besidePaper ? open(KernelFamily.PAPER) : null) {
      return run(gpu, paper, cases, file);
    }
  }

  private Backend open(String family) {
    return KernelFamily.open(family, BackendChoice.CUDA, console);
  }

  private int run(
      Backend gpu, @Nullable Backend paper, List<BenchCase> cases, @Nullable PointFile file)
      throws IOException {
    Run here = Machine.gpu();
    List<BenchResult> results = new ArrayList<>();
    BenchReport.head(here, options.family, pass, options.sustainedSeconds())
        .forEach(line -> console.result("%s", line));
    try (var progress = new Progress(console.err(), "timing")) {
      progress.expect(cases.size());
      var run = BenchRun.onGpu(gpu, options.allPlans(), options.sustainedSeconds());
      var beside = paper == null ? null : BenchRun.onGpu(paper, false, options.sustainedSeconds());
      boolean isPaper = options.family.equals(KernelFamily.PAPER);
      Method method = isPaper ? Method.PAPER : Method.LINATTN;
      for (BenchCase each : cases) {
        put(file, here, time(run, each, method, results));
        if (beside != null && beside.does(each)) {
          put(file, here, time(beside, each, Method.PAPER, results));
        }
        progress.step(each.name());
      }
      for (HostTime host : timeHost(gpu, cases)) {
        put(file, here, List.of(BenchPoints.of(host)));
      }
    }
    if (options.allPlans()) {
      console.result("%s", BenchReport.planner(results));
    }
    boolean right = !results.isEmpty() && results.stream().allMatch(BenchResult::right);
    return right ? ExitCode.DONE : ExitCode.FAILED;
  }

  private static void put(@Nullable PointFile file, Run run, List<Point> points)
      throws IOException {
    if (file != null) {
      for (Point point : points) {
        file.put(run, point);
      }
    }
  }

  private List<Point> time(BenchRun run, BenchCase each, Method method, List<BenchResult> results) {
    try {
      BenchResult result = run.run(each);
      results.add(result);
      BenchReport.rows(result).forEach(row -> console.result("%s", row));
      return BenchPoints.of(result, sweep(), method);
    } catch (UnsupportedOperationException
        | BenchRun.NoRoomException
        | CudaOutOfMemoryException no) {
      console.result("%s", BenchReport.leftOut(each, Text.firstClause(no)));
      return List.of(BenchPoints.of(each, sweep(), method, no));
    }
  }

  private String sweep() {
    double seconds = options.sustainedSeconds();
    return seconds > 0 ? BenchCase.sustained(seconds) : BenchCase.NO_SWEEP;
  }

  /** Once for each type among the cases. */
  private List<HostTime> timeHost(Backend gpu, List<BenchCase> cases) {
    Set<DType> types = new LinkedHashSet<>();
    cases.forEach(each -> types.add(each.precision().dtype()));
    List<HostTime> hosts = new ArrayList<>();
    for (DType dtype : types) {
      try {
        HostTime host = HostTime.measure(gpu, dtype, pass);
        console.result("%s", BenchReport.host(host));
        hosts.add(host);
      } catch (UnsupportedOperationException notBuilt) {
        console.note(Text.format("no host time of %s: %s", Text.id(dtype), Text.message(notBuilt)));
      }
    }
    return hosts;
  }
}
