package io.github.linattn.bindings;

import io.github.linattn.bindings.generated.cudart;

/**
 * What CUDA knows about an address. Immutable.
 *
 * @param kind where the memory lives
 * @param device the device it belongs to; of host memory the one that was current when it was
 *     allocated or registered; -2 or -1 for {@link Kind#UNREGISTERED}
 */
public record PointerInfo(Kind kind, int device) {

  /** Where memory lives. */
  public enum Kind {
    /** Ordinary host memory, or no memory at all: CUDA has never heard of the address. */
    UNREGISTERED,
    /** Pinned or registered host memory. */
    HOST,
    DEVICE,
    /** Memory that migrates between host and device. */
    MANAGED;

    static Kind ofType(int type) {
      if (type == cudart.cudaMemoryTypeUnregistered()) {
        return UNREGISTERED;
      } else if (type == cudart.cudaMemoryTypeHost()) {
        return HOST;
      } else if (type == cudart.cudaMemoryTypeDevice()) {
        return DEVICE;
      } else if (type == cudart.cudaMemoryTypeManaged()) {
        return MANAGED;
      }
      throw new AssertionError("cudaMemoryType " + type);
    }
  }
}
