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
  private static final Pattern CONTROL = Pattern.compile("[\\p{Cc}&&[^\n\t]]");

  /** One line of result; a format if there are values. */
  void result(String line, Object... values) {
    out.println(escaped(Text.format(line, values)));
  }

  /** One line beside the result. */
  void note(String line) {
    err.println(escaped(line));
  }

  /** Names in files may hold anything, and none is to move the cursor. */
  private static String escaped(String line) {
    return CONTROL.matcher(line).replaceAll(Console::escaped);
  }

  private static String escaped(MatchResult control) {
    return "\\\\u%04x".formatted((int) control.group().charAt(0));
  }
}
