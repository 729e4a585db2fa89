package io.github.linattn.cli;

import io.github.linattn.Mode;
import io.github.linattn.cli.points.Point;
import io.github.linattn.cli.points.PointFile;
import io.github.linattn.cli.points.Problem;
import io.github.linattn.cli.points.Samples;
import io.github.linattn.cli.points.Samples.Clock;
import io.github.linattn.cli.points.Status;
import io.github.linattn.cuda.CudaException;
import io.github.linattn.cuda.CudaOutOfMemoryException;
import io.github.linattn.files.FileReason;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.jspecify.annotations.Nullable;

/** What was measured here, as points and from their file. */
final class BenchPoints {
  private BenchPoints() {}

  /** The points of a file; one that can't be read or holds something else is misuse. */
  static PointFile open(Path path) {
    if (path.toString().isEmpty() || (Files.exists(path) && !Files.isRegularFile(path))) {
      throw CommandFailure.misuse("can't read %s: it is not a regular file", path);
    }
    try {
      return PointFile.open(path);
    } catch (IllegalArgumentException other) {
      throw CommandFailure.misuse(other);
    } catch (IOException unreadable) {
      throw CommandFailure.misuse("can't read %s: %s", path, FileReason.of(unreadable));
    }
  }

  /** The pass, the copy beside it, and every plan that was asked for. */
  static List<Point> of(BenchResult result, String sweep, Method method) {
    BenchCase each = result.problem();
    Problem problem = each.problem(sweep, method.title());
    List<Point> points = new ArrayList<>();
    points.add(
        new Point(
            problem,
            0,
            result.chosenIsRight() ? Status.OK : Status.FAILED,
            result.chosenIsRight() ? "" : "an error is larger than its bound",
            samples(result, result.times()),
            each.traffic(),
            result.memoryBytes(),
            errors(result.errors()),
            result.bound(),
            method == Method.CPU
                ? null
                : new Point.Choice(result.plan(), result.reason(), result.estimatedMicros()),
            null));
    points.add(
        Point.ok(problem.by(method.copy(), ""), samples(result, result.floor()), each.traffic()));
    for (BenchResult.Other other : result.others()) {
      points.add(of(result, problem.by(method.title(), other.name()), other));
    }
    return points;
  }

  private static Point of(BenchResult result, Problem problem, BenchResult.Other other) {
    DeviceTimes times = other.times();
    return new Point(
        problem,
        0,
        times == null ? Status.FAILED : Status.OK,
        times == null ? "an error is larger than its bound" : "",
        times == null ? null : samples(result, times),
        result.problem().traffic(),
        null,
        Map.of(),
        result.bound(),
        new Point.Choice(other.name(), "", other.estimatedMicros()),
        null);
  }

  private static Samples samples(BenchResult result, DeviceTimes times) {
    return Samples.of(
        Clock.DEVICE,
        times.calls(),
        times.graph(),
        result.sets(),
        result.exceedsCache(),
        times.firstMillis(),
        null,
        times.millis());
  }

  private static Map<String, @Nullable Double> errors(Errors errors) {
    Map<String, @Nullable Double> finite = new TreeMap<>();
    errors
        .values()
        .forEach(
            (quantity, error) ->
                finite.put(quantity.title(), Double.isFinite(error) ? error : null));
    return finite;
  }

  /** Host time of a call. */
  static Point of(HostTime host) {
    BenchCase each =
        BenchCase.of(HostTime.SHAPE, new Precision(host.dtype(), Mode.DEFAULT)).with(host.pass());
    return Point.ok(
        each.problem("host", Method.LINATTN.title()),
        Samples.of(
            Clock.HOST,
            HostTime.CALLS,
            false,
            1,
            false,
            null,
            host.heapBytes(),
            List.of(host.micros() * 1e-3)),
        each.traffic());
  }

  /** What ncu counted of one call. */
  static Point of(BenchCase each, String sweep, Method method, Ncu.Call call) {
    return Point.ok(
            each.problem(sweep, method.title()),
            Samples.of(Clock.DEVICE, 1, false, 1, false, null, null, List.of(call.millis())),
            each.traffic())
        .with(new Point.Movement(call.bytes(), call.share()));
  }

  /**
   * A case that could not be timed.
   *
   * @throws RuntimeException {@code failure} itself, if it is none of the ways in which that
   *     happens
   */
  static Point of(BenchCase each, String sweep, Method method, RuntimeException failure) {
    Status status =
        switch (failure) {
          case BenchRun.NoRoomException noRoom -> Status.OUT_OF_MEMORY;
          case CudaOutOfMemoryException memory -> Status.OUT_OF_MEMORY;
          case UnsupportedOperationException notBuilt -> Status.MISSING;
          case CudaException cuda -> Status.FAILED;
          default -> throw failure;
        };
    return Point.without(each.problem(sweep, method.title()), status, Text.message(failure));
  }
}
