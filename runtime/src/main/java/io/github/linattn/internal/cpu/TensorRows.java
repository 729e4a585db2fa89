package io.github.linattn.internal.cpu;

import io.github.linattn.DType;
import io.github.linattn.Tensor;
import java.lang.foreign.MemorySegment;

/**
 * Rows of a [batch, heads, tokens, width] tensor, or of a [batch, heads, tokens] one of width 1.
 */
final class TensorRows {
  private final MemorySegment memory;
  private final DType dtype;
  private final long batchStride;
  private final long headStride;
  private final long tokenStride;
  private final int width;

  TensorRows(Tensor tensor) {
    this.memory = tensor.segment();
    this.dtype = tensor.dtype();
    this.batchStride = tensor.stride(0);
    this.headStride = tensor.stride(1);
    this.tokenStride = tensor.stride(2);
    this.width = tensor.shape().rank() == 3 ? 1 : (int) tensor.shape().extent(3);
  }

  int width() {
    return width;
  }

  /** Row {@code token + i} becomes row i of {@code tile}. */
  void load(int batch, int head, int token, int rows, Rows tile) {
    load(batch, head, token, rows, tile.data, tile.start);
  }

  /** The same of rows of one element. */
  void load(int batch, int head, int token, int rows, float[] tile) {
    load(batch, head, token, rows, tile, 0);
  }

  private void load(int batch, int head, int token, int rows, float[] tile, int start) {
    long element = element(batch, head, token);
    if (tokenStride == width) {
      dtype.decode(memory, element, tile, start, rows * width);
      return;
    }
    for (int i = 0; i < rows; i++) {
      dtype.decode(memory, element + i * tokenStride, tile, start + i * width, width);
    }
  }

  /** Rows that will be loaded or stored soon, if there are any. */
  void announce(int batch, int head, int token, int rows, Upcoming upcoming) {
    long offset = element(batch, head, token) * dtype.bytes();
    upcoming.add(memory, offset, rows, tokenStride * dtype.bytes(), (long) width * dtype.bytes());
  }

  /** Row i of {@code tile} becomes row {@code token + i}. */
  void store(int batch, int head, int token, int rows, Rows tile) {
    store(batch, head, token, rows, tile.data, tile.start);
  }

  /** The same of rows of one element. */
  void store(int batch, int head, int token, int rows, float[] tile) {
    store(batch, head, token, rows, tile, 0);
  }

  private void store(int batch, int head, int token, int rows, float[] tile, int start) {
    long element = element(batch, head, token);
    if (tokenStride == width) {
      dtype.encode(tile, start, memory, element, rows * width);
      return;
    }
    for (int i = 0; i < rows; i++) {
      dtype.encode(tile, start + i * width, memory, element + i * tokenStride, width);
    }
  }

  private long element(int batch, int head, int token) {
    return batch * batchStride + head * headStride + token * tokenStride;
  }
}
