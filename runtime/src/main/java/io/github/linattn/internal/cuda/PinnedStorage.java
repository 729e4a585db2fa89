package io.github.linattn.internal.cuda;

import io.github.linattn.MemoryKind;
import io.github.linattn.bindings.Cuda;
import io.github.linattn.bindings.HostAccess;
import io.github.linattn.internal.Leaks;
import io.github.linattn.internal.Storage;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.function.BiFunction;

/**
 * Page-locked host memory that kernels use in place. Copies and the end of it wait for all work of
 * the device first, as for memory of the device itself.
 */
final class PinnedStorage extends Storage {
  private final Device device;
  private final Arena arena;
  private final MemorySegment memory;

  private PinnedStorage(Device device, Arena arena, MemorySegment memory, Leaks leaks) {
    super(MemoryKind.PINNED, memory.byteSize(), leaks);
    this.device = device;
    this.arena = arena;
    this.memory = memory;
  }

  static PinnedStorage allocate(Device device, long bytes, Leaks leaks) {
    return owning(device, leaks, (cuda, arena) -> cuda.allocatePinned(arena, bytes));
  }

  /** Locks the caller's memory until the storage closes. */
  static PinnedStorage lock(Device device, MemorySegment memory, Leaks leaks) {
    HostAccess access = memory.isReadOnly() ? HostAccess.READ_ONLY : HostAccess.READ_WRITE;
    return owning(
        device,
        leaks,
        (cuda, arena) -> {
          cuda.registerHost(arena, memory, access);
          return memory;
        });
  }

  private static PinnedStorage owning(
      Device device, Leaks leaks, BiFunction<Cuda, Arena, MemorySegment> take) {
    Cuda cuda = device.enter();
    Arena arena = Arena.ofShared();
    try {
      return new PinnedStorage(device, arena, take.apply(cuda, arena), leaks);
    } catch (RuntimeException | Error e) {
      arena.close();
      throw e;
    }
  }

  @Override
  protected MemorySegment memory() {
    return memory;
  }

  @Override
  public void read(long offset, MemorySegment target) {
    MemorySegment source = segment();
    device.enter().synchronizeDevice();
    MemorySegment.copy(source, offset, target, 0, target.byteSize());
  }

  @Override
  public void write(long offset, MemorySegment source) {
    MemorySegment target = segment();
    device.enter().synchronizeDevice();
    MemorySegment.copy(source, 0, target, offset, source.byteSize());
  }

  @Override
  protected void free() {
    device.endAfterWork(arena);
  }

  @Override
  protected boolean isFreed() {
    return !arena.scope().isAlive();
  }
}
