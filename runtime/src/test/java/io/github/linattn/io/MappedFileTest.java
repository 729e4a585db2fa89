package io.github.linattn.io;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.github.linattn.files.WholeFile;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CyclicBarrier;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Breaks when closing a file from two threads is more than closing it. */
final class MappedFileTest {
  private static final int ROUNDS = 500;

  @TempDir private Path folder;

  @Test
  void twoThreadsMayCloseIt() throws IOException {
    Path file = Files.writeString(folder.resolve("x"), "abc");
    var start = new CyclicBarrier(2);
    for (int i = 0; i < ROUNDS; i++) {
      MappedFile mapped = MappedFile.open(file);
      CompletableFuture<Void> other = CompletableFuture.runAsync(() -> closeAt(start, mapped));
      closeAt(start, mapped);
      other.join();
      assertThat(mapped.bytes().scope().isAlive()).isFalse();
    }
  }

  @Test
  void anInterruptedThreadIsToldWhichFileIsNotThere() throws IOException {
    Path file = Files.writeString(folder.resolve("x"), "abc");
    Thread.currentThread().interrupt();
    try {
      assertThatThrownBy(() -> MappedFile.open(file))
          .isInstanceOf(IOException.class)
          .hasMessage(file + " is not opened, because the thread is interrupted");
      assertThatThrownBy(() -> WholeFile.write(file, "new"))
          .isInstanceOf(IOException.class)
          .hasMessage(file + " is not written, because the thread is interrupted");
    } finally {
      assertThat(Thread.interrupted()).isTrue();
    }
    assertThat(file).hasContent("abc");
    assertThat(Files.list(folder)).containsExactly(file);
    assertThatThrownBy(() -> MappedFile.open(null)).hasMessage("file is null");
  }

  private static void closeAt(CyclicBarrier start, MappedFile mapped) {
    try {
      start.await();
    } catch (Exception e) {
      throw new AssertionError(e);
    }
    mapped.close();
  }
}
