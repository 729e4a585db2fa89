package io.github.linattn.bindings.host;

import static java.lang.foreign.ValueLayout.JAVA_BYTE;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.SymbolLookup;
import java.lang.invoke.MethodHandle;
import java.util.HexFormat;
import org.jspecify.annotations.Nullable;

/**
 * Asks the processor for memory that is wanted soon. Java has no such instruction, and a load in
 * its place holds up what follows until the memory has answered: so here is a loop of them in
 * machine code, in a page of its own that lives as long as the process.
 *
 * <p>Good for speed alone. There is one on Linux with x86-64, where native access is enabled and
 * the process may make a page executable; elsewhere, and with {@code -Dlinattn.prefetch=false},
 * nothing is asked for.
 */
public final class Prefetch {
  /** Bytes that come at a time. */
  public static final int LINE = 64;

  /**
   * {@code void rows(rdi address, rsi rows, rdx distance, rcx bytes)}: {@code prefetcht1} of every
   * line of every row, into the second cache, as the first is full of what is worked on.
   */
  private static final byte[] CODE =
      HexFormat.of()
          .parseHex(
              "31C0" // row: xor eax, eax
                  + "0F181407" // line: prefetcht1 [rdi + rax]
                  + "4883C040" // add rax, LINE
                  + "4839C8" // cmp rax, rcx
                  + "7CF3" // jl line
                  + "4801D7" // add rdi, rdx
                  + "48FFCE" // dec rsi
                  + "75E9" // jnz row
                  + "C3"); // ret

  private static final long PAGE = 4096;
  private static final int READ_WRITE = 0x1 | 0x2;
  private static final int READ_EXECUTE = 0x1 | 0x4;
  private static final int PRIVATE_ANONYMOUS = 0x02 | 0x20;
  private static final long MAP_FAILED = -1;

  private static final @Nullable MethodHandle ROWS = load();

  private Prefetch() {}

  /** Whether anything is asked for. */
  public static boolean isAvailable() {
    return ROWS != null;
  }

  /**
   * Asks for {@code bytes} of each of so many rows. Never fails, whatever the memory is.
   *
   * @param address of the first row
   * @param distance bytes from a row to the next
   */
  public static void rows(long address, long rows, long distance, long bytes) {
    if (ROWS == null || rows <= 0) {
      return;
    }
    long start = address & -LINE;
    try {
      ROWS.invokeExact(start, rows, distance, address + bytes - start);
    } catch (Throwable e) {
      throw new AssertionError("prefetching failed", e);
    }
  }

  private static @Nullable MethodHandle load() {
    boolean wanted = Boolean.parseBoolean(System.getProperty("linattn.prefetch", "true"));
    boolean fits =
        System.getProperty("os.name").equals("Linux")
            && System.getProperty("os.arch").equals("amd64");
    if (!wanted || !fits || !Prefetch.class.getModule().isNativeAccessEnabled()) {
      return null; // without native access the JVM would print a warning
    }
    try {
      return link();
    } catch (Throwable e) {
      return null; // a JVM or a C library that lacks something; nothing else depends on it
    }
  }

  private static @Nullable MethodHandle link() throws Throwable {
    Linker linker = Linker.nativeLinker();
    SymbolLookup libc = linker.defaultLookup();
    MethodHandle mmap =
        linker.downcallHandle(
            libc.find("mmap").orElseThrow(),
            FunctionDescriptor.of(
                JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_INT, JAVA_INT, JAVA_INT, JAVA_LONG));
    MethodHandle mprotect =
        linker.downcallHandle(
            libc.find("mprotect").orElseThrow(),
            FunctionDescriptor.of(JAVA_INT, JAVA_LONG, JAVA_LONG, JAVA_INT));
    long page = (long) mmap.invokeExact(0L, PAGE, READ_WRITE, PRIVATE_ANONYMOUS, -1, 0L);
    if (page == MAP_FAILED) {
      return null;
    }
    MemorySegment code = MemorySegment.ofAddress(page).reinterpret(PAGE);
    MemorySegment.copy(CODE, 0, code, JAVA_BYTE, 0, CODE.length);
    if ((int) mprotect.invokeExact(page, PAGE, READ_EXECUTE) != 0) {
      return null; // a kernel that lets no process write its own code
    }
    return linker.downcallHandle(
        code,
        FunctionDescriptor.ofVoid(JAVA_LONG, JAVA_LONG, JAVA_LONG, JAVA_LONG),
        Linker.Option.critical(false));
  }
}
