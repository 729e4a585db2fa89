package io.github.linattn.bindings;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.Objects;

/**
 * A range of device memory: an address that Java cannot read, and a length that copies are checked
 * against. Freed with the arena it was allocated in, if it was allocated in one; use after that
 * throws {@link IllegalStateException}. Threads: those of the arena.
 */
public final class DeviceMemory {
  private final MemorySegment pointer;
  private final long byteSize;

  DeviceMemory(MemorySegment pointer, long byteSize) {
    this.pointer = pointer;
    this.byteSize = byteSize;
  }

  /**
   * Device memory that somebody else allocated and frees. It may be used here until {@code owner}
   * closes; closing frees nothing.
   */
  public static DeviceMemory ofAddress(Arena owner, long address, long byteSize) {
    Handles.positive(byteSize);
    if (address == 0) {
      throw new IllegalArgumentException("the device address is 0");
    }
    return new DeviceMemory(MemorySegment.ofAddress(address).reinterpret(0, owner, null), byteSize);
  }

  /**
   * The zero-length segment that points to the first byte, for argument structs; reading through it
   * throws.
   */
  public MemorySegment pointer() {
    return Handles.usable(pointer, "device memory");
  }

  /** The device address of the first byte. */
  public long address() {
    return pointer().address();
  }

  public long byteSize() {
    return byteSize;
  }

  /** The zero-length segment at {@code offset}, after checking that {@code bytes} follow it. */
  MemorySegment pointerTo(long offset, long bytes) {
    Objects.checkFromIndexSize(offset, bytes, byteSize);
    return pointer().reinterpret(byteSize).asSlice(offset, 0);
  }

  @Override
  public String toString() {
    return "DeviceMemory[0x" + Long.toHexString(pointer.address()) + ", " + byteSize + " bytes]";
  }
}
