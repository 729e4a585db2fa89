package io.github.linattn.io;

import static java.nio.file.StandardOpenOption.READ;

import io.github.linattn.internal.Leaks;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.channels.ClosedByInterruptException;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.Objects;

/** A whole file in memory, read-only, until it closes. Any thread. */
final class MappedFile implements AutoCloseable {
  private final Arena arena;
  private final MemorySegment bytes;
  private final Leaks.Claim claim;

  private MappedFile(Arena arena, MemorySegment bytes) {
    this.arena = arena;
    this.bytes = bytes;
    this.claim = Leaks.withoutBackend().claim(this, "a mapped file");
  }

  static MappedFile open(Path file) throws IOException {
    Objects.requireNonNull(file, "file is null");
    if (!Files.exists(file)) {
      throw new NoSuchFileException(file.toString(), null, "no such file");
    }
    if (!Files.isRegularFile(file)) {
      throw new IOException(file + " is not a regular file");
    }
    Arena arena = Arena.ofShared();
    try {
      return new MappedFile(arena, map(file, arena));
    } catch (IOException | RuntimeException | Error e) {
      arena.close();
      throw e;
    }
  }

  private static MemorySegment map(Path file, Arena arena) throws IOException {
    try (FileChannel channel = FileChannel.open(file, READ)) {
      return channel.map(FileChannel.MapMode.READ_ONLY, 0, channel.size(), arena);
    } catch (ClosedByInterruptException interrupted) {
      throw new IOException(
          file + " is not opened, because the thread is interrupted", interrupted);
    } catch (UnsupportedOperationException none) {
      throw new IOException(file + " is of a file system whose files can't be mapped", none);
    }
  }

  MemorySegment bytes() {
    return bytes;
  }

  /** Ends the mapping. A second call does nothing, also where two threads close at once. */
  @Override
  public synchronized void close() {
    if (arena.scope().isAlive()) {
      arena.close();
      claim.end();
    }
  }
}
