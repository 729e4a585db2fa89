package io.github.linattn.bindings;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_INT;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemorySegment;
import java.lang.invoke.MethodHandle;
import java.util.Optional;

/**
 * The dynamic loader of the C library, called directly because its error text names the dependency
 * that is missing, which {@code SymbolLookup.libraryLookup} drops.
 *
 * <p>Stateless; any thread. What it opens stays open: closing a CUDA Runtime that has been called
 * is not safe.
 */
final class SystemLoader {
  private static final int RTLD_LAZY = 1;

  /** Dl_info: const char *fname, void *fbase, const char *sname, void *saddr. */
  private static final long DL_INFO_BYTES = 4 * ADDRESS.byteSize();

  private final MethodHandle dlopen;
  private final MethodHandle dlerror;
  private final MethodHandle dlsym;
  private final MethodHandle dladdr;

  private SystemLoader(
      MethodHandle dlopen, MethodHandle dlerror, MethodHandle dlsym, MethodHandle dladdr) {
    this.dlopen = dlopen;
    this.dlerror = dlerror;
    this.dlsym = dlsym;
    this.dladdr = dladdr;
  }

  /** What came of opening a library. */
  sealed interface Opened {}

  /** It is open, and lies at {@code handle}. */
  record Library(MemorySegment handle) implements Opened {}

  /** It did not open, for the loader's own reason. */
  record Refused(String reason) implements Opened {}

  /** The loader of this platform, or empty where the C library has no dlopen. */
  static Optional<SystemLoader> find() {
    var dlopen = function("dlopen", FunctionDescriptor.of(ADDRESS, ADDRESS, JAVA_INT));
    var dlerror = function("dlerror", FunctionDescriptor.of(ADDRESS));
    var dlsym = function("dlsym", FunctionDescriptor.of(ADDRESS, ADDRESS, ADDRESS));
    var dladdr = function("dladdr", FunctionDescriptor.of(JAVA_INT, ADDRESS, ADDRESS));
    if (dlopen.isEmpty() || dlerror.isEmpty() || dlsym.isEmpty() || dladdr.isEmpty()) {
      return Optional.empty();
    }
    return Optional.of(new SystemLoader(dlopen.get(), dlerror.get(), dlsym.get(), dladdr.get()));
  }

  private static Optional<MethodHandle> function(String name, FunctionDescriptor descriptor) {
    Linker linker = Linker.nativeLinker();
    return linker.defaultLookup().find(name).map(at -> linker.downcallHandle(at, descriptor));
  }

  /** Opens a library by path, or by name through the loader's own search. */
  Opened open(String pathOrName) {
    try (Arena scratch = Arena.ofConfined()) {
      MemorySegment handle =
          pointer(
              () ->
                  (MemorySegment) dlopen.invokeExact(scratch.allocateFrom(pathOrName), RTLD_LAZY));
      return handle.address() == 0 ? new Refused(lastError()) : new Library(handle);
    }
  }

  private String lastError() {
    MemorySegment text = pointer(() -> (MemorySegment) dlerror.invokeExact());
    return text.address() == 0 ? "the loader gave no reason" : string(text);
  }

  /** The address of a function in an open library, if it has one of that name. */
  Optional<MemorySegment> symbol(Library library, String name) {
    try (Arena scratch = Arena.ofConfined()) {
      MemorySegment found =
          pointer(
              () ->
                  (MemorySegment) dlsym.invokeExact(library.handle(), scratch.allocateFrom(name)));
      return found.address() == 0 ? Optional.empty() : Optional.of(found);
    }
  }

  /** The file that holds the code at {@code address}, if the loader knows it. */
  Optional<String> fileOf(MemorySegment address) {
    try (Arena scratch = Arena.ofConfined()) {
      MemorySegment info = scratch.allocate(DL_INFO_BYTES, ADDRESS.byteAlignment());
      int known = number(() -> (int) dladdr.invokeExact(address, info));
      MemorySegment file = info.get(ADDRESS, 0);
      return known == 0 || file.address() == 0 ? Optional.empty() : Optional.of(string(file));
    }
  }

  /** Calls {@code int function(int *out)}; the status, and what it wrote. */
  static IntResult callForInt(MemorySegment function) {
    MethodHandle handle =
        Linker.nativeLinker().downcallHandle(function, FunctionDescriptor.of(JAVA_INT, ADDRESS));
    try (Arena scratch = Arena.ofConfined()) {
      MemorySegment out = scratch.allocate(JAVA_INT);
      int status = number(() -> (int) handle.invokeExact(out));
      return new IntResult(status, out.get(JAVA_INT, 0));
    }
  }

  /** Calls {@code const char *function(int status)}. */
  static String callForText(MemorySegment function, int status) {
    MethodHandle handle =
        Linker.nativeLinker().downcallHandle(function, FunctionDescriptor.of(ADDRESS, JAVA_INT));
    return string(pointer(() -> (MemorySegment) handle.invokeExact(status)));
  }

  record IntResult(int status, int value) {}

  private static String string(MemorySegment text) {
    return text.reinterpret(Long.MAX_VALUE).getString(0);
  }

  private interface PointerCall {
    MemorySegment call() throws Throwable;
  }

  private interface IntCall {
    int call() throws Throwable;
  }

  private static MemorySegment pointer(PointerCall call) {
    try {
      return call.call();
    } catch (Throwable t) {
      throw new AssertionError("binding of the system loader", t);
    }
  }

  private static int number(IntCall call) {
    try {
      return call.call();
    } catch (Throwable t) {
      throw new AssertionError("binding of the system loader", t);
    }
  }
}
