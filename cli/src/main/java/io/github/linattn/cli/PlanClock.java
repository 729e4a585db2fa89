package io.github.linattn.cli;

import io.github.linattn.io.Tuning.Choice;
import java.util.List;
import java.util.Map;
import java.util.Objects;

/** Times plans. */
@FunctionalInterface
interface PlanClock {
  /**
   * What the plans of a problem take.
   *
   * @param planned of the planner's own, in milliseconds
   * @param choices of those that are possible for the problem and whose results are right
   */
  record Times(double planned, Map<Choice, Double> choices) {
    public Times {
      choices = Map.copyOf(choices);
    }

    /** A choice over the planner's own. */
    double ratio(Choice choice) {
      return Objects.requireNonNull(choices.get(choice)) / planned;
    }
  }

  /**
   * Times the planner's plan of a problem, and each of these.
   *
   * @throws UnsupportedOperationException if the device can't do the problem
   * @throws CommandFailure if the results of the planner's plan are wrong
   */
  Times time(BenchCase problem, List<Choice> choices);
}
