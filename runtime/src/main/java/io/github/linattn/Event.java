package io.github.linattn;

/**
 * A mark in a {@link Stream}. May be waited for and read by any threads at once; closed by one,
 * when no other uses it any more.
 */
public interface Event extends AutoCloseable {

  /**
   * Waits until the mark is reached.
   *
   * @throws io.github.linattn.cuda.CudaException if work before it failed
   */
  void synchronize();

  /**
   * Time from {@code earlier} to this mark in milliseconds, as the device measured it. Both marks
   * are of the same backend and have been reached.
   *
   * @throws IllegalArgumentException if {@code earlier} is of another backend
   * @throws io.github.linattn.cuda.CudaException if a GPU has not reached both
   */
  double millisSince(Event earlier);

  @Override
  void close();
}
