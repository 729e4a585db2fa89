package io.github.linattn.cli;

import io.github.linattn.cli.points.Point;
import io.github.linattn.cli.points.Problem;
import io.github.linattn.cli.points.Samples;
import io.github.linattn.cli.points.Status;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;

/** Table 1 in Markdown: time and memory of one layer, one row for each method and type. */
final class PaperTable {
  private static final String SWEEP = PaperSweep.TOKENS.title();
  private static final int TOKENS = 10_000;
  private static final String NOTHING = "-";

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

  /** The lines; none if there are no points of the sweep over tokens. */
  static List<String> lines(List<Point> points) {
    List<Point> chosen = chosen(points);
    if (chosen.isEmpty()) {
      return List.of();
    }
    Problem any = chosen.getFirst().problem();
    List<String> lines = new ArrayList<>();
    lines.add(
        Text.format(
            "| B=%d H=%d N=%d D=%d | type | forward, ms | backward, ms | forward, MB |"
                + " backward, MB | first call, ms |",
            any.batch(), any.heads(), any.tokens(), any.keyDim()));
    lines.add("|---|---|---|---|---|---|---|");
    rows(chosen).forEach((row, passes) -> lines.add(line(row, passes)));
    return lines;
  }

  private static Map<Row, Passes> rows(List<Point> chosen) {
    Map<Row, Passes> rows = new LinkedHashMap<>();
    for (Point point : chosen) {
      Problem problem = point.problem();
      rows.computeIfAbsent(new Row(problem.method(), problem.precision()), row -> new Passes())
          .put(point);
    }
    return rows;
  }

  /** The points of the sweep over tokens with the paper's tokens, or the most there are. */
  static List<Point> chosen(List<Point> points) {
    List<Point> sweep =
        points.stream()
            .filter(point -> point.problem().sweep().equals(SWEEP))
            .filter(point -> point.problem().plan().isEmpty())
            .toList();
    List<Integer> all = sweep.stream().map(point -> point.problem().tokens()).toList();
    int tokens =
        all.contains(TOKENS) ? TOKENS : all.stream().max(Comparator.naturalOrder()).orElse(0);
    return sweep.stream().filter(point -> point.problem().tokens() == tokens).toList();
  }

  private static String line(Row row, Passes passes) {
    return Text.format(
        "| %s | %s | %s | %s | %s | %s | %s |",
        row.method,
        row.precision,
        millis(passes.forward),
        millis(passes.backward),
        megabytes(passes.forward),
        megabytes(passes.backward),
        ofSamples(passes.forward, Samples::firstMillis));
  }

  private static String millis(@Nullable Point point) {
    if (point == null) {
      return NOTHING;
    }
    return point.status() == Status.OK
        ? Text.format("%.3f", point.millis())
        : point.status().name().toLowerCase(Locale.ROOT).replace('_', ' ');
  }

  private static String megabytes(@Nullable Point point) {
    return point == null || point.memoryBytes() == null
        ? NOTHING
        : Text.format("%.1f", point.memoryBytes() / 1e6);
  }

  private static String ofSamples(
      @Nullable Point point, Function<Samples, @Nullable Double> property) {
    Double value =
        point == null || point.samples() == null ? null : property.apply(point.samples());
    return value == null ? NOTHING : Text.format("%.1f", value);
  }
}
