package io.github.linattn.io;

import java.lang.foreign.MemorySegment;
import java.util.List;
import java.util.Locale;
import java.util.Objects;

/**
 * A tensor as a file holds it.
 *
 * @param name unique within the file
 * @param dtype element type as the format spells it: F64, F32, BF16, F16, I64 and others
 * @param shape extents, outermost first; empty for a scalar, and an extent may be 0
 * @param data row-major elements, little-endian. Of a file that was opened: the mapped memory
 *     itself, read-only, valid until the file closes
 */
public record StoredTensor(String name, String dtype, List<Long> shape, MemorySegment data) {

  /**
   * Checks the size.
   *
   * @throws IllegalArgumentException if the type is unknown, an extent is negative, or {@code data}
   *     is not as long as shape and type say, or another array of the heap than a {@code byte[]}
   */
  public StoredTensor {
    Objects.requireNonNull(name, "name is null");
    Objects.requireNonNull(dtype, "dtype is null");
    shape = List.copyOf(Objects.requireNonNull(shape, "shape is null"));
    Objects.requireNonNull(data, "data is null");
    try {
      data.asSlice(0, 0).asByteBuffer(); // heapBase() does not tell of what is read-only
    } catch (UnsupportedOperationException noBytes) {
      throw new IllegalArgumentException(
          "the data of tensor %s is an array of the heap other than a byte[]; copy it off the heap"
              .formatted(name),
          noBytes);
    }
    long expected = ElementSizes.bytes(name, dtype, shape);
    if (data.byteSize() != expected) {
      throw new IllegalArgumentException(
          String.format(
              Locale.ROOT,
              "tensor %s is %s%s and needs %d bytes, but has %d",
              name,
              dtype,
              shape,
              expected,
              data.byteSize()));
    }
  }

  /** Number of elements; 1 for a scalar. */
  public long elements() {
    return shape.stream().reduce(1L, (x, y) -> x * y);
  }

  /** For example {@code F32[2, 600, 64]}. */
  @Override
  public String toString() {
    return dtype + shape;
  }
}
