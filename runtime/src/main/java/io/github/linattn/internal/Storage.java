package io.github.linattn.internal;

import io.github.linattn.MemoryKind;
import java.lang.foreign.MemorySegment;
import org.jspecify.annotations.Nullable;

/**
 * One piece of memory that tensors look into, closed by exactly one owner.
 *
 * <p>Thread-safe; where a copy races with {@link #close}, one of the two fails cleanly, because the
 * memory belongs to a shared arena.
 */
public abstract class Storage implements AutoCloseable {
  private final MemoryKind kind;
  private final long byteSize;
  private final Leaks.Claim claim;
  private @Nullable Throwable closedAt;

  /**
   * @param leaks of its maker, if closing it frees something
   */
  protected Storage(MemoryKind kind, long byteSize, Leaks leaks) {
    this.kind = kind;
    this.byteSize = byteSize;
    this.claim = leaks.claim(this, kind, byteSize);
  }

  public final MemoryKind kind() {
    return kind;
  }

  public final long byteSize() {
    return byteSize;
  }

  /** Ordinal of the GPU that holds the memory, or -1 for memory of the host. */
  public int device() {
    return -1;
  }

  /** The memory; of length zero where the CPU can't read it. */
  public final MemorySegment segment() {
    requireOpen();
    return memory();
  }

  protected abstract MemorySegment memory();

  /** Copies bytes out of this memory and returns when they have arrived. */
  public abstract void read(long offset, MemorySegment target);

  /** Copies bytes into this memory and returns when they have arrived. */
  public abstract void write(long offset, MemorySegment source);

  /** Frees the memory; may have done so where it throws. */
  protected abstract void free();

  /** Whether nothing is left for {@link #free} to do. */
  protected abstract boolean isFreed();

  /** Whether it is open and the memory alive, which may be the caller's. */
  public final synchronized boolean isAlive() {
    return closedAt == null && memory().scope().isAlive();
  }

  /**
   * Throws if this memory is closed.
   *
   * @throws IllegalStateException whose cause is the place where it was closed
   */
  public final synchronized void requireOpen() {
    if (closedAt != null) {
      throw new IllegalStateException(
          "the %s memory of %d bytes behind this tensor is closed; see the cause for where"
              .formatted(kind, byteSize),
          closedAt);
    }
  }

  /** Frees the memory; a second call does nothing. */
  @Override
  public final void close() {
    synchronized (this) {
      if (closedAt != null) {
        return;
      }
      closedAt = new Throwable("closed here");
    }
    try {
      free();
      claim.end();
    } catch (RuntimeException | Error e) {
      if (!isFreed()) {
        synchronized (this) {
          closedAt = null; // somebody holds the memory: closing can be tried again
        }
      } else {
        claim.end();
      }
      throw e;
    }
  }
}
