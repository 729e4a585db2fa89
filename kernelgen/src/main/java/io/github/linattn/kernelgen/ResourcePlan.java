package io.github.linattn.kernelgen;

/** What one block of a kernel uses, and how many blocks a launch takes. */
public sealed interface ResourcePlan
    permits ScanPlan, RowPlan, ColumnPlan, HopperPlan, OneSweepPlan, OutputsPlan, TilePlan {

  /** Threads per block that every supported GPU allows. */
  int MAX_THREADS = 1024;

  /** Shared memory a block may ask for without opting in. */
  int DEFAULT_SHARED_BYTES = 48 * 1024;

  /** Shared memory a block may opt in to on every GPU from sm_80 on (sm_86 has the least). */
  int MAX_SHARED_BYTES = 99 * 1024;

  /** Threads per block. */
  int threads();

  /** Dynamic shared memory per block in bytes; of a launch for D = 256 where it depends on D. */
  int sharedBytes();

  /** Dynamic shared memory per block where it depends on the launch. */
  default SharedRule sharedRule() {
    return new SharedRule.Fixed(sharedBytes());
  }

  /** Registers of each thread that hold the state across tokens. */
  int stateRegisters();

  /** Blocks of a launch. */
  GridRule gridRule();

  /**
   * The plan of a specification.
   *
   * @throws IllegalArgumentException if a budget is exceeded; the message names it
   */
  static ResourcePlan of(KernelSpec spec) {
    return spec.family() == Family.PAPER ? paper(spec) : chunked(spec);
  }

  private static ResourcePlan paper(KernelSpec spec) {
    if (spec.operation().isScan()) {
      return ScanPlan.of(spec.headDim(), spec.slices());
    }
    return spec.operation() == Operation.VALUE_CENTER
        ? ColumnPlan.of(spec.headDim())
        : RowPlan.of(spec.operation(), spec.headDim(), spec.slices());
  }

  private static ResourcePlan chunked(KernelSpec spec) {
    if (spec.operation() == Operation.ONE_SWEEP) {
      return OneSweepPlan.of(spec);
    }
    if (spec.technique() != Technique.WGMMA) {
      return TilePlan.of(spec);
    }
    return OutputsPlan.isOutputs(spec.operation()) ? OutputsPlan.of(spec) : HopperPlan.of(spec);
  }
}
