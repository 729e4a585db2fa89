package io.github.linattn.internal.cuda;

import io.github.linattn.internal.cuda.ForwardPlan.Step;
import io.github.linattn.internal.cuda.Planner.Built;
import io.github.linattn.kernelgen.ElementType;
import io.github.linattn.kernelgen.GridRule;
import io.github.linattn.kernelgen.KernelEntry;
import io.github.linattn.kernelgen.Operation;
import io.github.linattn.kernelgen.Precision;
import io.github.linattn.kernelgen.Technique;
import java.util.Optional;

/**
 * What a launch on one device is, and what it takes: shared by the planners. Pure and immutable.
 *
 * @param built the kernels there are for it
 */
record LaunchModel(GpuTraits gpu, Built built) {
  /** Blocks of a multiprocessor that walk tiles: enough to work, few to find nothing to do. */
  private static final int WALKERS = 2;

  int multiprocessors() {
    return gpu.multiprocessors();
  }

  double bytesPerMicro() {
    return gpu.bytesPerMicro();
  }

  /**
   * A launch; empty where a block or the grid would be larger than the device allows.
   *
   * @param count what {@link GridRule#blocks} counts
   * @param keyDim columns of what is multiplied
   * @param valueDim columns of what comes out
   * @param group query heads that share a key/value head
   */
  Optional<Step> step(KernelEntry kernel, long count, int keyDim, int valueDim, int group) {
    GridRule grid = kernel.gridRule();
    long blocks = grid.blocks(count, keyDim, valueDim);
    int shared = kernel.shared().bytes(keyDim, group);
    if (blocks > Integer.MAX_VALUE || shared > gpu.sharedBytes()) {
      return Optional.empty();
    }
    if (grid.per() == GridRule.Per.WALKED_TILES) {
      blocks = Math.min(blocks, (long) WALKERS * multiprocessors());
    }
    boolean sm90 = kernel.hasSm90Features(gpu.capability());
    return Optional.of(new Step(kernel, (int) blocks, grid.cluster(valueDim), shared, sm90));
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

  /** Sums of items of k and v. */
  Optional<Step> sums(Question question, int items) {
    Optional<KernelEntry> wgmma =
        question.tensorMaps()
            ? built.find(
                question.normalize() ? Operation.NORMALIZED_STATE_SUMS : Operation.STATE_SUMS,
                Technique.WGMMA,
                question.shape().keyDim(),
                question.element(),
                question.precision())
            : Optional.empty();
    return wgmma
        .or(
            () ->
                built.find(
                    Operation.STATE_SUMS,
                    Technique.MMA,
                    0,
                    question.element(),
                    question.warpPrecision()))
        .flatMap(kernel -> step(kernel, question, question.keyValueHeads() * items));
  }

  /** A scan over the items of each sequence. */
  Optional<Step> scan(Question question, Cut cut) {
    return built
        .find(Operation.STATE_SCAN, Technique.SIMT, 0, ElementType.F32, Precision.ACCURATE)
        .flatMap(kernel -> step(kernel, question, question.keyValueHeads() * cut.sequences()));
  }

  /** Segments of which there are enough for two blocks on every multiprocessor. */
  int segmentFor(long blocksPerItem, int tokens, int least, int most) {
    long parts = Math.max(1, Math.ceilDiv(2L * multiprocessors(), Math.max(1, blocksPerItem)));
    int segment = Cut.segment(tokens, (int) parts, Planner.CHUNK);
    return Math.min(Math.max(segment, least), most);
  }

  /** In which the blocks of a launch come, one for each multiprocessor; the last may be fewer. */
  int rounds(Step step) {
    return Math.ceilDiv(step.blocks(), multiprocessors());
  }

  /**
   * Micros of a launch. Blocks come in rounds, one for each multiprocessor; a round takes as long
   * as a block works, or as its bytes are on their way, the longer the more multiprocessors are
   * idle where there is but one.
   *
   * @param shares items, times the blocks that take turns with the chunks of one
   * @param start micros of a block beside its chunks
   * @param chunk micros of each chunk of a block
   * @param bytes that all blocks read and write
   */
  double micros(Step step, Cut cut, long shares, double start, double chunk, double bytes) {
    long longest = Math.ceilDiv(cut.longest(), Planner.CHUNK);
    double perBlock = bytes / gpu.bytesPerMicro() / step.blocks();
    if (!cut.isRegular()) {
      double blocksPerItem = (double) step.blocks() / Math.max(1, shares);
      double even = cut.chunks(Planner.CHUNK) * blocksPerItem / multiprocessors();
      return Math.max(start + chunk * Math.max(longest, even), perBlock * step.blocks());
    }
    double block = start + chunk * longest;
    int rounds = step.blocks() / multiprocessors();
    int rest = step.blocks() % multiprocessors();
    double idle = rounds == 0 ? 1 - (double) rest / multiprocessors() : 0;
    double last = rest == 0 ? 0 : Math.max(block, rest * perBlock * (1 + Rates.IDLE_SHARE * idle));
    return rounds * Math.max(block, multiprocessors() * perBlock) + last;
  }
}
