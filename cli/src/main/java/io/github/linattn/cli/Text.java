package io.github.linattn.cli;

import java.io.IOException;
import java.nio.charset.CharacterCodingException;
import java.nio.file.AccessDeniedException;
import java.nio.file.FileSystemException;
import java.nio.file.NoSuchFileException;
import java.util.Locale;
import java.util.Objects;

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

  /** Why a file can't be read or written, without its name where the system gave the reason. */
  static String reason(IOException failure) {
    return switch (failure) {
      case NoSuchFileException none -> "no such file";
      case AccessDeniedException denied -> "permission denied";
      case CharacterCodingException other -> "it is not UTF-8";
      case FileSystemException other ->
          Objects.requireNonNullElse(other.getReason(), other.toString());
      default -> message(failure);
    };
  }

  /** What is refused, without the list of what is not. */
  static String firstClause(Throwable failure) {
    return message(failure).split("[;.] ", 2)[0];
  }

  static String millis(long nanos) {
    return format("%.2f ms", nanos / 1e6);
  }
}
