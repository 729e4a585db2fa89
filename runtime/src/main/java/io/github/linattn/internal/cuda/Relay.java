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
 * linattn/hopper_relay.cuh} has it: z, u and S of each key/value head where the sweep starts and
 * after every item, in the order of the walk, and between them words that say what is there.
 * Immutable.
 *
 * @param items of the sequence
 * @param backwards whether the sweep walks from the last item on
 * @param address on the device
 */
record Relay(AttentionShape shape, Cut items, boolean backwards, long address) {
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

  /** The same of one sweep, whose first item tells by its second chunk how good its state is. */
  static boolean isForOneSweep(Cut items) {
    return items.itemTokens() > Planner.CHUNK;
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
    StateArrays sizes = StateArrays.sizes(shape);
    long states = (items.items() + 1) * sizes.s();
    return ChunkedCall.alignedBytes(bytesBeforeStates(shape, items) + states);
  }

  /** What handing on takes beside the sweep. */
  static double micros(AttentionShape shape, Cut items, double bytesPerMicro) {
    return Rates.RELAY_MICROS + 2.0 * bytes(shape, items) / bytesPerMicro;
  }

  private static long bytesOfSums(AttentionShape shape, Cut items) {
    StateArrays sizes = StateArrays.sizes(shape);
    return ChunkedCall.alignedBytes((items.items() + 1) * (sizes.z() + sizes.u()));
  }

  private static long bytesBeforeStates(AttentionShape shape, Cut items) {
    return bytesOfSums(shape, items) + keyValueHeads(shape) * items.items() * WORD_BYTES;
  }

  private static long keyValueHeads(AttentionShape shape) {
    return (long) shape.batch() * shape.keyValueHeads();
  }

  /** Where blocks read: of the first items of the walk, the others further on. */
  StateArrays in() {
    return afterSteps(0);
  }

  /** Where they leave what they have, likewise. */
  StateArrays out() {
    return afterSteps(1);
  }

  /** The states before item {@code index}; after all of them with the number of items. */
  StateArrays before(int index) {
    return afterSteps(backwards ? items.items() - index : index);
  }

  private StateArrays afterSteps(int count) {
    StateArrays sizes = StateArrays.sizes(shape);
    long u = address + (items.items() + 1) * sizes.z();
    return new StateArrays(address + bytesBeforeStates(shape, items), address, u)
        .further(sizes, count);
  }

  /** Tells a sweep its items and words; where it reads and writes states is set beside. */
  Arguments handOn(Arguments chunked, long count, DeviceLists lists) {
    int keyValueHeads = Math.toIntExact(keyValueHeads(shape));
    return chunked
        .setItems(items, 1)
        .set("items", lists.itemsOfRelay(items, count, keyValueHeads, backwards))
        .set("turns", 1)
        .set("tickets", address + bytesOfSums(shape, items));
  }

  /** Brings what the walk starts from, which is zero without an address; before each launch. */
  void start(StateArrays source, CudaQueue queue, List<Prepared> work) {
    StateArrays sizes = StateArrays.sizes(shape);
    long zeros = bytesBeforeStates(shape, items) + (source.s() == 0 ? sizes.s() : 0);
    work.add(queue.clearOf(address, zeros));
    copy(source, in(), queue, work);
  }

  /** Brings the state where the walk ends, which a sweep reads that takes its tokens out of one. */
  void end(StateArrays source, CudaQueue queue, List<Prepared> work) {
    StateArrays target = afterSteps(items.items());
    if (source.s() == 0) {
      work.add(queue.clearOf(target.s(), StateArrays.sizes(shape).s()));
    }
    copy(source, target, queue, work);
  }

  /** What has an address. */
  private void copy(StateArrays source, StateArrays target, CudaQueue queue, List<Prepared> work) {
    StateArrays sizes = StateArrays.sizes(shape);
    if (source.s() != 0) {
      work.add(queue.copyOf(source.s(), target.s(), sizes.s()));
    }
    if (source.z() != 0) {
      work.add(queue.copyOf(source.z(), target.z(), sizes.z()));
    }
    if (source.u() != 0) {
      work.add(queue.copyOf(source.u(), target.u(), sizes.u()));
    }
  }
}
