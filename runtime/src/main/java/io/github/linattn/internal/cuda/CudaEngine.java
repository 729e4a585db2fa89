package io.github.linattn.internal.cuda;

import io.github.linattn.internal.Engine;
import java.util.Optional;

/** Placeholder until the CUDA engine joins. */
public final class CudaEngine {
  private CudaEngine() {}

  public static Engine open(int ordinal) {
    throw new UnsupportedOperationException("no CUDA engine yet: " + ordinal);
  }

  public static Optional<String> unusableReason() {
    return Optional.of("no CUDA engine yet");
  }
}
