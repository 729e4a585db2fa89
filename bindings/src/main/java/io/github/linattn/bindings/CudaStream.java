package io.github.linattn.bindings;

import java.lang.foreign.MemorySegment;

/**
 * A stream: work given to it runs in order. Destroyed when the arena it was created in closes; use
 * after that throws {@link IllegalStateException}. One thread at a time.
 */
public final class CudaStream {
  private final MemorySegment handle;

  CudaStream(MemorySegment handle) {
    this.handle = handle;
  }

  /** The handle, once more known to be open and open to this thread. */
  MemorySegment handle() {
    return Handles.usable(handle, "stream");
  }

  /** Whether its arena is open; no longer while that closes. */
  boolean isOpen() {
    return handle.scope().isAlive();
  }

  /** A stream that somebody else created and will destroy, after the last use of it here. */
  static CudaStream ofAddress(long address) {
    return new CudaStream(MemorySegment.ofAddress(address));
  }

  /** The {@code cudaStream_t}, for other libraries; 0 for the default stream. */
  public long address() {
    return handle.address();
  }
}
