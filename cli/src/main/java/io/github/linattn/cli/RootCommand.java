package io.github.linattn.cli;

import java.util.concurrent.Callable;
import picocli.CommandLine;
import picocli.CommandLine.Command;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Spec;

/** {@code linattn} alone: says what there is. */
@Command(
    name = "linattn",
    mixinStandardHelpOptions = true,
    versionProvider = Version.class,
    description = "Linear attention f(x) = a + b x, forward and backward, on CPU and GPU.",
    synopsisSubcommandLabel = "COMMAND",
    footer = {
      "",
      "Exit codes: 0 done, 1 check failed, 2 wrong usage or bad input, 3 no usable GPU",
      "where one was required. Results go to stdout, everything else to stderr."
    })
final class RootCommand implements Callable<Integer> {
  private final Console console;

  @Spec private CommandSpec spec;

  @SuppressWarnings("NullAway.Init") // picocli fills in the spec
  RootCommand(Console console) {
    this.console = console;
  }

  @Override
  public Integer call() {
    CommandLine self = spec.commandLine();
    self.usage(console.err());
    return ExitCode.MISUSED;
  }
}
