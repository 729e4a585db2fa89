package io.github.linattn.cli;

import io.github.linattn.Event;
import io.github.linattn.Graph;
import io.github.linattn.Stream;
import io.github.linattn.cuda.CudaException;
import java.util.ArrayList;
import java.util.List;
import java.util.function.IntConsumer;

/**
 * Times an operation on a GPU by its own clock. The samples are queued without waiting between
 * them, so that the device never waits for the host; short operations are repeated within a sample,
 * from a graph.
 */
final class DeviceTimer {
  private static final int WARM_UP = 3;
  private static final int SAMPLES = 11;

  /** Shorter operations take less time than the host needs to queue them. */
  private static final double SHORT_MILLIS = 0.1;

  private static final double SAMPLE_MILLIS = 0.3;
  private static final int MOST_CALLS = 512;

  private final Stream stream;
  private final int sets;

  /**
   * On a stream.
   *
   * @param sets of tensors, which the calls take in turn
   */
  DeviceTimer(Stream stream, int sets) {
    this.stream = stream;
    this.sets = sets;
  }

  /**
   * Times an operation.
   *
   * @param operation queues one call with the tensors of a set
   */
  DeviceTimes time(IntConsumer operation) {
    repeat(operation, Math.max(WARM_UP, sets));
    stream.synchronize();
    double estimate = mean(samples(() -> repeat(operation, sets), WARM_UP)) / sets;
    if (estimate >= SHORT_MILLIS) {
      int[] next = {0};
      return times(1, samples(() -> operation.accept(next[0]++ % sets), SAMPLES));
    }
    int wanted = (int) Math.min(MOST_CALLS, Math.ceil(SAMPLE_MILLIS / estimate));
    int calls = Math.ceilDiv(wanted, sets) * sets;
    try (Graph graph = stream.capture(() -> repeat(operation, calls))) {
      graph.launch();
      return times(calls, samples(graph::launch, SAMPLES));
    } catch (CudaException | UnsupportedOperationException notInAGraph) {
      return times(calls, samples(() -> repeat(operation, calls), SAMPLES));
    }
  }

  private void repeat(IntConsumer operation, int calls) {
    for (int i = 0; i < calls; i++) {
      operation.accept(i % sets);
    }
  }

  private static double mean(List<Double> values) {
    return values.stream().mapToDouble(value -> value).average().orElseThrow();
  }

  private static DeviceTimes times(int calls, List<Double> millis) {
    return new DeviceTimes(calls, millis.stream().map(sample -> sample / calls).toList());
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
