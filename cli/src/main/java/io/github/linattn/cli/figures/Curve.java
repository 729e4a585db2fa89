package io.github.linattn.cli.figures;

import io.github.linattn.cli.points.Measured;
import io.github.linattn.cli.points.Slope;
import io.github.linattn.cli.points.Status;
import java.util.List;
import java.util.Locale;

/**
 * What a figure shows of one method.
 *
 * @param name in the legend
 * @param marks in the order of x
 * @param style how it is drawn
 */
public record Curve(String name, List<Mark> marks, Style style) {
  /** How a curve is drawn. */
  public enum Style {
    /** Dots that a line joins. */
    JOINED,
    /** Dots that a dashed line joins: found in another way than those of a joined one. */
    DASHED,
    /** Dots alone. */
    DOTS,
    /** A line alone: what was not measured here, but follows. */
    LINE
  }

  /** Copies the list. */
  public Curve {
    marks = List.copyOf(marks);
  }

  /**
   * One point in a figure.
   *
   * @param y NaN where there is no value
   */
  public record Mark(double x, double y, Measured measured) {
    boolean isShown() {
      return x > 0 && y > 0 && Double.isFinite(y);
    }

    boolean isOutOfMemory() {
      return measured.point().status() == Status.OUT_OF_MEMORY;
    }
  }

  /** The marks that have a value. */
  List<Mark> shown() {
    return marks.stream().filter(Mark::isShown).toList();
  }

  boolean isEmpty() {
    return marks.stream().noneMatch(mark -> mark.isShown() || mark.isOutOfMemory());
  }

  /**
   * The same curve, its name followed by the exponent of the power of x that fits the larger half
   * of its marks best.
   */
  Curve fitted(String variable) {
    List<Mark> shown = shown();
    if (shown.size() < 2) {
      return this;
    }
    List<Mark> larger = shown.subList(Math.min(shown.size() / 2, shown.size() - 2), shown.size());
    double slope = Slope.fit(larger, Mark::x, Mark::y);
    return new Curve(
        String.format(Locale.ROOT, "%s, %s^%.2f", name, variable, slope), marks, style);
  }
}
