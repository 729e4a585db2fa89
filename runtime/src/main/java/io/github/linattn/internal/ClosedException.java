package io.github.linattn.internal;

/** A call came to a stream or a backend that was closed before; it has written nothing. */
public final class ClosedException extends IllegalStateException {
  private static final long serialVersionUID = 1;

  /**
   * Tells what is closed.
   *
   * @param where the line that closed it
   */
  public ClosedException(String message, Throwable where) {
    super(message, where);
  }
}
