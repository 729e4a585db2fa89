package io.github.linattn.bindings;

import java.lang.foreign.MemorySegment;

/**
 * A copy within the device that was checked once and is repeated by {@link Cuda#run}. One thread at
 * a time.
 */
public final class PreparedCopy implements Prepared {
  private final MemorySegment target;
  private final MemorySegment source;
  private final long bytes;
  private final CudaStream stream;

  PreparedCopy(MemorySegment target, MemorySegment source, long bytes, CudaStream stream) {
    this.target = target;
    this.source = source;
    this.bytes = bytes;
    this.stream = stream;
  }

  MemorySegment target() {
    return Handles.usable(target, "device memory");
  }

  MemorySegment source() {
    return Handles.usable(source, "device memory");
  }

  long bytes() {
    return bytes;
  }

  CudaStream stream() {
    return stream;
  }
}
