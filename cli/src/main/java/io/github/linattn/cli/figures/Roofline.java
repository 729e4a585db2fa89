package io.github.linattn.cli.figures;

import io.github.linattn.cli.figures.Curve.Mark;
import io.github.linattn.cli.points.Measured;
import io.github.linattn.cli.points.Point;
import io.github.linattn.cli.points.Problem;
import io.github.linattn.cli.points.Run;
import io.github.linattn.cli.points.Status;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Comparator;
import java.util.DoubleSummaryStatistics;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.OptionalDouble;
import java.util.stream.Collectors;

/** FLOP of the recurrence, and the roofs over them: what memory and multiprocessors allow. */
final class Roofline {
  private static final String COPY = "copy";

  /** How far the highest roof goes on behind the last dot, or behind its own beginning. */
  private static final double BEYOND = 1.25;

  private Roofline() {}

  /**
   * With what a multiprocessor multiplies: dense operands, products summed in fp32. White papers of
   * NVIDIA tell the rate of the tensor cores of A100 and H100; GPUs of other architectures differ
   * in theirs, or it is not published. That of fp32 is in the CUDA programming guide.
   */
  private enum Unit {
    HALF("tensor cores, 16 bits", Map.of("sm_80", 1024, "sm_90", 2048)),
    TF32("tensor cores, TF32", Map.of("sm_80", 512)),
    FMA(
        "FMA of fp32",
        Map.of(
            "sm_80", 64, "sm_86", 128, "sm_89", 128, "sm_90", 128, "sm_100", 128, "sm_120", 128));

    private final String title;

    /** By architecture. */
    private final Map<String, Integer> multiplyAddsPerClock;

    Unit(String title, Map<String, Integer> multiplyAddsPerClock) {
      this.title = title;
      this.multiplyAddsPerClock = multiplyAddsPerClock;
    }
  }

  /**
   * How kernels multiply.
   *
   * @param products of the unit for one of the recurrence
   */
  private record Products(Unit unit, int products) {
    /** Kernels by wgmma know operands of 16 bits alone; the paper's know no tensor cores. */
    static Products of(Measured measured) {
      Problem problem = measured.point().problem();
      Point.Choice choice = measured.point().choice();
      if (choice != null && choice.plan().equals("paper")) {
        return new Products(Unit.FMA, 1);
      }
      boolean isHalf =
          problem.dtype().equals("bf16") || measured.run().architecture().equals("sm_90");
      boolean isSplit = problem.dtype().equals("f32") && !problem.mode().equals("tf32");
      return new Products(isHalf ? Unit.HALF : Unit.TF32, isSplit ? 3 : 1);
    }

    /** TFLOP/s of the recurrence at the highest clock; 0 where something is not known. */
    double rate(Run run) {
      Integer multiprocessors = run.multiprocessors();
      Integer multiplyAdds = unit.multiplyAddsPerClock.get(run.architecture());
      OptionalDouble clock = run.highestClock();
      return multiprocessors == null || multiplyAdds == null || clock.isEmpty()
          ? 0
          : 2e-6 * multiplyAdds * multiprocessors * clock.getAsDouble() / products;
    }

    String title() {
      return products == 1 ? unit.title : unit.title + ", " + products + " products for one";
    }
  }

  static double intensity(Measured measured) {
    return flop(measured.point().problem()) / measured.point().bytes();
  }

  static double teraflops(Point point) {
    return flop(point.problem()) / point.millis() * 1e-9;
  }

  /** Two products of D x Dv a token forward, five backward; two FLOP a multiply-add. */
  private static double flop(Problem problem) {
    double heads = (double) problem.batch() * problem.heads();
    int products = problem.pass().equals("backward") ? 5 : 2;
    return 2 * products * heads * problem.tokens() * problem.keyDim() * problem.valueDim();
  }

  /**
   * That of memory rises with the fastest copy, up to the highest of the others; each of these is
   * level from where it meets that of memory.
   *
   * @param all points with bytes, among them the copies
   * @param dots what stands under the roofs
   */
  static List<Curve> roofs(List<Measured> all, List<Measured> dots) {
    List<Measured> timed = timed(dots);
    Optional<Measured> copy =
        timed(all).stream()
            .filter(each -> each.point().problem().method().startsWith(COPY))
            .max(Comparator.comparingDouble(Roofline::bandwidth));
    if (timed.isEmpty() || copy.isEmpty()) {
      return List.of();
    }
    List<Level> levels = levels(timed);
    double bandwidth = bandwidth(copy.get());
    DoubleSummaryStatistics width =
        timed.stream().mapToDouble(Roofline::intensity).summaryStatistics();
    double ridge = levels.isEmpty() ? width.getMax() : levels.getFirst().teraflops / bandwidth;
    double end = BEYOND * Math.max(ridge, width.getMax());
    List<Curve> roofs = new ArrayList<>();
    roofs.add(
        line(
            String.format(Locale.ROOT, "memory, copying at %.3g TB/s", bandwidth),
            new Mark(width.getMin(), width.getMin() * bandwidth, copy.get()),
            new Mark(ridge, ridge * bandwidth, copy.get())));
    for (Level level : levels) {
      roofs.add(
          line(
              level.title,
              new Mark(level.teraflops / bandwidth, level.teraflops, level.source),
              new Mark(end, level.teraflops, level.source)));
    }
    return roofs;
  }

  private static List<Measured> timed(List<Measured> points) {
    return points.stream().filter(each -> each.point().status() == Status.OK).toList();
  }

  /** In TB/s. */
  private static double bandwidth(Measured copy) {
    return copy.point().bytes() / copy.point().millis() * 1e-9;
  }

  private static Curve line(String name, Mark from, Mark to) {
    return new Curve(name, List.of(from, to), Curve.Style.LINE);
  }

  /**
   * A roof of multiprocessors.
   *
   * @param source of the machine
   */
  private record Level(String title, double teraflops, Measured source) {}

  /** One for each way to multiply whose rate is known, the highest first. */
  private static List<Level> levels(List<Measured> timed) {
    List<Level> levels = new ArrayList<>();
    timed.stream()
        .collect(Collectors.groupingBy(Products::of))
        .forEach(
            (products, users) -> {
              Measured source =
                  Collections.max(
                      users, Comparator.comparingDouble(each -> products.rate(each.run())));
              double rate = products.rate(source.run());
              if (rate > 0) {
                levels.add(new Level(title(products, users, source.run()), rate, source));
              }
            });
    levels.sort(Comparator.comparingDouble(Level::teraflops).reversed());
    return levels;
  }

  private static String title(Products products, List<Measured> users, Run run) {
    String precisions =
        users.stream()
            .map(each -> each.point().problem().precision())
            .distinct()
            .sorted()
            .collect(Collectors.joining(", "));
    return String.format(
        Locale.ROOT,
        "%s (%s): %.0f TFLOP/s, %d multiprocessors at %.0f MHz, the highest by nvidia-smi",
        products.title(),
        precisions,
        products.rate(run),
        run.multiprocessors(),
        run.highestClock().orElseThrow());
  }
}
