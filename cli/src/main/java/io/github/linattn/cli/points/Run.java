package io.github.linattn.cli.points;

import java.util.Map;
import java.util.Objects;
import java.util.TreeMap;

/**
 * Where, when and with what points were measured.
 *
 * @param started when it began, UTC
 * @param machine the GPU, or the CPU
 * @param architecture such as sm_90; empty for a CPU
 * @param driver of the GPU; empty if it was not found out
 * @param clocks of the device as found at the start, with its power; empty if not found out
 * @param commit of the source that was built
 * @param versions by name: linattn, java, cuda, torch, ...
 */
public record Run(
    String started,
    String machine,
    String architecture,
    String driver,
    String clocks,
    String commit,
    Map<String, String> versions) {

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
    return new Run(started, machine, architecture, driver, clocks, commit, all);
  }
}
