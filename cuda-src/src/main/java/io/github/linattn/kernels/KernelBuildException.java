package io.github.linattn.kernels;

/** A kernel that nvcc refused or that is unfit; the message names it. */
public sealed class KernelBuildException extends RuntimeException permits UnfitKernelException {
  private static final long serialVersionUID = 1L;

  KernelBuildException(String message) {
    super(message);
  }
}
