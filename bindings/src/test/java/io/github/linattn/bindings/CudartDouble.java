package io.github.linattn.bindings;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SymbolLookup;
import java.nio.file.Path;
import java.util.stream.LongStream;
import org.jspecify.annotations.Nullable;

/** The double of libcudart that this process has loaded in place of the real one. */
final class CudartDouble {
  private static @Nullable CudartDouble loaded;

  private final SymbolLookup symbols;
  private final Cuda cuda;

  private CudartDouble(SymbolLookup symbols, Cuda cuda) {
    this.symbols = symbols;
    this.cuda = cuda;
  }

  /** The double, as if the process had just started. */
  static synchronized CudartDouble fresh() {
    // Not in a static initialiser, which would turn "left out" into a failure.
    CudartDouble cudart = loaded == null ? compileAndLoad() : loaded;
    loaded = cudart;
    cudart.invoke("double_reset", FunctionDescriptor.ofVoid());
    return cudart;
  }

  private static CudartDouble compileAndLoad() {
    Path file = Gcc.buildDouble(Path.of("target/cudart-double/libcudart.so.13"));
    System.setProperty(SearchPlaces.PROPERTY, file.toString());
    CudaLibrary.Result result = CudaLibrary.load();
    if (!(result instanceof CudaLibrary.Found found)) {
      throw new AssertionError(((CudaLibrary.Missing) result).message());
    }
    return new CudartDouble(
        SymbolLookup.libraryLookup(file.toAbsolutePath(), Arena.global()), found.cuda());
  }

  Cuda cuda() {
    return cuda;
  }

  /** Makes the k-th call from now on fail, the first being 1. */
  void failAt(long k, int status) {
    invoke("double_fail_at", FunctionDescriptor.ofVoid(JAVA_LONG, JAVA_INT), k, status);
  }

  void memory(long bytes) {
    invoke("double_memory", FunctionDescriptor.ofVoid(JAVA_LONG), bytes);
  }

  void devices(int count) {
    invoke("double_devices", FunctionDescriptor.ofVoid(JAVA_INT), count);
  }

  void oldDriver() {
    invoke("double_old_driver", FunctionDescriptor.ofVoid(JAVA_INT), 1);
  }

  long poolThreshold() {
    return number("double_pool_threshold", FunctionDescriptor.of(JAVA_LONG));
  }

  long calls() {
    return number("double_calls", FunctionDescriptor.of(JAVA_LONG));
  }

  /** The name of a call, the first being 0. */
  String call(long index) {
    return pointer("double_call", index).reinterpret(Long.MAX_VALUE).getString(0);
  }

  /** Everything that was created and not released. */
  long live() {
    try (Arena scratch = Arena.ofConfined()) {
      return number(
          "double_live", FunctionDescriptor.of(JAVA_LONG, ADDRESS), scratch.allocateFrom(""));
    }
  }

  long launches() {
    return number("double_launches", FunctionDescriptor.of(JAVA_LONG));
  }

  String launchKernel(long index) {
    return pointer("double_launch_kernel", index).reinterpret(Long.MAX_VALUE).getString(0);
  }

  /** Grid x, y, z and block x, y, z. */
  int[] launchDimensions(long index) {
    return pointer("double_launch_dimensions", index)
        .reinterpret(6 * Integer.BYTES)
        .toArray(JAVA_INT);
  }

  long launchSharedBytes(long index) {
    return number("double_launch_shared_bytes", FunctionDescriptor.of(JAVA_LONG, JAVA_LONG), index);
  }

  long launchCluster(long index) {
    return number("double_launch_cluster", FunctionDescriptor.of(JAVA_LONG, JAVA_LONG), index);
  }

  /** Whether a launch may start while the kernel before it runs. */
  boolean launchedEarly(long index) {
    return number("double_launch_early", FunctionDescriptor.of(JAVA_LONG, JAVA_LONG), index) != 0;
  }

  long launchStream(long index) {
    return number("double_launch_stream", FunctionDescriptor.of(JAVA_LONG, JAVA_LONG), index);
  }

  MemorySegment launchArguments(long index, MemoryLayout layout) {
    return pointer("double_launch_arguments", index).reinterpret(layout.byteSize());
  }

  /** The device memory itself, which in the double the host can read. */
  static MemorySegment peek(DeviceMemory memory) {
    return MemorySegment.ofAddress(memory.address()).reinterpret(memory.byteSize());
  }

  String[] callNames() {
    return LongStream.range(0, calls()).mapToObj(this::call).toArray(String[]::new);
  }

  private MemorySegment pointer(String function, long index) {
    return (MemorySegment) invoke(function, FunctionDescriptor.of(ADDRESS, JAVA_LONG), index);
  }

  private long number(String function, FunctionDescriptor descriptor, Object... arguments) {
    return (long) invoke(function, descriptor, arguments);
  }

  private Object invoke(String function, FunctionDescriptor descriptor, Object... arguments) {
    MemorySegment address = symbols.find(function).orElseThrow();
    try {
      return Linker.nativeLinker()
          .downcallHandle(address, descriptor)
          .invokeWithArguments(arguments);
    } catch (Throwable t) {
      throw new AssertionError("binding of " + function, t);
    }
  }
}
