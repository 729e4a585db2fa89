package io.github.linattn.internal.cuda;

import io.github.linattn.Tensor;
import io.github.linattn.bindings.TensorMapWriter;
import io.github.linattn.kernelgen.ElementType;
import java.lang.foreign.MemorySegment;

/** How the copy engine finds boxes of the tensors of a call. */
final class TensorMaps {
  private static final int BOX_ROWS = Planner.CHUNK;
  private static final int BOX_BYTES = 128;

  private TensorMaps() {}

  /** Writes the map of a [batch, head, token, column] tensor to the start of {@code target}. */
  static void write(
      TensorMapWriter writer, MemorySegment target, Tensor tensor, ElementType element) {
    int bytes = element.bytes();
    long width = tensor.shape().extent(3);
    writer
        .extents(
            width, tensor.shape().extent(2), tensor.shape().extent(1), tensor.shape().extent(0))
        .byteStrides(
            byteStride(tensor, 2, width * bytes),
            byteStride(tensor, 1, width * bytes),
            byteStride(tensor, 0, width * bytes))
        .box(BOX_BYTES / bytes, BOX_ROWS)
        .write(
            target.asSlice(0, TensorMapWriter.BYTES),
            switch (element) {
              case F32 -> TensorMapWriter.Element.F32;
              case BF16 -> TensorMapWriter.Element.BF16;
              case F16 -> TensorMapWriter.Element.F16;
            },
            tensor.segment().address());
  }

  /** A stride that is never taken may be anything: the copy engine wants it to be one. */
  private static long byteStride(Tensor tensor, int axis, long rowBytes) {
    return tensor.shape().extent(axis) == 1
        ? rowBytes
        : tensor.stride(axis) * tensor.dtype().bytes();
  }
}
