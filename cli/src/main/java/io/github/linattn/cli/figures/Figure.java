package io.github.linattn.cli.figures;

import java.util.List;

/**
 * One picture. Its x axis is logarithmic.
 *
 * @param name of its files
 * @param logarithmic whether the y axis is, too
 */
public record Figure(
    String name,
    String title,
    String xTitle,
    String yTitle,
    boolean logarithmic,
    List<Curve> curves) {
  /** Leaves out curves without a mark. */
  public Figure {
    curves = curves.stream().filter(curve -> !curve.isEmpty()).toList();
  }
}
