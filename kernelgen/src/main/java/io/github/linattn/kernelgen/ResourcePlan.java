package io.github.linattn.kernelgen;

/** What one block of a kernel uses, and how many blocks a launch takes. */
public sealed interface ResourcePlan permits ScanPlan, RowPlan {

  /** Threads per block that every supported GPU allows. */
  int MAX_THREADS = 1024;

  /** Shared memory a block may ask for without opting in. */
  int DEFAULT_SHARED_BYTES = 48 * 1024;

  /** Shared memory a block may opt in to on every GPU from sm_80 on (sm_86 has the least). */
  int MAX_SHARED_BYTES = 99 * 1024;

  /** Threads per block. */
  int threads();

  /** Dynamic shared memory per block in bytes. */
  int sharedBytes();

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
    return spec.operation().isScan()
        ? ScanPlan.of(spec.headDim(), spec.slices())
        : RowPlan.of(spec.operation(), spec.headDim(), spec.slices());
  }
}
