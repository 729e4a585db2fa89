package io.github.linattn.internal.cuda;

import io.github.linattn.kernelgen.ElementType;
import io.github.linattn.kernelgen.KernelEntry;
import io.github.linattn.kernelgen.OneSweepPlan;
import io.github.linattn.kernelgen.Operation;
import io.github.linattn.kernelgen.Precision;
import io.github.linattn.kernelgen.Technique;

/**
 * What the cost model of {@link Planner} knows of kernels. Measured on one H200 unless said; on
 * other GPUs, of which {@link GpuTraits} tell, the times are wrong, but their order is what the
 * planner needs.
 */
final class Rates {
  /** Copy speed of the memory of an H200. */
  static final double BYTES_PER_MICRO = 3.9e6;

  /** From one kernel of a stream to the next, which starts early. */
  static final double LAUNCH_MICROS = 1;

  /** Kernels by wgmma that take so long start when all earlier ones have ended. */
  static final double IN_TURN_MICROS = 30;

  /** A scan of small states. */
  static final double SCAN_MICROS = 1;

  /**
   * One chunk of 64 tokens of a block of wgmma with D = 32, 64, 96, 128, 192 and 256, one product;
   * above 192 a block has 128 value columns.
   */
  private static final double[] NATIVE = {0.68, 0.755, 0.86, 0.955, 1.28, 2.7};

  /** One chunk of sums alone, 64 value columns, 16 bits. */
  private static final double[] SUMS = {0.27, 0.27, 0.28, 0.3, 0.45, 0.6};

  /** The same of the sums for the gradients of k and v. */
  private static final double[] GRADIENT_SUMS = {0.51, 0.52, 0.53, 0.54, 1, 1.1};

  /** One chunk of dq, and of dk or dv, 16 bits; wide blocks have 128 columns. */
  private static final double[] QUERY_GRADIENT = {0.87, 1.02, 1.14, 1.26, 1.33, 2.9};

  /** D = 64 and 128 as two sweeps of 20 to 40 heads take on an H100, where nothing else counts. */
  private static final double[] KEY_VALUE_GRADIENT = {0.81, 0.95, 1.38, 1.7, 1.19, 3.3};

  /**
   * One chunk of all three gradients of a cluster, bf16, every multiprocessor busy; built are D =
   * 64 and 128. D = 64 takes 1.64 on an H100; this is as much less as two sweeps are expected to
   * take than they do on an H200, 252 micros of 285.
   */
  private static final double[] ONE_SWEEP = {1.5, 1.5, 2.7, 2.7};

  /** The same of fp16, D = 128, which brings operands into its range and looks at outputs. */
  private static final double ONE_SWEEP_F16 = 2.85;

  /** The same as {@link #NATIVE} of fp32 tensors. */
  private static final double[] CONVERTED = {1.27, 1.35, 1.6, 1.75, 2.4, 4.8};

  /** The same with three products; of D = 192 and 256 by what their gradients take. */
  private static final double[] SPLIT = {1.9, 2.15, 2.6, 2.85, 4.1, 6.2};

  /** One chunk that a block of wgmma adds to its state while another one writes the outputs. */
  private static final double[] ADDED = {0.32, 0.335, 0.38, 0.43};

  /** What blocks that take turns need longer to start. */
  static final double TURNS_MICROS = 1.3;

  /** Filling the places of a relay before its launch, and what its words cost. */
  static final double RELAY_MICROS = 4;

  /**
   * What each block of one sweep takes longer that hands on, with the traffic of its states; of D =
   * 32 to 128. Measured on an H100.
   */
  private static final double[] ONE_SWEEP_RELAY = {8, 8, 14, 14};

  /** The same of fp16, D = 128, which finds its units before it starts. */
  private static final double ONE_SWEEP_RELAY_F16 = 30;

  /** What each block of one sweep of segments takes longer to start, likewise. */
  private static final double[] ONE_SWEEP_SEGMENT = {6, 6, 13, 13};

  private static final int[] DIMS = {32, 64, 96, 128, 192, 256};

  /** With lengths of rows of q and k to find first; gradients are given them. */
  private static final double NORMALIZED_SHARE = 1.6;

  /** One chunk of 64 tokens by mma of a multiprocessor, 16 bits. */
  private static final double[] MMA = {2.2, 2.55, 3, 3.4, 5.2, 7.1};

  private static final double MMA_TF32_SHARE = 1.8;
  private static final double MMA_ACCURATE_SHARE = 3.8;

  /**
   * A chunk of a gradient to one of a forward, of fp32 tensors or by mma: 0.85 to 1.45 measured.
   */
  private static final double GRADIENT_SHARE = 1.2;

  /** Suits every kernel. */
  static final int SAFE_ITEM_TOKENS = 32_768;

  private Rates() {}

  /** One chunk of 64 tokens of a block, the tensors being on their way. */
  static double chunkMicros(KernelEntry kernel, int keyDim) {
    boolean wgmma = kernel.technique() == Technique.WGMMA;
    boolean measured = wgmma && kernel.precision() == Precision.NATIVE;
    double forward = wgmma ? wgmma(kernel, keyDim) : mma(kernel, keyDim);
    return switch (kernel.operation()) {
      case STATE_SUMS -> measured ? of(SUMS, keyDim) : forward / 2;
      case GRADIENT_SUMS, NORMALIZED_GRADIENT_SUMS ->
          measured ? of(GRADIENT_SUMS, keyDim) : forward / 2;
      case NORMALIZED_STATE_SUMS, STATE_OUTPUTS, GRADIENT_OUTPUTS -> forward / 2;
      case QUERY_GRADIENT, NORMALIZED_QUERY_GRADIENT ->
          measured ? of(QUERY_GRADIENT, keyDim) : GRADIENT_SHARE * forward;
      case KEY_VALUE_GRADIENT, NORMALIZED_KEY_VALUE_GRADIENT ->
          measured ? of(KEY_VALUE_GRADIENT, keyDim) : GRADIENT_SHARE * forward;
      case ONE_SWEEP ->
          kernel.elementType() == ElementType.F16 ? ONE_SWEEP_F16 : of(ONE_SWEEP, keyDim);
      default -> forward;
    };
  }

  /** One chunk of which a block writes no outputs, because it is another one's turn. */
  static double addedChunkMicros(int keyDim) {
    return of(ADDED, keyDim);
  }

  private static double wgmma(KernelEntry kernel, int keyDim) {
    double[] micros =
        switch (kernel.precision()) {
          case DEFAULT, ACCURATE -> SPLIT;
          case TF32 -> CONVERTED;
          case NATIVE -> NATIVE;
        };
    double chunk = of(micros, keyDim);
    return switch (kernel.operation()) {
      case NORMALIZED_FORWARD, NORMALIZED_STATE_SUMS -> NORMALIZED_SHARE * chunk;
      default -> chunk;
    };
  }

  private static double mma(KernelEntry kernel, int keyDim) {
    double share =
        switch (kernel.precision()) {
          case DEFAULT, ACCURATE -> MMA_ACCURATE_SHARE;
          case TF32 -> MMA_TF32_SHARE;
          case NATIVE -> 1;
        };
    return share * of(MMA, keyDim);
  }

  /** Of the first of {@link #DIMS} that is not smaller, else of the last. */
  private static double of(double[] micros, int keyDim) {
    int i = 0;
    while (i < micros.length - 1 && DIMS[i] < keyDim) {
      i++;
    }
    return micros[i];
  }

  /** From the start of a block to its first chunk, and from its last chunk to its end. */
  static double startMicros(Technique technique) {
    return technique == Technique.WGMMA ? 3.2 : 1;
  }

  /** What a block of one sweep takes longer that hands on what it has. */
  static double handingOnMicros(KernelEntry oneSweep, int keyDim) {
    return oneSweep.elementType() == ElementType.F16
        ? ONE_SWEEP_RELAY_F16
        : of(ONE_SWEEP_RELAY, keyDim);
  }

  /** What a block of one sweep of segments takes longer. */
  static double segmentMicros(int keyDim) {
    return of(ONE_SWEEP_SEGMENT, keyDim);
  }

  /** What a block takes longer that reads a state or writes one. */
  static double stateMicros(int keyDim) {
    return keyDim / 64.0;
  }

  /**
   * The most tokens of an item. Where tensor cores add to the state they truncate, and its error
   * grows with the chunks added, at worst by 1.1e-8 a token; that is to stay below what the
   * operands lose. The sums of chunks of split operands are added in fp32, rounded to nearest.
   * Measured of ACCURATE: 1.1e-6 in o after 150,000 tokens, 1.9e-6 in dk after 100,000 and 2.6e-6
   * after 150,000; of DEFAULT nothing to be seen after 300,000. A sum that chunks are taken out of
   * keeps the errors of all that was added, while less and less is left: dq of fp16 has 4.6e-4
   * after 10,000 tokens and 8.0e-4 after 15,000.
   */
  static int mostItemTokens(KernelEntry kernel) {
    if (kernel.operation() == Operation.ONE_SWEEP) {
      return kernel.elementType() == ElementType.BF16 ? OneSweepPlan.MOST_TOKENS : 10_240;
    }
    return switch (kernel.precision()) {
      case TF32 -> SAFE_ITEM_TOKENS;
      case NATIVE ->
          kernel.technique() == Technique.WGMMA
              ? mostChainTokens(kernel.elementType())
              : Math.min(mostChainTokens(kernel.elementType()), 131_072); // not measured beyond
      case DEFAULT -> 524_288;
      case ACCURATE ->
          switch (kernel.operation()) {
            case FORWARD, NORMALIZED_FORWARD -> 163_840;
            default -> 65_536;
          };
    };
  }

  /**
   * The most tokens of an item by wgmma of one product in 16 bits, and of a chain of such items,
   * each of which goes on adding to what the one before has left.
   */
  static int mostChainTokens(ElementType element) {
    return element == ElementType.BF16 ? 327_680 : 65_536;
  }
}
