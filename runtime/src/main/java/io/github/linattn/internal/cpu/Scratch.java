package io.github.linattn.internal.cpu;

import io.github.linattn.bindings.host.HeapAddress;

/**
 * The kernel and the memory for tiles of one task at a time, kept from task to task and from call
 * to call: new arrays would be zeroed, come from memory that no cache holds, and lie where they
 * happen to. As large as the largest task so far. One thread's at a time.
 */
final class Scratch {
  final MatrixKernel kernel = MatrixKernels.create();
  private float[] block = new float[0];
  private final RowBuffer buffer = new RowBuffer(kernel);
  private int start;
  private int used;
  private int wanted;

  /** A matrix of what values it may, until {@link #clear}. */
  Panels panels(int rows, int columns) {
    int length = Panels.length(rows, columns);
    wanted += length;
    if (start + used + length > block.length) {
      return new Panels(rows, columns);
    }
    Panels panels = new Panels(rows, columns, block, start + used);
    used += length;
    return panels;
  }

  /** The one buffer, of {@link Tiles#CHUNK} rows at least. */
  RowBuffer rowBuffer(int width) {
    buffer.reserve(Tiles.CHUNK * width);
    return buffer;
  }

  /** Takes all matrices back, and looks where the collector has moved them to. */
  void clear() {
    int length = wanted + Panels.WIDTH - 1;
    if (length > block.length) {
      block = new float[length];
    }
    start = HeapAddress.elementsToBoundary(block, Panels.WIDTH);
    used = 0;
    wanted = 0;
  }
}
