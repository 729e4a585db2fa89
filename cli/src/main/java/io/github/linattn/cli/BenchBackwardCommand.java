package io.github.linattn.cli;

import java.io.IOException;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.stream.Stream;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;
import picocli.CommandLine.Option;

/** {@code linattn bench backward}: the backward beside a copy of as many bytes. */
@Command(
    name = "backward",
    mixinStandardHelpOptions = true,
    versionProvider = Version.class,
    sortOptions = false,
    description = {
      "Time backwards on GPU 0 beside a copy of as many bytes (q, k, v, o, dO, dq, dk and dv once"
          + " each) in the same process, and check their gradients against a plain computation in"
          + " double precision.",
      "Exit code 1 if a gradient is wrong. Lists are separated by commas."
    })
final class BenchBackwardCommand implements Callable<Integer> {
  private final Console console;

  @Mixin private BenchOptions options = new BenchOptions();

  @Option(
      names = "--with-forward",
      description =
          "a second row of each case: a forward and its backward, one behind the other, beside a"
              + " copy of the bytes of both")
  private boolean withForward;

  @Option(
      names = "--keep-state",
      description =
          "start from what a forward keeps, as training with keepState does: one sweep where that is"
              + " faster, no sums of segments of few heads, and with --non-causal none of k and v")
  private boolean keepState;

  BenchBackwardCommand(Console console) {
    this.console = console;
  }

  @Override
  public Integer call() throws IOException {
    return new BenchTable(console, options, BenchPass.BACKWARD).run(cases());
  }

  /** What the options ask for, in the order of the table. */
  List<BenchCase> cases() {
    List<BenchCase> cases = options.cases(BenchPass.BACKWARD);
    if (keepState) {
      cases = cases.stream().map(BenchCase::keepingState).distinct().toList();
    }
    return withForward
        ? cases.stream().flatMap(each -> Stream.of(each, each.with(BenchPass.BOTH))).toList()
        : cases;
  }
}
