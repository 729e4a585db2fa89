package io.github.linattn.internal.cuda;

import io.github.linattn.kernelgen.ElementType;
import io.github.linattn.kernelgen.KernelEntry;
import io.github.linattn.kernelgen.Operation;
import io.github.linattn.kernelgen.Precision;
import io.github.linattn.kernelgen.Technique;

/**
 * What the cost model of {@link Planner} knows of a GPU. Measured on one H200; on other GPUs the
 * times are wrong, but their order is what the planner needs.
 */
final class Rates {
  /** Copy speed of device memory. */
  static final double BYTES_PER_MICRO = 4.0e6;

  /** From one kernel of a stream to the next. */
  static final double LAUNCH_MICROS = 3;

  private static final double REFERENCE_DIM = 128;

  /** What a chunk costs whatever its width: barriers and the latency of each step. */
  private static final double LEAST_SHARE = 0.5;

  private Rates() {}

  /** One chunk of 64 tokens of a block, the tensors being on their way. */
  static double chunkMicros(KernelEntry kernel, int keyDim) {
    double share = Math.max(LEAST_SHARE, keyDim / REFERENCE_DIM);
    return share * chunkMicros(kernel.operation(), kernel.technique(), kernel);
  }

  private static double chunkMicros(Operation operation, Technique technique, KernelEntry kernel) {
    boolean exact = kernel.elementType() == ElementType.F32 && kernel.precision() != Precision.TF32;
    double forward =
        technique == Technique.WGMMA
            ? exact ? 2.8 : kernel.elementType() == ElementType.F32 ? 1.64 : 1.0
            : exact ? 9 : kernel.elementType() == ElementType.F32 ? 4.5 : 2.5;
    return switch (operation) {
      case STATE_SUMS, NORMALIZED_STATE_SUMS -> forward / 3;
      case STATE_OUTPUTS -> forward / 2;
      default -> forward;
    };
  }

  /** From the start of a block to its first chunk. */
  static double startMicros(Technique technique) {
    return technique == Technique.WGMMA ? 4 : 1.5;
  }

  /** Blocks that a multiprocessor works on at a time. */
  static int residentBlocks(KernelEntry kernel) {
    boolean exact = kernel.elementType() == ElementType.F32 && kernel.precision() != Precision.TF32;
    return kernel.technique() == Technique.WGMMA || exact ? 1 : 2;
  }

  /**
   * The most tokens of an item: the accumulators of tensor cores truncate, so that the error of a
   * state grows with the chunks added to it.
   */
  static int mostItemTokens(Precision precision) {
    return precision == Precision.TF32 ? 32_768 : 65_536;
  }
}
