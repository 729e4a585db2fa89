package io.github.linattn.cli;

/** Ends a command with a sentence for the person who called it and an exit code. */
final class CommandFailure extends RuntimeException {
  private static final long serialVersionUID = 1L;

  private final int exitCode;

  private CommandFailure(int exitCode, String sentence, Throwable cause) {
    super(sentence, cause);
    this.exitCode = exitCode;
  }

  private CommandFailure(int exitCode, String sentence) {
    super(sentence);
    this.exitCode = exitCode;
  }

  /** The input or the options are wrong. The sentence is one line, whatever the values are. */
  static CommandFailure misuse(String sentence, Object... values) {
    return new CommandFailure(ExitCode.MISUSED, Text.oneLine(Text.format(sentence, values)));
  }

  /** The input or the options are wrong, and {@code cause} says how. */
  static CommandFailure misuse(Exception cause) {
    return new CommandFailure(ExitCode.MISUSED, Text.oneLine(Text.message(cause)), cause);
  }

  /** The work itself failed. */
  static CommandFailure failed(String sentence, Exception cause) {
    return new CommandFailure(ExitCode.FAILED, sentence, cause);
  }

  /** The work itself failed. */
  static CommandFailure failed(String sentence) {
    return new CommandFailure(ExitCode.FAILED, sentence);
  }

  /** A GPU was required and there is none to use. */
  static CommandFailure noGpu(Exception cause) {
    return new CommandFailure(ExitCode.NO_GPU, "no usable GPU: " + Text.message(cause), cause);
  }

  int exitCode() {
    return exitCode;
  }
}
