package io.github.linattn.cli.figures;

import io.github.linattn.cli.figures.Curve.Mark;
import io.github.linattn.cli.points.Measured;
import io.github.linattn.cli.points.Point;
import io.github.linattn.cli.points.Point.Movement;
import io.github.linattn.cli.points.Problem;
import io.github.linattn.cli.points.Status;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.OptionalDouble;
import java.util.Set;
import java.util.function.Function;
import java.util.function.Predicate;
import java.util.function.ToDoubleFunction;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/** The figures that points have enough for. */
public final class Figures {
  private static final String OURS = "linattn";
  private static final String PAPERS = "paper";
  private static final String COPY = "copy";
  private static final List<String> PASSES = List.of("forward", "backward");

  private final List<Measured> points;

  private Figures(List<Measured> points) {
    this.points = points.stream().filter(each -> each.point().problem().plan().isEmpty()).toList();
  }

  /** Every figure with at least one curve. */
  public static List<Figure> of(List<Measured> points) {
    var figures = new Figures(points);
    List<Figure> all = new ArrayList<>();
    for (String pass : PASSES) {
      for (Types types : Types.values()) {
        all.addAll(figures.scaling(pass, types));
      }
      all.addAll(figures.movingData(pass));
      all.add(figures.crossover(pass));
    }
    all.add(figures.roofline());
    all.add(figures.accuracy());
    all.add(figures.decode());
    return all.stream().filter(figure -> !figure.curves().isEmpty()).toList();
  }

  /** Curves that share a picture. */
  private enum Types {
    HALF("16 bits", dtype -> !dtype.equals("f32")),
    SINGLE("fp32", dtype -> dtype.equals("f32"));

    private final String title;
    private final Predicate<String> holds;

    Types(String title, Predicate<String> holds) {
      this.title = title;
      this.holds = holds;
    }

    private boolean hold(Problem problem) {
      return holds.test(problem.dtype());
    }
  }

  /** Figures 2 and 3 of the paper: time and memory, against tokens and head dimension. */
  private List<Figure> scaling(String pass, Types types) {
    List<Figure> figures = new ArrayList<>();
    for (Axis axis : Axis.values()) {
      List<Measured> chosen =
          points.stream()
              .filter(each -> isOf(each, axis.sweep, pass))
              .filter(each -> types.hold(each.point().problem()))
              .filter(each -> !isCopyOfAnotherMode(each.point().problem()))
              .toList();
      figures.add(
          scaling(chosen, axis, pass + "-time", types, "milliseconds", Point::millis, pass));
      figures.add(
          scaling(
              chosen,
              axis,
              pass + "-memory",
              types,
              "MB above the inputs",
              Figures::megabytes,
              pass));
    }
    return figures;
  }

  /** A copy is the same in every mode. */
  private static boolean isCopyOfAnotherMode(Problem problem) {
    return problem.method().startsWith(COPY) && !problem.mode().equals("default");
  }

  private enum Axis {
    TOKENS("tokens", "N", Problem::tokens),
    HEAD_DIM("head-dims", "D", Problem::keyDim);

    private final String sweep;
    private final String variable;
    private final ToDoubleFunction<Problem> value;

    Axis(String sweep, String variable, ToDoubleFunction<Problem> value) {
      this.sweep = sweep;
      this.variable = variable;
      this.value = value;
    }
  }

  private static Figure scaling(
      List<Measured> chosen,
      Axis axis,
      String quantity,
      Types types,
      String yTitle,
      ToDoubleFunction<Point> y,
      String pass) {
    List<Curve> curves =
        withoutSinglePoints(curves(chosen, Figures::methodAndPrecision, axis.value, y)).stream()
            .map(curve -> curve.fitted(axis.variable))
            .toList();
    return new Figure(
        String.join("-", quantity, axis.sweep, types.name().toLowerCase(Locale.ROOT)),
        title(chosen, pass + ", " + types.title),
        axis.variable,
        yTitle,
        true,
        curves);
  }

  /** A point alone stands in the tables; in a picture of curves it would only fill the legend. */
  private static List<Curve> withoutSinglePoints(List<Curve> curves) {
    List<Curve> several = curves.stream().filter(curve -> curve.marks().size() > 1).toList();
    return several.isEmpty() ? curves : several;
  }

  private static double megabytes(Point point) {
    Long bytes = point.memoryBytes();
    return point.status() == Status.OK && bytes != null ? bytes / 1e6 : Double.NaN;
  }

  /**
   * Figure 4 of the paper, the share of the time that moving data takes, and how much that is.
   * Where ncu has counted, it is the share of the rate that memory could sustain; else the time in
   * which the same device copies the bytes that have to be read and written.
   */
  private List<Figure> movingData(String pass) {
    List<Measured> counted =
        points.stream()
            .filter(each -> isOf(each, "movement", pass))
            .filter(each -> each.point().movement() != null)
            .toList();
    Set<String> curves =
        counted.stream()
            .map(each -> methodAndPrecision(each.point().problem()))
            .collect(Collectors.toSet());
    List<Measured> timed =
        points.stream()
            .filter(each -> isOf(each, Axis.TOKENS.sweep, pass))
            .filter(each -> each.point().problem().method().equals(OURS))
            .filter(each -> !curves.contains(methodAndPrecision(each.point().problem())))
            .toList();
    Map<Problem, Double> copies = new LinkedHashMap<>();
    points.forEach(each -> copies.put(each.point().problem(), each.point().millis()));
    ToDoubleFunction<Point> share =
        point -> {
          Movement movement = point.movement();
          return movement == null
              ? copies.getOrDefault(point.problem().by(COPY, ""), Double.NaN) / point.millis()
              : movement.share();
        };
    List<Measured> chosen = Stream.concat(counted.stream(), timed.stream()).toList();
    return List.of(
        new Figure(
            pass + "-moving-data",
            title(chosen, pass + ": share of moving data"),
            "N",
            "share",
            false,
            movement(counted, timed, share)),
        new Figure(
            pass + "-moving-data-time",
            title(chosen, pass + ": time of moving data"),
            "N",
            "milliseconds",
            true,
            movement(counted, timed, point -> share.applyAsDouble(point) * point.millis())));
  }

  /** What was counted, then what was not. */
  private static List<Curve> movement(
      List<Measured> counted, List<Measured> timed, ToDoubleFunction<Point> y) {
    Function<Measured, Double> tokens = each -> (double) each.point().problem().tokens();
    List<Curve> curves = new ArrayList<>();
    curves.addAll(
        curves(
            counted,
            problem -> methodAndPrecision(problem) + ", counted by ncu",
            tokens,
            y,
            Curve.Style.JOINED));
    curves.addAll(
        curves(
            timed,
            problem -> methodAndPrecision(problem) + ", from the copy floor",
            tokens,
            y,
            Curve.Style.DASHED));
    return curves;
  }

  /** Where linear attention overtakes softmax attention. */
  private Figure crossover(String pass) {
    List<Measured> chosen = points.stream().filter(each -> isOf(each, "crossover", pass)).toList();
    List<Curve> curves =
        curves(chosen, Figures::methodAndPrecision, Problem::tokens, Point::millis);
    List<Curve> ours = curves.stream().filter(curve -> curve.name().startsWith(OURS)).toList();
    List<Curve> named =
        curves.stream()
            .map(
                curve ->
                    curve.name().startsWith("softmax") && ours.size() == 1
                        ? withCrossover(curve, ours.getFirst())
                        : curve)
            .toList();
    return new Figure(
        pass + "-crossover",
        title(chosen, pass + ", short sequences"),
        "N",
        "milliseconds",
        true,
        named);
  }

  private static Curve withCrossover(Curve softmax, Curve ours) {
    Map<Double, Double> theirs = new LinkedHashMap<>();
    softmax.shown().forEach(mark -> theirs.put(mark.x(), mark.y()));
    OptionalDouble from = OptionalDouble.empty();
    for (Mark mark : ours.shown()) {
      Double other = theirs.get(mark.x());
      if (other != null && other < mark.y()) {
        from = OptionalDouble.empty();
      } else if (other != null && from.isEmpty()) {
        from = OptionalDouble.of(mark.x());
      }
    }
    String when =
        from.isPresent()
            ? String.format(Locale.ROOT, "slower from N = %.0f", from.getAsDouble())
            : "not slower here";
    return new Curve(softmax.name() + ", " + when, softmax.marks(), softmax.style());
  }

  /** FLOP of the recurrence per byte against what was reached: a dot for each head dimension. */
  private Figure roofline() {
    List<Measured> all =
        points.stream()
            .filter(each -> each.point().problem().sweep().equals(Axis.HEAD_DIM.sweep))
            .filter(each -> each.point().bytes() > 0)
            .toList();
    List<Measured> chosen =
        all.stream().filter(each -> isOursOrPapers(each.point().problem().method())).toList();
    List<Curve> curves =
        new ArrayList<>(
            curves(
                chosen,
                problem -> methodAndPrecision(problem) + ", " + problem.pass(),
                Roofline::intensity,
                Roofline::teraflops,
                Curve.Style.DOTS));
    curves.addAll(0, Roofline.roofs(all, chosen));
    return new Figure(
        "roofline",
        title(chosen, "roofline, a dot for each head dimension"),
        "FLOP of the recurrence per byte",
        "TFLOP/s",
        true,
        curves);
  }

  private static boolean isOursOrPapers(String method) {
    return method.startsWith(OURS) || method.equals(PAPERS);
  }

  private Figure accuracy() {
    List<Measured> chosen =
        points.stream().filter(each -> isOf(each, "accuracy", "forward")).toList();
    return new Figure(
        "accuracy",
        title(chosen, "largest relative error of o"),
        "N",
        "relative error",
        true,
        curves(
            chosen,
            problem -> methodAndPrecision(problem) + ", " + problem.data(),
            Problem::tokens,
            point -> Objects.requireNonNullElse(point.errors().get("o"), Double.NaN)));
  }

  private Figure decode() {
    List<Measured> chosen =
        points.stream().filter(each -> isOf(each, "decode", "forward")).toList();
    return new Figure(
        "decode",
        title(chosen, "one token"),
        "tokens before it",
        "microseconds",
        true,
        curves(
            chosen, Figures::methodAndPrecision, Problem::context, point -> point.millis() * 1e3));
  }

  private static boolean isOf(Measured measured, String sweep, String pass) {
    Problem problem = measured.point().problem();
    return problem.sweep().equals(sweep) && problem.pass().equals(pass);
  }

  private static String methodAndPrecision(Problem problem) {
    return problem.method() + " " + problem.precision();
  }

  private static List<Curve> curves(
      List<Measured> chosen,
      Function<Problem, String> name,
      ToDoubleFunction<Problem> x,
      ToDoubleFunction<Point> y) {
    return curves(
        chosen, name, each -> x.applyAsDouble(each.point().problem()), y, Curve.Style.JOINED);
  }

  private static List<Curve> curves(
      List<Measured> chosen,
      Function<Problem, String> name,
      Function<Measured, Double> x,
      ToDoubleFunction<Point> y,
      Curve.Style style) {
    Map<String, List<Mark>> marks = new LinkedHashMap<>();
    for (Measured each : chosen) {
      marks
          .computeIfAbsent(name.apply(each.point().problem()), key -> new ArrayList<>())
          .add(new Mark(x.apply(each), y.applyAsDouble(each.point()), each));
    }
    List<Curve> curves = new ArrayList<>();
    marks.forEach(
        (key, values) -> {
          values.sort(Comparator.comparingDouble(Mark::x));
          curves.add(new Curve(key, values, style));
        });
    return curves;
  }

  /** What it is, the extents that all points share, and the machine. */
  private static String title(Collection<Measured> chosen, String what) {
    List<String> words = new ArrayList<>();
    Map<String, ToDoubleFunction<Problem>> extents = new LinkedHashMap<>();
    extents.put("B", Problem::batch);
    extents.put("H", Problem::heads);
    extents.put("N", Problem::tokens);
    extents.put("D", Problem::keyDim);
    extents.forEach(
        (letter, extent) -> {
          List<Double> values =
              chosen.stream()
                  .map(each -> extent.applyAsDouble(each.point().problem()))
                  .distinct()
                  .toList();
          if (values.size() == 1) {
            words.add(String.format(Locale.ROOT, "%s=%.0f", letter, values.getFirst()));
          }
        });
    List<String> machines = chosen.stream().map(each -> each.run().machine()).distinct().toList();
    return what + ", " + String.join(" ", words) + ", " + String.join(" and ", machines);
  }
}
