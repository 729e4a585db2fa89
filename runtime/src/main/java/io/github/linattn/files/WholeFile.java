package io.github.linattn.files;

import static java.nio.charset.StandardCharsets.UTF_8;
import static java.nio.file.StandardCopyOption.ATOMIC_MOVE;
import static java.nio.file.StandardOpenOption.CREATE_NEW;
import static java.nio.file.StandardOpenOption.WRITE;

import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.nio.ByteBuffer;
import java.nio.channels.ClosedByInterruptException;
import java.nio.channels.FileChannel;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFileAttributeView;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;

/** Files that are written completely or not at all. For any thread. */
public final class WholeFile {
  private static final long PIECE = 1 << 30;

  /** As many as Linux follows. */
  private static final int MOST_LINKS = 40;

  /** Temporary files of all threads. */
  private static final Set<Path> UNFINISHED = ConcurrentHashMap.newKeySet();

  private WholeFile() {}

  /** Writes what a file consists of. */
  public interface Content {
    /** Writes all of it, in order. */
    void write(FileChannel channel) throws IOException;
  }

  /**
   * Writes a temporary file beside the target and moves it into place, so that the target is either
   * complete or as it was before, for whoever reads meanwhile, too. Of a symbolic link it is the
   * file that it leads to.
   *
   * @throws FileSystemException if it can't be written; it names the target
   */
  public static void write(Path name, Content content) throws IOException {
    writeAll(Map.of(name, content));
  }

  /**
   * Writes several files as {@link #write(Path, Content)} does one. None is moved into place before
   * all are written: if one can't be, all targets are as they were before.
   *
   * @param files in the order in which they are written
   * @throws FileSystemException if one can't be written; it names the target
   */
  public static void writeAll(Map<Path, Content> files) throws IOException {
    List<Part> parts = new ArrayList<>();
    try {
      for (Map.Entry<Path, Content> file : files.entrySet()) {
        Part part = Part.beside(file.getKey());
        parts.add(part);
        part.change(() -> part.write(file.getValue()));
      }
      for (Part part : parts) {
        part.change(() -> Files.move(part.temporary, part.target, ATOMIC_MOVE));
      }
    } finally {
      for (Part part : parts) {
        Files.deleteIfExists(part.temporary);
        UNFINISHED.remove(part.temporary);
      }
    }
  }

  /** A temporary file and the target that it becomes, which has the name that the caller gave. */
  private record Part(Path name, Path target, Path temporary) {
    static Part beside(Path name) throws IOException {
      if (Files.exists(name) && !Files.isRegularFile(name)) {
        throw new FileSystemException(name.toString(), null, "not a regular file");
      }
      Path target = named(name);
      Path temporary = target.resolveSibling("." + UUID.randomUUID() + ".part");
      UNFINISHED.add(temporary);
      return new Part(name, target, temporary);
    }

    void write(Content content) throws IOException {
      try (FileChannel channel = FileChannel.open(temporary, CREATE_NEW, WRITE)) {
        copyPermissions(target, temporary);
        content.write(channel);
      }
    }

    /** Lets a failure tell of the name, not of the temporary file. */
    void change(Change change) throws IOException {
      try {
        change.run();
      } catch (NoSuchFileException gone) {
        throw new NoSuchFileException(
            name.toString(), null, "there is no folder for it, or not any more");
      } catch (ClosedByInterruptException interrupted) {
        throw new IOException(
            name + " is not written, because the thread is interrupted", interrupted);
      } catch (IOException failure) {
        var told = new FileSystemException(name.toString(), null, FileReason.of(failure));
        told.initCause(failure);
        throw told;
      }
    }
  }

  private interface Change {
    void run() throws IOException;
  }

  /** Gives it the permission bits of the file that it will replace, where there is one. */
  private static void copyPermissions(Path target, Path temporary) throws IOException {
    var found = Files.getFileAttributeView(target, PosixFileAttributeView.class);
    if (found != null) {
      try {
        Files.setPosixFilePermissions(temporary, found.readAttributes().permissions());
      } catch (NoSuchFileException none) {
        // as whoever runs this creates files
      }
    }
  }

  /**
   * Deletes what is unfinished, of all threads. For a program that a signal ends, whose threads do
   * not reach their {@code finally}; it calls this when nobody is to write any more.
   */
  public static void deleteUnfinished() {
    for (Path temporary : UNFINISHED) {
      try {
        Files.deleteIfExists(temporary);
      } catch (IOException stays) {
        // nobody is left to be told
      }
    }
  }

  /** The file that a name leads to, which need not exist. */
  public static Path named(Path name) throws IOException {
    if (Files.exists(name)) {
      return name.toRealPath();
    }
    Path target = name;
    for (int i = 0; i < MOST_LINKS && Files.isSymbolicLink(target); i++) {
      target = target.resolveSibling(Files.readSymbolicLink(target));
    }
    return target;
  }

  /**
   * Writes a file of text in UTF-8. Whoever reads {@code target} meanwhile sees it as it was before
   * or complete; after a failure it is as it was before, and nothing is left beside it.
   *
   * @throws IOException if the folder of {@code target} does not exist or can't be written to, or
   *     {@code target} is no regular file
   */
  public static void write(Path target, String text) throws IOException {
    write(target, channel -> append(channel, UTF_8.encode(text)));
  }

  /** Appends bytes that lie off-heap or in a {@code byte[]}. */
  public static void append(FileChannel channel, MemorySegment data) throws IOException {
    for (long at = 0; at < data.byteSize(); at += PIECE) {
      long bytes = Math.min(PIECE, data.byteSize() - at);
      append(channel, data.asSlice(at, bytes).asByteBuffer());
    }
  }

  /** Appends what remains. */
  public static void append(FileChannel channel, ByteBuffer bytes) throws IOException {
    while (bytes.hasRemaining()) {
      channel.write(bytes);
    }
  }
}
