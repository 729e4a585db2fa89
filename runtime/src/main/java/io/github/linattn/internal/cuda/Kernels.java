package io.github.linattn.internal.cuda;

import io.github.linattn.bindings.Cuda;
import io.github.linattn.bindings.CudaKernel;
import io.github.linattn.bindings.CudaModule;
import io.github.linattn.kernelgen.ElementType;
import io.github.linattn.kernelgen.Family;
import io.github.linattn.kernelgen.KernelEntry;
import io.github.linattn.kernelgen.Operation;
import io.github.linattn.kernels.BuiltKernels;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;

/** The kernels of one device, each loaded at its first use. Thread-safe. */
final class Kernels {
  /** Dynamic shared memory that needs no leave of the driver. */
  private static final int FREE_SHARED_BYTES = 48 * 1024;

  private record Key(Operation operation, int headDim) {}

  private final Device device;
  private final Arena owner;
  private final List<BuiltKernels> sources;
  private final Map<Key, Found> found = new ConcurrentHashMap<>();
  private final Map<Key, LoadedKernel> loaded = new ConcurrentHashMap<>();

  /**
   * @param owner unloads the kernels when it closes
   * @param sources where kernels are looked for, in this order
   */
  Kernels(Device device, Arena owner, List<BuiltKernels> sources) {
    this.device = device;
    this.owner = owner;
    this.sources = sources;
  }

  /**
   * What the manifests say of a kernel, without loading it.
   *
   * @throws UnsupportedOperationException listing the head dimensions that are built, and how to
   *     build this one
   */
  KernelEntry entry(Operation operation, int headDim) {
    return find(new Key(operation, headDim)).entry();
  }

  private record Found(BuiltKernels source, KernelEntry entry) {}

  private Found find(Key key) {
    return found.computeIfAbsent(key, this::search);
  }

  private Found search(Key key) {
    for (BuiltKernels source : sources) {
      Optional<KernelEntry> entry =
          source.manifest().find(key.operation, Family.PAPER, key.headDim, ElementType.F32);
      if (entry.isPresent()) {
        return new Found(source, entry.get());
      }
    }
    throw new UnsupportedOperationException(notBuilt(key.headDim));
  }

  private String notBuilt(int headDim) {
    var built = new TreeSet<Integer>();
    sources.forEach(
        source -> built.addAll(source.manifest().headDims(Family.PAPER, ElementType.F32)));
    return ("no CUDA kernel for head dimension %d; built: %s. Build it with 'linattn generate"
            + " --head-dim %d --out DIR' and name DIR in the environment variable %s")
        .formatted(headDim, built, headDim, CudaEngine.KERNEL_FOLDERS_VARIABLE);
  }

  LoadedKernel load(Operation operation, int headDim) {
    return loaded.computeIfAbsent(new Key(operation, headDim), this::load);
  }

  private LoadedKernel load(Key key) {
    Found kernelAndSource = find(key);
    KernelEntry entry = kernelAndSource.entry();
    Cuda cuda = device.enter();
    CudaKernel kernel;
    try (Arena scratch = Arena.ofConfined()) {
      byte[] image = kernelAndSource.source().image(entry);
      MemorySegment copy = scratch.allocateFrom(ValueLayout.JAVA_BYTE, image);
      CudaModule module = cuda.loadImage(owner, copy);
      kernel = cuda.kernel(module, entry.symbol());
    } catch (IOException e) {
      throw new UncheckedIOException(
          "can't read kernel %s of %s".formatted(entry.symbol(), kernelAndSource.source().origin()),
          e);
    }
    if (entry.sharedBytes() > FREE_SHARED_BYTES) {
      cuda.setMaxDynamicSharedMemory(kernel, entry.sharedBytes());
    }
    return new LoadedKernel(entry, kernel);
  }
}
