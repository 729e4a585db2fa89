package io.github.linattn.cli;

import io.github.linattn.DType;
import io.github.linattn.Diagnostics.Support;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.BiFunction;
import java.util.function.Function;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/**
 * Which kernels serve which GPU, task, type and head dimension: a Markdown table, aligned for a
 * terminal. Rows with the same cells are one.
 */
final class KernelMatrix {
  private static final String NONE = "-";
  private static final String ALL = "all";

  /** How a row begins; each of its lists stands for as many rows with the same cells. */
  private record Head(String task, List<String> rows, List<String> tensors, List<String> gpus) {}

  private KernelMatrix() {}

  /** The lines of the table; none where there are no kernels. */
  static List<String> lines(List<Support> support) {
    if (support.isEmpty()) {
      return List.of();
    }
    Map<Head, List<String>> cells = new LinkedHashMap<>();
    for (Support each : support) {
      var head =
          new Head(task(each), List.of(rows(each)), List.of(tensors(each)), List.of(gpu(each)));
      cells
          .computeIfAbsent(head, key -> new ArrayList<>())
          .add(each.kernels().isEmpty() ? NONE : each.kernels());
    }
    cells =
        merged(cells, Head::tensors, (head, all) -> new Head(head.task, head.rows, all, head.gpus));
    cells =
        merged(cells, Head::rows, (head, all) -> new Head(head.task, all, head.tensors, head.gpus));
    cells =
        merged(cells, Head::gpus, (head, all) -> new Head(head.task, head.rows, head.tensors, all));
    List<List<String>> table = new ArrayList<>();
    table.add(titles(support));
    String everyGpu = names(support, KernelMatrix::gpu);
    String everyTensor = names(support, KernelMatrix::tensors);
    String everyRow = names(support, KernelMatrix::rows);
    cells.forEach(
        (head, kernels) ->
            table.add(
                Stream.concat(
                        Stream.of(
                            head.task,
                            name(head.rows, everyRow),
                            name(head.tensors, everyTensor),
                            name(head.gpus, everyGpu)),
                        kernels.stream())
                    .toList()));
    return aligned(table);
  }

  private static List<String> titles(List<Support> support) {
    Stream<String> headDims =
        support.stream().map(Support::headDim).distinct().map(headDim -> "D = " + headDim);
    return Stream.concat(Stream.of("task", "q and k", "tensors", "GPU: sm_"), headDims).toList();
  }

  /** Makes one of rows that have the same cells and differ in nothing but one list. */
  private static Map<Head, List<String>> merged(
      Map<Head, List<String>> cells,
      Function<Head, List<String>> list,
      BiFunction<Head, List<String>, Head> with) {
    record Same(Head rest, List<String> cells) {}
    Map<Same, List<String>> lists = new LinkedHashMap<>();
    cells.forEach(
        (head, row) ->
            lists
                .computeIfAbsent(new Same(with.apply(head, List.of()), row), k -> new ArrayList<>())
                .addAll(list.apply(head)));
    Map<Head, List<String>> merged = new LinkedHashMap<>();
    lists.forEach((same, all) -> merged.put(with.apply(same.rest, all), same.cells));
    return merged;
  }

  private static String name(List<String> some, String every) {
    String names = String.join(", ", some);
    return names.equals(every) ? ALL : names;
  }

  private static String names(List<Support> support, Function<Support, String> name) {
    return support.stream().map(name).distinct().collect(Collectors.joining(", "));
  }

  private static String task(Support each) {
    return switch (each.task()) {
      case FORWARD -> "forward";
      case BACKWARD -> "backward";
      case NON_CAUSAL_FORWARD -> "non-causal forward";
      case NON_CAUSAL_BACKWARD -> "non-causal backward";
      case DECODE_STEP -> "decode step";
    };
  }

  private static String rows(Support each) {
    return each.normalize() ? "normalised" : "as given";
  }

  private static String tensors(Support each) {
    String dtype = Text.id(each.dtype());
    return each.dtype() == DType.F32 ? dtype + " " + Text.id(each.mode()) : dtype;
  }

  private static String gpu(Support each) {
    return each.architecture().replaceFirst("^sm_", "");
  }

  private static List<String> aligned(List<List<String>> table) {
    List<Integer> widths = new ArrayList<>();
    for (int i = 0; i < table.getFirst().size(); i++) {
      int column = i;
      widths.add(table.stream().mapToInt(row -> row.get(column).length()).max().orElse(0));
    }
    List<String> lines = new ArrayList<>();
    for (List<String> row : table) {
      List<String> cells = new ArrayList<>();
      for (int i = 0; i < row.size(); i++) {
        cells.add(Text.format("%-" + widths.get(i) + "s", row.get(i)));
      }
      lines.add(line(cells, " "));
    }
    lines.add(1, line(widths.stream().map(width -> "-".repeat(width + 2)).toList(), ""));
    return lines;
  }

  private static String line(List<String> cells, String space) {
    return cells.stream()
        .collect(Collectors.joining(space + "|" + space, "|" + space, space + "|"));
  }
}
