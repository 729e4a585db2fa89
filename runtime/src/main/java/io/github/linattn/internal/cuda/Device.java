package io.github.linattn.internal.cuda;

import io.github.linattn.bindings.Cuda;
import io.github.linattn.bindings.DeviceAttribute;
import io.github.linattn.bindings.MemoryInfo;
import java.lang.foreign.Arena;

/** One GPU: every use of it begins with {@link #enter}. Thread-safe. */
public record Device(Cuda cuda, int ordinal) {

  /** Makes this the calling thread's device and returns the calls. */
  Cuda enter() {
    cuda.setDevice(ordinal);
    return cuda;
  }

  /** The marketing name. */
  public String name() {
    return cuda.deviceName(ordinal);
  }

  /** Major and minor compute capability, such as 90. */
  int capability() {
    return 10 * attribute(DeviceAttribute.COMPUTE_CAPABILITY_MAJOR)
        + attribute(DeviceAttribute.COMPUTE_CAPABILITY_MINOR);
  }

  /** Such as {@code sm_90}. */
  public String architecture() {
    return "sm_" + capability();
  }

  /** Number of multiprocessors. */
  public int multiprocessors() {
    return attribute(DeviceAttribute.MULTIPROCESSOR_COUNT);
  }

  int attribute(DeviceAttribute attribute) {
    return cuda.attribute(attribute, ordinal);
  }

  /** Free and total memory. */
  public MemoryInfo memory() {
    return enter().memoryInfo();
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
