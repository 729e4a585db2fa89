package io.github.linattn.bindings;

import static java.lang.foreign.ValueLayout.ADDRESS;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import java.lang.foreign.Arena;
import java.lang.foreign.FunctionDescriptor;
import java.lang.foreign.Linker;
import java.lang.foreign.MemorySegment;
import java.lang.invoke.MethodHandle;

/**
 * Writes the descriptors by which Hopper's copy engine finds the boxes of a tensor of rank 4:
 * swizzled by 128 bytes, zeros beyond the extents. The innermost axis comes first and its elements
 * are neighbours. Writing allocates nothing. It ends with the arena it was made in; one thread at a
 * time.
 */
public final class TensorMapWriter {
  /** Size of a descriptor. */
  public static final int BYTES = 128;

  /** What the address of a descriptor is a multiple of. */
  public static final int ALIGNMENT = 64;

  private static final String ENCODE = "cuTensorMapEncodeTiled";
  private static final int RANK = 4;

  /** What addresses and strides are multiples of. */
  private static final int STEP = 16;

  /** Most bytes along the innermost axis of a box with this swizzle. */
  private static final int SWIZZLE_BYTES = 128;

  private static final int MOST_BOX_ELEMENTS = 256;

  // of cuda.h
  private static final int INTERLEAVE_NONE = 0;
  private static final int SWIZZLE_128B = 3;
  private static final int L2_PROMOTION_256B = 3;
  private static final int FILL_ZERO = 0;

  /** Types that the copy engine knows of those used here. */
  public enum Element {
    F16(6, 2),
    F32(7, 4),
    BF16(9, 2);

    private final int id;
    private final int bytes;

    Element(int id, int bytes) {
      this.id = id;
      this.bytes = bytes;
    }
  }

  /** The address of the tensor goes as a number: no segment has to be made for it. */
  private static final FunctionDescriptor SIGNATURE =
      FunctionDescriptor.of(
          JAVA_INT, ADDRESS, JAVA_INT, JAVA_INT, JAVA_LONG, ADDRESS, ADDRESS, ADDRESS, ADDRESS,
          JAVA_INT, JAVA_INT, JAVA_INT, JAVA_INT);

  private final MethodHandle encode;
  private final MemorySegment extents;
  private final MemorySegment strides;
  private final MemorySegment box;
  private final MemorySegment steps;

  TensorMapWriter(Arena owner, MemorySegment function) {
    this.encode = Linker.nativeLinker().downcallHandle(function, SIGNATURE);
    this.extents = owner.allocate(JAVA_LONG, RANK);
    this.strides = owner.allocate(JAVA_LONG, RANK - 1);
    this.box = owner.allocateFrom(JAVA_INT, 0, 0, 1, 1); // one along the axes 2 and 3
    this.steps = owner.allocateFrom(JAVA_INT, 1, 1, 1, 1);
  }

  /** Elements along each axis, for the descriptors written from now on. */
  public TensorMapWriter extents(long x0, long x1, long x2, long x3) {
    setExtent(0, x0);
    setExtent(1, x1);
    setExtent(2, x2);
    setExtent(3, x3);
    return this;
  }

  private void setExtent(int axis, long extent) {
    if (extent < 1 || extent > 1L << 32) {
      throw new IllegalArgumentException("extent " + axis + " must be 1 to 2^32: " + extent);
    }
    usable(extents).setAtIndex(JAVA_LONG, axis, extent);
  }

  /** Bytes between neighbours along the axes 1 to 3. */
  public TensorMapWriter byteStrides(long s1, long s2, long s3) {
    setStride(1, s1);
    setStride(2, s2);
    setStride(3, s3);
    return this;
  }

  private void setStride(int axis, long bytes) {
    if (bytes < 0 || bytes >= 1L << 40 || bytes % STEP != 0) {
      throw new IllegalArgumentException(
          "byte stride " + axis + " must be a multiple of 16 from 0 to below 2^40: " + bytes);
    }
    usable(strides).setAtIndex(JAVA_LONG, axis - 1, bytes);
  }

  /** Elements of a box along the axes 0 and 1; along the others it has one. */
  public TensorMapWriter box(int b0, int b1) {
    setBox(0, b0);
    setBox(1, b1);
    return this;
  }

  private void setBox(int axis, int elements) {
    if (elements < 1 || elements > MOST_BOX_ELEMENTS) {
      throw new IllegalArgumentException("box " + axis + " must be 1 to 256: " + elements);
    }
    usable(box).setAtIndex(JAVA_INT, axis, elements);
  }

  /**
   * Writes the descriptor of a tensor.
   *
   * @param target {@value #BYTES} bytes at a multiple of {@value #ALIGNMENT}, off the Java heap
   * @param address of the first element as kernels see it, a multiple of 16
   * @throws io.github.linattn.cuda.CudaException if the driver refuses
   */
  public void write(MemorySegment target, Element element, long address) {
    if (!target.isNative()
        || target.byteSize() != BYTES
        || target.address() % ALIGNMENT != 0
        || address % STEP != 0) {
      throw new IllegalArgumentException(
          "a tensor map is 128 bytes off the heap at a multiple of 64, of a tensor at a multiple of"
              + " 16: "
              + target
              + ", tensor at 0x"
              + Long.toHexString(address));
    }
    if (usable(box).getAtIndex(JAVA_INT, 0) * element.bytes > SWIZZLE_BYTES) {
      throw new IllegalArgumentException("a row of a box has at most 128 bytes");
    }
    Handles.usable(target, "tensor map");
    final int status;
    try {
      status =
          (int)
              encode.invokeExact(
                  target,
                  element.id,
                  RANK,
                  address,
                  extents,
                  strides,
                  box,
                  steps,
                  INTERLEAVE_NONE,
                  SWIZZLE_128B,
                  L2_PROMOTION_256B,
                  FILL_ZERO);
    } catch (Throwable t) {
      throw new AssertionError("binding of " + ENCODE, t);
    }
    // the driver's numbers are those of the Runtime
    CudaStatus.check(ENCODE, status);
  }

  private static MemorySegment usable(MemorySegment scratch) {
    return Handles.usable(scratch, "tensor map writer");
  }

  static String functionName() {
    return ENCODE;
  }
}
