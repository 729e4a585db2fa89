package io.github.linattn.cli;

import io.github.linattn.files.FileReason;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

/** The folder that an option {@code --out} names. */
final class OutFolder {
  private OutFolder() {}

  /** Refuses an empty name, which would be that of the current folder. */
  static void requireName(Path folder) {
    if (folder.toString().isEmpty()) {
      throw CommandFailure.misuse("--out is empty; name a folder");
    }
  }

  /**
   * The folder itself, made if it is not there, and to be written to.
   *
   * @throws CommandFailure if it can't be
   */
  static Path make(Path folder) {
    requireName(folder);
    if (Files.exists(folder) && !Files.isDirectory(folder)) {
      throw CommandFailure.misuse("--out %s is a file; name a folder", folder);
    }
    try {
      Files.createDirectories(folder);
    } catch (IOException cantMake) {
      throw CommandFailure.misuse(
          "--out %s: can't make this folder: %s", folder, FileReason.of(cantMake));
    }
    if (!Files.isWritable(folder)) {
      throw CommandFailure.misuse("the folder %s is not writable; --out names another", folder);
    }
    return folder;
  }
}
