package io.github.linattn.internal.cuda;

import io.github.linattn.AttentionShape;
import io.github.linattn.bindings.Prepared;
import io.github.linattn.kernelgen.KernelEntry;
import io.github.linattn.kernelgen.Operation;
import io.github.linattn.kernelgen.Precision;
import io.github.linattn.kernelgen.Technique;
import java.util.List;
import java.util.stream.IntStream;

/**
 * What the blocks of one sweep hand on where they go on where others have stopped, as {@code
 * linattn/hopper_relay.cuh} has it: words that say what is there, then a state of each key/value
 * head before every item and one after the last. Immutable.
 *
 * @param items of the sequence
 * @param address on the device
 */
record Relay(AttentionShape shape, Cut items, long address) {
  /** {@code linattn::kTicketWords}, in bytes. */
  private static final long WORD_BYTES = 128;

  /** With more the last round of blocks is hardly fuller. */
  private static final int MOST_ITEMS = 8;

  /** Of an item: with less, handing on costs more than it saves. */
  private static final int LEAST_TOKENS = 512;

  /** Whether a kernel has blocks for it, as {@code HopperPlan::kMayRelay} says. */
  static boolean isFor(KernelEntry kernel) {
    boolean weighsRows =
        kernel.operation() == Operation.NORMALIZED_QUERY_GRADIENT
            && kernel.precision() == Precision.NATIVE;
    return kernel.technique() == Technique.WGMMA && !weighsRows;
  }

  /** The ways of cutting one sequence into items that are worth it, from two on. */
  static List<Cut> cuts(Cut whole) {
    int tokens = whole.longest();
    int most = Math.min(MOST_ITEMS, tokens / LEAST_TOKENS);
    return whole.isRegular()
        ? IntStream.rangeClosed(2, most)
            .mapToObj(parts -> new Cut(tokens, null, Cut.segment(tokens, parts, Planner.CHUNK)))
            .toList()
        : List.of();
  }

  static long bytes(AttentionShape shape, Cut items) {
    long states = StateArrays.bytes(shape, items.items() + 1);
    return ChunkedCall.alignedBytes(wordBytes(shape, items) + states);
  }

  /** What handing on takes beside the sweep. */
  static double micros(AttentionShape shape, Cut items) {
    return Rates.RELAY_MICROS + 2.0 * bytes(shape, items) / Rates.BYTES_PER_MICRO;
  }

  private static long wordBytes(AttentionShape shape, Cut items) {
    return keyValueHeads(shape) * items.items() * WORD_BYTES;
  }

  private static long keyValueHeads(AttentionShape shape) {
    return (long) shape.batch() * shape.keyValueHeads();
  }

  /** The states before item {@code index}; after all of them with the number of items. */
  StateArrays place(int index) {
    StateArrays first = StateArrays.at(address + wordBytes(shape, items), shape, items.items() + 1);
    return first.further(StateArrays.sizes(shape), index);
  }

  /** Tells a sweep its items and words; its states are set beside. */
  Arguments handOn(Arguments chunked, long count, DeviceLists lists) {
    int keyValueHeads = Math.toIntExact(keyValueHeads(shape));
    return chunked
        .setItems(items, 1)
        .set("items", lists.itemsOfRelay(items, count, keyValueHeads))
        .set("turns", 1)
        .set("tickets", address);
  }

  /** Clears the words, before each launch. */
  void clearWords(CudaQueue queue, List<Prepared> work) {
    work.add(queue.clearOf(address, wordBytes(shape, items)));
  }

  /** Fills a place before the launch, with zeros where {@code source} has no address. */
  void fill(int index, StateArrays source, CudaQueue queue, List<Prepared> work) {
    StateArrays sizes = StateArrays.sizes(shape);
    StateArrays target = place(index);
    work.add(filling(target.s(), source.s(), sizes.s(), queue));
    work.add(filling(target.z(), source.z(), sizes.z(), queue));
    work.add(filling(target.u(), source.u(), sizes.u(), queue));
  }

  private static Prepared filling(long target, long source, long bytes, CudaQueue queue) {
    return source == 0 ? queue.clearOf(target, bytes) : queue.copyOf(source, target, bytes);
  }
}
