package io.github.linattn.kernelgen;

import java.util.Collections;
import java.util.SortedMap;
import java.util.TreeMap;

/**
 * A built kernel, as the manifest lists it.
 *
 * @param symbol the entry point in the image, and the base name of its files
 * @param file the image (fatbin) beside the manifest
 * @param threads per block
 * @param sharedBytes dynamic shared memory per block; above 48 KiB the launch opts in
 * @param gridRule blocks of a launch
 * @param usage what ptxas reported, per architecture with machine code
 */
public record KernelEntry(
    String symbol,
    String file,
    Operation operation,
    Family family,
    int headDim,
    int slices,
    ElementType elementType,
    int threads,
    int sharedBytes,
    GridRule gridRule,
    SortedMap<Architecture, Usage> usage) {

  /**
   * Registers and memory of a kernel on one architecture.
   *
   * @param registers per thread
   * @param spillBytes stores and loads of spilled registers; 0 in every kernel that is built
   * @param staticSharedBytes shared memory declared in the kernel
   */
  public record Usage(int registers, int spillBytes, int staticSharedBytes) {}

  public KernelEntry {
    usage = Collections.unmodifiableSortedMap(new TreeMap<>(usage));
  }

  /** The entry of a specification that was compiled. */
  public static KernelEntry of(KernelSpec spec, SortedMap<Architecture, Usage> usage) {
    ResourcePlan plan = ResourcePlan.of(spec);
    return new KernelEntry(
        spec.symbol(),
        spec.symbol() + ".fatbin",
        spec.operation(),
        spec.family(),
        spec.headDim(),
        spec.slices(),
        spec.elementType(),
        plan.threads(),
        plan.sharedBytes(),
        plan.gridRule(),
        usage);
  }

  /** Name of the generated text beside the image. */
  public String sourceFile() {
    return symbol + ".cu";
  }

  /** Partial sums per head of the coefficients' gradients, for scans; 1 for other kernels. */
  public int tiles() {
    return gridRule instanceof GridRule.PerHead perHead ? perHead.tiles() : 1;
  }
}
