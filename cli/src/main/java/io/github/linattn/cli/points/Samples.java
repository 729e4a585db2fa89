package io.github.linattn.cli.points;

import java.util.List;
import java.util.Objects;
import org.jspecify.annotations.Nullable;

/**
 * Times of one problem. Their spread is from the least to the most.
 *
 * @param clock who told the time
 * @param calls of the operation in each sample, which is the mean over them
 * @param graph whether the device took them from a graph; if not and there are several, the device
 *     may have waited for the host
 * @param sets of tensors that the calls took in turn
 * @param exceedsCache whether the sets together are larger than any L2 cache
 * @param firstMillis host time of the first call of all, with whatever it loads, compiles or tunes;
 *     null if not taken
 * @param heapBytes of the Java heap that one call takes; null if not counted
 * @param millis of one call, in the order they were taken
 */
public record Samples(
    Clock clock,
    int calls,
    boolean graph,
    int sets,
    boolean exceedsCache,
    @Nullable Double firstMillis,
    @Nullable Double heapBytes,
    List<Double> millis,
    double median,
    double least,
    double most) {

  /** Who told the time. */
  public enum Clock {
    /** Events of the device; those of the CPU are read off the host's clock. */
    DEVICE,
    /** The host, from the call to its return, the work queued. */
    HOST
  }

  /** Copies the list. Refuses what is no time. */
  public Samples {
    Objects.requireNonNull(clock, "clock");
    millis = List.copyOf(Objects.requireNonNull(millis, "millis"));
    if (millis.isEmpty()) {
      throw new IllegalArgumentException("no sample");
    }
    boolean inOrder = 0 < least && least <= median && median <= most && most < Double.MAX_VALUE;
    if (!inOrder || !millis.stream().allMatch(each -> least <= each && each <= most)) {
      throw new IllegalArgumentException(
          "%s is no median of times from %s to %s ms".formatted(median, least, most));
    }
    if (isNegative(firstMillis) || isNegative(heapBytes)) {
      throw new IllegalArgumentException(
          "samples of %s ms for the first call, %s bytes of the heap"
              .formatted(firstMillis, heapBytes));
    }
    if (calls < 1 || sets < 1) {
      throw new IllegalArgumentException("samples of %d calls, %d sets".formatted(calls, sets));
    }
  }

  private static boolean isNegative(@Nullable Double value) {
    return value != null && value < 0;
  }

  /** With median and spread of the samples. */
  public static Samples of(
      Clock clock,
      int calls,
      boolean graph,
      int sets,
      boolean exceedsCache,
      @Nullable Double firstMillis,
      @Nullable Double heapBytes,
      List<Double> millis) {
    List<Double> sorted = millis.stream().sorted().toList();
    return new Samples(
        clock,
        calls,
        graph,
        sets,
        exceedsCache,
        firstMillis,
        heapBytes,
        millis,
        sorted.get(sorted.size() / 2),
        sorted.getFirst(),
        sorted.getLast());
  }
}
