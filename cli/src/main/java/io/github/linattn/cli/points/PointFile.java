package io.github.linattn.cli.points;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
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
    Content content;
    try {
      content = json().beanFrom(Content.class, text);
    } catch (JacksonException | IllegalArgumentException | NullPointerException wrong) {
      throw notPoints(Objects.requireNonNullElse(wrong.getMessage(), "empty"), wrong);
    }
    if (content.schema != SCHEMA) {
      throw notPoints("its schema is " + content.schema + ", this is " + SCHEMA, null);
    }
    for (Point point : content.points) {
      int run = Objects.checkIndex(point.run(), content.runs.size());
      measured.put(point.problem(), new Measured(point, content.runs.get(run)));
    }
  }

  private IllegalArgumentException notPoints(String reason, @Nullable Exception cause) {
    String first = reason.lines().findFirst().orElse("");
    return new IllegalArgumentException(path + " holds no points: " + first, cause);
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
    Path next = path.resolveSibling(path.getFileName() + ".part");
    Files.writeString(next, text());
    Files.move(next, path, StandardCopyOption.ATOMIC_MOVE);
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
