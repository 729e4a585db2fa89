package io.github.linattn.internal.cuda;

import io.github.linattn.AttentionShape;
import io.github.linattn.kernelgen.KernelEntry;
import io.github.linattn.kernelgen.Precision;
import io.github.linattn.kernelgen.Technique;

/**
 * What the blocks of one sweep hand on where those of an item go on where others have stopped, as
 * {@code linattn/hopper_relay.cuh} has it: words that say what is there, then states. Immutable.
 *
 * @param wordBytes zeros before each launch
 * @param bytes of all
 */
record Relay(long wordBytes, long bytes) {
  /** {@code linattn::kTicketWords}, in bytes. */
  private static final long WORD_BYTES = 128;

  private static final int WIDEST_AT_ONCE = 128;

  /** Of a sweep over these items of each key/value head. */
  static Relay of(AttentionShape shape, int items) {
    long places = (long) shape.batch() * shape.keyValueHeads() * (items - 1);
    long state = (long) shape.keyDim() * shape.valueDim() + shape.keyDim() + shape.valueDim();
    long words = places * WORD_BYTES;
    return new Relay(words, ChunkedCall.alignedBytes(words + places * state * Float.BYTES));
  }

  /** Whether a kernel has blocks for it, as {@code HopperPlan::kMayRelay} says. */
  static boolean isFor(KernelEntry kernel) {
    boolean dividesRows =
        switch (kernel.operation()) {
          case NORMALIZED_QUERY_GRADIENT, NORMALIZED_KEY_VALUE_GRADIENT -> true;
          default -> false;
        };
    boolean comesInParts = isSplit(kernel.precision()) && kernel.headDim() > WIDEST_AT_ONCE;
    return kernel.technique() == Technique.WGMMA && (!dividesRows || comesInParts);
  }

  private static boolean isSplit(Precision precision) {
    return precision == Precision.DEFAULT || precision == Precision.ACCURATE;
  }
}
