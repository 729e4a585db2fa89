package io.github.linattn;

import io.github.linattn.internal.HostStorage;
import io.github.linattn.internal.Leaks;
import io.github.linattn.internal.Storage;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.Arrays;
import java.util.function.LongFunction;

/**
 * Elements of one {@link DType} in one piece of memory, addressed by shape and strides.
 *
 * <p>A tensor comes from {@link Backend#allocate}, from {@link #allocate} or around memory that
 * exists already ({@link #wrap}). {@link #permuted} and {@link #sliced} give views: they share the
 * memory, cost nothing, are not closed, and end with the tensor they look into.
 *
 * <p>May be passed between threads. Reading while a backend writes gives unspecified values.
 */
public final class Tensor implements AutoCloseable {
  /** Never started: stands for any thread but the caller's. */
  private static final Thread ANOTHER_THREAD = Thread.ofPlatform().unstarted(() -> {});

  private final Storage storage;
  private final boolean view;
  private final DType dtype;
  private final TensorShape shape;
  private final long[] strides;
  private final long offset;

  private Tensor(
      Storage storage, boolean view, DType dtype, TensorShape shape, long[] strides, long offset) {
    this.storage = storage;
    this.view = view;
    this.dtype = dtype;
    this.shape = shape;
    this.strides = strides;
    this.offset = offset;
  }

  /** A row-major tensor that owns {@code storage}. */
  static Tensor over(Storage storage, DType dtype, TensorShape shape) {
    return new Tensor(storage, false, dtype, shape, shape.rowMajorStrides(), 0);
  }

  /**
   * Zero-filled host memory, freed by {@link #close}.
   *
   * @throws OutOfMemoryError with type, shape and bytes, if the host has too little memory
   */
  public static Tensor allocate(DType dtype, TensorShape shape) {
    return in(bytes -> HostStorage.allocate(bytes, Leaks.withoutBackend()), dtype, shape);
  }

  /**
   * A row-major tensor in memory of its own.
   *
   * @param memory allocates so many bytes
   */
  static Tensor in(LongFunction<Storage> memory, DType dtype, TensorShape shape) {
    long bytes = bytesOf(dtype, shape);
    try {
      return over(memory.apply(bytes), dtype, shape);
    } catch (OutOfMemoryError e) {
      var named =
          new OutOfMemoryError(
              "no memory for the %d bytes of %s%s: %s"
                  .formatted(bytes, dtype, shape, e.getMessage()));
      named.initCause(e);
      throw named;
    }
  }

  /** An fp32 host tensor that holds a copy of {@code values}. */
  public static Tensor copyOf(float[] values, TensorShape shape) {
    Tensor tensor = allocate(DType.F32, shape);
    try {
      tensor.copyFrom(values);
    } catch (RuntimeException | Error e) {
      tensor.close();
      throw e;
    }
    return tensor;
  }

  /**
   * The caller's memory, used in place: off-heap, a mapped file, or a direct buffer. The memory
   * stays the caller's and must outlive the tensor; {@link #close} only ends the tensor.
   *
   * @param memory row-major elements, native byte order; may be longer than needed, and read-only
   *     where nothing is written
   * @throws IllegalArgumentException if the memory is on the Java heap, of a confined or a closed
   *     arena, or too short
   */
  public static Tensor wrap(MemorySegment memory, DType dtype, TensorShape shape) {
    if (!Checks.present("memory", memory).isNative()) {
      throw new IllegalArgumentException(
          "a tensor can't wrap an array of the Java heap; copy it with Tensor.copyOf");
    }
    requireAlive(memory);
    if (!memory.isAccessibleBy(ANOTHER_THREAD)) {
      throw new IllegalArgumentException(
          "the segment belongs to one thread, but a backend works with several; take it from"
              + " Arena.ofShared or Arena.ofAuto");
    }
    long bytes = bytesOf(dtype, shape);
    if (memory.byteSize() < bytes) {
      throw new IllegalArgumentException(
          "%s%s needs %d bytes, the segment has %d"
              .formatted(dtype, shape, bytes, memory.byteSize()));
    }
    return over(HostStorage.wrap(memory), dtype, shape);
  }

  static long bytesOf(DType dtype, TensorShape shape) {
    Checks.present("dtype", dtype);
    Checks.present("shape", shape);
    try {
      return Math.multiplyExact(shape.elements(), dtype.bytes());
    } catch (ArithmeticException overflow) {
      throw new IllegalArgumentException(
          "%s%s has more than 2^63 bytes".formatted(dtype, shape), overflow);
    }
  }

  /** Storage type of the elements. */
  public DType dtype() {
    return dtype;
  }

  /** Extents, outermost first. */
  public TensorShape shape() {
    return shape;
  }

  /**
   * Distance, in elements, between neighbours along {@code axis}.
   *
   * @throws IllegalArgumentException if there is no such axis
   */
  public long stride(int axis) {
    shape.requireAxis(axis, this);
    return strides[axis];
  }

  /** Where the elements live. */
  public MemoryKind memoryKind() {
    return storage.kind();
  }

  /** Ordinal of the GPU that holds the elements, or -1 for host memory. */
  public int device() {
    return storage.device();
  }

  /**
   * Whether the memory is still there: neither this tensor nor the one it looks into is closed, nor
   * the arena of memory that it was put around.
   */
  public boolean isOpen() {
    return storage.isAlive();
  }

  /** Whether the elements lie row-major without gaps. */
  public boolean isContiguous() {
    long expected = 1;
    for (int axis = shape.rank() - 1; axis >= 0; axis--) {
      if (shape.extent(axis) > 1 && strides[axis] != expected) {
        return false;
      }
      expected *= shape.extent(axis);
    }
    return true;
  }

  /** Bytes from the first element to the end of the last. */
  public long byteSpan() {
    long last = 0;
    for (int axis = 0; axis < shape.rank(); axis++) {
      last += (shape.extent(axis) - 1) * strides[axis];
    }
    return (last + 1) * dtype.bytes();
  }

  /**
   * The memory from the first element to the end of the last; of length zero where the CPU can't
   * read it, then only its address means something.
   *
   * @throws IllegalStateException if the tensor is closed
   */
  public MemorySegment segment() {
    MemorySegment memory = storage.segment();
    long start = offset * dtype.bytes();
    if (storage.kind() == MemoryKind.DEVICE) {
      return start == 0 ? memory : MemorySegment.ofAddress(memory.address() + start);
    }
    return memory.asSlice(start, byteSpan());
  }

  /**
   * A view with the axes in another order: {@code permuted(0, 2, 1, 3)} makes [B, H, N, D] of a
   * tensor that lies as [B, N, H, D].
   *
   * @throws IllegalArgumentException if {@code axes} is not a permutation
   */
  public Tensor permuted(int... axes) {
    Checks.present("axes", axes);
    boolean[] seen = new boolean[shape.rank()];
    long[] extents = new long[axes.length];
    long[] moved = new long[axes.length];
    boolean valid = axes.length == shape.rank();
    for (int i = 0; valid && i < axes.length; i++) {
      valid = axes[i] >= 0 && axes[i] < seen.length && !seen[axes[i]];
      if (valid) {
        seen[axes[i]] = true;
        extents[i] = shape.extent(axes[i]);
        moved[i] = strides[axes[i]];
      }
    }
    if (!valid) {
      throw new IllegalArgumentException(
          "%s is not a permutation of the %d axes of %s"
              .formatted(Arrays.toString(axes), shape.rank(), this));
    }
    return new Tensor(storage, true, dtype, TensorShape.of(extents), moved, offset);
  }

  /**
   * A view of {@code count} entries along {@code axis}, from entry {@code start} on.
   *
   * @throws IllegalArgumentException if there is no such axis or the entries leave it
   */
  public Tensor sliced(int axis, long start, long count) {
    shape.requireAxis(axis, this);
    if (start < 0 || count < 1 || start > shape.extent(axis) - count) {
      throw new IllegalArgumentException(
          "%s has no %d entries from entry %d on along axis %d"
              .formatted(this, count, start, axis));
    }
    long[] extents = new long[shape.rank()];
    for (int i = 0; i < extents.length; i++) {
      extents[i] = i == axis ? count : shape.extent(i);
    }
    long first = offset + start * strides[axis];
    return new Tensor(storage, true, dtype, TensorShape.of(extents), strides, first);
  }

  /**
   * A view of the same elements under another shape.
   *
   * @throws IllegalArgumentException if this tensor does not lie row-major without gaps, or has
   *     another number of elements
   */
  public Tensor reshaped(TensorShape other) {
    Checks.present("other", other);
    requireContiguous("reshaped");
    if (other.elements() != shape.elements()) {
      throw new IllegalArgumentException(
          "%s has %d elements and can't become %s".formatted(this, shape.elements(), other));
    }
    return new Tensor(storage, true, dtype, other, other.rowMajorStrides(), offset);
  }

  /**
   * Copies elements of this {@link #dtype}, row-major, out of {@code source}, which may be on the
   * heap. Waits for what the device does and returns when the copy is done.
   *
   * @throws IllegalArgumentException if this tensor does not lie row-major without gaps, the sizes
   *     differ, or the segment is of an arena that is closed
   * @throws IllegalStateException if this tensor is closed
   * @throws io.github.linattn.cuda.CudaException if the GPU refuses
   */
  public void copyFrom(MemorySegment source) {
    storage.write(checkedOffset("copyFrom", Checks.present("source", source)), source);
  }

  /**
   * Copies the elements, row-major, into {@code target}, as {@link #copyFrom(MemorySegment)} does,
   * with the same exceptions.
   */
  public void copyTo(MemorySegment target) {
    storage.read(checkedOffset("copyTo", Checks.present("target", target)), target);
  }

  private long checkedOffset(String method, MemorySegment other) {
    requireContiguous(method);
    long bytes = bytesOf(dtype, shape);
    if (other.byteSize() != bytes) {
      throw new IllegalArgumentException(
          "%s has %d bytes, the segment has %d".formatted(this, bytes, other.byteSize()));
    }
    requireAlive(other);
    return offset * dtype.bytes();
  }

  private static void requireAlive(MemorySegment memory) {
    if (!memory.scope().isAlive()) {
      throw new IllegalArgumentException("the segment is of an arena that is closed");
    }
  }

  /**
   * Rounds {@code values}, row-major, into this tensor, with the exceptions of {@link
   * #copyFrom(MemorySegment)}.
   */
  public void copyFrom(float[] values) {
    requireElements(Checks.present("values", values).length);
    if (dtype == DType.F32) {
      copyFrom(MemorySegment.ofArray(values));
      return;
    }
    try (Arena scratch = Arena.ofConfined()) {
      MemorySegment encoded = scratch.allocate(bytesOf(dtype, shape), dtype.bytes());
      dtype.encode(values, 0, encoded, 0, values.length);
      copyFrom(encoded);
    }
  }

  /**
   * The elements as floats, row-major. Waits for what the device does.
   *
   * @throws IllegalArgumentException if this tensor does not lie row-major without gaps, or has
   *     more than 2^31-1 elements
   * @throws IllegalStateException if this tensor is closed
   * @throws io.github.linattn.cuda.CudaException if the GPU refuses
   */
  public float[] toFloats() {
    requireContiguous("toFloats");
    if (shape.elements() > Integer.MAX_VALUE) {
      throw new IllegalArgumentException(
          "%s has more elements than an array, 2^31-1; take slices of it".formatted(this));
    }
    float[] values = new float[(int) shape.elements()];
    if (dtype == DType.F32) {
      copyTo(MemorySegment.ofArray(values));
      return values;
    }
    try (Arena scratch = Arena.ofConfined()) {
      MemorySegment encoded = scratch.allocate(bytesOf(dtype, shape), dtype.bytes());
      copyTo(encoded);
      dtype.decode(encoded, 0, values, 0, values.length);
    }
    return values;
  }

  private void requireElements(int count) {
    if (count != shape.elements()) {
      throw new IllegalArgumentException(
          "%s has %d elements, the array has %d".formatted(this, shape.elements(), count));
    }
  }

  private void requireContiguous(String method) {
    storage.requireOpen();
    if (!isContiguous()) {
      throw new IllegalArgumentException(
          method
              + " needs a tensor that lies row-major without gaps; this view of "
              + this
              + " does not: take the tensor that it is a view of");
    }
  }

  /**
   * Frees the memory if this tensor owns it, once a GPU has done what it does. On a view it does
   * nothing, and so does a second call. A call of another thread that computes with host memory
   * fails then, with an {@link IllegalStateException} that names the tensor.
   *
   * @throws IllegalStateException if another thread has the memory in use just then; it stays, and
   *     closing can be tried again
   * @throws io.github.linattn.cuda.CudaException if work of the GPU has failed before
   */
  @Override
  public void close() {
    if (!view) {
      storage.close();
    }
  }

  /** For example {@code F32[4, 16, 10000, 128]}. */
  @Override
  public String toString() {
    return dtype.toString() + shape;
  }
}
