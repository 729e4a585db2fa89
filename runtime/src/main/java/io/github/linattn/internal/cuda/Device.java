package io.github.linattn.internal.cuda;

import io.github.linattn.bindings.Cuda;
import java.lang.foreign.Arena;

/** One GPU: every use of it begins with {@link #enter}. Thread-safe. */
record Device(Cuda cuda, int ordinal) {

  /** Makes this the calling thread's device and returns the calls. */
  Cuda enter() {
    cuda.setDevice(ordinal);
    return cuda;
  }

  /** Waits for all work of the device, then closes what it may have used, also if waiting fails. */
  void endAfterWork(Arena arena) {
    try {
      enter().synchronizeDevice();
    } finally {
      if (arena.scope().isAlive()) {
        arena.close();
      }
    }
  }
}
