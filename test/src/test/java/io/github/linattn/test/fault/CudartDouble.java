package io.github.linattn.test.fault;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.github.linattn.Diagnostics;
import io.github.linattn.test.harness.Native;
import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SymbolLookup;
import java.nio.file.Path;
import java.util.List;

/** The double of libcudart, built where the property {@code linattn.cudart} looks for it. */
final class CudartDouble {
  private static final Path SOURCE = Native.root().resolve("bindings/src/test/c/cudart_double.c");

  private final SymbolLookup symbols;

  private CudartDouble(Path library) {
    this.symbols = SymbolLookup.libraryLookup(library, Arena.global());
  }

  static CudartDouble load() {
    Path library = Path.of(System.getProperty("linattn.cudart")).toAbsolutePath();
    Native.compile(
        "gcc",
        List.of(
            "-O1",
            "-shared",
            "-fPIC",
            "-Wl,-soname,libcudart.so.13",
            "-DDOUBLE_DEVICES=2",
            SOURCE.toString()),
        library);
    return new CudartDouble(library);
  }

  /** Leaves out a test that needs the kernels of this build where it has none. */
  static void assumeBuiltKernels() {
    assumeTrue(
        !Diagnostics.kernels().isEmpty(),
        "left out: this build has no CUDA kernels for the CUDA engine to launch");
  }

  /** Makes the k-th call from now on fail, the first being 1; 0 for none. */
  void failAt(long k, int status) {
    invoke("double_fail_at", FunctionDescriptor.ofVoid(JAVA_LONG, JAVA_INT), k, status);
  }

  /** Makes the k-th call of a function from now on fail, the first being 1. */
  void failAt(String function, long k, int status) {
    try (Arena scratch = Arena.ofConfined()) {
      invoke(
          "double_fail_call",
          FunctionDescriptor.ofVoid(ADDRESS, JAVA_LONG, JAVA_INT),
          scratch.allocateFrom(function),
          k,
          status);
    }
  }

  /** Makes the k-th call of a function from now on wait, the first being 1. */
  void hold(String function, long k) {
    try (Arena scratch = Arena.ofConfined()) {
      invoke(
          "double_hold_call",
          FunctionDescriptor.ofVoid(ADDRESS, JAVA_LONG),
          scratch.allocateFrom(function),
          k);
    }
  }

  /** Whether a call waits. */
  boolean isHolding() {
    return (int) invoke("double_held", FunctionDescriptor.of(JAVA_INT)) != 0;
  }

  /** Lets the call that waits go on, and none wait. */
  void letGo() {
    invoke("double_let_go", FunctionDescriptor.ofVoid());
  }

  /** Forgets calls, launches and anything alive. */
  void reset() {
    invoke("double_reset", FunctionDescriptor.ofVoid());
  }

  /** Gives the device so many multiprocessors, until it is reset. */
  void multiprocessors(int count) {
    invoke("double_multiprocessors", FunctionDescriptor.ofVoid(JAVA_INT, JAVA_INT), count, 232_448);
  }

  long calls() {
    return (long) invoke("double_calls", FunctionDescriptor.of(JAVA_LONG));
  }

  /** Name of a call, the first being 0. */
  String call(long index) {
    return pointer("double_call", index).reinterpret(Long.MAX_VALUE).getString(0);
  }

  /** Name of the kernel of a launch, the first being 0. */
  String launchKernel(long index) {
    return pointer("double_launch_kernel", index).reinterpret(Long.MAX_VALUE).getString(0);
  }

  /** Blocks of a launch. */
  int launchBlocks(long index) {
    return pointer("double_launch_dimensions", index).reinterpret(Integer.BYTES).get(JAVA_INT, 0);
  }

  long launchCluster(long index) {
    return (long)
        invoke("double_launch_cluster", FunctionDescriptor.of(JAVA_LONG, JAVA_LONG), index);
  }

  /** Whether a launch may start while the kernel before it runs. */
  boolean launchedEarly(long index) {
    return (long) invoke("double_launch_early", FunctionDescriptor.of(JAVA_LONG, JAVA_LONG), index)
        != 0;
  }

  MemorySegment launchArguments(long index, long bytes) {
    return pointer("double_launch_arguments", index).reinterpret(bytes);
  }

  private MemorySegment pointer(String function, long index) {
    return (MemorySegment) invoke(function, FunctionDescriptor.of(ADDRESS, JAVA_LONG), index);
  }

  long launches() {
    return (long) invoke("double_launches", FunctionDescriptor.of(JAVA_LONG));
  }

  /** Device memory that was allocated and not freed. */
  long deviceBytes() {
    return (long) invoke("double_device_bytes", FunctionDescriptor.of(JAVA_LONG));
  }

  /** Everything that was created and not released. */
  long live() {
    try (Arena scratch = Arena.ofConfined()) {
      return (long)
          invoke(
              "double_live", FunctionDescriptor.of(JAVA_LONG, ADDRESS), scratch.allocateFrom(""));
    }
  }

  private Object invoke(String function, FunctionDescriptor descriptor, Object... arguments) {
    try {
      return Linker.nativeLinker()
          .downcallHandle(symbols.find(function).orElseThrow(), descriptor)
          .invokeWithArguments(arguments);
    } catch (Throwable t) {
      throw new AssertionError("binding of " + function, t);
    }
  }
}
