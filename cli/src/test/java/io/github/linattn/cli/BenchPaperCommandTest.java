package io.github.linattn.cli;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assumptions.assumeThat;

import io.github.linattn.AttentionShape;
import io.github.linattn.DType;
import io.github.linattn.Diagnostics;
import io.github.linattn.Mode;
import io.github.linattn.cli.points.Point;
import io.github.linattn.cli.points.PointFile;
import io.github.linattn.cli.points.Problem;
import io.github.linattn.cli.points.Run;
import io.github.linattn.cli.points.Samples;
import io.github.linattn.cli.points.Status;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Breaks when the paper's evaluation leaves out points, or measures what stands. */
class BenchPaperCommandTest {
  @TempDir Path folder;

  private Cli paper(String... options) {
    List<Object> args = new ArrayList<>(List.of("bench", "paper", "--quick", "--backend=cpu"));
    args.add("--out=" + folder);
    args.addAll(List.of(options));
    return Cli.run(args.toArray());
  }

  private List<Point> points() throws IOException {
    return PointFile.open(folder.resolve(BenchPaperCommand.FILE)).points();
  }

  @Test
  void theQuickEvaluationHasEveryPoint() throws IOException {
    Cli cli = paper("--sweep=tokens,decode", "--no-peers");
    assertThat(cli.exitCode()).as(cli.err()).isZero();
    List<Point> points = points();
    assertThat(points).hasSize(2 * (2 * 2 * 5 + 2));
    assertThat(points).allMatch(point -> point.status() == Status.OK && point.millis() > 0);
    assertThat(points)
        .extracting(point -> point.problem().method())
        .containsOnly("linattn cpu", "copy cpu");
    assertThat(points)
        .filteredOn(point -> point.problem().method().equals("linattn cpu"))
        .allMatch(point -> Objects.requireNonNull(point.memoryBytes()) > 0)
        .allMatch(point -> Objects.requireNonNull(point.samples()).firstMillis() != null);
    assertThat(cli.out())
        .contains("| B=1 H=2 N=1024 D=32 | type |")
        .containsPattern(
            "\\| linattn cpu \\| f32 tf32 \\| [0-9.]+ \\([0-9.]+\\) \\| [0-9.]+ \\([0-9.]+\\)"
                + " \\| [0-9.]+ \\| [0-9.]+ \\| ")
        .contains("| copy cpu | f32 default | ")
        .doesNotContain("| copy cpu | f32 tf32 | ");
  }

  @Test
  void pointsOfSomeTokensAlone() throws IOException {
    Cli cli = paperWithoutTorch("--sweep=tokens", "--tokens=256");
    assertThat(cli.exitCode()).as(cli.err()).isZero();
    assertThat(points()).hasSizeGreaterThan(2 * 2 * 5);
    assertThat(points()).allMatch(point -> point.problem().tokens() == 256);
    assertThat(points()).extracting(point -> point.problem().method()).contains("fla gla cpu");

    Cli unknown = paper("--sweep=tokens,decode", "--tokens=1024,77");
    assertThat(unknown.exitCode()).isEqualTo(ExitCode.MISUSED);
    assertThat(unknown.err()).contains("--tokens: no point has 77; there are [1, 256, 1024]");
  }

  @Test
  void anEmptyNameIsNoFolder() {
    assertThat(Cli.run("bench", "paper", "--out="))
        .returns(ExitCode.MISUSED, Cli::exitCode)
        .satisfies(cli -> assertThat(cli.err()).contains("--out is empty; name a folder"));
    assertThat(Cli.run("bench", "figures", ""))
        .returns(ExitCode.MISUSED, Cli::exitCode)
        .satisfies(cli -> assertThat(cli.err()).contains("DIR is empty; name a folder"));
  }

  @Test
  void pointsOfSomeTypesAlone() throws IOException {
    Cli cli = paperWithoutTorch("--sweep=tokens", "--tokens=256", "--dtype=bf16");
    assertThat(cli.exitCode()).as(cli.err()).isZero();
    assertThat(points()).allMatch(point -> point.problem().dtype().equals("bf16"));
    assertThat(points())
        .extracting(point -> point.problem().method())
        .contains("linattn cpu", "copy cpu", "fla gla cpu");

    Cli unknown = paper("--sweep=crossover,decode", "--dtype=bf16,f32");
    assertThat(unknown.exitCode()).isEqualTo(ExitCode.MISUSED);
    assertThat(unknown.err()).contains("--dtype: no point has f32; there are [bf16]");

    Cli none = paper("--sweep=tokens,crossover", "--tokens=64", "--dtype=f32");
    assertThat(none.exitCode()).isEqualTo(ExitCode.MISUSED);
    assertThat(none.err()).contains("no point has both what --tokens and what --dtype names");
  }

  @Test
  void whatStandsIsNotMeasuredAgain() throws IOException {
    assertThat(paper("--sweep=decode", "--no-peers").exitCode()).isZero();
    List<Point> first = points();
    Path path = folder.resolve(BenchPaperCommand.FILE);
    PointFile file = PointFile.open(path);
    Problem lost = first.getFirst().problem();
    file.put(file.runs().getFirst(), Point.without(lost, Status.MISSING, "was not here"));
    assertThat(paper("--sweep=decode", "--no-peers").exitCode()).isZero();

    List<Point> second = points();
    assertThat(second.getFirst().status()).isEqualTo(Status.OK);
    assertThat(second.subList(2, second.size()))
        .usingRecursiveFieldByFieldElementComparatorIgnoringFields("run") // a number in the file
        .isEqualTo(first.subList(2, first.size()));
  }

  @Test
  void peersThatAreNotHereAreMissingAndNeverZero() throws IOException {
    Cli cli = paperWithoutTorch("--sweep=decode");
    assertThat(cli.exitCode()).as(cli.err()).isZero();
    assertThat(cli.err())
        .containsOnlyOnce("are left out")
        .contains(
            "peers that need torch are left out: torch is not importable: none here;"
                + " --python names another Python");
    assertThat(points())
        .filteredOn(point -> point.status() == Status.MISSING)
        .hasSize(2 * Peers.METHODS.size())
        .allMatch(point -> point.problem().method().endsWith(" cpu"))
        .allMatch(point -> Double.isNaN(point.millis()));
  }

  /** As of a run that was broken off after its points: peers alone are left. */
  private void keepOurs(PaperSweep sweep) throws IOException {
    PointFile file = PointFile.open(folder.resolve(BenchPaperCommand.FILE));
    Run here = Machine.cpu();
    Samples samples = Samples.of(Samples.Clock.DEVICE, 1, false, 2, true, 9.0, null, List.of(1.5));
    for (BenchCase each : sweep.ours(true)) {
      file.put(here, Point.ok(each.problem(sweep.title(), Method.CPU.title()), samples, 8));
    }
  }

  /** With a Python that can't import torch. */
  private Cli paperWithoutTorch(String... options) throws IOException {
    Path python = folder.resolve("python");
    Files.writeString(python, "#!/bin/sh\nPYTHONPATH=%s exec python3 \"$@\"\n".formatted(folder));
    assertThat(python.toFile().setExecutable(true)).isTrue();
    Files.writeString(folder.resolve("torch.py"), "raise ImportError('none here')\n");
    assumeThat(status(python)).as("no python3 here").isZero();
    List<String> all = new ArrayList<>(List.of(options));
    all.add("--python=" + python);
    System.setProperty("linattn.home", Path.of("..").toString());
    try {
      return paper(all.toArray(String[]::new));
    } finally {
      System.clearProperty("linattn.home");
    }
  }

  private static int status(Path python) throws IOException {
    try {
      return new ProcessBuilder(python.toString(), "--version").start().waitFor();
    } catch (InterruptedException interrupted) {
      throw new IOException(interrupted);
    }
  }

  @Test
  void aPythonThatIsNamedMustRun() throws IOException {
    Path text = Files.writeString(folder.resolve("text"), "no program");
    for (String[] each :
        new String[][] {
          {"/no/such/python", "/no/such/python: no such file"},
          {"no-such-python", "no-such-python does not run"},
          {text.toString(), text + " does not run"},
          {"false", "false --version ends with status 1"}
        }) {
      Cli cli = paper("--sweep=decode", "--python=" + each[0]);
      assertThat(cli.exitCode()).as(cli.err()).isEqualTo(2);
      assertThat(cli.err()).contains("linattn: --python " + each[1]);
    }
    assertThat(folder.resolve(BenchPaperCommand.FILE)).doesNotExist();
  }

  @Test
  void somePeersAloneOneAfterTheOther() throws IOException {
    keepOurs(PaperSweep.TOKENS);
    Cli cli = paperWithoutTorch("--sweep=tokens", "--peers=fla gla,copy torch");
    assertThat(cli.exitCode()).as(cli.err()).isZero();
    List<String> asked =
        points().stream()
            .map(Point::problem)
            .filter(problem -> !problem.method().matches("(linattn|copy) cpu"))
            .map(problem -> problem.method() + " " + problem.dtype())
            .toList();
    assertThat(new ArrayList<>(new LinkedHashSet<>(asked)))
        .containsExactly(
            "copy torch cpu bf16", "copy torch cpu f32", "fla gla cpu bf16", "fla gla cpu f32");
    assertThat(asked).isSortedAccordingTo(Comparator.naturalOrder());
    Cli wrong = paper("--peers=fla");
    assertThat(wrong.exitCode()).isEqualTo(2);
    assertThat(wrong.err()).contains("--peers knows no 'fla'; there are copy torch, ");
  }

  @ParameterizedTest
  @ValueSource(strings = {"--peers=fla gla", "--python=python3"})
  void withoutPeersNoneIsNamed(String option) {
    Cli cli = paper("--sweep=decode", "--no-peers", option);
    assertThat(cli.exitCode()).isEqualTo(ExitCode.MISUSED);
    assertThat(cli.err())
        .contains(option.split("=", 2)[0] + " is for peers, which --no-peers leaves out");
    assertThat(folder).isEmptyDirectory();
  }

  @Test
  void pointsOfAnotherMachineAreNotMixed() throws IOException {
    PointFile file = PointFile.open(folder.resolve(BenchPaperCommand.FILE));
    Problem problem =
        BenchCase.of(HostTime.SHAPE, Precision.ALL.getFirst()).problem("tokens", "linattn cpu");
    file.put(
        new Run("t", "Another CPU", "", null, "", "", "abc", Map.of()),
        Point.without(problem, Status.FAILED, "why"));
    Cli cli = paper();
    assertThat(cli.exitCode()).isEqualTo(2);
    assertThat(cli.err()).contains("was measured on Another CPU, this is ", "--out");
  }

  @Test
  void anotherFileIsNotOverwritten() throws IOException {
    Path path = Files.writeString(folder.resolve(BenchPaperCommand.FILE), "{\"cases\": []}");
    Cli cli = paper();
    assertThat(cli.exitCode()).isEqualTo(2);
    assertThat(cli.err()).contains("points.json holds no points");
    assertThat(path).content().isEqualTo("{\"cases\": []}");
  }

  @Test
  void aFileIsNoFolderOfPoints() throws IOException {
    Path file = Files.createFile(folder.resolve("file"));
    Cli cli = Cli.run("bench", "paper", "--quick", "--backend=cpu", "--out=" + file);
    assertThat(cli.exitCode()).isEqualTo(2);
    assertThat(cli.err()).contains("--out " + file + " is a file; name a folder");
    Cli below = Cli.run("bench", "paper", "--quick", "--backend=cpu", "--out=" + file + "/below");
    assertThat(below.exitCode()).isEqualTo(2);
    assertThat(below.err()).contains("can't make this folder: ").doesNotContain("Exception");
  }

  @ParameterizedTest
  @EnumSource
  void noPointIsAskedForTwice(PaperSweep sweep) {
    for (boolean quick : new boolean[] {true, false}) {
      assertThat(sweep.ours(quick)).doesNotHaveDuplicates().isNotEmpty();
      assertThat(sweep.peers(quick)).doesNotHaveDuplicates();
    }
  }

  @Test
  void whereTheGpuIsMissingNoFolderIsMade() {
    assumeThat(Diagnostics.cuda()).as("the CUDA Runtime").isEmpty();
    Path none = folder.resolve("none");
    assertThat(Cli.run("bench", "paper", "--backend=cuda", "--out=" + none).exitCode())
        .isEqualTo(ExitCode.NO_GPU);
    assertThat(none).doesNotExist();
  }

  @Test
  void theFiguresHaveThePapersShapes() {
    assertThat(PaperSweep.TOKENS.ours(false))
        .hasSize(6 * 2 * 5)
        .allMatch(each -> each.name().matches("B=4 H=16 N=\\d+ D=128( from state)?"));
    assertThat(PaperSweep.HEAD_DIMS.ours(false))
        .hasSize(6 * 2 * 5)
        .allMatch(each -> each.name().matches("B=4 H=16 N=4096 D=\\d+( from state)?"));
  }

  @Test
  void aCpuCountsNoMovement() throws IOException {
    Cli cli = paper("--sweep=movement,decode", "--no-peers");
    assertThat(cli.exitCode()).as(cli.err()).isZero();
    assertThat(cli.err()).containsOnlyOnce("movement is left out: ncu counts what moves on a GPU");
    assertThat(points()).isNotEmpty().allMatch(point -> point.problem().sweep().equals("decode"));
    assertThat(paper("--help").out()).contains("movement (needs ncu)");
  }

  @Test
  void movementAloneIsRefusedOnACpu() {
    for (Cli cli :
        List.of(
            paper("--sweep=movement"),
            paper("--sweep=movement,crossover", "--dtype=f32"),
            paper("--sweep=movement,decode", "--tokens=256"))) {
      assertThat(cli.exitCode()).as(cli.err()).isEqualTo(ExitCode.MISUSED);
      assertThat(cli.err())
          .contains(
              "of these points movement alone is left, which is counted on a GPU;"
                  + " --backend is cpu");
    }
    assertThat(folder).isEmptyDirectory();
  }

  @Test
  void movementIsCountedOfUpTo100000Tokens() {
    assertThat(PaperSweep.MOVEMENT.ours(false))
        .hasSize(5 * 2 * 5)
        .allMatch(each -> each.shape().tokens() <= 100_000);
  }

  @Test
  void theTableTellsWhatHasNoTime() {
    Problem problem =
        BenchCase.of(HostTime.SHAPE, new Precision(DType.BF16, Mode.DEFAULT))
            .problem("tokens", "softmax flash");
    Samples samples = Samples.of(Samples.Clock.DEVICE, 1, false, 2, true, 99.5, null, List.of(1.5));
    Point timed = Point.ok(problem, samples, 8);
    Samples faster = Samples.of(Samples.Clock.DEVICE, 1, false, 2, true, 0.1, null, List.of(0.6));
    Point copy = Point.ok(problem.by("copy", ""), faster, 8);
    Problem other = problem.by("softmax naive", "");
    assertThat(
            PaperTable.lines(
                List.of(timed, copy, Point.without(other, Status.OUT_OF_MEMORY, "needs 300 GB"))))
        .containsExactly(
            "| B=1 H=4 N=64 D=64 | type | forward, ms (over a copy) | backward, ms (over a copy)"
                + " | forward, MB | backward, MB | first call (N=64), ms |",
            "|---|---|---|---|---|---|---|",
            "| copy | bf16 | 0.600 | - | - | - | 0.1 |",
            "| softmax naive | bf16 | out of memory | - | - | - | - |",
            "| softmax flash | bf16 | 1.500 (2.50) | - | - | - | 99.5 |");
    assertThat(PaperTable.lines(List.of())).isEmpty();
  }

  @Test
  void fewHeadsHaveATableForEachShape() {
    Samples samples = Samples.of(Samples.Clock.DEVICE, 1, false, 2, true, 9.0, null, List.of(1.5));
    List<Point> points =
        IntStream.of(4096, 1024)
            .mapToObj(tokens -> AttentionShape.of(1, 2, tokens, 64))
            .map(shape -> BenchCase.of(shape, new Precision(DType.BF16, Mode.DEFAULT)))
            .map(each -> Point.ok(each.problem("few-heads", "linattn"), samples, 8))
            .toList();
    String head =
        "| B=1 H=2 N=%d D=64 | type | forward, ms (over a copy) | backward, ms (over a copy)"
            + " | forward, MB | backward, MB | first call (N=%d), ms |";
    String row = "| linattn | bf16 | 1.500 | - | - | - | 9.0 |";
    assertThat(PaperTable.lines(points))
        .containsExactly(
            head.formatted(1024, 1024),
            "|---|---|---|---|---|---|---|",
            row,
            "",
            head.formatted(4096, 4096),
            "|---|---|---|---|---|---|---|",
            row);
  }
}
