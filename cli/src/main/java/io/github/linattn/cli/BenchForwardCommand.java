package io.github.linattn.cli;

import java.io.IOException;
import java.util.List;
import java.util.concurrent.Callable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Mixin;

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
  private final Console console;

  @Mixin private BenchOptions options = new BenchOptions();

  BenchForwardCommand(Console console) {
    this.console = console;
  }

  @Override
  public Integer call() throws IOException {
    return new BenchTable(console, options, BenchPass.FORWARD).run(cases());
  }

  /** What the options ask for, in the order of the table. */
  List<BenchCase> cases() {
    return options.cases(BenchPass.FORWARD);
  }
}
