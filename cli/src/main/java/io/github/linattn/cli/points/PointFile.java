package io.github.linattn.cli.points;

import static java.nio.charset.StandardCharsets.UTF_8;
import static java.nio.file.StandardOpenOption.CREATE_NEW;
import static java.nio.file.StandardOpenOption.READ;
import static java.nio.file.StandardOpenOption.WRITE;

import io.github.linattn.files.WholeFile;
import java.io.IOException;
import java.nio.channels.Channels;
import java.nio.channels.FileChannel;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.attribute.BasicFileAttributes;
import java.util.Arrays;
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
 * processes may put points into one file. One thread's.
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
      List<Run> runs = complete("runs", content.runs);
      for (Point point : complete("points", content.points)) {
        if (point.run() < 0 || point.run() >= runs.size()) {
          throw new IllegalArgumentException(point.problem().title() + " is of no run");
        }
        measured.put(point.problem(), new Measured(point, runs.get(point.run())));
      }
    } catch (JacksonException | IllegalArgumentException | NullPointerException wrong) {
      throw new IllegalArgumentException(path + " holds no points: " + reason(wrong), wrong);
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
    return switch (first(wrong)) {
      case StreamReadException parser ->
          String.valueOf(parser.getOriginalMessage())
              .lines()
              .findFirst()
              .orElse("empty")
              .replaceFirst(" \\(start marker.*", "");
      case NullPointerException lacking when lacking != wrong -> "it lacks " + lacking.getMessage();
      case IllegalArgumentException told -> String.valueOf(told.getMessage());
      default -> "it has not the form in which linattn writes them";
    };
  }

  private static Throwable first(Throwable failure) {
    Throwable cause = failure.getCause();
    return cause == null ? failure : first(cause);
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

  /** Merges a point that a run has found out with what others have put meanwhile. */
  public void put(Run run, Point point) throws IOException {
    Files.createDirectories(Objects.requireNonNull(path.toAbsolutePath().getParent()));
    try (FileChannel file = locked()) {
      Map<Problem, Measured> own = new LinkedHashMap<>(measured);
      measured.clear();
      // not by its name: a process that closes a file anywhere loses its lock
      read(new String(Channels.newInputStream(file).readAllBytes(), UTF_8));
      own.forEach(measured::putIfAbsent);
      measured.put(point.problem(), new Measured(point, run));
      WholeFile.write(path, text());
    }
  }

  /** The file, which is there, held against other processes until it is closed or replaced. */
  private FileChannel locked() throws IOException {
    while (true) {
      List<?> key = key();
      FileChannel channel = FileChannel.open(path, READ, WRITE);
      try {
        channel.lock();
        if (key.equals(key())) {
          return channel;
        }
      } catch (IOException | RuntimeException failed) {
        channel.close();
        throw failed;
      }
      channel.close(); // of a file that another process has replaced meanwhile
    }
  }

  /**
   * What tells the file from one that has replaced it, which may have the place of an older one.
   */
  private List<?> key() throws IOException {
    try {
      var found = Files.readAttributes(path, BasicFileAttributes.class);
      return Arrays.asList(found.fileKey(), found.size(), found.lastModifiedTime());
    } catch (NoSuchFileException none) {
      try {
        Files.writeString(path, text(), CREATE_NEW, WRITE);
      } catch (FileAlreadyExistsException other) {
        // as good
      }
      return key();
    }
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
