package io.github.linattn.cli;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

/** The folder that an option {@code --out} names. */
final class OutFolder {
  private OutFolder() {}

  /**
   * The folder itself, made if it is not there.
   *
   * @throws CommandFailure if it can't be
   */
  static Path make(Path folder) {
    if (Files.exists(folder) && !Files.isDirectory(folder)) {
      throw CommandFailure.misuse("--out %s is a file; name a folder", folder);
    }
    try {
      return Files.createDirectories(folder);
    } catch (IOException cantMake) {
      throw CommandFailure.misuse(
          "--out %s: can't make this folder: %s", folder, Text.reason(cantMake));
    }
  }
}
