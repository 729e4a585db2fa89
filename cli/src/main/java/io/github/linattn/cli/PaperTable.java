package io.github.linattn.cli;

import io.github.linattn.Mode;
import io.github.linattn.cli.points.Point;
import io.github.linattn.cli.points.Problem;
import io.github.linattn.cli.points.Samples;
import io.github.linattn.cli.points.Status;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.OptionalDouble;
import java.util.TreeMap;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;

/**
 * Table 1 in Markdown: time and memory of one layer, one row for each method and type; behind it
 * the same of few heads.
 */
final class PaperTable {
  static final int TOKENS = 10_000;
  private static final String NOTHING = "-";
  private static final String DEFAULT = Text.id(Mode.DEFAULT);

  private PaperTable() {}

  private record Row(String method, String precision) {}

  /** The points of one row; null where there is none. */
  private static final class Passes {
    private @Nullable Point forward;
    private @Nullable Point backward;

    void put(Point point) {
      if (point.problem().pass().equals(Text.id(BenchPass.FORWARD))) {
        forward = point;
      } else {
        backward = point;
      }
    }
  }

  /** The lines; none if there are no points of these sweeps. */
  static List<String> lines(List<Point> points) {
    List<String> lines = new ArrayList<>(table(chosen(points), ofFewestTokens(points)));
    sweep(points, PaperSweep.FEW_HEADS).stream()
        .sorted(Comparator.comparing(Point::problem, PointOrder.OF_PROBLEMS))
        .collect(
            Collectors.groupingBy(
                point -> point.problem().tokens(), TreeMap::new, Collectors.toList()))
        .values()
        .forEach(
            ofShape -> {
              if (!lines.isEmpty()) {
                lines.add("");
              }
              lines.addAll(table(ofShape, ofShape));
            });
    return lines;
  }

  /**
   * One table.
   *
   * @param chosen points of one shape
   * @param fewest points of the shape whose first calls are told
   */
  private static List<String> table(List<Point> chosen, List<Point> fewest) {
    if (chosen.isEmpty()) {
      return List.of();
    }
    Problem any = chosen.getFirst().problem();
    List<String> lines = new ArrayList<>();
    lines.add(
        Text.format(
            "| B=%d H=%d N=%d D=%d | type | forward, ms (over a copy) | backward, ms (over a copy) |"
                + " forward, MB | backward, MB | first call (N=%d), ms |",
            any.batch(),
            any.heads(),
            any.tokens(),
            any.keyDim(),
            fewest.getFirst().problem().tokens()));
    lines.add("|---|---|---|---|---|---|---|");
    rows(chosen).forEach((row, passes) -> lines.add(line(row, passes, chosen, fewest)));
    return lines;
  }

  private static Map<Row, Passes> rows(List<Point> chosen) {
    Map<Row, Passes> rows = new LinkedHashMap<>();
    for (Point point : chosen) {
      Problem problem = point.problem();
      if (isCopy(problem) && !problem.mode().equals(DEFAULT)) {
        continue; // the same bytes in every mode
      }
      rows.computeIfAbsent(new Row(problem.method(), problem.precision()), row -> new Passes())
          .put(point);
    }
    return rows;
  }

  /** The points of the sweep over tokens with the paper's tokens, or the most there are. */
  static List<Point> chosen(List<Point> points) {
    List<Point> sweep = sweep(points, PaperSweep.TOKENS);
    int tokens =
        tokens(sweep).anyMatch(each -> each == TOKENS)
            ? TOKENS
            : tokens(sweep).max(Comparator.naturalOrder()).orElse(0);
    return sweep.stream()
        .filter(point -> point.problem().tokens() == tokens)
        .sorted(Comparator.comparing(Point::problem, PointOrder.OF_PROBLEMS))
        .toList();
  }

  /**
   * Where each method is called first, and its work adds little to what it loads, compiles or
   * tunes.
   */
  private static List<Point> ofFewestTokens(List<Point> points) {
    List<Point> sweep = sweep(points, PaperSweep.TOKENS);
    int tokens = tokens(sweep).min(Comparator.naturalOrder()).orElse(0);
    return sweep.stream().filter(point -> point.problem().tokens() == tokens).toList();
  }

  private static List<Point> sweep(List<Point> points, PaperSweep sweep) {
    return points.stream()
        .filter(point -> point.problem().sweep().equals(sweep.title()))
        .filter(point -> point.problem().plan().isEmpty())
        .toList();
  }

  private static Stream<Integer> tokens(List<Point> sweep) {
    return sweep.stream().map(point -> point.problem().tokens());
  }

  private static boolean isCopy(Problem problem) {
    return Arrays.stream(Method.values())
        .anyMatch(method -> problem.method().equals(method.copy()));
  }

  private static String line(Row row, Passes passes, List<Point> chosen, List<Point> fewest) {
    return Text.format(
        "| %s | %s | %s | %s | %s | %s | %s |",
        row.method,
        row.precision,
        millis(passes.forward, chosen),
        millis(passes.backward, chosen),
        megabytes(passes.forward),
        megabytes(passes.backward),
        firstMillis(row, fewest));
  }

  private static String millis(@Nullable Point point, List<Point> chosen) {
    if (point == null) {
      return NOTHING;
    }
    if (point.status() != Status.OK) {
      return point.status().name().toLowerCase(Locale.ROOT).replace('_', ' ');
    }
    String millis = Text.format("%.3f", point.millis());
    OptionalDouble copy = isCopy(point.problem()) ? OptionalDouble.empty() : copy(point, chosen);
    return copy.isEmpty()
        ? millis
        : Text.format("%s (%.2f)", millis, point.millis() / copy.getAsDouble());
  }

  /** The fastest copy of the bytes of a point by the same processor. */
  private static OptionalDouble copy(Point point, List<Point> chosen) {
    Problem problem = point.problem();
    return chosen.stream()
        .filter(other -> isCopy(other.problem()) && other.status() == Status.OK)
        .filter(other -> isOnCpu(other) == isOnCpu(point))
        .filter(other -> other.problem().pass().equals(problem.pass()))
        .filter(other -> other.problem().dtype().equals(problem.dtype()))
        .mapToDouble(Point::millis)
        .min();
  }

  private static boolean isOnCpu(Point point) {
    return Method.isOnCpu(point.problem().method());
  }

  private static String megabytes(@Nullable Point point) {
    return point == null || point.memoryBytes() == null
        ? NOTHING
        : Text.format("%.1f", point.memoryBytes() / 1e6);
  }

  /** Of the forward or the backward, whichever takes longer. */
  private static String firstMillis(Row row, List<Point> fewest) {
    return fewest.stream()
        .filter(point -> row.equals(new Row(point.problem().method(), point.problem().precision())))
        .map(Point::samples)
        .filter(Objects::nonNull)
        .map(Samples::firstMillis)
        .filter(Objects::nonNull)
        .max(Comparator.naturalOrder())
        .map(millis -> Text.format("%.1f", millis))
        .orElse(NOTHING);
  }
}
