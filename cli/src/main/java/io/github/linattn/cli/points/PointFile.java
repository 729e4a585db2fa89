package io.github.linattn.cli.points;

import io.github.linattn.files.WholeFile;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.stream.Collectors;
import org.jspecify.annotations.Nullable;
import tools.jackson.core.JacksonException;
import tools.jackson.jr.ob.JSON;

/**
 * A JSON file of points, one in a line. Each point that is put replaces the one of the same problem
 * and is on disk when {@link #put} returns: whoever reads sees the file before or after it.
 */
public final class PointFile {
  private static final int SCHEMA = 1;

  private final Path path;
  private final Map<Problem, Measured> measured = new LinkedHashMap<>();

  /** What the file holds. */
  record Content(int schema, List<Run> runs, List<Point> points) {}

  private PointFile(Path path) {
    this.path = path;
  }

  /**
   * The points of a file, none where there is no file yet.
   *
   * @throws IllegalArgumentException if the file holds something else
   */
  public static PointFile open(Path path) throws IOException {
    var file = new PointFile(path);
    if (Files.exists(path)) {
      file.read(Files.readString(path));
    }
    return file;
  }

  private void read(String text) {
    try {
      Content content = json().beanFrom(Content.class, text);
      if (content.schema != SCHEMA) {
        throw new IllegalArgumentException(
            "its schema is " + content.schema + ", this is " + SCHEMA);
      }
      List<Run> runs = Objects.requireNonNull(content.runs, "it has no runs");
      for (Point point : Objects.requireNonNull(content.points, "it has no points")) {
        measured.put(point.problem(), new Measured(point, runs.get(point.run())));
      }
    } catch (JacksonException
        | IllegalArgumentException
        | IndexOutOfBoundsException
        | NullPointerException wrong) {
      String reason = Objects.requireNonNullElse(message(wrong), "empty");
      String first = reason.lines().findFirst().orElse("").replaceFirst(" \\(start marker.*", "");
      throw new IllegalArgumentException(path + " holds no points: " + first, wrong);
    }
  }

  /** Without what the parser says of places in its source. */
  private static @Nullable String message(RuntimeException wrong) {
    return wrong instanceof JacksonException parser
        ? parser.getOriginalMessage()
        : wrong.getMessage();
  }

  private static JSON json() {
    return JSON.builder()
        .enable(JSON.Feature.FAIL_ON_UNKNOWN_BEAN_PROPERTY)
        .enable(JSON.Feature.WRITE_NULL_PROPERTIES)
        .build();
  }

  /** A point as one line of JSON, as a line of a file has it. */
  public static String line(Object recordOfPoints) {
    return json().asString(recordOfPoints);
  }

  /**
   * A point from such a line.
   *
   * @throws IllegalArgumentException if it is none
   */
  public static Point point(String line) {
    try {
      return json().beanFrom(Point.class, line);
    } catch (JacksonException | NullPointerException wrong) {
      throw new IllegalArgumentException("no point: " + line, wrong);
    }
  }

  /**
   * Versions by name, from a line that a program tells about itself.
   *
   * @throws IllegalArgumentException if it is none
   */
  public static Map<String, String> versions(String line) {
    try {
      return json().mapOfFrom(String.class, line);
    } catch (JacksonException wrong) {
      throw new IllegalArgumentException("no versions: " + line, wrong);
    }
  }

  /** Merges a point that a run has found out. */
  public void put(Run run, Point point) throws IOException {
    measured.put(point.problem(), new Measured(point, run));
    write();
  }

  private void write() throws IOException {
    Path folder = path.toAbsolutePath().getParent();
    Files.createDirectories(Objects.requireNonNull(folder));
    WholeFile.write(path, text());
  }

  private String text() {
    return "{\"schema\": "
        + SCHEMA
        + ",\n\"runs\": [\n"
        + lines(runs())
        + "],\n\"points\": [\n"
        + lines(points())
        + "]}\n";
  }

  private static String lines(List<?> records) {
    return records.stream().map(PointFile::line).collect(Collectors.joining(",\n"));
  }

  /** Whether a problem has a point, of whatever status. */
  public boolean has(Problem problem) {
    return measured.containsKey(problem);
  }

  /** Whether a problem has a point that need not be measured again. */
  public boolean stands(Problem problem) {
    Measured found = measured.get(problem);
    return found != null && found.point().status().stands();
  }

  /** All points with their runs, in the order they were first put. */
  public List<Measured> measured() {
    return List.copyOf(measured.values());
  }

  /** The runs of which there are points; a point has the index of its own. */
  public List<Run> runs() {
    return measured.values().stream().map(Measured::run).distinct().toList();
  }

  /** All points, in the order of {@link #measured}. */
  public List<Point> points() {
    List<Run> runs = runs();
    return measured.values().stream()
        .map(each -> each.point().with(runs.indexOf(each.run())))
        .toList();
  }
}
