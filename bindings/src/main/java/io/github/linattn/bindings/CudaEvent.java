package io.github.linattn.bindings;

import java.lang.foreign.MemorySegment;

/**
 * A point in the work of a stream. Destroyed when the arena it was created in closes; use after
 * that throws {@link IllegalStateException}. Recorded by one thread at a time, awaited by any.
 */
public final class CudaEvent {
  private final MemorySegment handle;

  CudaEvent(MemorySegment handle) {
    this.handle = handle;
  }

  /** The handle, once more known to be open and open to this thread. */
  MemorySegment handle() {
    return Handles.usable(handle, "event");
  }
}
