package io.github.linattn.test.command;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.assertj.core.api.Assertions.assertThat;

import io.github.linattn.cli.Main;
import io.github.linattn.test.harness.Native;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/**
 * Breaks when a table of README.md has a figure that is in no table under bench/results, or when a
 * table there is not what its points give. A figure is a number with decimals.
 */
final class MeasuredNumbersTest {
  private static final Path ROOT = Native.root();
  private static final Path RESULTS = ROOT.resolve("bench/results");
  private static final String POINTS = "points.json";
  private static final Pattern CODE = Pattern.compile("`[^`]*`|\\([^)]*\\.md\\)");
  private static final Pattern FIGURE = Pattern.compile("(?<![\\w.])\\d+\\.\\d+(?![\\w.])");

  @TempDir Path folder;

  /** Figures in the tables of a page. */
  private static Set<String> figures(String page) {
    Set<String> figures = new TreeSet<>();
    page.lines()
        .filter(line -> line.startsWith("|"))
        .map(line -> CODE.matcher(line).replaceAll(""))
        .forEach(
            line -> {
              Matcher matcher = FIGURE.matcher(line);
              while (matcher.find()) {
                figures.add(matcher.group());
              }
            });
    return figures;
  }

  /** The folders under bench/results that have points. */
  private static List<Path> results() throws IOException {
    if (!Files.isDirectory(RESULTS)) {
      return List.of();
    }
    try (Stream<Path> files = Files.walk(RESULTS)) {
      return files.filter(file -> file.endsWith(POINTS)).map(Path::getParent).sorted().toList();
    }
  }

  private static List<Path> tables(Path results) throws IOException {
    try (Stream<Path> files = Files.list(results)) {
      return files.filter(file -> file.toString().endsWith(".md")).sorted().toList();
    }
  }

  @Test
  void figuresOfTheReadmeComeFromResults() throws IOException {
    Set<String> measured = new TreeSet<>();
    for (Path results : results()) {
      for (Path table : tables(results)) {
        measured.addAll(figures(Files.readString(table)));
      }
    }
    assertThat(measured).containsAll(figures(Files.readString(ROOT.resolve("README.md"))));
  }

  @Test
  void rowsOfTheReadmeAreThoseOfTableOne() throws IOException {
    List<List<String>> measured = firstTable(RESULTS.resolve("h200/table-1.md"));
    List<List<String>> shown = firstTable(ROOT.resolve("README.md"));
    assertThat(shown).hasSizeGreaterThan(10);
    assertThat(shown)
        .allSatisfy(
            row ->
                assertThat(measured)
                    .extracting(other -> other.subList(0, row.size()))
                    .contains(row));
  }

  /** The cells of a page's first table of a shape, its heading among them. */
  private static List<List<String>> firstTable(Path page) throws IOException {
    return Files.readString(page)
        .lines()
        .dropWhile(line -> !line.startsWith("| B="))
        .takeWhile(line -> line.startsWith("|"))
        .filter(line -> !line.startsWith("|--"))
        .map(MeasuredNumbersTest::cells)
        .toList();
  }

  private static List<String> cells(String line) {
    return Stream.of(line.split("\\|")).skip(1).map(String::strip).toList();
  }

  @Test
  void theSpeedUpOverGatedLinearAttentionIsThatOfItsTable() throws IOException {
    double[] forward = gated("forward");
    double[] backward = gated("backward");
    String sentence =
        String.format(
            Locale.ROOT,
            "Gated LA takes %.1f times as long as bf16 here forward and %.1f times backward,"
                + " and %.1f times the memory.",
            forward[0],
            backward[0],
            backward[1]);
    assertThat(Files.readString(ROOT.resolve("README.md")).replaceAll("\\s+", " "))
        .contains(sentence);
  }

  /** Times and memory of Gated LA over those of bf16. */
  private static double[] gated(String pass) throws IOException {
    String line =
        Files.readAllLines(RESULTS.resolve("h200/speed-ups.md")).stream()
            .filter(each -> each.startsWith("| bf16 | " + pass + " |"))
            .findFirst()
            .orElseThrow();
    return Stream.of(cells(line).get(3).split(", ")).mapToDouble(Double::parseDouble).toArray();
  }

  @Test
  void tablesOfResultsComeFromPoints() throws IOException {
    for (Path results : results()) {
      Path again = Files.createDirectories(folder.resolve(results.getFileName().toString()));
      var sink = new PrintStream(new ByteArrayOutputStream(), true, UTF_8);
      String[] command = {"bench", "figures", results.toString(), "--out=" + again};
      assertThat(Main.run(command, sink, sink)).as(results.toString()).isZero();
      for (Path table : tables(results)) {
        assertThat(again.resolve(table.getFileName())).hasSameTextualContentAs(table);
      }
    }
  }

  @Test
  void aFigureIsANumberWithDecimalsInATable() {
    List<String> page = new ArrayList<>();
    page.add("Text with 1.5 of something.");
    page.add("| D=128 | bf16 | 0.171 | 3.25 (fla gla) | 10,000 |");
    page.add("| `CUDA 12.8` | [2](docs/decisions/2.5.md) | sm_90a | 1.2.3 |");
    assertThat(figures(String.join("\n", page))).containsExactly("0.171", "3.25");
  }
}
