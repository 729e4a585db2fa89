package io.github.linattn.internal.cuda;

import io.github.linattn.kernelgen.ElementType;
import io.github.linattn.kernelgen.HopperPlan;
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

  /** What the bytes of few blocks take longer at most; of one head of 2^20 tokens on an H100. */
  static final double IDLE_SHARE = 0.04;

  /** From one kernel of a stream to the next, which starts early. */
  static final double LAUNCH_MICROS = 1;

  /** Kernels by wgmma that take so long start when all earlier ones have ended. */
  static final double IN_TURN_MICROS = 30;

  /** A scan of small states. */
  static final double SCAN_MICROS = 1;

  /**
   * What a scan adds to a backward. Segments were chosen with less where whole sequences measured
   * up to a quarter less.
   */
  static final double GRADIENT_SCAN_MICROS = 3;

  /** What it takes for each item of a sequence, one after the other. */
  static final double SCAN_ITEM_MICROS = 0.06;

  /**
   * What a scan gets through of the states of sequences, however few items: threads come and go.
   */
  static final double SCAN_BYTES_PER_MICRO = 0.6e6;

  private static final int[] DIMS = {32, 64, 96, 128, 192, 256};

  /** Micros with each of {@link #DIMS}: one product of 16 bits, one of TF32, three of 16 bits. */
  private record ByPrecision(double[] ofOne, double[] ofTf32, double[] ofThree) {
    double micros(Precision precision, int keyDim) {
      return of(
          switch (precision) {
            case NATIVE -> ofOne;
            case TF32 -> ofTf32;
            case DEFAULT, ACCURATE -> ofThree;
          },
          keyDim);
    }
  }

  /**
   * One chunk of 64 tokens of a block of wgmma; of 16 bits above D = 192 a block has 128 value
   * columns. Of fp32 on an H100.
   */
  private static final ByPrecision FORWARD =
      new ByPrecision(
          new double[] {0.68, 0.755, 0.86, 0.955, 1.28, 2.7},
          new double[] {1, 1.1, 1.48, 1.65, 2.17, 2.95},
          new double[] {1.59, 1.85, 2.51, 2.77, 4.04, 4.5});

  /**
   * One chunk of sums alone, 64 value columns; of fp32 on an H100, of 16 bits up to D = 64 as 8
   * heads take. Eight heads of D = 96 to 256 take a third more than this, many what it says.
   */
  private static final ByPrecision STATE_SUMS =
      new ByPrecision(
          new double[] {0.4, 0.48, 0.28, 0.3, 0.45, 0.6},
          new double[] {0.6, 0.6, 0.73, 0.75, 1.7, 1.25},
          new double[] {0.8, 0.8, 1.26, 1.2, 1.5, 1.85});

  /** The same of the sums for the gradients of k and v. */
  private static final ByPrecision GRADIENT_SUMS =
      new ByPrecision(
          new double[] {0.51, 0.52, 0.53, 0.54, 1, 1.1},
          new double[] {0.85, 0.87, 1.13, 1.05, 1.3, 1.67},
          new double[] {1.02, 1.1, 1.34, 1.42, 1.86, 2.3});

  private static final double[] OUTPUTS_OF_THREE = {0.85, 1.27, 1.99, 2.46, 2.77, 3.2};

  /**
   * One chunk of rows against sums over all tokens, by two warpgroups; where a multiprocessor has
   * several blocks of one, each takes as many times as long. TF32 is computed as DEFAULT.
   */
  private static final ByPrecision OUTPUTS =
      new ByPrecision(
          new double[] {0.53, 0.63, 1, 1.33, 1.33, 1.4}, OUTPUTS_OF_THREE, OUTPUTS_OF_THREE);

  /** What several such blocks of a multiprocessor take to begin, to one that has it to itself. */
  static final double BEGIN_TOGETHER = 2;

  /**
   * One chunk of dq; above D = 128 blocks of 16 bits have 128 columns. Those, and all of fp32, as 8
   * heads take on an H100.
   */
  private static final ByPrecision QUERY_GRADIENT =
      new ByPrecision(
          new double[] {0.87, 1.02, 1.14, 1.26, 2.75, 2.8},
          new double[] {1.31, 1.39, 2.05, 2.38, 2.35, 3.2},
          new double[] {1.96, 2.16, 3.16, 3.4, 4.55, 5.15});

  /** Of dk or dv, likewise; of 16 bits D = 64 and 128 as 20 to 40 heads take there. */
  private static final ByPrecision KEY_VALUE_GRADIENT =
      new ByPrecision(
          new double[] {0.81, 0.95, 1.38, 1.7, 1.95, 2.4},
          new double[] {1.08, 1.16, 2.67, 2.75, 2.17, 2.92},
          new double[] {1.64, 1.9, 4.35, 4.7, 3.55, 4.2});

  /** A chunk of a gradient of fp16 to one of bf16, on an H100. */
  private static final double F16_GRADIENT_SHARE = 1.1;

  /**
   * One chunk of all three gradients of a cluster, bf16, every multiprocessor busy; built are D =
   * 64 and 128. D = 64 takes 1.64 on an H100; this is as much less as two sweeps are expected to
   * take than they do on an H200, 252 micros of 285. An H200 has taken 255 to 256 micros since, for
   * 64 heads of 10,000 tokens; the rate is still the derived one.
   */
  private static final double[] ONE_SWEEP = {1.5, 1.5, 2.7, 2.7};

  /** The same of fp16, D = 128, which brings operands into its range and looks at outputs. */
  private static final double ONE_SWEEP_F16 = 2.85;

  /** One chunk that a block of wgmma adds to its state while another one writes the outputs. */
  private static final double[] ADDED = {0.32, 0.335, 0.38, 0.43};

  /** The same of dq, on an H100. */
  private static final double[] ADDED_TO_QUERY_GRADIENT = {0.45, 0.49, 0.61, 0.63};

  /** What blocks that take turns need longer to start. */
  static final double TURNS_MICROS = 1.3;

  /** Of k and v, which each of them reads: what comes from memory once more, of segments. */
  static final double TURNS_SHARE = 0.15;

  /** What one of several stages takes more than its share of one pass, on an H200. */
  static final double STAGE_MICROS = 8;

  /** Filling the places of a relay before its launch, and what its words cost. */
  static final double RELAY_MICROS = 4;

  /**
   * What each block of a gradient of 16 bits takes longer that hands on. Of fp32, whose chunks take
   * longer, and of forwards nothing is to be seen on an H100.
   */
  private static final double RELAYED_GRADIENT = 6;

  /**
   * What each block of one sweep takes longer that hands on, with the traffic of its states; of D =
   * 32 to 128. Measured on an H100.
   */
  private static final double[] ONE_SWEEP_RELAY = {8, 8, 14, 14};

  /**
   * The same of fp16, D = 128, which finds its units before it starts: by 10 less than it took on
   * an H100 since that takes less, on an H200.
   */
  private static final double ONE_SWEEP_RELAY_F16 = 20;

  /** What each block of one sweep of segments takes longer to start, likewise. */
  private static final double[] ONE_SWEEP_SEGMENT = {6, 6, 13, 13};

  /** What a block takes longer to start that measures its first chunk and its states. */
  private static final double SCALING_MICROS = 3;

  /** With lengths of rows of q and k to find first; gradients are given them. */
  private static final double NORMALIZED_SHARE = 1.6;

  /** One chunk of 64 tokens by mma of a multiprocessor, 16 bits. */
  private static final double[] MMA = {2.2, 2.55, 3, 3.4, 5.2, 7.1};

  /** Up to so many tokens blocks by mma, whose own chunks are of 16 or 32, have half of that. */
  private static final int MMA_TOKENS = 32;

  private static final double MMA_TF32_SHARE = 1.8;
  private static final double MMA_ACCURATE_SHARE = 3.8;

  /** A chunk of a gradient to one of a forward, by mma. */
  private static final double MMA_GRADIENT_SHARE = 1.2;

  /** Suits every kernel. */
  static final int SAFE_ITEM_TOKENS = 32_768;

  private Rates() {}

  /** One chunk of 64 tokens of a block, the tensors being on their way. */
  static double chunkMicros(KernelEntry kernel, int keyDim) {
    return kernel.technique() == Technique.WGMMA ? wgmma(kernel, keyDim) : mma(kernel, keyDim);
  }

  /** Its share of one chunk of each of so many blocks, which write the outputs in turn. */
  static double chunkMicros(KernelEntry kernel, int keyDim, int turns) {
    double added =
        of(kernel.operation() == Operation.FORWARD ? ADDED : ADDED_TO_QUERY_GRADIENT, keyDim);
    return (chunkMicros(kernel, keyDim) + (turns - 1) * added) / turns;
  }

  /** The same for blocks whose longest item has so many tokens. */
  static double chunkMicros(KernelEntry kernel, int keyDim, int turns, int longest) {
    boolean isHalf = kernel.technique() == Technique.MMA && longest <= MMA_TOKENS;
    return chunkMicros(kernel, keyDim, turns) * (isHalf ? 0.5 : 1);
  }

  private static double wgmma(KernelEntry kernel, int keyDim) {
    Precision precision = kernel.precision();
    double forward = FORWARD.micros(precision, keyDim);
    double scaling = kernel.elementType() == ElementType.F16 ? F16_GRADIENT_SHARE : 1;
    return switch (kernel.operation()) {
      case STATE_SUMS -> STATE_SUMS.micros(precision, keyDim);
      case GRADIENT_SUMS, NORMALIZED_GRADIENT_SUMS -> GRADIENT_SUMS.micros(precision, keyDim);
      case QUERY_GRADIENT, NORMALIZED_QUERY_GRADIENT ->
          scaling * QUERY_GRADIENT.micros(precision, keyDim);
      case KEY_VALUE_GRADIENT, NORMALIZED_KEY_VALUE_GRADIENT ->
          scaling * KEY_VALUE_GRADIENT.micros(precision, keyDim);
      case ONE_SWEEP ->
          kernel.elementType() == ElementType.F16 ? ONE_SWEEP_F16 : of(ONE_SWEEP, keyDim);
      case STATE_OUTPUTS, GRADIENT_OUTPUTS, NORMALIZED_GRADIENT_OUTPUTS ->
          OUTPUTS.micros(precision, keyDim);
      case NORMALIZED_STATE_SUMS -> NORMALIZED_SHARE * forward / 2;
      case NORMALIZED_FORWARD -> NORMALIZED_SHARE * forward;
      default -> forward;
    };
  }

  private static double mma(KernelEntry kernel, int keyDim) {
    double share =
        switch (kernel.precision()) {
          case DEFAULT, ACCURATE -> MMA_ACCURATE_SHARE;
          case TF32 -> MMA_TF32_SHARE;
          case NATIVE -> 1;
        };
    double forward = share * of(MMA, keyDim);
    return switch (kernel.operation()) {
      case STATE_SUMS, GRADIENT_SUMS, STATE_OUTPUTS, GRADIENT_OUTPUTS -> forward / 2;
      case QUERY_GRADIENT, KEY_VALUE_GRADIENT -> MMA_GRADIENT_SHARE * forward;
      default -> forward;
    };
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

  /** The same of a launch of a backward: the operands of fp16 are brought into its range first. */
  static double gradientStartMicros(KernelEntry kernel) {
    boolean isScaled =
        kernel.takesTensorMaps()
            && (kernel.elementType() == ElementType.F16
                || kernel.precision() == Precision.TF32
                || kernel.precision() == Precision.ACCURATE);
    return startMicros(kernel.technique()) + (isScaled ? SCALING_MICROS : 0);
  }

  /** What a block of a gradient takes longer that hands on what it has. */
  static double relayedMicros(KernelEntry gradient) {
    return gradient.precision() == Precision.NATIVE ? RELAYED_GRADIENT : 0;
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
   * operands lose. The sums of chunks of split operands are added in fp32, rounded to nearest, and
   * so are those of {@linkplain #addsChunks some of TF32}: 2.4e-4 in o after 10,000 tokens, 2.7e-4
   * after 300,000. {@linkplain #putsBy Some of fp16} put S by every 32,768 tokens. Measured of
   * ACCURATE: 1.1e-6 in o after 150,000 tokens, 1.9e-6 in dk after 100,000 and 2.6e-6 after
   * 150,000, 1.2e-6 in dq after 100,000 and 1.9e-6 where rows are normalised; of DEFAULT nothing to
   * be seen after 300,000. A sum that chunks are taken out of keeps the errors of all that was
   * added, while less and less is left: dq of fp16 has 4.6e-4 after 10,000 tokens and 8.0e-4 after
   * 15,000.
   */
  static int mostItemTokens(KernelEntry kernel) {
    if (kernel.operation() == Operation.ONE_SWEEP) {
      return kernel.elementType() == ElementType.BF16 ? OneSweepPlan.MOST_TOKENS : 10_240;
    }
    if (addsChunks(kernel) || putsBy(kernel)) {
      return 327_680; // not measured beyond
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
            case QUERY_GRADIENT -> kernel.technique() == Technique.WGMMA ? 102_400 : 65_536;
            default -> 65_536;
          };
    };
  }

  /** The same of a chain of items, each of which goes on adding to what the one before has left. */
  static int mostHandedOnTokens(KernelEntry forward) {
    return putsBy(forward) ? mostChainTokens(forward.elementType()) : mostItemTokens(forward);
  }

  /**
   * The same where sums of items are taken before, by kernels that add to one accumulator. What
   * starts from large sums truncates at twice the rate of what starts from zero: fp16 has no room
   * for that.
   */
  static int mostSummedTokens(KernelEntry forward) {
    boolean spares = addsChunks(forward) || forward.elementType() == ElementType.F16;
    return spares ? SAFE_ITEM_TOKENS : mostItemTokens(forward);
  }

  /** Of one product whose sums of chunks S takes in rounded to nearest. */
  private static boolean addsChunks(KernelEntry kernel) {
    return kernel.technique() == Technique.WGMMA
        && HopperPlan.addsChunks(kernel.operation(), kernel.headDim(), kernel.precision());
  }

  /** Of one product whose S is put by where a sequence is long. */
  private static boolean putsBy(KernelEntry kernel) {
    return kernel.technique() == Technique.WGMMA
        && HopperPlan.putByChunks(kernel.operation(), kernel.headDim(), kernel.elementType()) > 0;
  }

  /**
   * The most tokens of an item by wgmma of one product in 16 bits, and of a chain of such items,
   * each of which goes on adding to what the one before has left.
   */
  static int mostChainTokens(ElementType element) {
    return element == ElementType.BF16 ? 327_680 : 65_536;
  }

  /**
   * The most tokens of all segments of one sweep together. Each starts from sums of its own, so
   * that errors do not add up, but S is an operand as it is, and fp16 would leave its range.
   */
  static int mostSweptTokens(ElementType element) {
    return element == ElementType.BF16 ? Integer.MAX_VALUE : mostChainTokens(element);
  }
}
