package io.github.linattn.bench;

import java.util.Collection;
import java.util.List;
import java.util.concurrent.atomic.DoubleAdder;
import java.util.concurrent.atomic.LongAdder;
import org.openjdk.jmh.infra.BenchmarkParams;
import org.openjdk.jmh.infra.IterationParams;
import org.openjdk.jmh.profile.InternalProfiler;
import org.openjdk.jmh.results.AggregationPolicy;
import org.openjdk.jmh.results.IterationResult;
import org.openjdk.jmh.results.Result;
import org.openjdk.jmh.results.ScalarResult;

/**
 * Puts the time between two events of a stream beside the host's, in the same results: {@code -prof
 * io.github.linattn.bench.DeviceTime}. Where the host is slower than the device, the device waits
 * for it within that time.
 */
public final class DeviceTime implements InternalProfiler {
  private static final DoubleAdder MICROS = new DoubleAdder();
  private static final LongAdder CALLS = new LongAdder();

  /** Adds what lay between two events. */
  static void add(double millis, long calls) {
    MICROS.add(millis * 1e3);
    CALLS.add(calls);
  }

  @Override
  public String getDescription() {
    return "time between events of the stream";
  }

  @Override
  public void beforeIteration(BenchmarkParams benchmark, IterationParams iteration) {
    MICROS.reset();
    CALLS.reset();
  }

  /** The mean of a call; nothing of a benchmark without events. */
  @Override
  public Collection<? extends Result> afterIteration(
      BenchmarkParams benchmark, IterationParams iteration, IterationResult result) {
    long calls = CALLS.sum();
    return calls == 0
        ? List.of()
        : List.of(new ScalarResult("device", MICROS.sum() / calls, "us/op", AggregationPolicy.AVG));
  }
}
