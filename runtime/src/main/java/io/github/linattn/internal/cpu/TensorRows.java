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

  /**
   * Rows from {@code token} on, where the tensor has them if they are fp32.
   *
   * @param buffer takes rows of other types, as fp32
   */
  Rows load(int batch, int head, int token, int rows, RowBuffer buffer) {
    if (dtype == DType.F32) {
      return inPlace(batch, head, token);
    }
    long element = element(batch, head, token);
    int run = tokenStride == width ? rows : 1;
    for (int i = 0; i < rows; i += run) {
      buffer.read(dtype, memory, element + i * tokenStride, i * width, run * width);
    }
    return buffer.rows(width);
  }

  /**
   * Where to write the rows from {@code token} on before {@link #store}: where the tensor has them
   * if they are fp32, or else {@code buffer}.
   */
  Rows target(int batch, int head, int token, RowBuffer buffer) {
    return dtype == DType.F32 ? inPlace(batch, head, token) : buffer.rows(width);
  }

  /** Completes rows that were written to {@link #target}. */
  void store(int batch, int head, int token, int rows, RowBuffer buffer) {
    if (dtype == DType.F32) {
      return;
    }
    long element = element(batch, head, token);
    int run = tokenStride == width ? rows : 1;
    for (int i = 0; i < rows; i += run) {
      buffer.write(dtype, i * width, memory, element + i * tokenStride, run * width);
    }
  }

  private Rows inPlace(int batch, int head, int token) {
    long start = element(batch, head, token) * Float.BYTES;
    return new Rows(memory, start, tokenStride * Float.BYTES);
  }

  /** Loads the values of rows of one element. */
  void load(int batch, int head, int token, int rows, float[] values) {
    long element = element(batch, head, token);
    int run = tokenStride == 1 ? rows : 1;
    for (int i = 0; i < rows; i += run) {
      dtype.decode(memory, element + i * tokenStride, values, i, run);
    }
  }

  /** Stores values as rows of one element. */
  void store(int batch, int head, int token, int rows, float[] values) {
    long element = element(batch, head, token);
    int run = tokenStride == 1 ? rows : 1;
    for (int i = 0; i < rows; i += run) {
      dtype.encode(values, i, memory, element + i * tokenStride, run);
    }
  }

  /** Rows that will be loaded or stored soon, if there are any. */
  void announce(int batch, int head, int token, int rows, Upcoming upcoming) {
    long offset = element(batch, head, token) * dtype.bytes();
    upcoming.add(memory, offset, rows, tokenStride * dtype.bytes(), (long) width * dtype.bytes());
  }

  private long element(int batch, int head, int token) {
    return batch * batchStride + head * headStride + token * tokenStride;
  }
}
