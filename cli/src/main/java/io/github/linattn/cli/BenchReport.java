package io.github.linattn.cli;

import io.github.linattn.cli.points.Run;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Function;
import java.util.stream.Collectors;

/** The benchmark's results as lines of a table. */
final class BenchReport {
  private static final String ROW = "%-34s %-5s %-9s %-27s %10s %23s %10s %6s %s %7s  %s";

  private BenchReport() {}

  static List<String> head(Run run, String family, BenchPass pass, double sustainedSeconds) {
    return List.of(
        Text.format(
            "%s %s, driver %s, clocks %s, %s, commit %s, family %s, %s",
            run.machine(),
            run.architecture(),
            run.driver(),
            run.clocks(),
            run.versions(),
            run.commit(),
            family,
            run.started()),
        Text.format(
            "Device time of a %s%s, median of %d samples (least to most), or 1 of what takes over a"
                + " second; floor: a copy within the GPU that moves as many bytes, from a graph or"
                + " queued plainly, whichever is faster; %s: relative errors against the double"
                + " reference%s.",
            Text.id(pass),
            sustainedSeconds > 0
                ? Text.format(" that has gone on for %.1f s", sustainedSeconds)
                : "",
            DeviceTimer.SAMPLES,
            pass.quantities().stream().map(Quantity::title).collect(Collectors.joining(", ")),
            pass.hasBackward()
                ? "; da and db may have 50 times the bound, and are measured by their terms where these"
                    + " cancel"
                : ""),
        Text.format(
            ROW,
            "shape",
            "dtype",
            "mode",
            "plan",
            "ms",
            "spread",
            "floor ms",
            "ratio",
            columns(pass, Quantity::title),
            "bound",
            "ok"));
  }

  /** One row, and one more for other plans where there are any. */
  static List<String> rows(BenchResult result) {
    List<String> rows = new ArrayList<>();
    DeviceTimes times = result.times();
    BenchPass pass = result.problem().pass();
    rows.add(
        Text.format(
            ROW,
            result.problem().name(),
            Text.id(result.problem().precision().dtype()),
            Text.id(result.problem().precision().mode()),
            result.plan(),
            millis(times.median()),
            "(" + millis(times.least()) + " to " + millis(times.most()) + ")",
            millis(result.floor().median()),
            Text.format("%.2f", result.ratio()),
            columns(pass, quantity -> error(result.errors().of(quantity))),
            error(result.bound()),
            verdict(result)));
    if (!result.others().isEmpty()) {
      rows.add(others(result));
    }
    return rows;
  }

  /** A column for each quantity of a pass. */
  private static String columns(BenchPass pass, Function<Quantity, String> text) {
    return pass.quantities().stream()
        .map(quantity -> Text.format(" %7s", text.apply(quantity)))
        .collect(Collectors.joining());
  }

  private static String verdict(BenchResult result) {
    if (!result.right()) {
      return "FAILED";
    }
    String waited = result.times().mayHaveWaited() ? ", may have waited for the host" : "";
    return (result.exceedsCache() ? "ok" : "ok, partly in L2") + waited;
  }

  private static String others(BenchResult result) {
    List<String> names = new ArrayList<>();
    for (BenchResult.Other other : result.others()) {
      DeviceTimes times = other.times();
      names.add(
          times == null
              ? other.name() + " WRONG (" + error(other.error()) + ")"
              : other.name() + " " + millis(times.median()));
    }
    return Text.format(
        "    choice / best %.2f%s; %s",
        result.overBest(), result.isNearBest() ? "" : " (!)", String.join(", ", names));
  }

  private static String millis(double millis) {
    return Text.format("%.4f", millis);
  }

  private static String error(double error) {
    return Text.format("%.1e", error);
  }

  /** A case that was not timed. */
  static String leftOut(BenchCase problem, String why) {
    return Text.format(
        "%-34s %-5s %-9s left out: %s",
        problem.name(),
        Text.id(problem.precision().dtype()),
        Text.id(problem.precision().mode()),
        why);
  }

  static String host(HostTime host) {
    return Text.format(
        "host, %s, %sInto of B=%d H=%d N=%d D=%d: %.2f µs and %.1f bytes of heap a call,"
            + " %d calls queued",
        Text.id(host.dtype()),
        Text.id(host.pass()),
        HostTime.SHAPE.batch(),
        HostTime.SHAPE.heads(),
        HostTime.SHAPE.tokens(),
        HostTime.SHAPE.keyDim(),
        host.micros(),
        host.heapBytes(),
        HostTime.CALLS);
  }

  /** How often the planner chose well among the cases that gave it a choice. */
  static String planner(List<BenchResult> results) {
    List<BenchResult> choices =
        results.stream().filter(result -> !result.others().isEmpty()).toList();
    if (choices.isEmpty()) {
      return "planner: no case left it a choice";
    }
    long near = choices.stream().filter(BenchResult::isNearBest).count();
    double worst = choices.stream().mapToDouble(BenchResult::overBest).max().orElse(1);
    double mean =
        Math.exp(
            choices.stream()
                .mapToDouble(result -> Math.log(result.overBest()))
                .average()
                .orElse(0));
    return Text.format(
        "planner: within 10 %% of the best plan in %d of %d cases (%.0f %%), in the mean (geometric)"
            + " %.3f of it, at worst %.2f",
        near, choices.size(), 100.0 * near / choices.size(), mean, worst);
  }
}
