package io.github.linattn;

/** A mark in a {@link Stream}. May be read by any thread. */
public interface Event extends AutoCloseable {

  /** Waits until the mark is reached. */
  void synchronize();

  /**
   * Time from {@code earlier} to this mark in milliseconds, as the device measured it. Both marks
   * are of the same backend and have been reached.
   */
  double millisSince(Event earlier);

  @Override
  void close();
}
