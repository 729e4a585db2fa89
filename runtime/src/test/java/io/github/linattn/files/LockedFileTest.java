package io.github.linattn.files;

import static org.assertj.core.api.Assertions.assertThat;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Collections;
import java.util.concurrent.Callable;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Breaks when a change is lost. Processes take turns in the test of files of points. */
final class LockedFileTest {
  private static final int CHANGES = 100;

  @TempDir private Path folder;

  private static void increment(Path file) throws IOException {
    LockedFile.change(
        file,
        () -> {
          int number = Integer.parseInt(Files.readString(file));
          WholeFile.write(file, Integer.toString(number + 1));
        });
  }

  @Test
  void threadsTakeTurns() throws Exception {
    Path file = Files.writeString(folder.resolve("x"), "0");
    Callable<Void> one =
        () -> {
          increment(file);
          return null;
        };
    try (var threads = Executors.newFixedThreadPool(4)) {
      for (Future<Void> each : threads.invokeAll(Collections.nCopies(CHANGES, one))) {
        each.get();
      }
    }
    assertThat(file).hasContent(Integer.toString(CHANGES));
  }

  @Test
  void aFileOfSeveralNamesHasOneLock() throws IOException {
    Path file = Files.writeString(folder.resolve("x"), "0");
    Path link = Files.createSymbolicLink(folder.resolve("link"), file);
    increment(file);
    increment(link);
    assertThat(file).hasContent("2");
    assertThat(folder.toFile().list()).containsExactlyInAnyOrder("x", ".x.lock", "link");
  }

  @Test
  void whatCanHaveNoLockIsChanged() throws IOException {
    Path file = Files.writeString(folder.resolve("x".repeat(255)), "0");
    increment(file);
    assertThat(file).hasContent("1");
  }
}
