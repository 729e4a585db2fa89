package io.github.linattn.bindings.host;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemorySegment;
import java.lang.invoke.MethodHandle;
import org.jspecify.annotations.Nullable;

/**
 * Where an array of the heap lies. A vector of 64 bytes that crosses lines of the cache costs two
 * accesses, and an array begins at any multiple of 8 bytes; only native code is ever told which.
 */
public final class HeapAddress {
  /** {@code memset} of nothing, which returns the address it was given. */
  private static final @Nullable MethodHandle MEMSET = find();

  private HeapAddress() {}

  private static @Nullable MethodHandle find() {
    if (!HeapAddress.class.getModule().isNativeAccessEnabled()) {
      return null; // the JVM would print a warning
    }
    Linker linker = Linker.nativeLinker();
    FunctionDescriptor descriptor = FunctionDescriptor.of(JAVA_LONG, ADDRESS, JAVA_INT, JAVA_LONG);
    return linker
        .defaultLookup()
        .find("memset")
        .map(memset -> linker.downcallHandle(memset, descriptor, Linker.Option.critical(true)))
        .orElse(null);
  }

  /**
   * Elements of an array before the first whose address is a multiple of {@code boundary} elements:
   * at this moment, for the collector may move it, so good for speed alone.
   *
   * @param boundary a power of two
   * @return from 0 to {@code boundary} - 1; 0 where native access is not enabled or there is no C
   *     library
   */
  public static int elementsToBoundary(float[] array, int boundary) {
    if (MEMSET == null) {
      return 0;
    }
    try {
      long address = (long) MEMSET.invokeExact(MemorySegment.ofArray(array), 0, 0L);
      return (int) (-address / Float.BYTES & (boundary - 1));
    } catch (Throwable e) {
      throw new AssertionError("memset of no bytes failed", e);
    }
  }
}
