package io.github.linattn.internal.cuda;

import io.github.linattn.bindings.Cuda;

/** One GPU: every use of it begins with {@link #enter}. Thread-safe. */
record Device(Cuda cuda, int ordinal) {

  /** Makes this the calling thread's device and returns the calls. */
  Cuda enter() {
    cuda.setDevice(ordinal);
    return cuda;
  }
}
