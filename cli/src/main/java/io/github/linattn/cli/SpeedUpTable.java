package io.github.linattn.cli;

import io.github.linattn.DType;
import io.github.linattn.cli.points.Point;
import io.github.linattn.cli.points.Problem;
import io.github.linattn.cli.points.Status;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Locale;
import java.util.stream.Stream;

/**
 * How many times as long others take as linattn, and how many times the memory, in Markdown: the
 * points of table 1, types of as many bytes beside each other. The other of fp32 is fp32 whatever
 * the mode, that of fp16 may be bf16.
 */
final class SpeedUpTable {
  private static final String GATED = "fla gla";

  /** Leaves out a part of attention. */
  private static final String SUMS = "fla sums";

  private SpeedUpTable() {}

  /** The lines; none if linattn has no time there. */
  static List<String> lines(List<Point> points) {
    List<Point> chosen =
        PaperTable.chosen(points).stream().filter(point -> point.status() == Status.OK).toList();
    List<Point> ours = chosen.stream().filter(point -> isBy(point, Method.LINATTN)).toList();
    if (ours.isEmpty()) {
      return List.of();
    }
    Problem any = ours.getFirst().problem();
    List<String> lines = new ArrayList<>();
    lines.add(
        Text.format(
            "B=%d H=%d N=%d D=%d: how many times as long others take, and how many times the"
                + " memory. Rows of f16 stand beside bf16, those of f32 beside f32 of any mode; the"
                + " paper's kernels know f32 alone.",
            any.batch(), any.heads(), any.tokens(), any.keyDim()));
    lines.add("");
    lines.add(
        "| linattn | pass | the paper's kernels: time, memory | Gated LA | the fastest peer |");
    lines.add("|---|---|---|---|---|");
    for (Point each : ours) {
      List<Point> others = chosen.stream().filter(other -> isComparable(each, other)).toList();
      lines.add(
          Text.format(
              "| %s | %s | %s | %s | %s |",
              each.problem().precision(),
              each.problem().pass(),
              times(each, others.stream().filter(other -> isBy(other, Method.PAPER)), false),
              times(each, others.stream().filter(other -> isBy(other, GATED)), false),
              times(each, others.stream().filter(SpeedUpTable::isByPeer), true)));
    }
    return lines;
  }

  private static boolean isBy(Point point, Method method) {
    return isBy(point, method.title());
  }

  private static boolean isBy(Point point, String method) {
    return point.problem().method().equals(method);
  }

  private static boolean isByPeer(Point point) {
    String method = point.problem().method();
    return Peers.METHODS.contains(method)
        && !method.startsWith(Method.LINATTN.copy())
        && !method.equals(SUMS);
  }

  private static boolean isComparable(Point ours, Point other) {
    Problem one = ours.problem();
    Problem two = other.problem();
    return one.pass().equals(two.pass()) && bytes(one) == bytes(two);
  }

  private static int bytes(Problem problem) {
    return DType.valueOf(problem.dtype().toUpperCase(Locale.ROOT)).bytes();
  }

  /** The fastest of some over ours. */
  private static String times(Point ours, Stream<Point> others, boolean named) {
    return others
        .min(Comparator.comparingDouble(Point::millis))
        .map(
            other ->
                Text.format("%.2f, %s", other.millis() / ours.millis(), memory(ours, other))
                    + (named
                        ? " (" + other.problem().method() + " " + other.problem().dtype() + ")"
                        : ""))
        .orElse("-");
  }

  private static String memory(Point ours, Point other) {
    return ours.memoryBytes() == null || other.memoryBytes() == null
        ? "-"
        : Text.format("%.2f", (double) other.memoryBytes() / ours.memoryBytes());
  }
}
