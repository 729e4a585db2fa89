package io.github.linattn.cli;

import java.io.PrintStream;

/**
 * Where a command speaks.
 *
 * @param out results, and nothing else
 * @param err notes, progress and refusals
 */
record Console(PrintStream out, PrintStream err) {

  /** One line of result; a format if there are values. */
  void result(String line, Object... values) {
    out.println(Text.format(line, values));
  }

  /** One line beside the result. */
  void note(String line) {
    err.println(line);
  }
}
