package io.github.linattn.cli.points;

import java.util.List;
import java.util.function.ToDoubleFunction;

/** The exponent p of the power law time = c·N^p that fits best. */
public final class Slope {
  private Slope() {}

  /** Least squares over the logarithms of two points or more. */
  public static <T> double fit(List<T> points, ToDoubleFunction<T> size, ToDoubleFunction<T> time) {
    double n = points.size();
    double x = 0;
    double y = 0;
    double xx = 0;
    double xy = 0;
    for (T point : points) {
      double logSize = Math.log(size.applyAsDouble(point));
      double logTime = Math.log(time.applyAsDouble(point));
      x += logSize;
      y += logTime;
      xx += logSize * logSize;
      xy += logSize * logTime;
    }
    return (n * xy - x * y) / (n * xx - x * x);
  }
}
