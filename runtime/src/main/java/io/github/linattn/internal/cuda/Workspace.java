package io.github.linattn.internal.cuda;

import io.github.linattn.bindings.Cuda;
import io.github.linattn.bindings.CudaStream;
import io.github.linattn.bindings.DeviceMemory;
import java.lang.foreign.Arena;

/**
 * Device memory of one call, taken and given back in the order of its stream, so that nobody waits.
 * Confined to the calling thread.
 */
final class Workspace implements AutoCloseable {
  private final Arena arena = Arena.ofConfined();
  private final Cuda cuda;
  private final CudaStream stream;

  Workspace(Cuda cuda, CudaStream stream) {
    this.cuda = cuda;
    this.stream = stream;
  }

  DeviceMemory allocate(long bytes) {
    return cuda.allocateAsync(arena, bytes, stream);
  }

  @Override
  public void close() {
    arena.close();
  }
}
