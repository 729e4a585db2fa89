package io.github.linattn.cli;

import io.github.linattn.AttentionShape;
import io.github.linattn.Backend;
import io.github.linattn.DType;
import io.github.linattn.LinearAttention;
import io.github.linattn.cli.points.Slope;
import io.github.linattn.files.FileReason;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Parameters;

/** {@code linattn demo}: the whole way once, on real text. */
@Command(
    name = "demo",
    mixinStandardHelpOptions = true,
    versionProvider = Version.class,
    description = {
      "Run linear attention on a text: check forward and backward on every backend present against"
          + " a double reference, then time them over a growing number of tokens."
    })
final class DemoCommand implements Callable<Integer> {
  private static final int HEADS = 4;
  private static final int DIM = 64;
  private static final int CHECKED_TOKENS = 1009;

  private final Console console;
  private final ScalingRun.Effort effort;

  @Parameters(
      arity = "0..1",
      paramLabel = "FILE",
      description = "a text of any kind; the README if left out")
  private @Nullable Path file;

  private final List<String> slopes = new ArrayList<>();
  private boolean failed;

  DemoCommand(Console console) {
    this(console, ScalingRun.Effort.USUAL);
  }

  DemoCommand(Console console, ScalingRun.Effort effort) {
    this.console = console;
    this.effort = effort;
  }

  @Override
  public Integer call() {
    Path source = file != null ? file : readme();
    var text = new TextRows(read(source), DIM);
    console.result(
        "Linear attention of %s: each byte becomes a row of q, k and v in %d heads of %d columns;",
        source.getFileName(), HEADS, DIM);
    console.result(
        "o_i = sum_n (1 + q_i.k_n) v_n / g_i over n <= i, rows of q and k normalised, and all"
            + " gradients.");
    List<Backend> backends = new ArrayList<>();
    backends.add(Backend.cpu());
    try {
      BackendChoice.openGpuIfUsable(console, "CPU only: ").ifPresent(backends::add);
      for (Backend backend : backends) {
        console.result("");
        console.result("%s: %s", backend.name(), backend.describe());
      }
      check(backends, text);
      backends.forEach(backend -> time(backend, text));
    } finally {
      backends.forEach(Backend::close);
    }
    console.result("");
    console.result(
        "%s Time grows as N^p, where p = 1 is linear: %s.",
        failed
            ? "FAILED: an error above is larger than its bound."
            : "All results are within their bounds.",
        String.join("; ", slopes));
    return failed ? ExitCode.FAILED : ExitCode.DONE;
  }

  private static Path readme() {
    String home = System.getProperty("linattn.home", "");
    Path readme = Path.of(home, "README.md");
    if (!Files.isRegularFile(readme)) {
      throw CommandFailure.misuse("there is no README.md in '%s'; name a text FILE", home);
    }
    return readme;
  }

  /** As many bytes of it as rows are made of at most. */
  private static byte[] read(Path source) {
    if (Files.isDirectory(source)) {
      throw CommandFailure.misuse("%s is a folder; name a text file", source);
    }
    byte[] bytes;
    try (InputStream start = Files.newInputStream(source)) {
      bytes = start.readNBytes(ScalingRun.MOST_TOKENS_ON_DEVICE);
    } catch (IOException e) {
      throw CommandFailure.misuse("can't read %s: %s", source, FileReason.of(e));
    }
    if (bytes.length == 0) {
      throw CommandFailure.misuse("%s is empty", source);
    }
    if (repeatsOneByte(bytes)) {
      throw CommandFailure.misuse(
          "%s is one letter over and over: of equal rows all gradients but dv vanish, and there is"
              + " nothing to compare them with; name a text of two letters or more",
          source);
    }
    return bytes;
  }

  private static boolean repeatsOneByte(byte[] bytes) {
    for (byte letter : bytes) {
      if (letter != bytes[0]) {
        return false;
      }
    }
    return true;
  }

  private void check(List<Backend> backends, TextRows text) {
    AttentionShape shape = AttentionShape.of(1, HEADS, CHECKED_TOKENS, DIM);
    CheckCase problem = CheckCase.of("text", shape).normalized();
    var data =
        new CheckData(
            text.rows(1, HEADS, CHECKED_TOKENS),
            text.rows(2, HEADS, CHECKED_TOKENS),
            text.rows(3, HEADS, CHECKED_TOKENS),
            text.rows(4, HEADS, CHECKED_TOKENS));
    List<String> rows = new ArrayList<>();
    try (var progress = new Progress(console.err(), "checking")) {
      progress.expect(backends.size() * Precision.ALL.size());
      for (DType dtype : DType.values()) {
        var check = new ReferenceCheck(problem, dtype, data, null);
        for (Precision precision : Precision.ALL) {
          if (precision.dtype() == dtype) {
            for (Backend backend : backends) {
              rows.add(check(check, backend, precision));
              progress.step(Text.id(dtype));
            }
          }
        }
      }
    }
    console.result("");
    console.result("Relative error against the double reference, N = %d:", CHECKED_TOKENS);
    console.result("%-8s %-5s %-9s%s  %7s", "backend", "dtype", "mode", Errors.titles(), "bound");
    rows.forEach(row -> console.result(row));
  }

  private String check(ReferenceCheck check, Backend backend, Precision precision) {
    String row =
        Text.format(
            "%-8s %-5s %-9s",
            backend.name(), Text.id(precision.dtype()), Text.id(precision.mode()));
    Errors errors;
    try {
      errors = check.run(backend, precision);
    } catch (UnsupportedOperationException no) {
      return row + "  not on " + backend + ": " + Text.firstClause(no);
    }
    boolean ok = errors.within(precision);
    failed |= !ok;
    double bound = Quantity.O.bound(precision.dtype(), precision.mode());
    return row + errors.columns() + Text.format("  %7.1e%s", bound, ok ? "" : "  FAILED");
  }

  private void time(Backend backend, TextRows text) {
    LinearAttention attention = LinearAttention.builder().normalizeQueriesAndKeys(true).on(backend);
    var run = new ScalingRun(backend, attention, text, HEADS, DIM, effort);
    List<ScalingRun.Point> points;
    try (var progress = new Progress(console.err(), "timing " + backend)) {
      points = run.run(progress);
    }
    console.result("");
    console.result(
        "Best time of a few on %s, f32 default, the text repeated as often as needed:", backend);
    console.result(
        "%9s %12s %12s %14s %14s",
        "N", "forward ms", "backward ms", "forward GB/s", "backward GB/s");
    for (ScalingRun.Point point : points) {
      console.result(
          "%9d %12.3f %12.3f %14.2f %14.2f",
          point.tokens(),
          point.forwardSeconds() * 1e3,
          point.backwardSeconds() * 1e3,
          point.forwardBytes() / point.forwardSeconds() * 1e-9,
          point.backwardBytes() / point.backwardSeconds() * 1e-9);
    }
    List<ScalingRun.Point> larger = points.subList(points.size() / 2, points.size());
    slopes.add(
        Text.format(
            "forward %.2f and backward %.2f on %s",
            Slope.fit(larger, ScalingRun.Point::tokens, ScalingRun.Point::forwardSeconds),
            Slope.fit(larger, ScalingRun.Point::tokens, ScalingRun.Point::backwardSeconds),
            backend));
  }
}
