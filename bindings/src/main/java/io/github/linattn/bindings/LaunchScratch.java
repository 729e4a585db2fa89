package io.github.linattn.bindings;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_INT;

import io.github.linattn.bindings.generated.cudaLaunchConfig_st;
import io.github.linattn.bindings.generated.cudart;
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

  // cudaLaunchAttribute: the id, padding up to 8 bytes, a union of 64 bytes
  private static final long ATTRIBUTE_BYTES = 72;
  private static final long ATTRIBUTE_VALUE = 8;

  private static final long MOST_ATTRIBUTES = 2;

  private final MemorySegment config;
  private final MemorySegment arguments;
  private final MemorySegment attributes;

  public LaunchScratch(Arena owner) {
    config = cudaLaunchConfig_st.allocate(owner);
    arguments = owner.allocate(ADDRESS);
    attributes = owner.allocate(MOST_ATTRIBUTES * ATTRIBUTE_BYTES, Long.BYTES);
    setDimensions(config, GRID, 1, 1);
    setDimensions(config, BLOCK, 1, 1);
    cudaLaunchConfig_st.attrs(config, attributes);
    cudaLaunchConfig_st.numAttrs(config, 0);
  }

  /** Describes one launch of a one- or two-dimensional grid of one-dimensional blocks. */
  void fill(
      int gridX,
      int gridY,
      int clusterX,
      int blockThreads,
      long dynamicSharedBytes,
      LaunchOrder order,
      MemorySegment stream,
      MemorySegment argumentStruct) {
    Handles.usable(config, "launch scratch");
    setDimensions(config, GRID, gridX, gridY);
    setDimensions(config, BLOCK, blockThreads, 1);
    int count = 0;
    if (clusterX > 1) {
      long value = addAttribute(count++, cudart.cudaLaunchAttributeClusterDimension());
      setDimensions(attributes, value, clusterX, 1);
    }
    if (order == LaunchOrder.EARLY) {
      int early = cudart.cudaLaunchAttributeProgrammaticStreamSerialization();
      attributes.set(JAVA_INT, addAttribute(count++, early), 1);
    }
    cudaLaunchConfig_st.numAttrs(config, count);
    cudaLaunchConfig_st.dynamicSmemBytes(config, dynamicSharedBytes);
    cudaLaunchConfig_st.stream(config, stream);
    arguments.set(ADDRESS, 0, argumentStruct);
  }

  /** Offset of the value of the attribute of this index. */
  private long addAttribute(int index, int id) {
    long offset = index * ATTRIBUTE_BYTES;
    attributes.set(JAVA_INT, offset, id);
    return offset + ATTRIBUTE_VALUE;
  }

  private static void setDimensions(MemorySegment struct, long offset, int x, int y) {
    struct.set(dim3.x$layout(), offset + dim3.x$offset(), x);
    struct.set(dim3.y$layout(), offset + dim3.y$offset(), y);
    struct.set(dim3.z$layout(), offset + dim3.z$offset(), 1);
  }

  MemorySegment config() {
    return config;
  }

  int gridX() {
    return config.get(dim3.x$layout(), GRID + dim3.x$offset());
  }

  int gridY() {
    return config.get(dim3.y$layout(), GRID + dim3.y$offset());
  }

  int blockThreads() {
    return config.get(dim3.x$layout(), BLOCK + dim3.x$offset());
  }

  long dynamicSharedBytes() {
    return cudaLaunchConfig_st.dynamicSmemBytes(config);
  }

  /** Its address. */
  long stream() {
    return cudaLaunchConfig_st.stream(config).address();
  }

  /** The array of pointers to arguments; it holds one. */
  MemorySegment arguments() {
    return arguments;
  }
}
