package io.github.linattn;

import io.github.linattn.bindings.CudaLibrary;
import io.github.linattn.bindings.MemoryInfo;
import io.github.linattn.cuda.CudaException;
import io.github.linattn.internal.cuda.CudaEngine;
import io.github.linattn.internal.cuda.Device;
import io.github.linattn.internal.cuda.SupportMatrix;
import io.github.linattn.kernelgen.KernelEntry;
import io.github.linattn.kernels.BuiltKernels;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/**
 * What this process finds to compute with, for a person to read. The first question looks for the
 * CUDA Runtime and loads it; a GPU that is asked gets a context of this process, in some of its
 * memory. Any thread.
 */
public final class Diagnostics {
  private Diagnostics() {}

  /**
   * The CUDA Runtime that is loaded.
   *
   * @param library its file
   * @param runtimeVersion such as 13.0
   * @param driverVersion the newest CUDA version that the driver supports
   * @param gpus those this process sees
   */
  public record CudaRuntime(
      String library, String runtimeVersion, String driverVersion, List<Gpu> gpus) {
    /** Copies the list. */
    public CudaRuntime {
      gpus = List.copyOf(gpus);
    }
  }

  /**
   * One GPU.
   *
   * @param ordinal by which {@link Backend#cuda} takes it
   * @param name as its driver calls it, or why it does not answer
   * @param architecture such as sm_90; empty if it does not answer
   * @param multiprocessors 0 if it does not answer
   * @param freeBytes of its memory when it was asked; 0 if it does not answer
   * @param totalBytes of its memory; 0 if it does not answer
   */
  public record Gpu(
      int ordinal,
      String name,
      String architecture,
      int multiprocessors,
      long freeBytes,
      long totalBytes) {}

  /**
   * One kernel that was built, for one architecture.
   *
   * @param symbol its name, which says all that it was generated for
   * @param headDim D, of the keys and values that it reads
   * @param slices L, the parts into which the kernel cuts the key dimension
   * @param dtype of q, k, v and o, such as bf16
   * @param architecture such as sm_90a
   * @param registers of a thread, each of 32 bits
   * @param sharedBytes shared memory of a block
   * @param origin where it comes from
   */
  public record Kernel(
      String symbol,
      int headDim,
      int slices,
      String dtype,
      String architecture,
      int registers,
      int sharedBytes,
      String origin) {}

  /** What a GPU may be asked to do. */
  public enum Task {
    /** o and g of causal attention. */
    FORWARD,
    /** All gradients of causal attention. */
    BACKWARD,
    /** o and g where each query sees all of its sequence. */
    NON_CAUSAL_FORWARD,
    /** All gradients where each query sees all of its sequence. */
    NON_CAUSAL_BACKWARD,
    /** One token from and to a state. */
    DECODE_STEP
  }

  /**
   * The kernels with which a kind of GPU does a task.
   *
   * @param architecture such as sm_90
   * @param normalize whether rows of q and k are divided by their length
   * @param headDim D, of keys and values
   * @param kernels what they multiply with: {@code wgmma}, {@code mma} or {@code simt}, or {@code
   *     paper} for that family; empty if there are none
   */
  public record Support(
      String architecture,
      Task task,
      boolean normalize,
      DType dtype,
      Mode mode,
      int headDim,
      String kernels) {}

  /**
   * The CUDA Runtime, or empty; then {@link #cudaProblem} says why. Asks each GPU, which makes a
   * context on all of them; {@link #gpu} asks one alone.
   */
  public static Optional<CudaRuntime> cuda() {
    if (!(CudaLibrary.load() instanceof CudaLibrary.Found found)) {
      return Optional.empty();
    }
    List<Gpu> gpus = new ArrayList<>();
    for (int i = 0; i < found.deviceCount(); i++) {
      gpus.add(gpu(new Device(found.cuda(), i)));
    }
    return Optional.of(
        new CudaRuntime(
            found.path().toString(), found.runtime().toString(), found.driver().toString(), gpus));
  }

  /**
   * One GPU, which alone is asked: it gets a context of this process, the others don't.
   *
   * @return empty if there is no CUDA Runtime, or no GPU of this ordinal
   */
  public static Optional<Gpu> gpu(int ordinal) {
    return CudaLibrary.load() instanceof CudaLibrary.Found found
            && ordinal >= 0
            && ordinal < found.deviceCount()
        ? Optional.of(gpu(new Device(found.cuda(), ordinal)))
        : Optional.empty();
  }

  private static Gpu gpu(Device device) {
    try {
      MemoryInfo memory = device.memory();
      return new Gpu(
          device.ordinal(),
          device.name(),
          device.architecture(),
          device.multiprocessors(),
          memory.freeBytes(),
          memory.totalBytes());
    } catch (CudaException e) {
      return new Gpu(device.ordinal(), "does not answer: " + e.getMessage(), "", 0, 0, 0);
    }
  }

  /** Why there is no CUDA Runtime to use, or empty. */
  public static Optional<String> cudaProblem() {
    return CudaLibrary.load() instanceof CudaLibrary.Missing missing
        ? Optional.of(missing.reason())
        : Optional.empty();
  }

  /** Each place that was searched in vain for the CUDA Runtime; empty if it was found. */
  public static List<String> searchedPlaces() {
    return CudaLibrary.load() instanceof CudaLibrary.Missing missing
        ? missing.attempts().stream().map(CudaLibrary.Attempt::toString).toList()
        : List.of();
  }

  /**
   * The kernels that this process would use, those of the user's folders first.
   *
   * @throws IllegalArgumentException if a folder that was named holds no kernels
   */
  public static List<Kernel> kernels() {
    List<Kernel> kernels = new ArrayList<>();
    for (BuiltKernels source : CudaEngine.kernelSources()) {
      for (KernelEntry entry : source.manifest().entries()) {
        entry
            .usage()
            .forEach(
                (architecture, usage) ->
                    kernels.add(
                        new Kernel(
                            entry.symbol(),
                            entry.headDim(),
                            entry.slices(),
                            entry.elementType().id(),
                            architecture.id(),
                            usage.registers(),
                            entry.sharedBytes() + usage.staticSharedBytes(),
                            source.origin())));
      }
    }
    return kernels;
  }

  /**
   * What each kind of GPU can do with the kernels that this process would use; asks no GPU.
   *
   * @throws IllegalArgumentException if a folder that was named holds no kernels
   */
  public static List<Support> support() {
    return SupportMatrix.of(
        CudaEngine.kernelSources().stream().map(BuiltKernels::manifest).toList());
  }
}
