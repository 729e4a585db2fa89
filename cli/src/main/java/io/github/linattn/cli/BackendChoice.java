package io.github.linattn.cli;

import io.github.linattn.Backend;
import io.github.linattn.NoGpuException;
import io.github.linattn.cuda.CudaException;
import java.util.Optional;

/** Where to compute. */
enum BackendChoice {
  AUTO,
  CPU,
  CUDA;

  /**
   * Opens the backend. {@code AUTO} falls back to the CPU and says so; {@code CUDA} never does.
   *
   * @throws CommandFailure with {@link ExitCode#NO_GPU} if a GPU was required and none is usable
   */
  Backend open(Console console) {
    return switch (this) {
      case CPU -> Backend.cpu();
      case CUDA -> cuda();
      case AUTO -> auto(console);
    };
  }

  private static Backend cuda() {
    try {
      return Backend.cuda(0);
    } catch (NoGpuException | CudaException unusable) {
      throw CommandFailure.noGpu(unusable);
    } catch (IllegalArgumentException wrongKernelFolder) {
      throw CommandFailure.misuse(wrongKernelFolder);
    }
  }

  private static Backend auto(Console console) {
    return openGpuIfUsable(console, "using the CPU: ").orElseGet(Backend::cpu);
  }

  /** GPU 0, or one note with the consequence and the reason why it can't be used. */
  static Optional<Backend> openGpuIfUsable(Console console, String consequence) {
    try {
      return Optional.of(cuda());
    } catch (CommandFailure unusable) {
      if (unusable.exitCode() != ExitCode.NO_GPU) {
        throw unusable;
      }
      console.note(consequence + firstLine(unusable) + " (linattn info says more)");
      return Optional.empty();
    }
  }

  /** The reason without the list of places that were searched. */
  private static String firstLine(CommandFailure failure) {
    return Text.message(failure).lines().findFirst().orElse("no reason given");
  }
}
