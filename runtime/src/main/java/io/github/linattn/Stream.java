package io.github.linattn;

import java.util.OptionalLong;

/**
 * An ordered queue of work on a backend. Calls on a GPU return before the work is done; calls on
 * the CPU return when it is. Used by one thread at a time. Closing waits for the work first.
 */
public interface Stream extends AutoCloseable {

  /**
   * The {@code cudaStream_t} of a stream of a GPU, by which other libraries of this process order
   * their work: with {@code cudaStreamWaitEvent} it waits for theirs, and with {@code
   * cudaEventRecord} theirs for it. Valid until this stream closes; empty on the CPU.
   *
   * @throws IllegalStateException if this stream is closed
   */
  OptionalLong nativeHandle();

  /** Waits until everything queued so far is done. */
  void synchronize();

  /** A mark in this queue, reached when everything before it is done. The caller closes it. */
  Event record();

  /**
   * Lets work queued from now on start only after {@code event}, which may be another stream's.
   *
   * @throws IllegalArgumentException if this is a stream of a GPU and the event one of the CPU
   * @throws IllegalStateException if another stream was being captured when it recorded the event
   */
  void waitFor(Event event);

  /**
   * Queues a copy of all elements. Between host and device the host side is {@link
   * MemoryKind#PINNED}; both tensors lie row-major without gaps, have the same shape and the same
   * type, and stay open until the copy is done.
   *
   * @throws IllegalArgumentException if they differ, do not lie row-major without gaps, overlap or
   *     are out of reach
   * @throws IllegalStateException if one is closed
   * @throws io.github.linattn.cuda.CudaException if the GPU refuses
   */
  void copy(Tensor source, Tensor target);

  /**
   * Notes what {@code work} queues here instead of doing it. Calls that wait, and copies of memory
   * that is not pinned, fail inside; meanwhile so do those of other threads that wait for the whole
   * device, as freeing its memory and copies to and from arrays do.
   *
   * <p>A graph repeats what was queued, with the numbers of that time. That of a call that moves a
   * state on, as {@link LinearAttention#decodeInto} does, is right once, unless every a is 0: each
   * further launch moves S, z and u, but counts the tokens before it as the first did.
   *
   * <p>What {@code work} throws ends the capture and reaches the caller. Nothing was queued then,
   * but states that calls in it moved on say that they have: fill these anew, and run such a {@link
   * Forward} again.
   *
   * @throws UnsupportedOperationException if this is a stream of the CPU
   */
  Graph capture(Runnable work);

  @Override
  void close();
}
