package io.github.linattn.files;

import static java.nio.file.StandardOpenOption.CREATE;
import static java.nio.file.StandardOpenOption.WRITE;

import java.io.IOException;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import org.jspecify.annotations.Nullable;

/** A file that several processes read, change and write again, one after the other. */
public final class LockedFile {
  private LockedFile() {}

  /** What one does while the others wait. */
  public interface Change {
    /** Reads the file and writes it. */
    void make() throws IOException;
  }

  /**
   * Makes a change while no other thread and no other process makes one of the same file, which may
   * have several names. For that a lock stays beside the file itself: were it removed, one might
   * wait for the lock that is gone while another takes a new one. Changes are not nested.
   */
  public static synchronized void change(Path name, Change change) throws IOException {
    try (FileChannel held = lock(name)) { // a process holds it: threads wait at the method
      change.make();
    }
  }

  /** Where there can be no lock, two might lose what the other wrote, as without one. */
  private static @Nullable FileChannel lock(Path name) {
    FileChannel channel = null;
    try {
      Path file = WholeFile.named(name);
      Path lock = file.resolveSibling("." + file.getFileName() + ".lock");
      channel = FileChannel.open(lock, CREATE, WRITE);
      channel.lock();
    } catch (IOException none) {
      // its name is too long, it is another's, or the file system knows no locks
    }
    return channel;
  }
}
