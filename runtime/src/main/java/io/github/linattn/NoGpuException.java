package io.github.linattn;

/**
 * A GPU was asked for by name and none can be used here. The message says why, what was tried and
 * what would help.
 */
public final class NoGpuException extends RuntimeException {
  private static final long serialVersionUID = 1L;

  /** The message is for a person. */
  public NoGpuException(String message) {
    super(message);
  }
}
