package io.github.linattn.cli;

import java.util.List;

/**
 * Device times of one operation.
 *
 * @param firstMillis host time of the first call of all, from queueing it until it is done
 * @param calls of the operation in each sample
 * @param graph whether the device took them from a graph, without the host
 * @param millis of one call, a mean over those of a sample, in the order they were taken
 */
record DeviceTimes(double firstMillis, int calls, boolean graph, List<Double> millis) {
  DeviceTimes {
    millis = List.copyOf(millis);
  }

  /** Whether the host queued short calls one by one, so that the device may have waited for it. */
  boolean mayHaveWaited() {
    return calls > 1 && !graph;
  }

  double least() {
    return sorted(0);
  }

  double median() {
    return sorted(millis.size() / 2);
  }

  double most() {
    return sorted(millis.size() - 1);
  }

  private double sorted(int index) {
    return millis.stream().sorted().skip(index).findFirst().orElse(Double.NaN);
  }
}
