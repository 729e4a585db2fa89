package io.github.linattn.bindings;

import io.github.linattn.bindings.generated.cudart;

/** What a device can be asked for; each is one integer. Immutable. */
public enum DeviceAttribute {
  COMPUTE_CAPABILITY_MAJOR(cudart.cudaDevAttrComputeCapabilityMajor()),
  COMPUTE_CAPABILITY_MINOR(cudart.cudaDevAttrComputeCapabilityMinor()),
  MULTIPROCESSOR_COUNT(cudart.cudaDevAttrMultiProcessorCount()),
  /** Shared memory that one block may ask for, static and dynamic together, in bytes. */
  MAX_SHARED_BYTES_PER_BLOCK(cudart.cudaDevAttrMaxSharedMemoryPerBlockOptin()),
  MAX_SHARED_BYTES_PER_MULTIPROCESSOR(cudart.cudaDevAttrMaxSharedMemoryPerMultiprocessor()),
  MAX_THREADS_PER_MULTIPROCESSOR(cudart.cudaDevAttrMaxThreadsPerMultiProcessor()),
  L2_BYTES(cudart.cudaDevAttrL2CacheSize()),
  /** 1 where {@link Cuda#allocateAsync} works. */
  STREAM_ORDERED_ALLOCATION(cudart.cudaDevAttrMemoryPoolsSupported()),
  /** 1 where {@link Cuda#registerHost} works. */
  HOST_REGISTRATION(cudart.cudaDevAttrHostRegisterSupported()),
  /** 1 where {@link Cuda#registerHost} works for {@link HostAccess#READ_ONLY}. */
  READ_ONLY_HOST_REGISTRATION(cudart.cudaDevAttrHostRegisterReadOnlySupported()),
  /** 1 where kernels may use the host's own address of registered memory. */
  SAME_ADDRESS_FOR_REGISTERED_HOST(cudart.cudaDevAttrCanUseHostPointerForRegisteredMem());

  private final int id;

  DeviceAttribute(int id) {
    this.id = id;
  }

  /** The {@code cudaDeviceAttr}. */
  int id() {
    return id;
  }
}
