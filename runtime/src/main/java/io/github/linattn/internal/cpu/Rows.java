package io.github.linattn.internal.cpu;

import static java.lang.foreign.ValueLayout.JAVA_FLOAT_UNALIGNED;

import java.lang.foreign.MemorySegment;

/**
 * Rows of floats in token order: where an fp32 tensor has them, or in a {@link RowBuffer} that
 * those of other types pass through.
 */
final class Rows {
  final MemorySegment memory;

  /** Of the first element, in bytes. */
  final long start;

  /** From a row to the next, in bytes. */
  final long distance;

  Rows(MemorySegment memory, long start, long distance) {
    this.memory = memory;
    this.start = start;
    this.distance = distance;
  }

  /** Of an element, in bytes. */
  long at(int row, int column) {
    return start + row * distance + (long) column * Float.BYTES;
  }

  float get(int row, int column) {
    return memory.get(JAVA_FLOAT_UNALIGNED, at(row, column));
  }

  void set(int row, int column, float value) {
    memory.set(JAVA_FLOAT_UNALIGNED, at(row, column), value);
  }
}
