package io.github.linattn.cli;

import io.github.linattn.DType;
import io.github.linattn.Mode;
import java.util.List;

/** A storage type with a mode that it knows. */
record Precision(DType dtype, Mode mode) {
  static final Precision BF16 = new Precision(DType.BF16, Mode.DEFAULT);

  /** fp32 as it is computed unless asked for otherwise. */
  static final Precision F32 = new Precision(DType.F32, Mode.DEFAULT);

  static final Precision F16 = new Precision(DType.F16, Mode.DEFAULT);
  static final Precision TF32 = new Precision(DType.F32, Mode.TF32);

  static final List<Precision> ALL =
      List.of(new Precision(DType.F32, Mode.ACCURATE), F32, TF32, BF16, F16);
}
