package io.github.linattn.internal.cpu;

import io.github.linattn.bindings.host.Prefetch;
import java.lang.foreign.MemorySegment;

/**
 * Rows of tensors that a sweep reads or writes next. They are asked for bit by bit while the
 * recurrence computes, which needs no memory meanwhile, and so lie in the second cache when they
 * are wanted; asked for at once they would come no sooner than by reading them. One worker's own.
 */
final class Upcoming {
  /** Tiles that a recurrence comes before: of all operands and gradients of a chunk. */
  private static final int MOST_TILES = 8;

  /** Of {@link Prefetch#rows}. */
  interface Memory {
    void ask(long address, long rows, long distance, long bytes);
  }

  private final Memory memory;
  private final long[] addresses = new long[MOST_TILES];
  private final long[] distances = new long[MOST_TILES];
  private final long[] rowBytes = new long[MOST_TILES];
  private final int[] rows = new int[MOST_TILES];
  private int tiles;
  private int lines;

  /** Of the lines, those to ask for at a time. */
  private int share;

  private int tile;
  private int row;

  Upcoming() {
    this(Prefetch::rows);
  }

  Upcoming(Memory memory) {
    this.memory = memory;
  }

  void clear() {
    tiles = 0;
    lines = 0;
    share = 0;
    tile = 0;
    row = 0;
  }

  /**
   * @param offset of the first row in {@code tensor}, in bytes
   * @param distance bytes from a row to the next
   * @param bytes of a row
   */
  void add(MemorySegment tensor, long offset, int count, long distance, long bytes) {
    if (count <= 0) {
      return;
    }
    boolean dense = distance == bytes;
    long address = tensor.address() + offset;
    long start = dense ? address & -Prefetch.LINE : address;
    long end = address + count * bytes;
    addresses[tiles] = start;
    distances[tiles] = dense ? Prefetch.LINE : distance;
    rowBytes[tiles] = dense ? Prefetch.LINE : bytes;
    rows[tiles] = dense ? (int) Math.ceilDiv(end - start, Prefetch.LINE) : count;
    lines += rows[tiles] * linesOfRow(tiles);
    tiles++;
  }

  private int linesOfRow(int index) {
    return (int) Math.ceilDiv(rowBytes[index], (long) Prefetch.LINE);
  }

  /** Before a loop that will {@link #ask} so many times. */
  void divide(int times) {
    share = Math.ceilDiv(lines, times);
  }

  /** Asks for the next share. */
  void ask() {
    int wanted = share;
    while (wanted > 0 && tile < tiles) {
      int linesOfRow = linesOfRow(tile);
      int count = Math.min(rows[tile] - row, Math.ceilDiv(wanted, linesOfRow));
      memory.ask(addresses[tile] + row * distances[tile], count, distances[tile], rowBytes[tile]);
      wanted -= count * linesOfRow;
      row += count;
      if (row == rows[tile]) {
        tile++;
        row = 0;
      }
    }
  }
}
