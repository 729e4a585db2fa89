package io.github.linattn;

/**
 * Work that {@link Stream#capture} noted, to be queued again as a whole on the stream that noted
 * it. Addresses and numbers are those of the capture, token counts of states among them: the
 * tensors stay open as long as the graph. One thread at a time.
 */
public interface Graph extends AutoCloseable {

  /**
   * Queues the work; returns before it is done.
   *
   * @throws IllegalStateException if the stream, the backend or a tensor of the work is closed
   */
  void launch();

  /** Waits for the stream, then frees the graph; a second call does nothing. */
  @Override
  void close();
}
