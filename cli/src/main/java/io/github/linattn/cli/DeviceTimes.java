package io.github.linattn.cli;

import java.util.List;

/**
 * Device times of one operation.
 *
 * @param calls of the operation in each sample
 * @param millis of one call, a mean over those of a sample, in the order they were taken
 */
record DeviceTimes(int calls, List<Double> millis) {
  DeviceTimes {
    millis = List.copyOf(millis);
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
