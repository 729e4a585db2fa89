package io.github.linattn.test.harness;

import io.github.linattn.Backend;
import java.util.List;
import java.util.stream.IntStream;

/** The backends under test; made once and used by all tests of a JVM. */
public final class Backends {
  private static final List<Subject> CPU =
      IntStream.rangeClosed(1, 3)
          .mapToObj(
              threads -> {
                String scalar = Boolean.getBoolean("linattn.scalar") ? " scalar" : "";
                return new Subject("cpu" + scalar + " x" + threads, Backend.cpu(threads));
              })
          .toList();

  private Backends() {}

  /** The CPU with 1, 2 and 3 threads: no split, an even one and an uneven one. */
  public static List<Subject> cpu() {
    return CPU;
  }

  /** The first GPU. Only for tests that carry {@link GpuTest}. */
  public static List<Subject> gpu() {
    return Gpu.SUBJECTS;
  }

  /** Opened on first use, because most machines have none. */
  private static final class Gpu {
    private static final List<Subject> SUBJECTS = List.of(new Subject("cuda:0", Backend.cuda(0)));
  }
}
