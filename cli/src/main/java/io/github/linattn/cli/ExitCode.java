package io.github.linattn.cli;

/** What a command tells the shell. */
final class ExitCode {
  static final int DONE = 0;
  static final int FAILED = 1;
  static final int MISUSED = 2;
  static final int NO_GPU = 3;

  private ExitCode() {}
}
