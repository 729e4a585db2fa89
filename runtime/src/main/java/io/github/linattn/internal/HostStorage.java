package io.github.linattn.internal;

import io.github.linattn.MemoryKind;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import org.jspecify.annotations.Nullable;

/** Memory that the CPU reads: allocated here, or the caller's own. */
public final class HostStorage extends Storage {
  /** Alignment of allocated memory in bytes: one cache line, and one 512-bit vector. */
  private static final long ALIGNMENT = 64;

  private final MemorySegment memory;
  private final @Nullable Arena owned;

  private HostStorage(MemorySegment memory, @Nullable Arena owned, Leaks leaks) {
    super(MemoryKind.HOST, memory.byteSize(), leaks);
    this.memory = memory;
    this.owned = owned;
  }

  /**
   * Zero-filled memory of its own.
   *
   * @throws OutOfMemoryError if the host has too little
   */
  public static HostStorage allocate(long bytes, Leaks leaks) {
    Arena arena = Arena.ofShared();
    try {
      return new HostStorage(arena.allocate(bytes, ALIGNMENT), arena, leaks);
    } catch (OutOfMemoryError e) {
      arena.close();
      throw e;
    }
  }

  /** Somebody else's memory, which outlives this object. */
  public static HostStorage wrap(MemorySegment memory) {
    return new HostStorage(memory, null, Leaks.none());
  }

  @Override
  protected MemorySegment memory() {
    return memory;
  }

  @Override
  public void read(long offset, MemorySegment target) {
    MemorySegment.copy(alive(), offset, target, 0, target.byteSize());
  }

  @Override
  public void write(long offset, MemorySegment source) {
    MemorySegment target = alive();
    if (target.isReadOnly()) {
      throw new IllegalArgumentException(
          "the memory of %d bytes behind this tensor is read-only".formatted(byteSize()));
    }
    MemorySegment.copy(source, 0, target, offset, source.byteSize());
  }

  private MemorySegment alive() {
    MemorySegment open = segment();
    if (!open.scope().isAlive()) {
      throw new IllegalStateException(
          "the memory of %d bytes behind this tensor is of an arena that is closed"
              .formatted(byteSize()));
    }
    return open;
  }

  @Override
  protected void free() {
    if (owned != null) {
      owned.close();
    }
  }

  @Override
  protected boolean isFreed() {
    return owned != null && !owned.scope().isAlive();
  }
}
