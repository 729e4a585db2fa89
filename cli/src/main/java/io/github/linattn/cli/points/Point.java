package io.github.linattn.cli.points;

import java.util.Map;
import java.util.Objects;
import java.util.TreeMap;
import org.jspecify.annotations.Nullable;

/**
 * What was found out about one problem.
 *
 * @param run index of the run in the file
 * @param why the sentence behind a status other than OK; else empty
 * @param samples null where nothing was timed
 * @param bytes that have to be read and written once, whoever computes; 0 where unknown
 * @param memoryBytes device memory above q, k, v and dO at the peak of the pass: results, what a
 *     forward saved for its backward, workspace; null where unknown
 * @param errors relative to the double reference, by quantity; null for one that is not finite
 * @param bound the largest error allowed; da and db may have more
 * @param choice what the planner chose, null where nothing was planned
 * @param movement what counters of the device told; null where none were read
 */
public record Point(
    Problem problem,
    int run,
    Status status,
    String why,
    @Nullable Samples samples,
    long bytes,
    @Nullable Long memoryBytes,
    Map<String, @Nullable Double> errors,
    @Nullable Double bound,
    @Nullable Choice choice,
    @Nullable Movement movement) {

  /**
   * What moved between the device and its memory in one call.
   *
   * @param bytes read and written
   * @param share of the rate that the memory could sustain, over the time of the kernels: 0 to 1
   */
  public record Movement(long bytes, double share) {}

  /**
   * What the planner chose.
   *
   * @param plan in a few words
   * @param estimatedMicros what it expected
   */
  public record Choice(String plan, String reason, double estimatedMicros) {
    /** Refuses what a file left out. */
    public Choice {
      Objects.requireNonNull(plan, "plan");
      Objects.requireNonNull(reason, "reason");
    }
  }

  /** Refuses what a file left out, times that are not there, and sizes below 0. */
  public Point {
    Objects.requireNonNull(problem, "problem");
    Objects.requireNonNull(status, "status");
    Objects.requireNonNull(why, "why");
    errors = new TreeMap<>(Objects.requireNonNull(errors, "errors"));
    long least = memoryBytes == null ? bytes : Math.min(bytes, memoryBytes);
    if (least < 0) {
      throw new IllegalArgumentException(problem.title() + ": it has a size of " + least);
    }
    if (status == Status.OK && samples == null) {
      throw new IllegalArgumentException(problem.title() + ": ok, but without samples");
    }
    if (status != Status.OK && why.isEmpty()) {
      throw new IllegalArgumentException(problem.title() + ": " + status + " without a sentence");
    }
  }

  /** A point that was timed. */
  public static Point ok(Problem problem, Samples samples, long bytes) {
    return new Point(problem, 0, Status.OK, "", samples, bytes, null, Map.of(), null, null, null);
  }

  /** The same point, with what counters told. */
  public Point with(Movement counted) {
    return new Point(
        problem, run, status, why, samples, bytes, memoryBytes, errors, bound, choice, counted);
  }

  /** A point that was not timed. */
  public static Point without(Problem problem, Status status, String why) {
    return new Point(problem, 0, status, why, null, 0, null, Map.of(), null, null, null);
  }

  Point with(int newRun) {
    return new Point(
        problem, newRun, status, why, samples, bytes, memoryBytes, errors, bound, choice, movement);
  }

  /** Milliseconds of one call; NaN where nothing was timed or the result is wrong. */
  public double millis() {
    return status == Status.OK && samples != null ? samples.median() : Double.NaN;
  }
}
