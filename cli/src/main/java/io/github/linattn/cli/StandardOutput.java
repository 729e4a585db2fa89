package io.github.linattn.cli;

import io.github.linattn.files.FileReason;
import java.io.FilterOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import org.jspecify.annotations.Nullable;

/**
 * The standard output, which remembers why it could not take all results; a stream of text does
 * not.
 */
final class StandardOutput extends FilterOutputStream {
  /** What the system says where the reader has gone, as behind {@code | head -1}. */
  private static final String NOBODY_READS = "Broken pipe";

  private @Nullable IOException failure;

  StandardOutput(OutputStream stream) {
    super(stream);
  }

  @Override
  public synchronized void write(int single) throws IOException {
    write(new byte[] {(byte) single}, 0, 1);
  }

  @Override
  public synchronized void write(byte[] bytes, int start, int length) throws IOException {
    try {
      out.write(bytes, start, length);
    } catch (IOException e) {
      failure = failure == null ? e : failure;
      throw e;
    }
  }

  /**
   * The exit code of a command that ended with {@code status}: another one where its results are
   * lost, which is told.
   */
  synchronized int ended(int status, PrintStream err) {
    if (failure == null || NOBODY_READS.equals(failure.getMessage())) {
      return status;
    }
    err.println("linattn: can't write the results: " + FileReason.of(failure));
    return status == ExitCode.DONE ? ExitCode.FAILED : status;
  }
}
