package io.github.linattn.kernelgen;

import java.util.Collections;
import java.util.EnumSet;
import java.util.Set;
import java.util.SortedMap;
import java.util.TreeMap;

/**
 * A built kernel, as the manifest lists it.
 *
 * @param symbol the entry point in the image, and the base name of its files
 * @param file the image (fatbin) beside the manifest
 * @param threads per block
 * @param shared dynamic shared memory per block, at least; above 48 KiB the launch opts in
 * @param headDim D, or 0: any
 * @param gridRule blocks of a launch
 * @param architectures what the image holds
 * @param usage what ptxas reported, per architecture with machine code
 */
public record KernelEntry(
    String symbol,
    String file,
    Operation operation,
    Family family,
    Technique technique,
    int headDim,
    int slices,
    ElementType elementType,
    Precision precision,
    int threads,
    SharedRule shared,
    GridRule gridRule,
    Set<Architecture> architectures,
    SortedMap<Architecture, Usage> usage) {

  /**
   * Registers and memory of a kernel on one architecture.
   *
   * @param registers per thread
   * @param spillBytes stores and loads of spilled registers; 0 in every kernel that is shipped
   * @param staticSharedBytes shared memory declared in the kernel
   */
  public record Usage(int registers, int spillBytes, int staticSharedBytes) {}

  public KernelEntry {
    architectures = Collections.unmodifiableSet(EnumSet.copyOf(architectures));
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
        spec.technique(),
        spec.headDim(),
        spec.slices(),
        spec.elementType(),
        spec.precision(),
        plan.threads(),
        plan.sharedRule(),
        plan.gridRule(),
        spec.architectures(),
        usage);
  }

  /** Dynamic shared memory of a block, at least; of a launch for D = 256 where it depends on D. */
  public int sharedBytes() {
    return shared.bytes(KernelSpec.MAX_CHUNKED_HEAD_DIM, 1);
  }

  /** Name of the generated text beside the image. */
  public String sourceFile() {
    return symbol + ".cu";
  }

  /** Whether a GPU of this compute capability, such as 90, runs an image of it. */
  public boolean runsOn(int capability) {
    return architectures.stream().anyMatch(architecture -> architecture.runsOn(capability));
  }

  /**
   * Whether a GPU of this compute capability runs machine code of it that has what came with sm_90:
   * clusters, and waiting for earlier kernels. PTX for any architecture has not.
   */
  public boolean hasSm90Features(int capability) {
    return capability >= 90
        && architectures.stream().anyMatch(a -> a.isMachineCode() && a.runsOn(capability));
  }

  /** Whether the copy engine brings its tensors, which it is told in maps beside its arguments. */
  public boolean takesTensorMaps() {
    return technique == Technique.WGMMA && !hasWarpgroups();
  }

  /** Whether a launch may have blocks of one warpgroup or of two. */
  public boolean hasWarpgroups() {
    return technique == Technique.WGMMA && OutputsPlan.isOutputs(operation);
  }

  /**
   * Blocks for which a multiprocessor has registers, of those {@linkplain #hasWarpgroups of one
   * warpgroup or of two} of the former; 1 of kernels that are not made for more.
   */
  public int together() {
    if (technique != Technique.WGMMA) {
      return 1;
    }
    return hasWarpgroups()
        ? OutputsPlan.together(operation, elementType)
        : HopperPlan.together(operation, headDim, elementType, precision);
  }

  /** Whether a gradient of q forms o . dO of its rows itself, and leaves it to the other sweep. */
  public boolean formsDelta() {
    return technique == Technique.WGMMA
        && (operation.plain() == Operation.GRADIENT_OUTPUTS
            || HopperPlan.formsDelta(operation, headDim, elementType, precision));
  }

  /**
   * Whether gradients of rows that were divided by their length leave it as those of the rows, read
   * from one state.
   */
  public boolean finishesGradients() {
    return OutputsPlan.finishes(operation);
  }

  /** Partial sums per head of the coefficients' gradients, for scans; 1 for other kernels. */
  public int tiles() {
    return gridRule.per() == GridRule.Per.HEAD ? gridRule.size() : 1;
  }
}
