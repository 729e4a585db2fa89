package io.github.linattn.internal.cuda;

import static org.assertj.core.api.Assertions.assertThat;

import io.github.linattn.AttentionShape;
import io.github.linattn.DType;
import io.github.linattn.Mode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import org.junit.jupiter.api.Test;

/** Breaks when the model would choose plans that were measured to be slow on an H200. */
class MeasuredPlansTest {
  private static final Planner PLANNER = new Planner(AnyKernel.H200, AnyKernel::find);

  private record Shape(int heads, int tokens, int keyDim) {}

  private static Map<Shape, Map<String, Double>> measured() throws IOException {
    Map<Shape, Map<String, Double>> shapes = new LinkedHashMap<>();
    try (var lines =
        new BufferedReader(
            new InputStreamReader(
                Objects.requireNonNull(
                    MeasuredPlansTest.class.getResourceAsStream("plans-h200.csv")),
                StandardCharsets.UTF_8))) {
      lines
          .lines()
          .filter(line -> !line.startsWith("#"))
          .skip(1)
          .map(line -> line.split(",", -1))
          .forEach(
              row -> {
                Shape shape =
                    new Shape(
                        Integer.parseInt(row[0]),
                        Integer.parseInt(row[1]),
                        Integer.parseInt(row[2]));
                shapes
                    .computeIfAbsent(shape, key -> new LinkedHashMap<>())
                    .put(row[3], Double.valueOf(row[4]));
              });
    }
    return shapes;
  }

  private static double estimate(Shape shape, String plan) {
    AttentionShape extents = AttentionShape.of(1, shape.heads(), shape.tokens(), shape.keyDim());
    return PLANNER
        .plan(Question.of(extents, DType.BF16, Mode.DEFAULT, true, false), PlanChoice.parse(plan))
        .orElseThrow()
        .micros();
  }

  /** What is asked of the planner: within 10 % of the best plan for 95 % of the shapes. */
  @Test
  void theFastestByTheModelIsAmongTheFastestMeasured() throws IOException {
    Map<Shape, Map<String, Double>> shapes = measured();
    List<String> slow = new ArrayList<>();
    for (var entry : shapes.entrySet()) {
      Map<String, Double> plans = entry.getValue();
      String chosen =
          plans.keySet().stream()
              .reduce((a, b) -> estimate(entry.getKey(), b) < estimate(entry.getKey(), a) ? b : a)
              .orElseThrow();
      double best = plans.values().stream().mapToDouble(micros -> micros).min().orElseThrow();
      if (plans.get(chosen) > 1.1 * best) {
        slow.add(entry.getKey() + " " + chosen + " of " + plans);
      }
    }
    assertThat(shapes).hasSizeGreaterThan(50);
    assertThat(slow).hasSizeLessThanOrEqualTo(shapes.size() / 20);
  }
}
