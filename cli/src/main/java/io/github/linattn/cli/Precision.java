package io.github.linattn.cli;

import io.github.linattn.DType;
import io.github.linattn.Mode;
import java.util.List;

/** A storage type with a mode that it knows. */
record Precision(DType dtype, Mode mode) {
  static final List<Precision> ALL =
      List.of(
          new Precision(DType.F32, Mode.ACCURATE),
          new Precision(DType.F32, Mode.DEFAULT),
          new Precision(DType.F32, Mode.TF32),
          new Precision(DType.BF16, Mode.DEFAULT),
          new Precision(DType.F16, Mode.DEFAULT));
}
