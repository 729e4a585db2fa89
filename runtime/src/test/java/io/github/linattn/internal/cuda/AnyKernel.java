package io.github.linattn.internal.cuda;

import io.github.linattn.kernelgen.Architecture;
import io.github.linattn.kernelgen.ElementType;
import io.github.linattn.kernelgen.KernelEntry;
import io.github.linattn.kernelgen.KernelSpec;
import io.github.linattn.kernelgen.OneSweepPlan;
import io.github.linattn.kernelgen.Operation;
import io.github.linattn.kernelgen.Precision;
import io.github.linattn.kernelgen.Technique;
import java.util.EnumSet;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;

/** Kernels as a planner finds them for a Hopper GPU, without building them. */
final class AnyKernel {
  static final GpuTraits H200 = new GpuTraits(132, 232_448, 90, Rates.BYTES_PER_MICRO);

  /** Of 2619 MHz and 5120 bits. */
  static final GpuTraits H100 = new GpuTraits(132, 232_448, 90, 2.715e6);

  /** The same as an H200 but for its instructions. */
  static final GpuTraits AMPERE = new GpuTraits(132, 232_448, 80, Rates.BYTES_PER_MICRO);

  private AnyKernel() {}

  /** Whatever can be specified; one sweep for some tensors alone. */
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
    if (operation == Operation.ONE_SWEEP && !OneSweepPlan.exists(headDim, element)) {
      return Optional.empty();
    }
    KernelSpec spec =
        KernelSpec.chunked(operation, technique, headDim, element, precision, architectures);
    return Optional.of(KernelEntry.of(spec, new TreeMap<>()));
  }
}
