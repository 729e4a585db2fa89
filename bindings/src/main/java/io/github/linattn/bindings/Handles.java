package io.github.linattn.bindings;

import java.lang.foreign.MemorySegment;

/**
 * Checks of segments before a downcall, so that a wrong use reads as one and not as a broken
 * binding. Stateless; any thread.
 */
final class Handles {

  private Handles() {}

  /**
   * The same segment, if its arena is open and lets the calling thread in.
   *
   * @throws IllegalStateException if the arena is closed
   * @throws WrongThreadException if the arena is confined to another thread
   */
  static MemorySegment usable(MemorySegment segment, String what) {
    if (!segment.scope().isAlive()) {
      throw new IllegalStateException("this " + what + " was closed");
    }
    if (!segment.isAccessibleBy(Thread.currentThread())) {
      throw new WrongThreadException("this " + what + " belongs to another thread");
    }
    return segment;
  }

  /**
   * The part of host memory that a copy may touch.
   *
   * @throws IllegalArgumentException if the segment lies on the Java heap
   * @throws IndexOutOfBoundsException if the range leaves the segment
   */
  static MemorySegment host(MemorySegment segment, long bytes) {
    if (!segment.isNative()) {
      throw new IllegalArgumentException("host memory must be off the Java heap: " + segment);
    }
    return usable(segment, "host memory").asSlice(0, bytes);
  }

  /**
   * The part of host memory that a copy writes.
   *
   * @throws IllegalArgumentException if the segment lies on the Java heap or is read-only
   * @throws IndexOutOfBoundsException if the range leaves the segment
   */
  static MemorySegment writableHost(MemorySegment segment, long bytes) {
    if (segment.isReadOnly()) {
      throw new IllegalArgumentException("host memory is read-only: " + segment);
    }
    return host(segment, bytes);
  }

  /** The same number, if an allocation may ask for it. */
  static long positive(long bytes) {
    if (bytes < 1) {
      throw new IllegalArgumentException("bytes must be >= 1: " + bytes);
    }
    return bytes;
  }
}
