package io.github.linattn.cli;

import io.github.linattn.Event;
import io.github.linattn.Graph;
import io.github.linattn.Stream;
import io.github.linattn.cuda.CudaException;
import java.util.ArrayList;
import java.util.List;
import java.util.function.IntConsumer;

/**
 * Times an operation on a GPU by its own clock, or on the CPU. The samples are queued without
 * waiting between them, and all but long operations are repeated in a graph, so that a GPU never
 * waits for the host. What takes over a second is sampled once.
 */
final class DeviceTimer {
  private static final int WARM_UP = 3;
  static final int SAMPLES = 11;

  /** A round of calls that takes less than this of the round before may still be compiled. */
  private static final double FASTER = 0.9;

  /** The host queues the next call long before one of these is done, even before it is compiled. */
  private static final double LONG_MILLIS = 2;

  private static final double MOST_MILLIS = 1000;
  private static final double SAMPLE_MILLIS = 1;
  private static final int MOST_CALLS = 1024;

  /** Of calls between two moments at which the host waits for them. */
  private static final double BUSY_MILLIS = 10;

  private final Stream stream;
  private final int sets;
  private final double warmUpSeconds;
  private final double sustainedSeconds;
  private final double sampleMillis;

  /**
   * On a stream of a GPU.
   *
   * @param sets of tensors, which the calls take in turn
   */
  DeviceTimer(Stream stream, int sets) {
    this(stream, sets, 0);
  }

  /**
   * On a stream.
   *
   * @param warmUpSeconds least time of calls before the first sample, above 0 where the JVM
   *     compiles what they run
   */
  DeviceTimer(Stream stream, int sets, double warmUpSeconds) {
    this(stream, sets, warmUpSeconds, 0);
  }

  private DeviceTimer(Stream stream, int sets, double warmUpSeconds, double sustainedSeconds) {
    this.stream = stream;
    this.sets = sets;
    this.warmUpSeconds = warmUpSeconds;
    this.sustainedSeconds = sustainedSeconds;
    this.sampleMillis = Math.max(SAMPLE_MILLIS, sustainedSeconds * 1e3 / SAMPLES);
  }

  /**
   * On a stream of a GPU that has had the same calls for so many seconds before the first sample,
   * and has them for as many at least in the samples together: a GPU slows down at its power limit,
   * which it reaches in some 50 to 100 ms.
   */
  static DeviceTimer sustained(Stream stream, int sets, double seconds) {
    return new DeviceTimer(stream, sets, 0, seconds);
  }

  /**
   * Times an operation.
   *
   * @param operation queues one call with the tensors of a set
   */
  DeviceTimes time(IntConsumer operation) {
    long start = System.nanoTime();
    operation.accept(0);
    stream.synchronize();
    double first = (System.nanoTime() - start) * 1e-6;
    double second = once(() -> operation.accept(1 % sets));
    if (second > MOST_MILLIS) {
      return times(first, 1, false, List.of(second));
    }
    warmUp(operation);
    double once = least(samples(() -> operation.accept(0), WARM_UP));
    keepBusy(operation, once);
    if (once >= LONG_MILLIS) {
      int calls = inSample(once);
      int[] next = {0};
      Runnable each = () -> operation.accept(next[0]++ % sets);
      return times(first, calls, false, samples(() -> repeat(each, calls), SAMPLES));
    }
    int calls = sets;
    while (true) {
      int now = calls;
      try (Graph graph = stream.capture(() -> repeat(operation, now))) {
        double sample = least(samples(graph::launch, WARM_UP));
        int wanted = (int) Math.min(MOST_CALLS, Math.ceil(sampleMillis / sample * calls));
        if (wanted <= calls) {
          int launches = inSample(sample);
          return times(
              first,
              launches * calls,
              true,
              samples(() -> repeat(graph::launch, launches), SAMPLES));
        }
        calls = Math.ceilDiv(wanted, sets) * sets;
      } catch (CudaException | UnsupportedOperationException notInAGraph) {
        int rounds = inSample(once * now);
        return times(
            first,
            rounds * now,
            false,
            samples(() -> repeat(() -> repeat(operation, now), rounds), SAMPLES));
      }
    }
  }

  /** Once; where calls are compiled meanwhile, for so long and until they get no faster. */
  private void warmUp(IntConsumer operation) {
    long start = System.nanoTime();
    double round = Double.POSITIVE_INFINITY;
    double before;
    do {
      before = round;
      long began = System.nanoTime();
      repeat(operation, Math.max(WARM_UP, sets));
      stream.synchronize();
      round = seconds(began);
    } while (warmUpSeconds > 0 && (seconds(start) < warmUpSeconds || round < FASTER * before));
  }

  /** The same calls, that take so many milliseconds each, for as long as is wanted. */
  private void keepBusy(IntConsumer operation, double once) {
    long start = System.nanoTime();
    while (seconds(start) < sustainedSeconds) {
      repeat(operation, (int) Math.min(MOST_CALLS, Math.ceil(BUSY_MILLIS / once)));
      stream.synchronize();
    }
  }

  /** Of what takes so many milliseconds. */
  private int inSample(double millis) {
    return Math.max(1, (int) Math.ceil(sampleMillis / millis));
  }

  private static double seconds(long start) {
    return (System.nanoTime() - start) * 1e-9;
  }

  /**
   * Times an operation from a graph and queued plainly, whichever is faster: the device may copy at
   * another speed from a graph.
   *
   * @param operation queues one call with the tensors of a set
   */
  DeviceTimes fastest(IntConsumer operation) {
    DeviceTimes first = time(operation);
    if (!first.graph()) {
      return first;
    }
    int calls = first.calls();
    DeviceTimes plain =
        times(first.firstMillis(), calls, false, samples(() -> repeat(operation, calls), SAMPLES));
    return plain.median() < first.median() ? plain : first;
  }

  private void repeat(IntConsumer operation, int calls) {
    for (int i = 0; i < calls; i++) {
      operation.accept(i % sets);
    }
  }

  private static void repeat(Runnable call, int calls) {
    for (int i = 0; i < calls; i++) {
      call.run();
    }
  }

  private static double least(List<Double> values) {
    return values.stream().mapToDouble(value -> value).min().orElseThrow();
  }

  private static DeviceTimes times(
      double firstMillis, int calls, boolean graph, List<Double> millis) {
    return new DeviceTimes(
        firstMillis, calls, graph, millis.stream().map(sample -> sample / calls).toList());
  }

  private double once(Runnable work) {
    try (Event before = stream.record()) {
      work.run();
      try (Event after = stream.record()) {
        after.synchronize();
        return after.millisSince(before);
      }
    }
  }

  /** Times between marks; one run before the first mark keeps the device busy. */
  private List<Double> samples(Runnable work, int count) {
    List<Event> marks = new ArrayList<>();
    List<Double> millis = new ArrayList<>();
    try {
      work.run();
      marks.add(stream.record());
      for (int i = 0; i < count; i++) {
        work.run();
        marks.add(stream.record());
      }
      marks.getLast().synchronize();
      for (int i = 0; i < count; i++) {
        millis.add(marks.get(i + 1).millisSince(marks.get(i)));
      }
      return millis;
    } finally {
      marks.forEach(Event::close);
    }
  }
}
