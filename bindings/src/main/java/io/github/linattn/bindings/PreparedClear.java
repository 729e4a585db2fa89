package io.github.linattn.bindings;

import java.lang.foreign.MemorySegment;

/**
 * A range of device memory that was checked once and is set to zeros by {@link Cuda#run}, again and
 * again. One thread at a time.
 */
public final class PreparedClear implements Prepared {
  private final MemorySegment target;
  private final long bytes;
  private final CudaStream stream;

  PreparedClear(MemorySegment target, long bytes, CudaStream stream) {
    this.target = target;
    this.bytes = bytes;
    this.stream = stream;
  }

  MemorySegment target() {
    return Handles.usable(target, "device memory");
  }

  long bytes() {
    return bytes;
  }

  CudaStream stream() {
    return stream;
  }
}
