package io.github.linattn.bindings;

import io.github.linattn.bindings.generated.cudart;

/** What a device can be asked for; each is one integer. Immutable. */
public enum DeviceAttribute {
  COMPUTE_CAPABILITY_MAJOR(cudart.cudaDevAttrComputeCapabilityMajor()),
  COMPUTE_CAPABILITY_MINOR(cudart.cudaDevAttrComputeCapabilityMinor()),
  MULTIPROCESSOR_COUNT(cudart.cudaDevAttrMultiProcessorCount()),
  /** Peak clock of the memory in kilohertz, which moves two words in each; 0 if unknown. */
  MEMORY_CLOCK_KILOHERTZ(cudart.cudaDevAttrMemoryClockRate()),
  /** Width of the way to the memory in bits; 0 if unknown. */
  MEMORY_BUS_BITS(cudart.cudaDevAttrGlobalMemoryBusWidth()),
  /** Shared memory that one block may ask for, static and dynamic together, in bytes. */
  MAX_SHARED_BYTES_PER_BLOCK(cudart.cudaDevAttrMaxSharedMemoryPerBlockOptin()),
  /** 1 where {@link Cuda#allocateAsync} works. */
  STREAM_ORDERED_ALLOCATION(cudart.cudaDevAttrMemoryPoolsSupported());

  private final int id;

  DeviceAttribute(int id) {
    this.id = id;
  }

  /** The {@code cudaDeviceAttr}. */
  int id() {
    return id;
  }
}
