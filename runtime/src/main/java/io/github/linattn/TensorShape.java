package io.github.linattn;

import java.util.Arrays;

/** Extents of a tensor, outermost first. Immutable; every extent is at least 1. */
public final class TensorShape {
  private final long[] extents;
  private final long elements;

  private TensorShape(long[] extents) {
    long product = 1;
    for (long extent : extents) {
      if (extent < 1) {
        throw new IllegalArgumentException(
            "every extent must be at least 1, got " + Arrays.toString(extents));
      }
      product = multiply(product, extent, extents);
    }
    this.extents = extents;
    this.elements = product;
  }

  private static long multiply(long product, long extent, long[] extents) {
    try {
      return Math.multiplyExact(product, extent);
    } catch (ArithmeticException overflow) {
      throw new IllegalArgumentException(
          "shape " + Arrays.toString(extents) + " has more than 2^63 elements", overflow);
    }
  }

  /**
   * A shape with these extents.
   *
   * @throws IllegalArgumentException if there is none, or one is below 1
   */
  public static TensorShape of(long... extents) {
    if (Checks.present("extents", extents).length == 0) {
      throw new IllegalArgumentException("a shape needs at least one extent");
    }
    return new TensorShape(extents.clone());
  }

  /** Number of axes. */
  public int rank() {
    return extents.length;
  }

  /**
   * Extent of one axis.
   *
   * @throws IllegalArgumentException if there is no such axis
   */
  public long extent(int axis) {
    requireAxis(axis, this);
    return extents[axis];
  }

  /** Refuses an axis that {@code owner}, of this shape, does not have. */
  void requireAxis(int axis, Object owner) {
    if (axis < 0 || axis >= extents.length) {
      throw new IllegalArgumentException("%s has no axis %d".formatted(owner, axis));
    }
  }

  /** Product of all extents. */
  public long elements() {
    return elements;
  }

  /** Strides, in elements, of a tensor of this shape without gaps, last axis innermost. */
  long[] rowMajorStrides() {
    long[] strides = new long[extents.length];
    long stride = 1;
    for (int axis = extents.length - 1; axis >= 0; axis--) {
      strides[axis] = stride;
      stride *= extents[axis];
    }
    return strides;
  }

  @Override
  public boolean equals(Object other) {
    return other instanceof TensorShape that && Arrays.equals(extents, that.extents);
  }

  @Override
  public int hashCode() {
    return Arrays.hashCode(extents);
  }

  /** For example {@code [4, 16, 10000, 128]}. */
  @Override
  public String toString() {
    return Arrays.toString(extents);
  }
}
