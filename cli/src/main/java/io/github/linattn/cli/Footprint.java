package io.github.linattn.cli;

import io.github.linattn.Diagnostics;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.locks.LockSupport;
import java.util.function.ToLongFunction;
import java.util.stream.Stream;
import javax.management.JMException;
import javax.management.ObjectName;

/**
 * What this process holds, in bytes.
 *
 * @param device memory of GPU 0 in use, by this process or another; 0 on the CPU
 * @param host memory off the Java heap; 0 where the system does not tell
 * @param heap of Java, after a collection
 */
record Footprint(long device, long host, long heap) {
  private static final Path STATUS = Path.of("/proc/self/status");
  private static final String ANONYMOUS = "RssAnon:";
  private static final Duration WAIT = Duration.ofMillis(150);
  private static final int MOST_WAITS = 20;

  /** What may grow, and by how much it may seem to while nothing leaks. */
  enum Kind {
    /** The driver gives memory in units of 2 MiB. */
    DEVICE(Footprint::device, 8L << 20),
    /** What the JVM itself takes, for one its compilers. */
    HOST(Footprint::host, 32L << 20),
    HEAP(Footprint::heap, 16L << 20);

    private final ToLongFunction<Footprint> bytes;
    private final long allowed;

    Kind(ToLongFunction<Footprint> bytes, long allowed) {
      this.bytes = bytes;
      this.allowed = allowed;
    }

    long of(Footprint footprint) {
      return bytes.applyAsLong(footprint);
    }

    /**
     * By how much the least of the last quarter is above the most of the first half: what goes up
     * and down gives no more than 0, a steady growth a third of its whole.
     */
    long growth(List<Footprint> course) {
      int count = course.size();
      List<Long> values = course.stream().map(this::of).toList();
      return Collections.min(values.subList(count - count / 4, count))
          - Collections.max(values.subList(0, count / 2));
    }

    boolean hasGrown(List<Footprint> course) {
      return growth(course) > allowed;
    }
  }

  /** What is held now; collects garbage first. */
  static Footprint now(boolean withDevice) {
    System.gc();
    trim();
    long host = settled();
    Runtime java = Runtime.getRuntime();
    return new Footprint(
        withDevice ? deviceBytes() : 0,
        Math.max(0, host - java.totalMemory()),
        java.totalMemory() - java.freeMemory());
  }

  /**
   * Resident memory once it falls no more: the JVM gives heap back some time after a collection.
   */
  private static long settled() {
    long before = anonymous();
    for (int i = 0; i < MOST_WAITS; i++) {
      LockSupport.parkNanos(WAIT.toNanos());
      long now = anonymous();
      if (before - now < 1 << 20) {
        return now;
      }
      before = now;
    }
    return before;
  }

  /**
   * Has malloc give back what was freed, which else seems to be held. It does so for one arena
   * alone, so that the launcher lets a soak have but one.
   */
  private static void trim() {
    try {
      ManagementFactory.getPlatformMBeanServer()
          .invoke(
              new ObjectName("com.sun.management:type=DiagnosticCommand"),
              "systemTrimNativeHeap",
              new Object[0],
              new String[0]);
    } catch (JMException notLinux) {
      // what malloc keeps is counted then
    }
  }

  private static long deviceBytes() {
    Diagnostics.Gpu gpu = Diagnostics.gpu(0).orElseThrow();
    return gpu.totalBytes() - gpu.freeBytes();
  }

  /**
   * Resident memory that is no file's, the Java heap among it; 0 where the system does not tell.
   */
  private static long anonymous() {
    try (Stream<String> lines = Files.lines(STATUS)) {
      return lines
          .filter(line -> line.startsWith(ANONYMOUS))
          .map(line -> line.substring(ANONYMOUS.length()).replace("kB", "").strip())
          .mapToLong(kib -> Long.parseLong(kib) << 10)
          .findFirst()
          .orElse(0);
    } catch (IOException notLinux) {
      return 0;
    }
  }
}
