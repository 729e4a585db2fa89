package io.github.linattn.cli.points;

import java.util.Map;
import java.util.Objects;
import java.util.OptionalDouble;
import java.util.TreeMap;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.jspecify.annotations.Nullable;

/**
 * Where, when and with what points were measured.
 *
 * @param started when it began, UTC
 * @param machine the GPU, or the CPU
 * @param architecture such as sm_90; empty for a CPU
 * @param driver of the GPU; empty if it was not found out
 * @param multiprocessors of the GPU; null for a CPU, and in files that do not tell
 * @param clocks as found at the start: of a GPU what nvidia-smi tells of its multiprocessors, its
 *     memory, the highest of its multiprocessors, power and temperature; empty if not found out
 * @param commit of the source that was built
 * @param versions by name: linattn, java, cuda, torch, ...
 */
public record Run(
    String started,
    String machine,
    String architecture,
    @Nullable Integer multiprocessors,
    String driver,
    String clocks,
    String commit,
    Map<String, String> versions) {
  private static final Pattern HIGHEST_CLOCK = Pattern.compile("[^,]+, [^,]+, (\\d+) MHz,.*");

  /** Copies the map. */
  public Run {
    Objects.requireNonNull(started, "started");
    Objects.requireNonNull(machine, "machine");
    Objects.requireNonNull(architecture, "architecture");
    Objects.requireNonNull(driver, "driver");
    Objects.requireNonNull(clocks, "clocks");
    Objects.requireNonNull(commit, "commit");
    versions = Map.copyOf(Objects.requireNonNull(versions, "versions"));
  }

  /** The same run, and what else was used for some of its points. */
  public Run with(Map<String, String> moreVersions) {
    Map<String, String> all = new TreeMap<>(versions);
    all.putAll(moreVersions);
    return new Run(started, machine, architecture, multiprocessors, driver, clocks, commit, all);
  }

  /** The highest clock of a GPU's multiprocessors in MHz, where nvidia-smi told it. */
  public OptionalDouble highestClock() {
    Matcher told = HIGHEST_CLOCK.matcher(clocks);
    return told.matches()
        ? OptionalDouble.of(Double.parseDouble(told.group(1)))
        : OptionalDouble.empty();
  }
}
