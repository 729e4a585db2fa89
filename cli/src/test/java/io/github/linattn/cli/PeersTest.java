package io.github.linattn.cli;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assumptions.assumeThatCode;

import io.github.linattn.AttentionShape;
import io.github.linattn.DType;
import io.github.linattn.Mode;
import io.github.linattn.cli.points.Point;
import io.github.linattn.cli.points.Problem;
import io.github.linattn.cli.points.Status;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Breaks when this side and the Python program no longer understand each other. */
class PeersTest {
  private static final Path HOME = Path.of("..").toAbsolutePath().normalize();

  private final List<String> versions = new ArrayList<>();

  @TempDir Path folder;

  @BeforeAll
  static void requirePython() {
    assumeThatCode(() -> new ProcessBuilder("python3", "--version").start().waitFor())
        .as("no python3 here")
        .doesNotThrowAnyException();
  }

  /** A Python whose torch has no device. */
  private String python(String setting) throws IOException {
    Path script =
        Files.writeString(
            folder.resolve("python"),
            "#!/bin/sh\nPYTHONPATH=%s/bench/peers/fake %s exec python3 \"$@\"\n"
                .formatted(HOME, setting));
    assertThat(script.toFile().setExecutable(true)).isTrue();
    return script.toString();
  }

  private static List<Problem> problems(String... methods) {
    BenchCase each =
        BenchCase.of(AttentionShape.of(2, 4, 100, 64), new Precision(DType.BF16, Mode.DEFAULT));
    return List.of(methods).stream().map(method -> each.problem("tokens", method)).toList();
  }

  private List<Point> time(String python, Path home, List<Problem> problems) throws IOException {
    List<Point> points = new ArrayList<>();
    new Peers(python, home, folder.resolve("log"))
        .time(
            problems,
            "cuda",
            (point, found) -> {
              points.add(point);
              versions.add(found.getOrDefault("torch", "none"));
            });
    assertThat(points).extracting(Point::problem).isEqualTo(problems);
    return points;
  }

  @Test
  void everyPeerIsKnownToTheProgram() throws IOException {
    List<Problem> problems = problems(Peers.METHODS.toArray(String[]::new));
    List<Point> points = time(python(""), HOME, problems);
    for (Point point : points) {
      boolean fla = point.problem().method().startsWith("fla ");
      assertThat(point.status()).as(point.why()).isEqualTo(fla ? Status.MISSING : Status.OK);
    }
    assertThat(versions).containsOnly("0.fake");
    assertThat(Objects.requireNonNull(points.getFirst().samples()).firstMillis()).isPositive();
  }

  @Test
  void bytesAreCountedAlikeOnBothSides() throws IOException {
    BenchCase forward =
        BenchCase.of(AttentionShape.of(2, 4, 100, 64), new Precision(DType.F32, Mode.DEFAULT));
    for (BenchCase each : List.of(forward, forward.with(BenchPass.BACKWARD))) {
      List<Point> points = time(python(""), HOME, List.of(each.problem("tokens", "linear plain")));
      assertThat(points.getFirst().bytes()).isEqualTo(each.traffic());
    }
  }

  @Test
  void whatIsSaidAfterTheLastPointChangesNothing() throws IOException {
    Path wrapper = folder.resolve("wrapper");
    Files.writeString(wrapper, "#!/bin/sh\n" + python("") + " \"$@\"\necho bye\n");
    assertThat(wrapper.toFile().setExecutable(true)).isTrue();
    assertThat(time(wrapper.toString(), HOME, problems("copy torch", "linear plain")))
        .extracting(Point::status)
        .containsOnly(Status.OK);
  }

  @Test
  void aPythonThatSaysSomethingElseFirstIsToldOnce() throws IOException {
    Path wrapper =
        Files.writeString(folder.resolve("wrapper"), "#!/bin/sh\necho Activating base\n");
    assertThat(wrapper.toFile().setExecutable(true)).isTrue();
    List<Point> points = time(wrapper.toString(), HOME, problems("copy torch", "linear plain"));
    assertThat(points).extracting(Point::status).containsOnly(Status.MISSING);
    assertThat(points)
        .extracting(Point::why)
        .containsOnly("'" + wrapper + "' prints something else: no versions: Activating base");
  }

  @Test
  void aPeerThatTakesItsProcessDownHasFailedAndTheOthersGoOn() throws IOException {
    List<Point> points =
        time(
            python("FAKE_TORCH_KILLS=9"),
            HOME,
            problems("copy torch", "linear plain", "softmax flash", "linear cumulative"));
    assertThat(points)
        .extracting(Point::status)
        .containsExactly(Status.OK, Status.FAILED, Status.OK, Status.FAILED);
    assertThat(points.get(1).why()).contains("ended with status 137");
  }

  @Test
  void aPeerThatTakesTooLongHasFailed() throws IOException {
    assertThat(time(python("FAKE_TORCH_KILLS=14"), HOME, problems("linear plain")))
        .extracting(Point::why)
        .containsExactly("took longer than 300 s");
  }

  @Test
  void afterAnErrorOfTheGpuANewProcessGoesOn() throws IOException {
    assertThat(time(python("FAKE_TORCH_SILENT=1"), HOME, problems("copy torch", "softmax flash")))
        .extracting(Point::why)
        .allMatch(why -> why.contains("illegal memory access"));
  }

  @Test
  void withoutTheProgramEveryPeerIsMissing() throws IOException {
    Point missing = time("python3", folder, problems("fla gla")).getFirst();
    assertThat(missing.status()).isEqualTo(Status.MISSING);
    assertThat(missing.why()).startsWith("there is no ");
  }
}
