package io.github.linattn.cli;

import java.util.Locale;

/** Text that does not depend on where it is printed. */
final class Text {
  private Text() {}

  static String format(String sentence, Object... values) {
    return values.length == 0 ? sentence : String.format(Locale.ROOT, sentence, values);
  }

  /** The name as it stands on the command line. */
  static String id(Enum<?> value) {
    return value.name().toLowerCase(Locale.ROOT);
  }

  /** What a failure says, or what it is. */
  static String message(Throwable failure) {
    String message = failure.getMessage();
    return message == null ? failure.getClass().getSimpleName() : message;
  }

  /** With newlines escaped as {@link Console} does what moves the cursor: names hold anything. */
  static String oneLine(String text) {
    return text.replace("\n", "\\u000a");
  }

  /** What is refused, without the list of what is not. */
  static String firstClause(Throwable failure) {
    return message(failure).split("[;.] ", 2)[0];
  }

  static String millis(long nanos) {
    return format("%.2f ms", nanos / 1e6);
  }
}
