package io.github.linattn.internal.cpu;

import static java.lang.foreign.ValueLayout.JAVA_FLOAT;

import io.github.linattn.DType;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;

/**
 * Room for rows on their way between a tensor that is not fp32 and panels. Native memory, as
 * tensors are: loops that met arrays of the heap too would be compiled for both and lose a sixth.
 * One worker's own, freed when nothing reaches it any more.
 */
final class RowBuffer {
  private final MatrixKernel kernel;
  private int elements;

  /** From where a line of the cache begins. */
  private MemorySegment memory = MemorySegment.NULL;

  /** What the conversions of fp16 work on, which the compiler makes vectors of in arrays alone. */
  private float[] values = new float[0];

  RowBuffer(MatrixKernel kernel) {
    this.kernel = kernel;
  }

  /** Makes room for so many elements, once rows want it. */
  void reserve(int wanted) {
    elements = Math.max(elements, wanted);
  }

  private MemorySegment memory() {
    long bytes = (long) elements * Float.BYTES;
    if (memory.byteSize() < bytes) {
      memory = Arena.ofAuto().allocate(bytes, Panels.WIDTH * Float.BYTES);
    }
    return memory;
  }

  private float[] values() {
    values = values.length < elements ? new float[elements] : values;
    return values;
  }

  /** Rows of so many elements, one behind the other. */
  Rows rows(int width) {
    return new Rows(memory(), 0, (long) width * Float.BYTES);
  }

  /**
   * Converts 16-bit elements from {@code element} on of a tensor's memory.
   *
   * @param at the first element here
   * @param count a multiple of {@link Panels#WIDTH}
   */
  void read(DType dtype, MemorySegment source, long element, int at, int count) {
    if (dtype == DType.BF16) {
      kernel.widen(count, source, element * Short.BYTES, memory(), (long) at * Float.BYTES);
    } else {
      dtype.decode(source, element, values(), at, count);
      MemorySegment.copy(values, at, memory(), JAVA_FLOAT, (long) at * Float.BYTES, count);
    }
  }

  /** The way back of {@link #read}. */
  void write(DType dtype, int at, MemorySegment target, long element, int count) {
    if (dtype == DType.BF16) {
      kernel.narrow(count, memory, (long) at * Float.BYTES, target, element * Short.BYTES);
    } else {
      MemorySegment.copy(memory, JAVA_FLOAT, (long) at * Float.BYTES, values(), at, count);
      dtype.encode(values, at, target, element, count);
    }
  }
}
