package io.github.linattn.internal.cuda;

import io.github.linattn.Sequences;
import io.github.linattn.kernelgen.Technique;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * How the token axis is cut into items: each sequence into segments of the same length, the last of
 * them shorter. A sequence without tokens has one empty item where an item is a whole sequence, and
 * none else. Immutable.
 */
final class Cut {
  private final int tokens;
  private final @Nullable Sequences packing;
  private final int segment;
  private final int items;
  private final int mostItems;
  private final int longest;
  private final long chunks;

  /**
   * Cuts.
   *
   * @param tokens N
   * @param packing null for one sequence
   * @param segment tokens of a segment; 0 for whole sequences
   */
  Cut(int tokens, @Nullable Sequences packing, int segment) {
    this.tokens = tokens;
    this.packing = packing;
    this.segment = segment;
    int count = 0;
    int most = 0;
    int longestSequence = 0;
    long allChunks = 0;
    for (int i = 0; i < sequences(); i++) {
      int length = length(i);
      int own = items(i);
      count = Math.addExact(count, own);
      most = Math.max(most, own);
      longestSequence = Math.max(longestSequence, length);
      allChunks += (own - 1L) * chunks(segment) + chunks(length - (own - 1) * segment);
    }
    this.items = count;
    this.mostItems = most;
    this.longest = segment == 0 ? longestSequence : Math.min(longestSequence, segment);
    this.chunks = allChunks;
  }

  /** Tokens of each of so many segments, the last of them shorter, in whole steps. */
  static int segment(int longest, int parts, int step) {
    long steps = Math.ceilDiv(Math.ceilDiv(longest, parts), step);
    return (int) Math.min(Integer.MAX_VALUE, steps * step);
  }

  /** What {@link #segment} may be of so many parts or more, from the longest down to one step. */
  static IntStream segments(int longest, int fewestParts, int step) {
    return IntStream.iterate(
        segment(longest, fewestParts, step),
        segment -> segment > 0,
        segment ->
            segment == step ? 0 : segment(longest, Math.ceilDiv(longest, segment - step), step));
  }

  int sequences() {
    return packing == null ? 1 : packing.count();
  }

  int start(int sequence) {
    return packing == null ? 0 : packing.start(sequence);
  }

  int length(int sequence) {
    return packing == null ? tokens : packing.length(sequence);
  }

  /** Items of one sequence. */
  int items(int sequence) {
    return segment == 0 ? 1 : Math.ceilDiv(length(sequence), segment);
  }

  /** Items of all sequences. */
  int items() {
    return items;
  }

  /** Items of the sequence that has most. */
  int mostItems() {
    return mostItems;
  }

  /** Whether each sequence is one item, whose sums are its own. */
  boolean hasOneItemEach() {
    return items == sequences() && mostItems == 1;
  }

  /** Tokens of a segment; N for whole sequences. */
  int itemTokens() {
    return segment == 0 ? tokens : segment;
  }

  /** Whether items are segments, and no whole sequences. */
  boolean hasSegments() {
    return segment > 0;
  }

  /** Whether kernels can compute the items instead of reading a list. */
  boolean isRegular() {
    return packing == null;
  }

  /** Tokens of the longest item. */
  int longest() {
    return longest;
  }

  /** Receives one item. */
  interface Consumer {
    void item(int index, int sequence, int start, int length);
  }

  /** Tells every item, in the order of tokens. */
  void forEach(Consumer consumer) {
    int index = 0;
    for (int i = 0; i < sequences(); i++) {
      for (int j = 0; j < items(i); j++) {
        int before = j * itemTokens();
        int left = length(i) - before;
        consumer.item(index, i, start(i) + before, segment == 0 ? left : Math.min(segment, left));
        index++;
      }
    }
  }

  /** Chunks of all items. */
  long chunks() {
    return chunks;
  }

  private static int chunks(int tokens) {
    return Math.ceilDiv(tokens, Planner.CHUNK);
  }

  /** A way to compute so cut: with the tokens of an item, if a sequence has several. */
  static String summary(String way, Cut cut, Technique technique) {
    String segments = cut.mostItems > 1 ? " " + cut.longest() : "";
    return way + segments + ", " + technique.id();
  }

  @Override
  public String toString() {
    return items + " items of up to " + longest() + " tokens";
  }
}
