package io.github.linattn.kernelgen;

import java.util.Arrays;
import java.util.EnumSet;
import java.util.List;
import java.util.OptionalInt;
import java.util.Set;
import java.util.stream.Stream;

/** The kernels that are built, in the order of {@link KernelSpec#compareTo}. */
public final class Catalogue {
  private static final List<Integer> HEAD_DIMS = List.of(32, 64, 96, 128, 192, 256);

  private Catalogue() {}

  /** The architectures of the shipped kernels. */
  public static Set<Architecture> defaultArchitectures() {
    return EnumSet.of(Architecture.SM_80, Architecture.SM_90, Architecture.PTX);
  }

  /** The shipped kernels: every operation for D = 32, 64, 96, 128, 192, 256 with its default L. */
  public static List<KernelSpec> defaults() {
    return HEAD_DIMS.stream()
        .flatMap(d -> specs(d, KernelSpec.defaultSlices(d), defaultArchitectures()))
        .sorted()
        .toList();
  }

  /**
   * Every operation for one head dimension.
   *
   * @param slices L; the default one where empty
   * @throws IllegalArgumentException if a rule or a budget of {@link KernelSpec} is broken
   */
  public static List<KernelSpec> forHeadDim(
      int headDim, OptionalInt slices, Set<Architecture> architectures) {
    int chosen = slices.isPresent() ? slices.getAsInt() : KernelSpec.defaultSlices(headDim);
    return specs(headDim, chosen, architectures).sorted().toList();
  }

  private static Stream<KernelSpec> specs(
      int headDim, int slices, Set<Architecture> architectures) {
    return Arrays.stream(Operation.values())
        .map(
            operation ->
                new KernelSpec(
                    operation, Family.PAPER, headDim, slices, ElementType.F32, architectures));
  }
}
