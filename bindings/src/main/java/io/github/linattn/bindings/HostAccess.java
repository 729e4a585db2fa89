package io.github.linattn.bindings;

import io.github.linattn.bindings.generated.cudart;

/** What the device may do with registered host memory. Immutable. */
public enum HostAccess {
  READ_WRITE(0),
  /** For memory that the process itself may only read, such as a file mapped read-only. */
  READ_ONLY(cudart.cudaHostRegisterReadOnly());

  private final int flag;

  HostAccess(int flag) {
    this.flag = flag;
  }

  int flags() {
    return cudart.cudaHostRegisterPortable() | cudart.cudaHostRegisterMapped() | flag;
  }
}
