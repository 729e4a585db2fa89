package io.github.linattn.internal.cuda;

import io.github.linattn.AttentionShape;
import io.github.linattn.bindings.PreparedClear;
import io.github.linattn.bindings.PreparedCopy;
import io.github.linattn.kernelgen.GridRule;
import io.github.linattn.kernelgen.KernelEntry;
import io.github.linattn.kernelgen.Operation;
import io.github.linattn.kernelgen.Precision;
import io.github.linattn.kernelgen.Technique;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * What the blocks of one sweep hand on where they go on where others have stopped, as {@code
 * linattn/hopper_relay.cuh} has it: words that say what is there, then a state of each key/value
 * head before every item and one after the last. Immutable.
 *
 * @param items of each key/value head
 * @param address on the device
 */
record Relay(AttentionShape shape, int items, long address) {
  /** {@code linattn::kTicketWords}, in bytes. */
  private static final long WORD_BYTES = 128;

  /** With more the last round of blocks is hardly fuller. */
  static final int MOST_ITEMS = 8;

  /** Of an item: with less, handing on costs more than it saves. */
  static final int LEAST_TOKENS = 512;

  /** Whether a kernel has blocks for it, as {@code HopperPlan::kMayRelay} says. */
  static boolean isFor(KernelEntry kernel) {
    boolean weighsRows =
        kernel.operation() == Operation.NORMALIZED_QUERY_GRADIENT
            && kernel.precision() == Precision.NATIVE;
    boolean mayTakeTurns = kernel.gridRule().per() == GridRule.Per.CLUSTER_IN_TURNS;
    return kernel.technique() == Technique.WGMMA && !mayTakeTurns && !weighsRows;
  }

  static long bytes(AttentionShape shape, int items) {
    long states = StateArrays.bytes(shape, items + 1);
    return ChunkedCall.alignedBytes(wordBytes(shape, items) + states);
  }

  /** What handing on takes beside the sweep. */
  static double micros(AttentionShape shape, int items) {
    return Rates.RELAY_MICROS + 2.0 * bytes(shape, items) / Rates.BYTES_PER_MICRO;
  }

  /** The items of a relay of so many. */
  static Cut cut(int tokens, int parts) {
    int least = Math.ceilDiv(tokens, parts);
    return new Cut(tokens, null, Math.ceilDiv(least, Planner.CHUNK) * Planner.CHUNK);
  }

  private static long wordBytes(AttentionShape shape, int items) {
    return (long) shape.batch() * shape.keyValueHeads() * items * WORD_BYTES;
  }

  /** The states before item {@code index}; after all of them with the number of items. */
  StateArrays place(int index) {
    StateArrays first = StateArrays.at(address + wordBytes(shape, items), shape, items + 1);
    return first.further(StateArrays.sizes(shape), index);
  }

  /** Fills a place before the launch, from {@code source} or with zeros, and clears the words. */
  void start(
      int index,
      @Nullable StateArrays source,
      CudaQueue queue,
      List<PreparedClear> clears,
      List<PreparedCopy> copies) {
    clears.add(queue.clearOf(address, wordBytes(shape, items)));
    StateArrays sizes = StateArrays.sizes(shape);
    StateArrays target = place(index);
    if (source != null) {
      copies.addAll(queue.copiesOf(source, target, sizes));
    } else {
      clears.add(queue.clearOf(target.s(), sizes.s()));
      clears.add(queue.clearOf(target.z(), sizes.z()));
      clears.add(queue.clearOf(target.u(), sizes.u()));
    }
  }
}
