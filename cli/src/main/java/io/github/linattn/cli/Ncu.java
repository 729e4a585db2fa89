package io.github.linattn.cli;

import io.github.linattn.kernels.ToolkitPrograms;
import io.github.linattn.kernels.ToolkitPrograms.Output;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.regex.MatchResult;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.jspecify.annotations.Nullable;

/**
 * Nsight Compute, NVIDIA's profiler: reads counters of the GPU while a command runs. It runs
 * kernels one at a time, each from empty caches.
 *
 * @param executable absolute path
 * @param version as it prints it, such as 2025.3.1.0
 */
record Ncu(Path executable, String version) {
  /** The system property that names the executable; nothing else is tried where it is set. */
  static final String PROPERTY = "linattn.ncu";

  private static final Pattern VERSION = Pattern.compile("Version (\\d+(\\.\\d+)+)");
  private static final Pattern CELL = Pattern.compile("\"((?:[^\"]|\"\")*)\"");

  /** What ncu says for itself, beside what the command prints. */
  private static final Pattern MESSAGE = Pattern.compile("==(ERROR|WARNING)== (.+)");

  /** What is read of each launch, in its base unit. */
  private enum Metric {
    TIME("gpu__time_duration.sum", "ns", "nsecond"),
    BYTES("dram__bytes.sum", "byte"),
    PERCENT("dram__throughput.avg.pct_of_peak_sustained_elapsed", "%");

    private final String id;
    private final List<String> units;

    Metric(String id, String... units) {
      this.id = id;
      this.units = List.of(units);
    }

    static String all() {
      return Arrays.stream(values()).map(metric -> metric.id).collect(Collectors.joining(","));
    }

    /** Null for a metric that was not asked for. */
    static @Nullable Metric of(String id) {
      return Arrays.stream(values())
          .filter(metric -> metric.id.equals(id))
          .findFirst()
          .orElse(null);
    }
  }

  /** One launch of a kernel. */
  private record Launch(String kernel, Map<Metric, Double> values) {
    double value(Metric metric) throws RefusedException {
      Double value = values.get(metric);
      if (value == null) {
        throw new RefusedException(Text.format("ncu counts no %s of %s", metric.id, kernel));
      }
      return value;
    }
  }

  /**
   * What was counted of one call.
   *
   * @param millis sum over its kernels, at the clocks as they are
   * @param bytes that memory read and wrote
   * @param share of the rate that memory could sustain, over this time: 0 to 1
   */
  record Call(double millis, long bytes, double share) {}

  /** Nothing was counted; the message is the sentence of ncu where it has one. */
  static final class RefusedException extends Exception {
    private static final long serialVersionUID = 1;

    RefusedException(String message) {
      super(message);
    }
  }

  /**
   * What a search found.
   *
   * @param ncu empty where there is none
   * @param reason where it was found, or each place that was tried
   */
  record Search(Optional<Ncu> ncu, String reason) {}

  /** Looks for ncu: the property {@value #PROPERTY}, else where nvcc is looked for. */
  static Search find() {
    String property = System.getProperty(PROPERTY, "");
    List<String> tried = new ArrayList<>();
    for (Path place :
        property.isBlank() ? ToolkitPrograms.places("ncu") : List.of(Path.of(property))) {
      Path executable = place.toAbsolutePath();
      try {
        Matcher version =
            VERSION.matcher(
                ToolkitPrograms.run(List.of(executable.toString(), "--version")).text());
        if (version.find()) {
          return new Search(
              Optional.of(new Ncu(executable, version.group(1))), executable.toString());
        }
        tried.add(executable + " (does not tell a version)");
      } catch (IOException cantStart) {
        tried.add(executable + (Files.exists(executable) ? " (does not run)" : " (not there)"));
      }
    }
    return new Search(Optional.empty(), "tried " + String.join(", ", tried));
  }

  /**
   * Counts the last whole call among the first launches of a command, and ends the command with the
   * last of these; its status is asked for only where there was no such call.
   *
   * @param command starts a process that makes the call, more than once
   * @param kernels of one call, in the order they run
   * @param launches of these kernels that are looked at: enough for a whole call behind whatever
   *     prepares it
   * @throws RefusedException if ncu may not read counters, or the command fails
   */
  Call count(List<String> command, List<String> kernels, int launches) throws RefusedException {
    List<String> whole = new ArrayList<>();
    whole.add(executable.toString());
    whole.addAll(List.of("--csv", "--print-units", "base", "--clock-control", "none"));
    whole.addAll(List.of("--target-processes", "all"));
    whole.addAll(List.of("--metrics", Metric.all()));
    whole.addAll(List.of("--kernel-name", "regex:^(" + String.join("|", kernels) + ")$"));
    whole.addAll(List.of("--launch-count", Integer.toString(launches), "--kill", "yes"));
    whole.addAll(command);
    Output output;
    try {
      output = ToolkitPrograms.run(whole);
    } catch (IOException cantStart) {
      throw new RefusedException(Text.message(cantStart));
    }
    List<String> lines = output.text().lines().toList();
    List<Launch> found = List.copyOf(launches(lines));
    int first =
        Collections.lastIndexOfSubList(found.stream().map(Launch::kernel).toList(), kernels);
    if (first < 0) {
      throw new RefusedException(reason(output.status(), lines, kernels));
    }
    return sum(found.subList(first, first + kernels.size()));
  }

  /** Why there is no whole call among the launches. */
  private static String reason(int status, List<String> lines, List<String> kernels) {
    return message("ERROR", lines)
        .or(
            () ->
                status == 0
                    ? message("WARNING", lines)
                    : Optional.of(Text.format("ncu ended with status %d: %s", status, last(lines))))
        .orElse("ncu saw no whole call of " + String.join(", ", kernels));
  }

  private static Call sum(List<Launch> launches) throws RefusedException {
    double nanos = 0;
    double bytes = 0;
    double busy = 0;
    for (Launch launch : launches) {
      nanos += launch.value(Metric.TIME);
      bytes += launch.value(Metric.BYTES);
      busy += launch.value(Metric.TIME) * launch.value(Metric.PERCENT) / 100;
    }
    return new Call(nanos * 1e-6, Math.round(bytes), busy / nanos);
  }

  /** The table among what was printed: a line for each metric of each launch, after a header. */
  private static Collection<Launch> launches(List<String> lines) throws RefusedException {
    Map<String, Launch> launches = new LinkedHashMap<>();
    List<String> header = List.of();
    for (String line : lines) {
      if (line.startsWith("\"ID\",")) {
        header = cells(line);
      } else if (!header.isEmpty() && line.startsWith("\"")) {
        Map<String, String> row = row(header, cells(line));
        String kernel = row.getOrDefault("Kernel Name", "");
        Launch launch =
            launches.computeIfAbsent(
                row.getOrDefault("ID", ""), id -> new Launch(kernel, new HashMap<>()));
        Metric metric = Metric.of(row.getOrDefault("Metric Name", ""));
        if (metric != null) {
          launch.values.put(metric, value(metric, row));
        }
      }
    }
    return launches.values();
  }

  private static List<String> cells(String line) {
    return CELL.matcher(line).results().map((MatchResult cell) -> cell.group(1)).toList();
  }

  private static Map<String, String> row(List<String> header, List<String> cells) {
    Map<String, String> row = new HashMap<>();
    for (int i = 0; i < Math.min(header.size(), cells.size()); i++) {
      row.put(header.get(i), cells.get(i));
    }
    return row;
  }

  private static double value(Metric metric, Map<String, String> row) throws RefusedException {
    String text = row.getOrDefault("Metric Value", "");
    String unit = row.getOrDefault("Metric Unit", "");
    try {
      if (metric.units.contains(unit)) {
        return Double.parseDouble(text.replace(",", ""));
      }
    } catch (NumberFormatException notCounted) {
      // told below
    }
    throw new RefusedException(
        Text.format(
            "ncu gives %s as '%s %s', not in %s", metric.id, text, unit, metric.units.getFirst()));
  }

  private static Optional<String> message(String kind, List<String> lines) {
    return lines.stream()
        .map(MESSAGE::matcher)
        .filter(Matcher::matches)
        .filter(matcher -> matcher.group(1).equals(kind))
        .map(matcher -> matcher.group(2).strip())
        .findFirst();
  }

  private static String last(List<String> lines) {
    return lines.reversed().stream().filter(line -> !line.isBlank()).findFirst().orElse("silent");
  }
}
