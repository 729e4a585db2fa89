package io.github.linattn.cli;

import io.github.linattn.files.FileReason;
import io.github.linattn.files.WholeFile;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.attribute.BasicFileAttributes;

/** The file that an option {@code --out} names. */
final class OutFile {
  private OutFile() {}

  /**
   * Refuses what can't be written or replaced, before there is anything to write.
   *
   * @throws CommandFailure if it can't be
   */
  static void check(Path file) {
    if (file.toString().isEmpty()) {
      throw CommandFailure.misuse("--out is empty; name a file");
    }
    if (Files.exists(file) && !Files.isRegularFile(file) && !Files.isDirectory(file)) {
      throw CommandFailure.misuse("--out %s is not a regular file; name another", file);
    }
    Path folder = target(file).toAbsolutePath().getParent();
    if (folder == null || Files.isDirectory(file)) {
      throw CommandFailure.misuse("--out %s is a folder; name a file", file);
    }
    if (!Files.isDirectory(folder)) {
      throw CommandFailure.misuse("--out %s: there is no folder %s", file, folder);
    }
    if (!Files.isWritable(folder)) {
      throw CommandFailure.misuse("--out %s: the folder %s is not writable", file, folder);
    }
    try {
      Files.readAttributes(file, BasicFileAttributes.class);
    } catch (NoSuchFileException none) {
      // as it should be
    } catch (IOException impossible) { // a name that is too long
      throw CommandFailure.misuse("--out %s: %s", file, FileReason.of(impossible));
    }
  }

  private static Path target(Path file) {
    try {
      return WholeFile.named(file);
    } catch (IOException unreadable) {
      throw CommandFailure.misuse("--out %s: %s", file, FileReason.of(unreadable));
    }
  }
}
