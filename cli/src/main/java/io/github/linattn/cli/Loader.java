package io.github.linattn.cli;

import io.github.linattn.Backend;
import io.github.linattn.DType;
import io.github.linattn.MemoryKind;
import io.github.linattn.Tensor;
import io.github.linattn.TensorShape;
import io.github.linattn.io.StoredTensor;
import java.lang.foreign.MemorySegment;

/**
 * Brings tensors of a file to where a backend computes: the mapped memory itself where type and
 * place fit, else a copy.
 */
final class Loader {
  private static final int PIECE = 1 << 16;

  private final Backend backend;
  private final Resources owned;

  /**
   * A loader.
   *
   * @param owned closes the tensors
   */
  Loader(Backend backend, Resources owned) {
    this.backend = backend;
    this.owned = owned;
  }

  /** The elements of {@code stored}, rounded to {@code dtype}, under the given shape. */
  Tensor load(StoredTensor stored, DType dtype, TensorShape shape) {
    boolean device = backend.memoryKind() == MemoryKind.DEVICE;
    boolean sameType = stored.dtype().equals(dtype.name());
    if (sameType && !device && stored.data().address() % dtype.bytes() == 0) {
      return owned.add(Tensor.wrap(stored.data(), dtype, shape));
    }
    if (!device) {
      return owned.add(converted(stored, dtype, shape));
    }
    Tensor target = owned.add(backend.allocate(dtype, shape));
    if (sameType) {
      target.copyFrom(stored.data());
    } else {
      try (Tensor host = converted(stored, dtype, shape)) {
        target.copyFrom(host.segment());
      }
    }
    return target;
  }

  private static Tensor converted(StoredTensor stored, DType dtype, TensorShape shape) {
    Tensor target = Tensor.allocate(dtype, shape);
    DType source = DType.valueOf(stored.dtype());
    MemorySegment written = target.segment();
    float[] piece = new float[PIECE];
    for (long at = 0; at < shape.elements(); at += PIECE) {
      int count = (int) Math.min(PIECE, shape.elements() - at);
      source.decode(stored.data(), at, piece, 0, count);
      dtype.encode(piece, 0, written, at, count);
    }
    return target;
  }
}
