package io.github.linattn.cli;

import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * What was measured of a case.
 *
 * @param plan the plan in a few words
 * @param reason why this plan
 * @param estimatedMicros what the planner expected
 * @param sets of tensors that the calls took in turn
 * @param exceedsCache whether the sets together are larger than any L2 cache
 * @param memoryBytes above q, k, v and dO: results, what a backward goes back through, workspace
 * @param times of the pass
 * @param errors relative, of each output; NaN if one was not written
 * @param bound largest error allowed; da and db have a bound of their own
 * @param others other plans, where they were asked for
 */
record BenchResult(
    BenchCase problem,
    String plan,
    String reason,
    double estimatedMicros,
    int sets,
    boolean exceedsCache,
    long memoryBytes,
    DeviceTimes times,
    DeviceTimes floor,
    Errors errors,
    double bound,
    List<Other> others) {

  /** The planner has chosen well where it loses no more than this. */
  private static final double NEAR_BEST = 1.1;

  BenchResult {
    others = List.copyOf(others);
  }

  /**
   * A plan that was asked for.
   *
   * @param name technique and tokens of a segment
   * @param times null where its results are wrong
   */
  record Other(String name, double estimatedMicros, double error, @Nullable DeviceTimes times) {}

  double ratio() {
    return times.median() / floor.median();
  }

  /** Whether what was timed gave every result within the bound; a NaN is not. */
  boolean chosenIsRight() {
    return errors.within(problem.precision());
  }

  /** Whether every plan did. */
  boolean right() {
    return chosenIsRight() && others.stream().allMatch(other -> other.times != null);
  }

  /** The planner's choice over the best plan. */
  double overBest() {
    double best = times.median();
    for (Other other : others) {
      if (other.times != null) {
        best = Math.min(best, other.times.median());
      }
    }
    return times.median() / best;
  }

  boolean isNearBest() {
    return overBest() <= NEAR_BEST;
  }
}
