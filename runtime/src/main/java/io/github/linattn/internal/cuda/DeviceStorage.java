package io.github.linattn.internal.cuda;

import io.github.linattn.MemoryKind;
import io.github.linattn.bindings.Cuda;
import io.github.linattn.bindings.DeviceMemory;
import io.github.linattn.internal.Leaks;
import io.github.linattn.internal.Storage;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/** Memory of a GPU. Copies and the end of it wait for all work of the device first. */
final class DeviceStorage extends Storage {
  private final Device device;
  private final Arena arena;
  private final DeviceMemory memory;

  private DeviceStorage(Device device, Arena arena, DeviceMemory memory, Leaks leaks) {
    super(MemoryKind.DEVICE, memory.byteSize(), leaks);
    this.device = device;
    this.arena = arena;
    this.memory = memory;
  }

  static DeviceStorage allocate(Device device, long bytes, Leaks leaks) {
    Cuda cuda = device.enter();
    Arena arena = Arena.ofShared();
    try {
      return new DeviceStorage(device, arena, cuda.allocate(arena, bytes), leaks);
    } catch (RuntimeException | Error e) {
      arena.close();
      throw e;
    }
  }

  /** Memory of somebody else, which outlives this object. */
  static DeviceStorage wrap(Device device, long address, long bytes) {
    Arena arena = Arena.ofShared();
    try {
      return new DeviceStorage(
          device, arena, DeviceMemory.ofAddress(arena, address, bytes), Leaks.none());
    } catch (RuntimeException | Error e) {
      arena.close();
      throw e;
    }
  }

  DeviceMemory deviceMemory() {
    requireOpen();
    return memory;
  }

  @Override
  public int device() {
    return device.ordinal();
  }

  @Override
  protected MemorySegment memory() {
    return memory.pointer();
  }

  @Override
  public void read(long offset, MemorySegment target) {
    DeviceMemory source = deviceMemory();
    if (!target.isNative()) {
      try (Arena scratch = Arena.ofConfined()) {
        MemorySegment staged = scratch.allocate(target.byteSize());
        read(offset, staged);
        target.copyFrom(staged);
      }
      return;
    }
    Cuda cuda = device.enter();
    cuda.synchronizeDevice();
    cuda.copyToHost(target, source, offset, target.byteSize());
  }

  @Override
  public void write(long offset, MemorySegment source) {
    DeviceMemory target = deviceMemory();
    if (!source.isNative()) {
      try (Arena scratch = Arena.ofConfined()) {
        write(offset, scratch.allocate(source.byteSize()).copyFrom(source));
      }
      return;
    }
    Cuda cuda = device.enter();
    cuda.synchronizeDevice();
    cuda.copyToDevice(target, offset, source, source.byteSize());
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
