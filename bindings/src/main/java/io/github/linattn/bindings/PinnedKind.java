package io.github.linattn.bindings;

import io.github.linattn.bindings.generated.cudart;

/** How the host caches pinned memory. Immutable. */
public enum PinnedKind {
  CACHED(0),
  /**
   * Written by the host and read by the device only: quick over the bus, very slow to read back.
   */
  WRITE_COMBINED(cudart.cudaHostAllocWriteCombined());

  private final int flag;

  PinnedKind(int flag) {
    this.flag = flag;
  }

  int flags() {
    return cudart.cudaHostAllocPortable() | cudart.cudaHostAllocMapped() | flag;
  }
}
