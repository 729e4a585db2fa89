package io.github.linattn.cli.points;

import io.github.linattn.files.LockedFile;
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
import tools.jackson.core.exc.StreamReadException;
import tools.jackson.jr.ob.JSON;

/**
 * A JSON file of points, one in a line. Each point that is put replaces the one of the same problem
 * and is on disk when {@link #put} returns: whoever reads sees the file before or after it. Several
 * processes may put points into one file, for which a lock stays beside it. One thread's.
 */
public final class PointFile {
  private static final int SCHEMA = 1;

  private static final JSON FORMAT =
      JSON.builder()
          .enable(JSON.Feature.FAIL_ON_UNKNOWN_BEAN_PROPERTY)
          .enable(JSON.Feature.WRITE_NULL_PROPERTIES)
          .build();

  private final Path path;
  private Map<Problem, Measured> measured = new LinkedHashMap<>();

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
      file.measured = file.read();
    }
    return file;
  }

  private Map<Problem, Measured> read() throws IOException {
    String text = Files.readString(path);
    try {
      Content content = bean(Content.class, text);
      if (content.schema != SCHEMA) {
        throw new IllegalArgumentException(
            "its schema is " + content.schema + ", this is " + SCHEMA);
      }
      List<Run> runs = complete("runs", content.runs);
      Map<Problem, Measured> found = new LinkedHashMap<>();
      for (Point point : complete("points", content.points)) {
        if (point.run() < 0 || point.run() >= runs.size()) {
          throw new IllegalArgumentException(point.problem().title() + " is of no run");
        }
        found.put(point.problem(), new Measured(point, runs.get(point.run())));
      }
      return found;
    } catch (JacksonException | IllegalArgumentException | NullPointerException wrong) {
      throw new IllegalArgumentException(path + " holds no points: " + reason(wrong), wrong);
    }
  }

  private static <T> T bean(Class<T> type, String text) {
    try (var parser = new StrictParser(FORMAT.createParser(text))) {
      return FORMAT.beanFrom(type, parser);
    }
  }

  private static <T> List<T> complete(String name, @Nullable List<T> records) {
    if (records == null || records.contains(null)) {
      throw new IllegalArgumentException("it has no " + name);
    }
    return records;
  }

  /** In a sentence, without what the parser says of classes and of places in its source. */
  private static String reason(RuntimeException wrong) {
    Throwable cause = first(wrong);
    String told = String.valueOf(cause.getMessage());
    if (cause instanceof StreamReadException parser) {
      String first = String.valueOf(parser.getOriginalMessage()).lines().findFirst().orElse("");
      return first.replaceFirst(" \\(start marker.*", "");
    } else if (cause instanceof IllegalArgumentException) {
      return told;
    }
    boolean lacks = cause instanceof NullPointerException && cause != wrong;
    return lacks ? "it lacks " + told : "it has not the form in which linattn writes them";
  }

  private static Throwable first(Throwable failure) {
    Throwable cause = failure.getCause();
    return cause == null ? failure : first(cause);
  }

  /** A point as one line of JSON, as a line of a file has it. */
  public static String line(Object recordOfPoints) {
    return FORMAT.asString(recordOfPoints);
  }

  /**
   * A point from such a line.
   *
   * @throws IllegalArgumentException if it is none
   */
  public static Point point(String line) {
    try {
      return bean(Point.class, line);
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
      return FORMAT.mapOfFrom(String.class, line);
    } catch (JacksonException wrong) {
      throw new IllegalArgumentException("no versions: " + line, wrong);
    }
  }

  /**
   * Merges a point that a run has found out with what others have put meanwhile.
   *
   * @throws IOException if the file can't be written, or holds something else by now
   */
  public void put(Run run, Point point) throws IOException {
    Files.createDirectories(Objects.requireNonNull(path.toAbsolutePath().getParent()));
    try {
      LockedFile.change(path, () -> merge(new Measured(point, run)));
    } catch (IllegalArgumentException damaged) {
      throw new IOException(damaged.getMessage(), damaged);
    }
  }

  private void merge(Measured found) throws IOException {
    Problem problem = found.point().problem();
    measured.put(problem, found);
    if (Files.exists(path)) {
      Map<Problem, Measured> all = read();
      measured.forEach(all::putIfAbsent);
      all.put(problem, found);
      measured = all;
    }
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
