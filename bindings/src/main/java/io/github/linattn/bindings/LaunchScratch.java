package io.github.linattn.bindings;

import static java.lang.foreign.ValueLayout.ADDRESS;

import io.github.linattn.bindings.generated.cudaLaunchConfig_st;
import io.github.linattn.bindings.generated.dim3;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/**
 * The memory that a launch fills in, kept so that launching allocates nothing. CUDA reads it before
 * the launch returns, so that it can serve the next one at once. One thread at a time; it ends with
 * the arena it was made in.
 */
public final class LaunchScratch {
  private static final long GRID = cudaLaunchConfig_st.gridDim$offset();
  private static final long BLOCK = cudaLaunchConfig_st.blockDim$offset();

  private final MemorySegment config;
  private final MemorySegment arguments;

  public LaunchScratch(Arena owner) {
    config = cudaLaunchConfig_st.allocate(owner);
    arguments = owner.allocate(ADDRESS);
    setDimensions(GRID, 1, 1);
    setDimensions(BLOCK, 1, 1);
    cudaLaunchConfig_st.attrs(config, MemorySegment.NULL);
    cudaLaunchConfig_st.numAttrs(config, 0);
  }

  /** Describes one launch of a one- or two-dimensional grid of one-dimensional blocks. */
  void fill(
      int gridX,
      int gridY,
      int blockThreads,
      long dynamicSharedBytes,
      MemorySegment stream,
      MemorySegment argumentStruct) {
    Handles.usable(config, "launch scratch");
    setDimensions(GRID, gridX, gridY);
    setDimensions(BLOCK, blockThreads, 1);
    cudaLaunchConfig_st.dynamicSmemBytes(config, dynamicSharedBytes);
    cudaLaunchConfig_st.stream(config, stream);
    arguments.set(ADDRESS, 0, argumentStruct);
  }

  private void setDimensions(long offset, int x, int y) {
    config.set(dim3.x$layout(), offset + dim3.x$offset(), x);
    config.set(dim3.y$layout(), offset + dim3.y$offset(), y);
    config.set(dim3.z$layout(), offset + dim3.z$offset(), 1);
  }

  MemorySegment config() {
    return config;
  }

  /** The array of pointers to arguments; it holds one. */
  MemorySegment arguments() {
    return arguments;
  }
}
