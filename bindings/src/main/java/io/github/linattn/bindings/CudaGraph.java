package io.github.linattn.bindings;

import java.lang.foreign.MemorySegment;

/**
 * Work that was captured from a stream and can be given to one again as a whole. Destroyed when the
 * arena it was made in closes; use after that throws {@link IllegalStateException}. One thread at a
 * time.
 */
public final class CudaGraph {
  private final MemorySegment handle;

  CudaGraph(MemorySegment handle) {
    this.handle = handle;
  }

  /** The executable graph, once more known to be open and open to this thread. */
  MemorySegment handle() {
    return Handles.usable(handle, "graph");
  }
}
