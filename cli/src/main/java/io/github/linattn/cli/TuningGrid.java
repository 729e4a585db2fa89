package io.github.linattn.cli;

import io.github.linattn.AttentionShape;
import io.github.linattn.cuda.CudaOutOfMemoryException;
import io.github.linattn.io.Tuning;
import io.github.linattn.io.Tuning.Choice;
import io.github.linattn.io.Tuning.Entry;
import io.github.linattn.io.Tuning.Range;
import io.github.linattn.kernelgen.KernelSpec;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.stream.Stream;

/**
 * Classes of B x H and N, as the cells of a grid whose crossings are timed. A plan is kept for a
 * cell where it gains over the planner's own plans at its corners together, and loses at none of
 * them.
 *
 * @param heads borders of classes, ascending; a border is the least of its class
 * @param tokens likewise
 */
record TuningGrid(List<Integer> heads, List<Integer> tokens) {
  /** What two runs of the same plan may differ by. */
  private static final double NOISE = 1.02;

  /** With less gain the planner's choice stays. */
  private static final double GAIN = 0.97;

  /** More blocks than this fill a GPU, so that further turns gain nothing. */
  private static final long MOST_TURN_BLOCKS = 256;

  private static final int MOST_TURNS = 8;

  /** Fewer blocks come in one round, and there is nothing for a relay to fill. */
  private static final long LEAST_RELAY_BLOCKS = 128;

  private static final int MOST_RELAY_SEGMENTS = 8;

  TuningGrid {
    heads = requireAscending("--heads", heads);
    tokens = requireAscending("--tokens", tokens);
  }

  private static List<Integer> requireAscending(String option, List<Integer> borders) {
    boolean ascending = borders.size() > 1 && borders.getFirst() > 0;
    for (int i = 1; i < borders.size(); i++) {
      ascending &= borders.get(i - 1) < borders.get(i);
    }
    if (!ascending) {
      throw CommandFailure.misuse("%s has two borders of classes or more, ascending", option);
    }
    return List.copyOf(borders);
  }

  private record Point(int heads, int tokens) {}

  /** Crossings, each of which is timed once. */
  int points() {
    return heads.size() * tokens.size();
  }

  /**
   * Times the crossings and gives a plan for each class whose corners could be timed.
   *
   * @param kind a problem of these types and this pass, of any B, H and N
   */
  List<Entry> tune(Tuning.Problem problem, BenchCase kind, PlanClock clock, Listener listener) {
    Map<Point, PlanClock.Times> times = new LinkedHashMap<>();
    for (int headCount : heads) {
      for (int tokenCount : tokens) {
        BenchCase point =
            kind.with(AttentionShape.of(1, headCount, tokenCount, kind.shape().keyDim()));
        try {
          times.put(new Point(headCount, tokenCount), clock.time(point, choices(point)));
        } catch (UnsupportedOperationException
            | BenchRun.NoRoomException
            | CudaOutOfMemoryException notHere) {
          listener.leftOut(point, notHere);
        }
        listener.timed(point);
      }
    }
    List<Entry> fastest = new ArrayList<>();
    for (int i = 1; i < heads.size(); i++) {
      for (int j = 1; j < tokens.size(); j++) {
        Range headClass = new Range(heads.get(i - 1), heads.get(i) - 1);
        Range tokenClass = new Range(tokens.get(j - 1), tokens.get(j) - 1);
        corners(times, i, j)
            .flatMap(TuningGrid::fastest)
            .map(best -> new Entry(problem, headClass, tokenClass, best.kept(), best.ratio()))
            .ifPresent(fastest::add);
      }
    }
    return fastest;
  }

  /** Hears how far the work is. */
  interface Listener {
    void timed(BenchCase point);

    void leftOut(BenchCase point, RuntimeException why);
  }

  /** Empty where a corner could not be timed. */
  private Optional<List<PlanClock.Times>> corners(Map<Point, PlanClock.Times> times, int i, int j) {
    List<PlanClock.Times> corners =
        Stream.of(
                new Point(heads.get(i - 1), tokens.get(j - 1)),
                new Point(heads.get(i - 1), tokens.get(j)),
                new Point(heads.get(i), tokens.get(j - 1)),
                new Point(heads.get(i), tokens.get(j)))
            .filter(times::containsKey)
            .map(times::get)
            .toList();
    return corners.size() == 4 ? Optional.of(corners) : Optional.empty();
  }

  /** A plan with its times over those of the planner's plans at the corners. */
  private record Rated(Choice choice, List<Double> ratios) {
    double ratio() {
      return Math.exp(ratios.stream().mapToDouble(Math::log).average().orElseThrow());
    }

    boolean isWorthIt() {
      return ratio() <= GAIN && ratios.stream().allMatch(ratio -> ratio <= NOISE);
    }

    Choice kept() {
      return isWorthIt() ? choice : Choice.PLANNERS;
    }
  }

  /** Of the plans that all corners have; one that is worth it before any other. */
  private static Optional<Rated> fastest(List<PlanClock.Times> corners) {
    return corners.getFirst().choices().keySet().stream()
        .filter(choice -> corners.stream().allMatch(each -> each.choices().containsKey(choice)))
        .map(choice -> new Rated(choice, corners.stream().map(each -> each.ratio(choice)).toList()))
        .min(
            Comparator.comparing((Rated rated) -> !rated.isWorthIt())
                .thenComparingDouble(Rated::ratio)
                .thenComparing(rated -> rated.choice.toString()));
  }

  /**
   * The neighbourhood of a planner's choice: techniques, segments, blocks that take turns and such
   * that hand states on.
   */
  static List<Choice> choices(BenchCase problem) {
    AttentionShape shape = problem.shape();
    long blocks = (long) shape.heads() * Math.ceilDiv(shape.valueDim(), BenchPlans.COLUMNS);
    List<Choice> choices = new ArrayList<>();
    for (String technique : BenchPlans.TECHNIQUES) {
      boolean isWgmma = technique.equals("wgmma");
      boolean takesTurns = isWgmma && problem.pass() == BenchPass.FORWARD;
      boolean relays = isWgmma && blocks >= LEAST_RELAY_BLOCKS;
      for (int segments = 1;
          segments == 1
              || (blocks * segments <= BenchPlans.MOST_BLOCKS
                  && Math.ceilDiv(shape.tokens(), segments) >= KernelSpec.CHUNK);
          segments *= 2) {
        choices.add(new Choice(technique, segments, 1));
        for (int turns = 2;
            takesTurns && turns <= MOST_TURNS && blocks * segments * turns <= MOST_TURN_BLOCKS;
            turns *= 2) {
          choices.add(new Choice(technique, segments, turns));
        }
        if (relays && segments > 1 && segments <= MOST_RELAY_SEGMENTS) {
          choices.add(new Choice(technique, segments, 1, true));
        }
      }
    }
    return choices;
  }
}
