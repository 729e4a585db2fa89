package io.github.linattn.cli;

import java.io.PrintStream;
import java.util.regex.MatchResult;
import java.util.regex.Pattern;

/**
 * Where a command speaks.
 *
 * @param out results, and nothing else
 * @param err notes, progress and refusals
 */
record Console(PrintStream out, PrintStream err) {
  private static final Pattern CONTROL = Pattern.compile("[\\p{Cntrl}&&[^\n\t]]");

  /** One line of result; a format if there are values. */
  void result(String line, Object... values) {
    out.println(Text.format(line, values));
  }

  /**
   * One line beside the result; names in files may hold anything, and none is to move the cursor.
   */
  void note(String line) {
    err.println(CONTROL.matcher(line).replaceAll(Console::escaped));
  }

  private static String escaped(MatchResult control) {
    return "\\\\u%04x".formatted((int) control.group().charAt(0));
  }
}
