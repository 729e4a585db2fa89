package io.github.linattn.cli;

import java.util.concurrent.Callable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Spec;

/** {@code linattn bench} alone: says what can be measured. */
@Command(
    name = "bench",
    mixinStandardHelpOptions = true,
    versionProvider = Version.class,
    description =
        "Measure time and memory beside what copying the tensors takes: forward and backward on a"
            + " GPU, paper on a CPU too; figures draws what was measured.",
    synopsisSubcommandLabel = "COMMAND")
final class BenchCommand implements Callable<Integer> {
  private final Console console;

  @Spec private CommandSpec spec;

  @SuppressWarnings("NullAway.Init") // picocli fills in the spec
  BenchCommand(Console console) {
    this.console = console;
  }

  @Override
  public Integer call() {
    spec.commandLine().usage(console.err());
    return ExitCode.MISUSED;
  }
}
