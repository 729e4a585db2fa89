package io.github.linattn.cli;

import io.github.linattn.DType;
import io.github.linattn.cli.points.Point;
import io.github.linattn.cli.points.Problem;
import io.github.linattn.cli.points.Status;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.function.UnaryOperator;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * How many times as long others take as linattn, and how many times the memory, in Markdown: the
 * points of table 1, types of as many bytes beside each other, the fastest of them. The paper's
 * kernels are of fp32 beside any type.
 */
final class SpeedUpTable {
  private static final String GATED = "fla gla";

  /** Leaves out a part of attention. */
  private static final String SUMS = "fla sums";

  private SpeedUpTable() {}

  /** The lines, those of the CPU behind those of the GPU; none if linattn has no time there. */
  static List<String> lines(List<Point> points) {
    List<Point> chosen =
        PaperTable.chosen(points).stream().filter(point -> point.status() == Status.OK).toList();
    List<String> lines = new ArrayList<>(table(chosen, Method.LINATTN, peer -> peer));
    List<String> ofCpu = table(chosen, Method.CPU, Method::onCpu);
    if (!lines.isEmpty() && !ofCpu.isEmpty()) {
      lines.add("");
    }
    lines.addAll(ofCpu);
    return lines;
  }

  /**
   * @param name of a peer where {@code method} computes
   */
  private static List<String> table(List<Point> chosen, Method method, UnaryOperator<String> name) {
    List<Point> ours = chosen.stream().filter(point -> isBy(point, method.title())).toList();
    if (ours.isEmpty()) {
      return List.of();
    }
    Set<String> peers =
        Peers.METHODS.stream()
            .filter(peer -> !peer.startsWith(Method.LINATTN.copy()) && !peer.equals(SUMS))
            .map(name)
            .collect(Collectors.toSet());
    Problem any = ours.getFirst().problem();
    List<String> lines = new ArrayList<>();
    lines.add(
        Text.format(
            "%s, B=%d H=%d N=%d D=%d: how many times as long others take, and how many times the"
                + " memory. Rows of bf16 and f16 stand beside the faster of both, those of f32 beside"
                + " the fastest mode; the paper's kernels know f32 alone, which stands beside all.",
            method.title(), any.batch(), any.heads(), any.tokens(), any.keyDim()));
    lines.add("");
    lines.add(
        "| linattn | pass | the paper's kernels: time, memory | Gated LA | the fastest peer |");
    lines.add("|---|---|---|---|---|");
    for (Point each : ours) {
      List<Point> others =
          chosen.stream()
              .filter(other -> other.problem().pass().equals(each.problem().pass()))
              .toList();
      List<Point> alike =
          others.stream().filter(other -> bytes(other.problem()) == bytes(each.problem())).toList();
      String paper = method == Method.LINATTN ? Method.PAPER.title() : "";
      lines.add(
          Text.format(
              "| %s | %s | %s | %s | %s |",
              each.problem().precision(),
              each.problem().pass(),
              times(each, others.stream().filter(other -> isBy(other, paper)), false),
              times(each, alike.stream().filter(other -> isBy(other, name.apply(GATED))), false),
              times(
                  each,
                  alike.stream().filter(other -> peers.contains(other.problem().method())),
                  true)));
    }
    return lines;
  }

  private static boolean isBy(Point point, String method) {
    return point.problem().method().equals(method);
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
