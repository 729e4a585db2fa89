package io.github.linattn.internal.cuda;

import io.github.linattn.bindings.Cuda;
import io.github.linattn.bindings.CudaStream;
import io.github.linattn.bindings.DeviceMemory;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * Small arrays that kernels read and that do not change: coefficients per head, lists of items.
 * Each is brought to the device once, on a stream of its own, so that this also works while the
 * queue's stream is captured. One thread at a time; it ends with the queue's arena.
 */
final class DeviceConstants {
  private static final int ALIGNMENT = 16;
  private static final long BLOCK_BYTES = 1 << 16;

  /** A caller that never repeats a packing would fill the memory: then all is given up. */
  private static final long MOST_BYTES = 1 << 26;

  private final Device device;
  private final Arena owner;
  private final CudaStream uploads;
  private final Map<ByteBuffer, Long> addresses = new HashMap<>();
  private Arena blocks = Arena.ofShared();
  private @Nullable DeviceMemory block;
  private long used;
  private long total;

  DeviceConstants(Device device, Arena owner) {
    this.device = device;
    this.owner = owner;
    this.uploads = device.enter().createStream(owner);
  }

  /** Whether so much is kept that it is to be {@linkplain #release given up}. */
  boolean isFull() {
    return total > MOST_BYTES;
  }

  /** Gives up all that was brought until now, whose memory is the caller's to free. */
  Arena release() {
    Arena released = blocks;
    addresses.clear();
    blocks = Arena.ofShared();
    total = 0;
    block = null;
    return released;
  }

  /** The device address of these bytes. */
  long of(byte[] bytes) {
    return addresses.computeIfAbsent(ByteBuffer.wrap(bytes), key -> upload(bytes));
  }

  private long upload(byte[] bytes) {
    Cuda cuda = device.enter();
    DeviceMemory room = block;
    if (room == null || used + bytes.length > room.byteSize()) {
      room = newBlock(cuda, Math.max(BLOCK_BYTES, bytes.length));
    }
    try (Arena scratch = Arena.ofConfined()) {
      MemorySegment copy = scratch.allocateFrom(ValueLayout.JAVA_BYTE, bytes);
      cuda.copyToDeviceAsync(room, used, copy, bytes.length, uploads);
      cuda.synchronize(uploads);
    }
    long address = room.address() + used;
    used += Math.ceilDiv(bytes.length, ALIGNMENT) * (long) ALIGNMENT;
    return address;
  }

  /** Fills memory with zeros, which are there when this returns. */
  void clear(DeviceMemory memory) {
    Cuda cuda = device.enter();
    cuda.clearAsync(memory, memory.byteSize(), uploads);
    cuda.synchronize(uploads);
  }

  private DeviceMemory newBlock(Cuda cuda, long bytes) {
    DeviceMemory fresh = cuda.allocate(blocks, bytes);
    block = fresh;
    used = 0;
    total += bytes;
    return fresh;
  }

  /** Frees the memory; the stream goes with its owner. */
  void close() {
    if (blocks.scope().isAlive()) {
      blocks.close();
    }
  }
}
