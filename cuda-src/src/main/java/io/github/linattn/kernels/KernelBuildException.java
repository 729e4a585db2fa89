package io.github.linattn.kernels;

/** A kernel that nvcc refused, or that is shipped and flawed; the message names it. */
public final class KernelBuildException extends RuntimeException {
  private static final long serialVersionUID = 1L;

  KernelBuildException(String message) {
    super(message);
  }
}
