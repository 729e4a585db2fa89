package io.github.linattn.cli;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.within;

import io.github.linattn.Event;
import io.github.linattn.Graph;
import io.github.linattn.Stream;
import io.github.linattn.Tensor;
import java.util.ArrayList;
import java.util.List;
import java.util.OptionalLong;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Breaks when the floor is not the faster of two ways, or long calls are repeated. */
class DeviceTimerTest {

  @ParameterizedTest
  @CsvSource({"0.1, 0.2, false", "0.2, 0.1, true", "0.1, 0.1, true", "3, 0.1, false"})
  void theFasterWayCounts(double plainMillis, double graphMillis, boolean graph) {
    var clock = new Clock(plainMillis, graphMillis);
    DeviceTimes times = new DeviceTimer(clock, 2).fastest(set -> clock.work());
    assertThat(times.graph()).isEqualTo(graph);
    assertThat(times.median()).isCloseTo(graph ? graphMillis : plainMillis, within(1e-9));
  }

  @Test
  void whatTakesOverASecondIsSampledOnce() {
    var clock = new Clock(1001, 1001);
    DeviceTimes times = new DeviceTimer(clock, 2).fastest(set -> clock.work());
    assertThat(times.millis()).containsExactly(1001.0);
    assertThat(clock.now).isEqualTo(2 * 1001);
  }

  @Test
  void whatRunsBeforeItIsCompiledIsNotSampled() {
    var clock = new Clock(0.1, 0.1);
    long compiled = System.nanoTime() + 50_000_000;
    DeviceTimes times =
        new DeviceTimer(clock, 2, 0.1)
            .time(
                set -> {
                  int slower = System.nanoTime() < compiled ? 100 : 1;
                  for (int i = 0; i < slower; i++) {
                    clock.work();
                  }
                });
    assertThat(times.median()).isCloseTo(0.1, within(1e-9));
  }

  @ParameterizedTest
  @CsvSource({"0.1", "0.9", "3", "0.0001"})
  void whatIsSustainedIsSampledForAsLong(double millis) {
    var clock = new Clock(millis, millis);
    long start = System.nanoTime();
    DeviceTimes times = DeviceTimer.sustained(clock, 2, 0.022).time(set -> clock.work());
    assertThat(System.nanoTime() - start).isGreaterThan(22_000_000);
    assertThat(times.median()).isCloseTo(millis, within(1e-9));
    assertThat(times.millis()).hasSize(11);
    assertThat(11 * times.calls() * millis).isBetween(22.0, 22.0 + 11 * 2 * Math.max(millis, 1));
  }

  @Test
  void longCallsTakeTheSetsInTurn() {
    var clock = new Clock(3, 3);
    List<Integer> sets = new ArrayList<>();
    DeviceTimes times =
        DeviceTimer.sustained(clock, 2, 0.07)
            .time(
                set -> {
                  clock.work();
                  sets.add(set);
                });
    assertThat(times.calls()).isEqualTo(3);
    assertThat(sets.subList(sets.size() - 6, sets.size())).containsExactly(0, 1, 0, 1, 0, 1);
  }

  /** A device on which a call takes as long as was said, in a graph and out of one. */
  private static final class Clock implements Stream {
    private final double plainMillis;
    private final double graphMillis;
    private double now;
    private double inGraph;
    private boolean capturing;

    Clock(double plainMillis, double graphMillis) {
      this.plainMillis = plainMillis;
      this.graphMillis = graphMillis;
    }

    @Override
    public OptionalLong nativeHandle() {
      return OptionalLong.empty();
    }

    void work() {
      now += capturing ? 0 : plainMillis;
      inGraph += capturing ? graphMillis : 0;
    }

    @Override
    public Graph capture(Runnable work) {
      inGraph = 0;
      capturing = true;
      work.run();
      capturing = false;
      double millis = inGraph;
      return new Graph() {
        @Override
        public void launch() {
          now += millis;
        }

        @Override
        public void close() {}
      };
    }

    @Override
    public Event record() {
      return new Mark(now);
    }

    @Override
    public void synchronize() {}

    @Override
    public void waitFor(Event event) {}

    @Override
    public void copy(Tensor source, Tensor target) {}

    @Override
    public void close() {}
  }

  private record Mark(double millis) implements Event {
    @Override
    public double millisSince(Event earlier) {
      return millis - ((Mark) earlier).millis;
    }

    @Override
    public void synchronize() {}

    @Override
    public void close() {}
  }
}
