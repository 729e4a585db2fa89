package io.github.linattn.internal.cpu;

import io.github.linattn.bindings.host.HeapAddress;

/**
 * Rows of a tile as a tensor has them, one behind the other in token order, from where a line of
 * the cache begins, unless the array was moved since. One worker's own.
 */
final class Rows {
  final float[] data;

  /** Of the first element. */
  final int start;

  /** In an array of {@link #length} elements at least. */
  Rows(float[] data) {
    this.data = data;
    this.start = HeapAddress.elementsToBoundary(data, Panels.WIDTH);
  }

  /** Elements of an array for as many, wherever it lies. */
  static int length(int elements) {
    return elements + Panels.WIDTH - 1;
  }
}
