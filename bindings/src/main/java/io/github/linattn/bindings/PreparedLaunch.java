package io.github.linattn.bindings;

import java.lang.foreign.MemorySegment;

/**
 * A launch that was filled in once and is repeated by {@link Cuda#run}: kernel, grid, stream, and
 * the argument struct, which may be changed between launches. It ends when its scratch serves
 * another launch, or with the arena of that. One thread at a time.
 */
public final class PreparedLaunch implements Prepared {
  private final LaunchScratch scratch;
  private final CudaKernel kernel;
  private final CudaStream stream;
  private final MemorySegment argumentStruct;

  PreparedLaunch(
      LaunchScratch scratch,
      CudaKernel kernel,
      int gridX,
      int clusterX,
      int blockThreads,
      long dynamicSharedBytes,
      LaunchOrder order,
      CudaStream stream,
      MemorySegment argumentStruct) {
    this.scratch = scratch;
    this.kernel = kernel;
    this.stream = stream;
    this.argumentStruct = Handles.host(argumentStruct, argumentStruct.byteSize());
    scratch.fill(
        gridX,
        1,
        clusterX,
        blockThreads,
        dynamicSharedBytes,
        order,
        stream.handle(),
        this.argumentStruct);
  }

  /** The configuration, once more known to be open, and so are stream and arguments. */
  MemorySegment config() {
    Handles.usable(argumentStruct, "argument struct");
    stream.handle();
    return Handles.usable(scratch.config(), "prepared launch");
  }

  CudaKernel kernel() {
    return kernel;
  }

  LaunchScratch scratch() {
    return scratch;
  }

  @Override
  public String toString() {
    return "launch of " + kernel;
  }
}
