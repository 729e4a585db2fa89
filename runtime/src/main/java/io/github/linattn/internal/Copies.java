package io.github.linattn.internal;

import io.github.linattn.Tensor;
import org.jspecify.annotations.Nullable;

/** What streams ask of their arguments, whatever the backend; most of it is about copies. */
public final class Copies {
  private Copies() {}

  /**
   * Refuses tensors between which no plain copy of bytes is right.
   *
   * @throws IllegalArgumentException naming both
   * @throws IllegalStateException if one is closed
   */
  public static void requireAlike(Tensor source, Tensor target) {
    requirePresent("source", source);
    requirePresent("target", target);
    if (!source.shape().equals(target.shape())
        || source.dtype() != target.dtype()
        || !source.isContiguous()
        || !target.isContiguous()) {
      throw new IllegalArgumentException(
          ("a copy needs two tensors of one shape and type that lie row-major without gaps, got"
                  + " %s and %s")
              .formatted(source, target));
    }
    requireAlive("source", source);
    requireAlive("target", target);
    long bytes = source.shape().elements() * source.dtype().bytes();
    long apart = Math.abs(source.segment().address() - target.segment().address());
    if (source.device() == target.device() && apart < bytes) {
      throw new IllegalArgumentException(
          "a copy needs memory that does not overlap, got %s and %s, %d bytes apart"
              .formatted(source, target, apart));
    }
  }

  private static void requireAlive(String name, Tensor tensor) {
    if (!tensor.segment().scope().isAlive()) {
      throw new IllegalStateException(
          "the memory of the %s is of an arena that is closed".formatted(name));
    }
  }

  /**
   * Refuses an argument of a stream or an event that was left out.
   *
   * @throws IllegalArgumentException naming it
   */
  public static void requirePresent(String name, @Nullable Object argument) {
    if (argument == null) {
      throw new IllegalArgumentException(name + " is null");
    }
  }
}
