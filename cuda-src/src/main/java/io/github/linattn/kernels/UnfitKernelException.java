package io.github.linattn.kernels;

/** A kernel that compiles, and spills registers or waits after each of its products. */
final class UnfitKernelException extends KernelBuildException {
  private static final long serialVersionUID = 1L;

  UnfitKernelException(String message) {
    super(message);
  }
}
