package io.github.linattn.internal.cuda;

import io.github.linattn.bindings.Cuda;
import io.github.linattn.bindings.CudaKernel;
import io.github.linattn.bindings.CudaModule;
import io.github.linattn.bindings.DeviceAttribute;
import io.github.linattn.kernelgen.Catalogue;
import io.github.linattn.kernelgen.ElementType;
import io.github.linattn.kernelgen.Family;
import io.github.linattn.kernelgen.KernelEntry;
import io.github.linattn.kernelgen.Operation;
import io.github.linattn.kernelgen.Precision;
import io.github.linattn.kernelgen.SharedRule;
import io.github.linattn.kernelgen.Technique;
import io.github.linattn.kernels.BuiltKernels;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.foreign.Arena;
import java.lang.foreign.ValueLayout;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalInt;
import java.util.SortedSet;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Collectors;

/** The kernels of one device, each loaded at its first use. Thread-safe. */
final class Kernels {
  /** Dynamic shared memory that needs no leave of the driver. */
  private static final int FREE_SHARED_BYTES = 48 * 1024;

  private record Key(Operation operation, int headDim) {}

  private record ChunkedKey(
      Operation operation,
      Technique technique,
      int headDim,
      ElementType element,
      Precision precision) {}

  private final Device device;
  private final Arena owner;
  private final List<BuiltKernels> sources;
  private final Map<Key, Found> found = new ConcurrentHashMap<>();
  private final Map<ChunkedKey, Optional<Found>> chunked = new ConcurrentHashMap<>();

  /** Where a kernel can't be had of its image, this serves the next attempt. */
  private final Map<KernelEntry, CudaModule> images = new ConcurrentHashMap<>();

  private final Map<KernelEntry, LoadedKernel> loaded = new ConcurrentHashMap<>();
  private final int capability;
  private final int sharedBytes;

  /**
   * @param owner unloads the kernels when it closes
   * @param sources where kernels are looked for, in this order
   */
  Kernels(Device device, Arena owner, List<BuiltKernels> sources) {
    this.device = device;
    this.owner = owner;
    this.sources = sources;
    this.capability = device.capability();
    this.sharedBytes = device.attribute(DeviceAttribute.MAX_SHARED_BYTES_PER_BLOCK);
  }

  /** The most shared memory that a block may ask for. */
  int sharedBytes() {
    return sharedBytes;
  }

  /** A kernel of the family {@code chunked} that this device runs. */
  Optional<KernelEntry> find(
      Operation operation,
      Technique technique,
      int headDim,
      ElementType element,
      Precision precision) {
    return chunked
        .computeIfAbsent(
            new ChunkedKey(operation, technique, headDim, element, precision), this::search)
        .map(Found::entry);
  }

  private Optional<Found> search(ChunkedKey key) {
    for (BuiltKernels source : sources) {
      Optional<Found> entry =
          source
              .manifest()
              .find(
                  key.operation, key.technique, key.headDim, key.element, key.precision, capability)
              .map(found -> new Found(source, found));
      if (entry.isPresent()) {
        return entry;
      }
    }
    return Optional.empty();
  }

  /** The head dimensions of an operation of the family {@code chunked}. */
  SortedSet<Integer> chunkedHeadDims(Operation operation, ElementType element) {
    return sources.stream()
        .flatMap(source -> source.manifest().entries().stream())
        .filter(entry -> entry.family() == Family.CHUNKED && entry.operation() == operation)
        .filter(entry -> entry.elementType() == element)
        .map(KernelEntry::headDim)
        .collect(Collectors.toCollection(TreeSet::new));
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

  /**
   * Whether 'linattn generate' makes such a kernel for this GPU.
   *
   * @param paper whether one of the family {@code paper} would do
   */
  boolean canBeBuilt(Operation operation, int headDim, ElementType element, boolean paper) {
    try {
      return Catalogue.forHeadDim(headDim, OptionalInt.empty(), Catalogue.allArchitectures())
          .stream()
          .filter(spec -> spec.operation() == operation && spec.elementType() == element)
          .filter(spec -> spec.family() == Family.CHUNKED || paper)
          .flatMap(spec -> spec.architectures().stream())
          .anyMatch(architecture -> architecture.runsOn(capability));
    } catch (IllegalArgumentException e) {
      return false; // no width of rows that a kernel has
    }
  }

  private record Found(BuiltKernels source, KernelEntry entry) {}

  private Found find(Key key) {
    return found.computeIfAbsent(key, this::search);
  }

  private Found search(Key key) {
    for (BuiltKernels source : sources) {
      Optional<KernelEntry> entry =
          source
              .manifest()
              .findPaper(key.operation, key.headDim)
              .filter(kernel -> kernel.runsOn(capability));
      if (entry.isPresent()) {
        return new Found(source, entry.get());
      }
    }
    throw new UnsupportedOperationException(notBuilt(key.headDim));
  }

  private String notBuilt(int headDim) {
    var built = new TreeSet<Integer>();
    sources.forEach(source -> built.addAll(source.manifest().paperHeadDims()));
    return "no CUDA kernel for head dimension %d; built: %s. 'linattn generate --head-dim %d' builds it"
        .formatted(headDim, built, headDim);
  }

  LoadedKernel load(Operation operation, int headDim) {
    return load(find(new Key(operation, headDim)));
  }

  /** A kernel that {@link #find} gave. */
  LoadedKernel load(KernelEntry entry) {
    LoadedKernel known = loaded.get(entry);
    if (known != null) {
      return known;
    }
    return load(
        chunked.values().stream()
            .flatMap(Optional::stream)
            .filter(found -> found.entry().equals(entry))
            .findFirst()
            .orElseThrow());
  }

  private LoadedKernel load(Found kernelAndSource) {
    return loaded.computeIfAbsent(kernelAndSource.entry(), entry -> loadNow(kernelAndSource));
  }

  private LoadedKernel loadNow(Found kernelAndSource) {
    KernelEntry entry = kernelAndSource.entry();
    Cuda cuda = device.enter();
    CudaModule image = images.computeIfAbsent(entry, key -> loadImage(cuda, kernelAndSource));
    CudaKernel kernel = cuda.kernel(image, entry.symbol());
    boolean fixed = entry.shared() instanceof SharedRule.Fixed && entry.together() == 1;
    int most = fixed ? entry.sharedBytes() : sharedBytes;
    if (most > FREE_SHARED_BYTES) {
      cuda.setMaxDynamicSharedMemory(kernel, most);
    }
    return new LoadedKernel(entry, kernel);
  }

  private CudaModule loadImage(Cuda cuda, Found kernelAndSource) {
    KernelEntry entry = kernelAndSource.entry();
    BuiltKernels source = kernelAndSource.source();
    try (Arena scratch = Arena.ofConfined()) {
      return cuda.loadImage(
          owner, scratch.allocateFrom(ValueLayout.JAVA_BYTE, source.image(entry)));
    } catch (IOException e) {
      throw new UncheckedIOException(
          "can't read kernel %s of %s".formatted(entry.symbol(), source.origin()), e);
    }
  }
}
