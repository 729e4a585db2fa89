package io.github.linattn.bindings;

import java.lang.foreign.MemorySegment;

/**
 * A loaded image of kernels. Unloaded when the arena it was loaded in closes; use after that throws
 * {@link IllegalStateException}. Any thread.
 */
public final class CudaModule {
  private final MemorySegment handle;

  CudaModule(MemorySegment handle) {
    this.handle = handle;
  }

  /** The handle, once more known to be open and open to this thread. */
  MemorySegment handle() {
    return Handles.usable(handle, "kernel image");
  }
}
