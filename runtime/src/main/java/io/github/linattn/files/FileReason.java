package io.github.linattn.files;

import java.io.IOException;
import java.nio.charset.CharacterCodingException;
import java.nio.file.AccessDeniedException;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.FileSystemException;
import java.nio.file.NoSuchFileException;
import java.nio.file.NotDirectoryException;
import org.jspecify.annotations.Nullable;

/** What a failure of a file says to a person, who knows of which file. */
public final class FileReason {
  private FileReason() {}

  /** Why a file can't be read or written, without its name where the system gave the reason. */
  public static String of(IOException failure) {
    return switch (failure) {
      case NoSuchFileException none -> "no such file";
      case AccessDeniedException denied -> "permission denied";
      case NotDirectoryException file -> "it is not a folder";
      case FileAlreadyExistsException other -> other.getFile() + " is no folder";
      case CharacterCodingException other -> "it is not UTF-8";
      case FileSystemException other -> orKind(other.getReason(), other);
      default -> orKind(failure.getMessage(), failure);
    };
  }

  /** Where nothing is said, what it is. */
  private static String orKind(@Nullable String said, IOException failure) {
    return said == null ? failure.getClass().getSimpleName() : said;
  }
}
