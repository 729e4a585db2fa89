package io.github.linattn.cli;

import io.github.linattn.DType;
import io.github.linattn.Mode;
import io.github.linattn.cli.points.Problem;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.stream.Stream;

/** Problems by method, type, mode and pass, whenever they were measured. */
final class PointOrder {
  private static final List<String> METHODS =
      Stream.concat(
              Arrays.stream(Method.values()).flatMap(each -> Stream.of(each.title(), each.copy())),
              Peers.METHODS.stream())
          .distinct()
          .toList();

  private static final List<String> DTYPES = Arrays.stream(DType.values()).map(Text::id).toList();

  private static final List<String> MODES = Arrays.stream(Mode.values()).map(Text::id).toList();

  /** What others than this program's methods and peers measured comes last. */
  static final Comparator<Problem> OF_PROBLEMS =
      Comparator.<Problem>comparingInt(problem -> rank(METHODS, problem.method()))
          .thenComparingInt(problem -> rank(DTYPES, problem.dtype()))
          .thenComparingInt(problem -> rank(MODES, problem.mode()))
          .thenComparing(Problem::pass, Comparator.reverseOrder());

  private PointOrder() {}

  private static int rank(List<String> names, String name) {
    int i = names.indexOf(name);
    return i < 0 ? names.size() : i;
  }
}
