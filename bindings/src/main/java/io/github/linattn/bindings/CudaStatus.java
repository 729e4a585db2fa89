package io.github.linattn.bindings;

import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import io.github.linattn.bindings.generated.cudart;
import io.github.linattn.cuda.CudaException;
import io.github.linattn.cuda.CudaOutOfMemoryException;
import java.lang.System.Logger.Level;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.OptionalInt;
import java.util.OptionalLong;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import org.jspecify.annotations.Nullable;

/**
 * Turns the status of a CUDA call into an exception, and clears CUDA's own note of it so that no
 * later call reports it again. Any thread.
 */
final class CudaStatus {
  private static final System.Logger LOG = System.getLogger("io.github.linattn.cuda");
  private static final AtomicLong FAILED_RELEASES = new AtomicLong();
  private static final Set<String> WARNED = ConcurrentHashMap.newKeySet();

  /** cudaErrorCudartUnloading: the process ends, and CUDA has already freed everything. */
  private static final int UNLOADING = 4;

  private CudaStatus() {}

  static void check(String call, int status) {
    if (status != cudart.cudaSuccess()) {
      throw failure(call, status, null);
    }
  }

  /** For calls that wait: the fault may be that of any work before them. */
  static void checkAwaited(String call, int status) {
    if (status != cudart.cudaSuccess()) {
      throw failure(call, status, "reported by " + call + ", may come from an earlier launch");
    }
  }

  /** For calls that take {@code bytes} of device memory. */
  static void checkAllocation(String call, int status, long bytes) {
    if (status == cudart.cudaErrorMemoryAllocation()) {
      throw outOfMemory(call, status, bytes, freeDeviceBytes());
    }
    check(call, status);
  }

  /** For calls that take {@code bytes} of page-locked host memory, of which CUDA has no count. */
  static void checkPinning(String call, int status, long bytes) {
    if (status == cudart.cudaErrorMemoryAllocation()) {
      throw outOfMemory(call, status, bytes, OptionalLong.empty());
    }
    check(call, status);
  }

  /**
   * For calls that free, which run while an arena closes: what is thrown there would keep the other
   * owners of that arena from being told apart. A failure is logged and counted instead.
   */
  static void released(String call, int status) {
    if (status == cudart.cudaSuccess() || status == UNLOADING) {
      return;
    }
    FAILED_RELEASES.incrementAndGet();
    CudaException failure =
        failure(call, status, "reported while freeing, may come from an earlier launch");
    // One fault fails every release after it; the first of each kind tells all there is to tell.
    Level level = WARNED.add(call + status) ? Level.WARNING : Level.DEBUG;
    LOG.log(level, failure.getMessage());
  }

  static long failedReleases() {
    return FAILED_RELEASES.get();
  }

  private static CudaException failure(String call, int status, @Nullable String context) {
    int ignored = cudart.cudaGetLastError();
    return new CudaException(call, status, symbol(status), text(status), currentDevice(), context);
  }

  private static CudaOutOfMemoryException outOfMemory(
      String call, int status, long bytes, OptionalLong freeBytes) {
    int ignored = cudart.cudaGetLastError();
    return new CudaOutOfMemoryException(
        call, status, symbol(status), text(status), currentDevice(), null, bytes, freeBytes);
  }

  private static String symbol(int status) {
    return string(cudart.cudaGetErrorName(status));
  }

  private static String text(int status) {
    return string(cudart.cudaGetErrorString(status));
  }

  private static String string(MemorySegment text) {
    return text.address() == 0 ? "unnamed status" : text.getString(0);
  }

  private static OptionalInt currentDevice() {
    try (Arena scratch = Arena.ofConfined()) {
      MemorySegment device = scratch.allocate(JAVA_INT);
      return cudart.cudaGetDevice(device) == cudart.cudaSuccess()
          ? OptionalInt.of(device.get(JAVA_INT, 0))
          : OptionalInt.empty();
    }
  }

  private static OptionalLong freeDeviceBytes() {
    try (Arena scratch = Arena.ofConfined()) {
      MemorySegment free = scratch.allocate(JAVA_LONG);
      MemorySegment total = scratch.allocate(JAVA_LONG);
      return cudart.cudaMemGetInfo(free, total) == cudart.cudaSuccess()
          ? OptionalLong.of(free.get(JAVA_LONG, 0))
          : OptionalLong.empty();
    }
  }
}
