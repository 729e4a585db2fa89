package io.github.linattn.internal.cuda;

import io.github.linattn.kernelgen.Architecture;
import io.github.linattn.kernelgen.ElementType;
import io.github.linattn.kernelgen.Family;
import io.github.linattn.kernelgen.GridRule;
import io.github.linattn.kernelgen.KernelEntry;
import io.github.linattn.kernelgen.KernelSpec;
import io.github.linattn.kernelgen.Operation;
import io.github.linattn.kernelgen.Precision;
import io.github.linattn.kernelgen.SharedRule;
import io.github.linattn.kernelgen.Technique;
import java.util.EnumSet;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;

/** Kernels as a planner finds them for a Hopper GPU, without building them. */
final class AnyKernel {
  private AnyKernel() {}

  /** Whatever can be specified. */
  static Optional<KernelEntry> find(
      Operation operation,
      Technique technique,
      int headDim,
      ElementType element,
      Precision precision) {
    Set<Architecture> architectures =
        technique == Technique.WGMMA
            ? EnumSet.of(Architecture.SM_90A)
            : EnumSet.of(Architecture.SM_90, Architecture.PTX);
    Optional<GridRule> gradient = gradientRule(operation, technique);
    if (gradient.isPresent()) {
      return Optional.of(
          gradient(
              operation, technique, headDim, element, precision, architectures, gradient.get()));
    }
    KernelSpec spec =
        KernelSpec.chunked(operation, technique, headDim, element, precision, architectures);
    return Optional.of(KernelEntry.of(spec, new TreeMap<>()));
  }

  private static Optional<GridRule> gradientRule(Operation operation, Technique technique) {
    return Optional.ofNullable(
        switch (operation) {
          case QUERY_GRADIENT, KEY_VALUE_GRADIENT ->
              new GridRule(
                  technique == Technique.WGMMA ? GridRule.Per.CLUSTER : GridRule.Per.VALUE_TILE,
                  64);
          case GRADIENT_OUTPUTS -> new GridRule(GridRule.Per.VALUE_TILE, 64);
          case GRADIENT_SUMS -> new GridRule(GridRule.Per.STATE_TILE, 64);
          case GRADIENT_ROWS, NORMALIZE_ROWS_GRADIENT, COEFFICIENT_SUMS ->
              new GridRule(GridRule.Per.ROWS, 32);
          default -> null;
        });
  }

  private static KernelEntry gradient(
      Operation operation,
      Technique technique,
      int headDim,
      ElementType element,
      Precision precision,
      Set<Architecture> architectures,
      GridRule rule) {
    String symbol =
        "la_chunked_%s_%s%s_%s%s"
            .formatted(
                operation.id(),
                technique.id(),
                headDim == 0 ? "" : "_d" + headDim,
                element.id(),
                technique != Technique.SIMT && element == ElementType.F32
                    ? "_" + precision.id()
                    : "");
    return new KernelEntry(
        symbol,
        symbol + ".fatbin",
        operation,
        Family.CHUNKED,
        technique,
        headDim,
        1,
        element,
        precision,
        256,
        new SharedRule.Fixed(0),
        rule,
        architectures,
        new TreeMap<>());
  }
}
