package io.github.linattn.cli;

import io.github.linattn.Backend;
import io.github.linattn.DType;
import io.github.linattn.cuda.CudaOutOfMemoryException;
import java.io.IOException;
import java.nio.file.Files;
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
  private static final double MOST_MILLIS_OF_PAPER = 1000;

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
    BenchMachine machine = BenchMachine.here(options.family);
    List<BenchResult> results = new ArrayList<>();
    List<HostTime> hosts = new ArrayList<>();
    BenchReport.head(machine, pass).forEach(line -> console.result("%s", line));
    try (var progress = new Progress(console.err(), "timing")) {
      progress.expect(cases.size());
      var run = BenchRun.onGpu(gpu, allPlans, Double.POSITIVE_INFINITY);
      var beside = paper == null ? null : BenchRun.onGpu(paper, false, MOST_MILLIS_OF_PAPER);
      for (BenchCase each : cases) {
        time(run, each, results);
        if (beside != null && beside.does(each)) {
          time(beside, each, results);
        }
        progress.step(each.name());
      }
      timeHost(gpu, cases, hosts);
    } finally {
      if (options.json != null) {
        Files.writeString(options.json, BenchJson.text(machine, results, hosts));
      }
    }
    if (allPlans) {
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
        HostTime host = HostTime.measure(gpu, dtype, pass);
        hosts.add(host);
        console.result("%s", BenchReport.host(host));
      } catch (UnsupportedOperationException notBuilt) {
        console.note(Text.format("no host time of %s: %s", Text.id(dtype), Text.message(notBuilt)));
      }
    }
  }
}
