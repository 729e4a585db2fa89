package io.github.linattn.cli;

import io.github.linattn.cli.figures.Figure;
import io.github.linattn.cli.figures.FigureFiles;
import io.github.linattn.cli.figures.Figures;
import io.github.linattn.cli.points.Measured;
import io.github.linattn.cli.points.Point;
import io.github.linattn.cli.points.Problem;
import io.github.linattn.files.FileReason;
import io.github.linattn.files.WholeFile;
import java.awt.Font;
import java.awt.font.FontRenderContext;
import java.io.IOException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.NotDirectoryException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;

/** {@code linattn bench figures}: pictures of points that were measured, anywhere. */
@Command(
    name = "figures",
    mixinStandardHelpOptions = true,
    versionProvider = Version.class,
    description = {
      "Draw what the JSON files of a folder hold: each figure as PNG and SVG, its points as CSV,"
          + " and table 1 and its speed-ups as Markdown. Needs no GPU."
    })
final class BenchFiguresCommand implements Callable<Integer> {
  private static final String NO_FONTS =
      "there are no fonts on this machine to draw letters with; install some (on Debian: apt-get"
          + " install fontconfig fonts-dejavu-core), or draw the JSON files on another machine";

  private final Console console;

  @Parameters(paramLabel = "DIR", description = "folder with points, such as points.json")
  private @Nullable Path folder;

  @Option(
      names = "--out",
      paramLabel = "DIR",
      description = "folder for the figures; the same if left out")
  private @Nullable Path out;

  BenchFiguresCommand(Console console) {
    this.console = console;
  }

  @Override
  public Integer call() {
    Path source = Objects.requireNonNull(folder);
    if (source.toString().isEmpty()) {
      throw CommandFailure.misuse("DIR is empty; name a folder");
    }
    List<Measured> points = read(source);
    List<Figure> figures = Figures.of(points);
    if (figures.isEmpty()) {
      throw CommandFailure.misuse(
          "the points in %s belong to no figure; linattn bench paper measures them", source);
    }
    System.setProperty("java.awt.headless", "true");
    requireFonts();
    Path target = OutFolder.make(out == null ? source : out);
    try {
      write(figures, points, target);
    } catch (IOException e) {
      throw CommandFailure.failed(
          "can't write the figures to %s: %s".formatted(target, FileReason.of(e)), e);
    }
    return ExitCode.DONE;
  }

  private void write(List<Figure> figures, List<Measured> points, Path target) throws IOException {
    for (Figure figure : figures) {
      FigureFiles.write(figure, target);
      console.result("%s", target.resolve(figure.name() + ".svg"));
    }
    List<Point> all = points.stream().map(Measured::point).toList();
    write(target.resolve("table-1.md"), PaperTable.lines(all));
    write(target.resolve("speed-ups.md"), SpeedUpTable.lines(all));
  }

  /** AWT tells only once it measures the first letter. */
  private static void requireFonts() {
    try {
      new Font(Font.SANS_SERIF, Font.PLAIN, 12)
          .getLineMetrics("D", new FontRenderContext(null, true, true));
    } catch (RuntimeException none) {
      throw CommandFailure.failed(NO_FONTS, none);
    }
  }

  private void write(Path file, List<String> table) throws IOException {
    if (!table.isEmpty()) {
      WholeFile.write(file, String.join("\n", table) + "\n");
      console.result("%s", file);
    }
  }

  private static List<Measured> read(Path folder) {
    List<Measured> points = new ArrayList<>();
    Map<Problem, Path> origins = new HashMap<>();
    for (Path file : files(folder)) {
      for (Measured each : BenchPoints.open(file).measured()) {
        Path other = origins.put(each.point().problem(), file);
        if (other != null) {
          throw CommandFailure.misuse(
              "%s and %s both have %s; leave one in the folder",
              other, file, each.point().problem().title());
        }
        points.add(each);
      }
    }
    points.sort(Comparator.comparing(each -> each.point().problem(), PointOrder.OF_PROBLEMS));
    return points;
  }

  private static List<Path> files(Path folder) {
    List<Path> files = new ArrayList<>();
    try (DirectoryStream<Path> found = Files.newDirectoryStream(folder, "*.json")) {
      found.forEach(files::add);
    } catch (NoSuchFileException | NotDirectoryException none) {
      throw CommandFailure.misuse("there is no folder %s", folder);
    } catch (IOException unreadable) {
      throw CommandFailure.misuse("can't read %s: %s", folder, FileReason.of(unreadable));
    }
    if (files.isEmpty()) {
      throw CommandFailure.misuse("there is no JSON file in %s", folder);
    }
    files.sort(null);
    return files;
  }
}
