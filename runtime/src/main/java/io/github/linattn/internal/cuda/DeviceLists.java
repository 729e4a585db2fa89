package io.github.linattn.internal.cuda;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/** What a call reads of small arrays in device memory: items, spans and coefficients. */
final class DeviceLists {
  private final DeviceConstants constants;

  DeviceLists(DeviceConstants constants) {
    this.constants = constants;
  }

  /**
   * Every item, each with its sequence's state.
   *
   * @param counts tokens in the initial state of each sequence
   */
  long itemsOfSequences(Cut cut, long[] counts) {
    return items(cut, counts, false, 0);
  }

  /** Every item from the first that is asked for on, each with a state of its own. */
  long itemsOfSegments(Cut cut, long[] counts, int first) {
    return items(cut, counts, true, first);
  }

  /**
   * Every item of one sequence, each with as many states as there are key/value heads, in the order
   * of a walk.
   */
  long itemsOfRelay(Cut cut, long count, int keyValueHeads, boolean backwards) {
    ByteBuffer list = buffer(cut.items() * ChunkedStructs.ITEM.byteSize());
    cut.forEach(
        (index, sequence, start, length) -> {
          int steps = backwards ? cut.items() - 1 - index : index;
          putItem(list, start, length, steps * keyValueHeads, count + start);
        });
    return constants.of(list.array());
  }

  private long items(Cut cut, long[] counts, boolean bySegment, int first) {
    ByteBuffer list = buffer((cut.items() - first) * ChunkedStructs.ITEM.byteSize());
    cut.forEach(
        (index, sequence, start, length) -> {
          if (index >= first) {
            long count = counts[sequence] + start - cut.start(sequence);
            putItem(list, start, length, bySegment ? index : sequence, count);
          }
        });
    return constants.of(list.array());
  }

  /**
   * Every item, each with the state of all tokens of its sequence.
   *
   * @param counts tokens in the initial state of each sequence
   */
  long itemsOfTotals(Cut cut, long[] counts) {
    ByteBuffer list = buffer(cut.items() * ChunkedStructs.ITEM.byteSize());
    cut.forEach(
        (index, sequence, start, length) ->
            putItem(list, start, length, sequence, counts[sequence] + cut.length(sequence)));
    return constants.of(list.array());
  }

  private static void putItem(ByteBuffer list, int start, int length, int slot, long count) {
    list.putInt(start).putInt(length).putInt(slot).putInt(0).putLong(count);
  }

  /** One sequence of one item. */
  long spanOf(int item) {
    return constants.of(buffer(ChunkedStructs.SPAN.byteSize()).putInt(item).putInt(1).array());
  }

  /** The items of each sequence. */
  long spans(Cut cut) {
    ByteBuffer list = buffer(cut.sequences() * ChunkedStructs.SPAN.byteSize());
    int first = 0;
    for (int i = 0; i < cut.sequences(); i++) {
      list.putInt(first).putInt(cut.items(i));
      first += cut.items(i);
    }
    return constants.of(list.array());
  }

  long floats(float[] values) {
    ByteBuffer list = buffer((long) values.length * Float.BYTES);
    for (float value : values) {
      list.putFloat(value);
    }
    return constants.of(list.array());
  }

  private static ByteBuffer buffer(long bytes) {
    return ByteBuffer.allocate(Math.toIntExact(bytes)).order(ByteOrder.nativeOrder());
  }
}
