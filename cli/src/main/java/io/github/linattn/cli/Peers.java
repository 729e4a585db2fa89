package io.github.linattn.cli;

import static java.nio.charset.StandardCharsets.UTF_8;

import io.github.linattn.cli.points.Point;
import io.github.linattn.cli.points.PointFile;
import io.github.linattn.cli.points.Problem;
import io.github.linattn.cli.points.Status;
import java.io.BufferedReader;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/**
 * Attention of others, timed by the Python program {@code bench/peers/peers.py}. A peer that takes
 * its process down has failed; the others go on in a new one.
 */
final class Peers {
  /** As that program calls them. */
  static final List<String> METHODS =
      List.of(
          "copy torch",
          "softmax naive",
          "softmax flash",
          "softmax cudnn",
          "softmax efficient",
          "linear plain",
          "linear cumulative",
          "fla linear",
          "fla sums",
          "fla gla");

  private static final int LIMIT_SECONDS = 300;

  /** How a process ends by SIGALRM. */
  private static final int ALARM = 128 + 14;

  /** The program's status where the GPU does not answer any more after the last point. */
  private static final int NO_ANSWER = 75;

  private final String python;
  private final Path program;
  private final Path log;

  /**
   * Starts nothing yet.
   *
   * @param python the interpreter
   * @param home of linattn
   * @param log where everything goes that the program says beside its points
   */
  Peers(String python, Path home, Path log) {
    this.python = python;
    this.program = home.resolve("bench/peers/peers.py");
    this.log = log;
  }

  /**
   * Checks an interpreter that was named.
   *
   * @throws CommandFailure if it does not run
   */
  static void requireRuns(String python) throws IOException {
    if (python.contains("/") && !Files.exists(Path.of(python))) {
      throw CommandFailure.misuse("--python %s: no such file", python);
    }
    int status;
    try {
      status =
          new ProcessBuilder(python, "--version")
              .redirectErrorStream(true)
              .redirectOutput(ProcessBuilder.Redirect.DISCARD)
              .start()
              .waitFor();
    } catch (IOException cantStart) {
      throw CommandFailure.misuse("--python %s does not run", python);
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
      throw new IOException("interrupted", interrupted);
    }
    if (status != 0) {
      throw CommandFailure.misuse("--python %s --version ends with status %d", python, status);
    }
  }

  /** Takes the points as they come. */
  interface Sink {
    /** A point, and the versions of what measured it. */
    void put(Point point, Map<String, String> versions) throws IOException;
  }

  /**
   * Times problems, each of which gets a point.
   *
   * @param device of torch: cuda or cpu
   */
  void time(List<Problem> problems, String device, Sink sink) throws IOException {
    Deque<Problem> left = new ArrayDeque<>(problems);
    if (!Files.isRegularFile(program)) {
      giveUp(left, "there is no " + program, sink);
    }
    while (!left.isEmpty()) {
      int before = left.size();
      int status;
      try {
        status = run(left, device, sink);
      } catch (CantStartException cantStart) {
        giveUp(left, Text.message(cantStart), sink);
        return;
      } catch (BabbleException babble) {
        if (!left.isEmpty()) {
          sink.put(Point.without(left.remove(), Status.FAILED, Text.message(babble)), Map.of());
        }
        continue;
      }
      boolean blameless = status == NO_ANSWER && left.size() < before;
      if (!left.isEmpty() && !blameless) {
        sink.put(Point.without(left.remove(), Status.FAILED, reason(status)), Map.of());
      }
    }
  }

  private static void giveUp(Deque<Problem> left, String why, Sink sink) throws IOException {
    while (!left.isEmpty()) {
      sink.put(Point.without(left.remove(), Status.MISSING, why), Map.of());
    }
  }

  private String reason(int status) {
    return status == ALARM
        ? Text.format("took longer than %d s", LIMIT_SECONDS)
        : Text.format("the process ended with status %d; %s says more", status, log);
  }

  private static final class CantStartException extends IOException {
    private static final long serialVersionUID = 1;

    CantStartException(String why, Exception cause) {
      super(why, cause);
    }
  }

  /** A line is something else than the next point. */
  private static final class BabbleException extends IOException {
    private static final long serialVersionUID = 1;

    BabbleException(String why, Exception cause) {
      super(why, cause);
    }
  }

  private String somethingElse(IllegalArgumentException other) {
    return "'" + python + "' prints something else: " + Text.message(other);
  }

  private Map<String, String> versions(String line) throws CantStartException {
    try {
      return PointFile.versions(line);
    } catch (IllegalArgumentException other) {
      throw new CantStartException(somethingElse(other), other);
    }
  }

  /**
   * The point that a line is.
   *
   * @param next problem that has none yet; null if all have one
   */
  private Point point(String line, @Nullable Problem next) throws BabbleException {
    try {
      Point point = PointFile.point(line);
      if (!point.problem().equals(next)) {
        throw new IllegalArgumentException("no point was to come: " + line);
      }
      return point;
    } catch (IllegalArgumentException other) {
      throw new BabbleException(somethingElse(other), other);
    }
  }

  /** One process; takes from {@code left} what it answered, and gives its exit status. */
  private int run(Deque<Problem> left, String device, Sink sink) throws IOException {
    Path input;
    try {
      input = Files.createTempFile("linattn", ".problems");
    } catch (IOException noFolder) {
      throw CommandFailure.failed(
          "can't write to the folder of temporary files: " + Text.message(noFolder), noFolder);
    }
    try {
      Files.write(input, left.stream().map(PointFile::line).toList());
      Process process = start(input, device);
      try (BufferedReader lines = process.inputReader(UTF_8)) {
        String first = lines.readLine();
        Map<String, String> versions = first == null ? Map.of() : versions(first);
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
          Point point = point(line, left.peek());
          left.remove();
          sink.put(point, versions);
        }
        return process.waitFor();
      } catch (InterruptedException interrupted) {
        Thread.currentThread().interrupt();
        throw new IOException("interrupted", interrupted);
      } finally {
        process.destroyForcibly();
      }
    } finally {
      Files.delete(input);
    }
  }

  private Process start(Path input, String device) throws CantStartException {
    try {
      return new ProcessBuilder(
              python, program.toString(), "--device=" + device, "--limit=" + LIMIT_SECONDS)
          .redirectInput(input.toFile())
          .redirectError(ProcessBuilder.Redirect.appendTo(log.toFile()))
          .start();
    } catch (IOException cantStart) {
      throw new CantStartException(Text.message(cantStart), cantStart);
    }
  }
}
