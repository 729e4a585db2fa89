package io.github.linattn.bench;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_FLOAT;
import static java.lang.foreign.ValueLayout.JAVA_INT;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SymbolLookup;
import java.lang.invoke.MethodHandle;
import java.util.List;
import java.util.NoSuchElementException;

/** Products of matrices by a BLAS library of this machine, the yardstick of the CPU backend. */
final class Blas {
  private static final String PROPERTY = "linattn.blas";
  private static final List<String> NAMES =
      List.of("libopenblas.so.0", "libmkl_rt.so.2", "libblis.so.4", "libblas.so.3");

  private static final int ROW_MAJOR = 101;
  private static final int NOT_TRANSPOSED = 111;

  private final MethodHandle sgemm;

  private Blas(MethodHandle sgemm) {
    this.sgemm = sgemm;
  }

  /**
   * The library that the property {@code linattn.blas} names, or the first that the loader finds.
   *
   * @throws IllegalStateException if there is none; says what was tried
   */
  static Blas load() {
    String named = System.getProperty(PROPERTY);
    List<String> names = named == null ? NAMES : List.of(named);
    for (String name : names) {
      try {
        return new Blas(
            Linker.nativeLinker()
                .downcallHandle(
                    SymbolLookup.libraryLookup(name, Arena.global())
                        .find("cblas_sgemm")
                        .orElseThrow(),
                    FunctionDescriptor.ofVoid(
                        JAVA_INT,
                        JAVA_INT,
                        JAVA_INT,
                        JAVA_INT,
                        JAVA_INT,
                        JAVA_INT,
                        JAVA_FLOAT,
                        ADDRESS,
                        JAVA_INT,
                        ADDRESS,
                        JAVA_INT,
                        JAVA_FLOAT,
                        ADDRESS,
                        JAVA_INT)));
      } catch (IllegalArgumentException | NoSuchElementException missing) {
        // the next one
      }
    }
    throw new IllegalStateException(
        "no GEMM rate: none of %s is a BLAS with cblas_sgemm here; install OpenBLAS or name a"
                .formatted(names)
            + " library by -jvmArgsAppend -D"
            + PROPERTY
            + "=PATH");
  }

  /** c = a b, row-major fp32 of this extent each; on as many threads as the library likes. */
  void multiply(int extent, MemorySegment a, MemorySegment b, MemorySegment c) {
    try {
      sgemm.invokeExact(
          ROW_MAJOR,
          NOT_TRANSPOSED,
          NOT_TRANSPOSED,
          extent,
          extent,
          extent,
          1f,
          a,
          extent,
          b,
          extent,
          0f,
          c,
          extent);
    } catch (Throwable t) {
      throw new AssertionError("binding of cblas_sgemm", t);
    }
  }
}
