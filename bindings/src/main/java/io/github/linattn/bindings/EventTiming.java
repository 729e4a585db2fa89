package io.github.linattn.bindings;

import io.github.linattn.bindings.generated.cudart;

/** Whether an event notes the time. Immutable. */
public enum EventTiming {
  TIMED(cudart.cudaEventDefault()),
  /** For order alone; cheaper. */
  UNTIMED(cudart.cudaEventDisableTiming());

  private final int flags;

  EventTiming(int flags) {
    this.flags = flags;
  }

  int flags() {
    return flags;
  }
}
