package io.github.linattn.bindings;

import java.lang.foreign.MemorySegment;

/** A kernel of a loaded image; it ends with the image. Any thread. */
public final class CudaKernel {
  private final CudaModule image;
  private final MemorySegment handle;
  private final String symbol;

  CudaKernel(CudaModule image, MemorySegment handle, String symbol) {
    this.image = image;
    this.handle = handle;
    this.symbol = symbol;
  }

  /** Its name in the image. */
  public String symbol() {
    return symbol;
  }

  /** The handle, once more known to belong to a loaded image. */
  MemorySegment handle() {
    image.handle();
    return handle;
  }

  @Override
  public String toString() {
    return symbol;
  }
}
