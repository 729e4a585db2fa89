package io.github.linattn.internal.cuda;

import io.github.linattn.internal.cuda.ForwardPlan.Step;
import io.github.linattn.internal.cuda.Planner.Built;
import io.github.linattn.kernelgen.ElementType;
import io.github.linattn.kernelgen.GridRule;
import io.github.linattn.kernelgen.KernelEntry;
import io.github.linattn.kernelgen.Operation;
import io.github.linattn.kernelgen.Precision;
import io.github.linattn.kernelgen.SharedRule;
import io.github.linattn.kernelgen.Technique;
import java.util.List;
import java.util.Optional;
import java.util.stream.IntStream;
import java.util.stream.Stream;

/**
 * What a launch on one device is, and what it takes: shared by the planners. Pure and immutable.
 *
 * @param built the kernels there are for it
 */
record LaunchModel(GpuTraits gpu, Built built) {
  /** Of a tile that a block writes, hence of a mark. */
  static final int COLUMNS = 64;

  /**
   * Tokens of a segment of one sweep, of a stage, of a part that is summed alone, and of sums over
   * all tokens. Less saves nothing of the last; of the others it is not measured.
   */
  static final int LEAST_SEGMENT = 512;

  /** The same of rows that mma computes against sums over all tokens. */
  private static final int LEAST_OUTPUT_SEGMENT = 256;

  /** Every block reads all of k and v. */
  private static final int MOST_TURNS = 8;

  /** Blocks of a multiprocessor, of which more only add states. */
  private static final long AMPLE = 8;

  /** Blocks of a multiprocessor that walk tiles: enough to work, few to find nothing to do. */
  private static final int WALKERS = 2;

  int multiprocessors() {
    return gpu.multiprocessors();
  }

  double bytesPerMicro() {
    return gpu.bytesPerMicro();
  }

  /**
   * A launch; empty where a block or the grid would be larger than the device allows. Sums with a
   * multiprocessor for each block take so much shared memory that each has one to itself: those of
   * a cluster would share one while others were idle.
   *
   * @param count what {@link GridRule#blocks} counts
   * @param keyDim columns of what is multiplied
   * @param valueDim columns of what comes out
   * @param group query heads that share a key/value head
   */
  Optional<Step> step(KernelEntry kernel, long count, int keyDim, int valueDim, int group) {
    GridRule grid = kernel.gridRule();
    long blocks = grid.blocks(count, keyDim, valueDim);
    boolean hasOne = kernel.hasWarpgroups() && hasOneWarpgroup(kernel, blocks, keyDim);
    int shared = kernel.shared().bytes(keyDim, kernel.hasWarpgroups() ? (hasOne ? 1 : 2) : group);
    if (!kernel.hasWarpgroups() && kernel.together() > 1 && blocks <= multiprocessors()) {
      shared = Math.max(shared, SharedRule.share(gpu.sharedBytes(), 2) + 1);
    }
    if (blocks > Integer.MAX_VALUE || shared > gpu.sharedBytes()) {
      return Optional.empty();
    }
    if (grid.per() == GridRule.Per.WALKED_TILES) {
      blocks = Math.min(blocks, (long) WALKERS * multiprocessors());
    }
    boolean sm90 = kernel.hasSm90Features(gpu.capability());
    int threads = hasOne ? kernel.threads() / 2 : kernel.threads();
    return Optional.of(
        new Step(kernel, (int) blocks, grid.cluster(valueDim), threads, shared, sm90));
  }

  /**
   * Whether a launch of what is read from a state has one warpgroup in a block: where there are as
   * many blocks as the GPU has places for such, so that some multiply while others begin, or where
   * shared memory holds no more. Two read the state once for twice the rows.
   */
  private boolean hasOneWarpgroup(KernelEntry kernel, long blocks, int keyDim) {
    int together = together(kernel, kernel.shared().bytes(keyDim, 1));
    boolean fills = together > 1 && blocks > (together - 1L) * multiprocessors();
    return fills || kernel.shared().bytes(keyDim, 2) > gpu.sharedBytes();
  }

  /** Such blocks that a multiprocessor has at once. */
  private int together(KernelEntry kernel, int sharedBytes) {
    return Math.min(kernel.together(), SharedRule.blocks(gpu.sharedBytes(), sharedBytes));
  }

  /**
   * Blocks of a launch that a multiprocessor has at once, for all that the model knows: sums in
   * pairs take in it what they take one after the other, though they take less.
   */
  private int together(Step step) {
    boolean hasOne = step.threads() < step.kernel().threads();
    return hasOne ? together(step.kernel(), step.sharedBytes()) : 1;
  }

  /** A launch whose blocks are for heads of the question. */
  Optional<Step> step(KernelEntry kernel, Question question, long count) {
    return step(
        kernel,
        count,
        question.shape().keyDim(),
        question.shape().valueDim(),
        question.shape().headsPerKeyValueHead());
  }

  /**
   * The kernel by wgmma, which normalises rows where that is asked for; empty where tensors do not
   * suit the copy engine, too.
   */
  Optional<KernelEntry> wgmma(
      Question question, Operation operation, int width, Precision precision) {
    return question.tensorMaps()
        ? built.find(
            question.normalize() ? operation.normalized() : operation,
            Technique.WGMMA,
            width,
            question.element(),
            precision)
        : Optional.empty();
  }

  /** The kernel by mma, which is given rows that are normalised. */
  Optional<KernelEntry> mma(Question question, Operation operation, int width) {
    return built.find(
        operation, Technique.MMA, width, question.element(), question.warpPrecision());
  }

  /**
   * The kernel that reads outputs, or gradients, from a state alone, by this technique where there
   * is one and a block has room for the widest rows, else by mma. By wgmma DEFAULT serves TF32 too,
   * and ACCURATE few tokens, as of a gradient.
   */
  Optional<KernelEntry> outputsKernel(Question question, Operation operation, Technique technique) {
    Precision asked = question.precision();
    Precision served = asked == Precision.TF32 ? Precision.DEFAULT : asked;
    Optional<KernelEntry> wgmma =
        technique == Technique.WGMMA
            ? built.find(operation, technique, 0, question.element(), exactEnough(question, served))
            : Optional.empty();
    int widest = Math.max(question.shape().keyDim(), question.shape().valueDim());
    return wgmma
        .filter(kernel -> kernel.shared().bytes(widest, 1) <= gpu.sharedBytes())
        .or(() -> mma(question, operation, 0));
  }

  /**
   * The kernel that does what this one does and makes gradients of rows that were divided by their
   * length those of the rows, if there is one: where rows are divided, and come in no more tiles
   * than a cluster has.
   */
  Optional<KernelEntry> finishingKernel(Question question, KernelEntry outputs) {
    int keyDim = question.shape().keyDim();
    int widest = Math.max(keyDim, question.shape().valueDim());
    return question.normalize() && outputs.technique() == Technique.WGMMA
        ? built
            .find(
                outputs.operation().normalized(),
                Technique.WGMMA,
                0,
                outputs.elementType(),
                outputs.precision())
            .filter(kernel -> kernel.shared().bytes(widest, 1) <= gpu.sharedBytes())
            .filter(
                kernel ->
                    kernel.gridRule().blocks(1, 0, keyDim) == kernel.gridRule().cluster(keyDim))
        : Optional.empty();
  }

  /** The kernel that multiplies in fp32. */
  Optional<KernelEntry> simt(Question question, Operation operation) {
    return built.find(operation, Technique.SIMT, 0, question.element(), question.exactPrecision());
  }

  /**
   * The kernel of a gradient by this technique where there is one, else by mma, as exact as few
   * tokens want it.
   */
  Optional<KernelEntry> gradient(
      Question question, Operation operation, Technique technique, int width, int widthByMma) {
    Precision precision = exactEnough(question, question.precision());
    Optional<KernelEntry> wgmma =
        technique == Technique.WGMMA
            ? wgmma(question, operation, width, precision)
            : Optional.empty();
    return wgmma.or(() -> mma(question, operation, widthByMma));
  }

  /**
   * In a chunk or less few terms share an error and o . dO nearly cancels what it is taken from, so
   * that gradients of DEFAULT would miss their bound; nothing is lost by ACCURATE, because what
   * such a call takes is its launches.
   */
  private static Precision exactEnough(Question question, Precision asked) {
    boolean isShort = question.cut(0).longest() <= Planner.CHUNK;
    return isShort && asked == Precision.DEFAULT ? Precision.ACCURATE : asked;
  }

  /** Sums of items of k and v. */
  Optional<Step> sums(Question question, int items) {
    return wgmma(question, Operation.STATE_SUMS, question.shape().keyDim(), question.precision())
        .or(() -> mma(question, Operation.STATE_SUMS, 0))
        .flatMap(kernel -> step(kernel, question, question.keyValueHeads() * items));
  }

  /** The sums by mma, for what is marked of others. */
  Optional<Step> repairedSums(Question question, int items) {
    return mma(question, Operation.STATE_SUMS, 0)
        .flatMap(kernel -> step(kernel, question, question.keyValueHeads() * items))
        .map(this::repairing);
  }

  /** Sums by mma where there are sums already, whose marks few blocks walk. */
  Step repairing(Step sums) {
    return sums.walking(WALKERS * multiprocessors());
  }

  /** Bytes of the marks of sums, if anything repairs these: one for each tile of their columns. */
  static long sumMarkBytes(Question question, boolean areRepaired, int items) {
    long tiles = Math.ceilDiv(question.shape().valueDim(), COLUMNS);
    return areRepaired ? question.keyValueHeads() * items * tiles * Integer.BYTES : 0;
  }

  /**
   * Whether sums of this kernel may not be finite where rows are out of the range of its operands,
   * which are scaled by the first rows of an item, or of the lengths that it finds. All that starts
   * from such sums would be spoiled, and so would its repair: those by mma stand behind them.
   */
  static boolean mayLeaveRange(KernelEntry sums) {
    Operation operation = sums.operation();
    boolean scales =
        switch (sums.elementType()) {
          case F32 -> sums.precision() != Precision.DEFAULT; // whose bf16 have the range of fp32
          case F16 ->
              operation == Operation.GRADIENT_SUMS
                  || operation == Operation.NORMALIZED_GRADIENT_SUMS;
          case BF16 -> false;
        };
    return sums.technique() == Technique.WGMMA
        && (scales || operation == Operation.NORMALIZED_STATE_SUMS);
  }

  /**
   * Micros of a scan.
   *
   * @param start of small states
   * @param states read and written, of all heads
   */
  double scanMicros(double start, Question question, Cut cut, int states) {
    double stateBytes = StateArrays.bytes(question.shape(), 1);
    double slowest =
        Math.max(states / gpu.bytesPerMicro(), cut.sequences() / Rates.SCAN_BYTES_PER_MICRO);
    return start + Rates.SCAN_ITEM_MICROS * cut.mostItems() + stateBytes * slowest;
  }

  /** A scan over the items of each sequence. */
  Optional<Step> scan(Question question, Cut cut) {
    return built
        .find(Operation.STATE_SCAN, Technique.SIMT, 0, ElementType.F32, Precision.ACCURATE)
        .flatMap(kernel -> step(kernel, question, question.keyValueHeads() * cut.sequences()));
  }

  /** Blocks that may take turns with the chunks of an item. */
  static int mostTurns(KernelEntry kernel) {
    return kernel.gridRule().per() == GridRule.Per.CLUSTER_IN_TURNS ? MOST_TURNS : 1;
  }

  /**
   * Whether so many blocks may take turns with the chunks of an item: the GPU has room for all of
   * them, where this many have an item each, and each has a chunk.
   */
  boolean hasRoomForTurns(KernelEntry kernel, Cut cut, long blocks, int turns) {
    return turns <= mostTurns(kernel)
        && blocks * turns <= multiprocessors()
        && cut.longest() > (turns - 1) * Planner.CHUNK;
  }

  /** Whether more blocks would only add states. */
  boolean isAmple(long blocks) {
    return blocks > AMPLE * multiprocessors();
  }

  /**
   * Tokens of a segment where there are so many or more, from the longest down to a chunk or until
   * more blocks would only add states.
   *
   * @param blocks for each segment
   */
  IntStream segments(int longest, int fewest, long blocks) {
    return Cut.segments(longest, fewest, Planner.CHUNK)
        .takeWhile(
            segment -> {
              int parts = Math.ceilDiv(longest, segment);
              return parts <= fewest || !isAmple(blocks * (parts - 1));
            });
  }

  /**
   * Items that sums over all tokens may be made of, each of so many tokens at most: whole
   * sequences, or segments, whose sums a scan adds up.
   *
   * @param asked tokens of each, if these are asked for; else 0
   */
  List<Cut> itemsOfTotals(Question question, int most, int asked) {
    Cut whole = question.cut(0);
    int longest = whole.longest();
    if (asked > 0) {
      Cut cut = asked < longest ? question.cut(asked) : whole;
      return cut.longest() <= most ? List.of(cut) : List.of();
    }
    int fewest = Math.max(2, Math.ceilDiv(longest, most));
    int mostSegment = longest <= most ? longest : Cut.segment(longest, fewest, Planner.CHUNK);
    int least = Math.min(LEAST_SEGMENT, mostSegment);
    long blocks = sums(question, 1).map(Step::blocks).orElse(1);
    Stream<Cut> segments =
        segments(longest, fewest, blocks)
            .filter(segment -> segment >= least)
            .mapToObj(question::cut);
    return Stream.concat(longest <= most ? Stream.of(whole) : Stream.of(), segments).toList();
  }

  /**
   * Items of rows that are computed against sums over all tokens: by wgmma, where a block begins
   * with a copy of the sums, those with which the launch takes least; by mma two for every
   * multiprocessor.
   *
   * @param heads whose rows these are
   * @param keyDim columns of a row
   * @param valueDim columns that come of it
   * @param bytes read and written
   */
  Cut itemsOfOutputs(
      Question question, KernelEntry kernel, long heads, int keyDim, int valueDim, double bytes) {
    int tokens = question.shape().tokens();
    Cut whole = question.cut(0);
    long blocks = heads * kernel.gridRule().blocks(1, keyDim, valueDim);
    if (kernel.technique() != Technique.WGMMA) {
      int parts = Math.toIntExact(Math.max(1, Math.ceilDiv(2L * multiprocessors(), blocks)));
      int segment = Math.max(LEAST_OUTPUT_SEGMENT, Cut.segment(tokens, parts, Planner.CHUNK));
      return question.cut(segment);
    }
    double start = Rates.startMicros(kernel.technique()) + Rates.stateMicros(keyDim);
    double chunk = Rates.chunkMicros(kernel, keyDim);
    Cut found = whole;
    double least = Double.POSITIVE_INFINITY;
    for (Cut cut :
        IntStream.concat(IntStream.of(0), segments(whole.longest(), 2, blocks))
            .mapToObj(question::cut)
            .toList()) {
      double micros =
          step(kernel, heads * cut.items(), keyDim, valueDim, 1)
              .map(step -> micros(step, cut, cut.items(), start, chunk, bytes))
              .orElse(Double.POSITIVE_INFINITY);
      if (micros < least) {
        least = micros;
        found = cut;
      }
    }
    return found;
  }

  /** In which the blocks of a launch come, one for each multiprocessor; the last may be fewer. */
  int rounds(Step step) {
    return Math.ceilDiv(step.blocks(), multiprocessors());
  }

  /**
   * Micros of a launch. Blocks come in rounds, one for each multiprocessor, or as many as it has
   * {@linkplain #together(Step) at once}; a round takes as long as a block works, or as its bytes
   * are on their way, the longer the more multiprocessors are idle where there is but one. Blocks
   * of packed sequences take as long as the longest works, or else as all work, shared evenly, and
   * half of the longest, for which some are idle at the end.
   *
   * @param shares items, times the blocks that take turns with the chunks of one
   * @param start micros of a block beside its chunks
   * @param share of a multiprocessor: micros of each chunk of a block that has it to itself
   * @param bytes that all blocks read and write
   */
  double micros(Step step, Cut cut, long shares, double start, double share, double bytes) {
    long longest = Math.ceilDiv(cut.longest(), Planner.CHUNK);
    int together = together(step);
    int places = multiprocessors() * together;
    double begin = start * (together > 1 ? Rates.BEGIN_TOGETHER : 1);
    double chunk = share * together;
    double perBlock = bytes / gpu.bytesPerMicro() / step.blocks();
    double block = begin + chunk * longest;
    if (!cut.isRegular()) {
      double blocksPerItem = (double) step.blocks() / Math.max(1, shares);
      double work = begin * step.blocks() + chunk * cut.chunks() * blocksPerItem;
      double atTheEnd = step.blocks() > places ? block / 2 : 0;
      double busy = Math.max(block, work / places + atTheEnd);
      return Math.max(busy, perBlock * step.blocks());
    }
    int rounds = step.blocks() / places;
    int rest = step.blocks() % places;
    double idle = rounds == 0 ? 1 - (double) rest / places : 0;
    double last = rest == 0 ? 0 : Math.max(block, rest * perBlock * (1 + Rates.IDLE_SHARE * idle));
    return rounds * Math.max(block, places * perBlock) + last;
  }
}
