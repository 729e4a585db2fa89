package io.github.linattn.cli;

import io.github.linattn.files.FileReason;
import io.github.linattn.io.Tuning;
import java.io.IOException;
import java.nio.file.Path;
import java.util.concurrent.Callable;
import picocli.CommandLine;
import picocli.CommandLine.Command;
import picocli.CommandLine.Model.CommandSpec;
import picocli.CommandLine.Option;
import picocli.CommandLine.ParameterException;
import picocli.CommandLine.ScopeType;
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

  @Option(
      names = "--tuning",
      paramLabel = "FILE",
      scope = ScopeType.INHERIT,
      description = "plans that 'linattn tune' found fastest on this GPU")
  private void pin(Path file) {
    try {
      Tuning.read(file);
    } catch (IOException unreadable) {
      throw new ParameterException(
          spec.commandLine(),
          Text.format("can't read --tuning %s: %s", file, FileReason.of(unreadable)));
    } catch (IllegalArgumentException wrong) {
      throw new ParameterException(spec.commandLine(), Text.message(wrong));
    }
    System.setProperty(Tuning.PROPERTY, file.toString());
  }

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
