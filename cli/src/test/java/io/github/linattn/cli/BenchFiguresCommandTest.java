package io.github.linattn.cli;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.offset;

import io.github.linattn.AttentionShape;
import io.github.linattn.DType;
import io.github.linattn.cli.figures.Curve;
import io.github.linattn.cli.figures.Figure;
import io.github.linattn.cli.figures.Figures;
import io.github.linattn.cli.points.Measured;
import io.github.linattn.cli.points.Point;
import io.github.linattn.cli.points.PointFile;
import io.github.linattn.cli.points.Problem;
import io.github.linattn.cli.points.Run;
import io.github.linattn.cli.points.Samples;
import io.github.linattn.cli.points.Status;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.List;
import java.util.Map;
import java.util.function.ToDoubleFunction;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Breaks when a figure leaves out points, draws what was not measured, or is not written. */
class BenchFiguresCommandTest {
  private static final Run RUN =
      new Run("t", "A GPU", "sm_90", 132, "580", "1980 MHz", "abc", Map.of("torch", "2"));
  private static final List<String> FIGURES =
      List.of(
          "forward-time-tokens-half",
          "forward-memory-tokens-half",
          "forward-time-head-dims-half",
          "forward-time-tokens-single",
          "backward-time-tokens-half",
          "backward-memory-head-dims-single",
          "forward-moving-data",
          "backward-moving-data",
          "forward-moving-data-time",
          "forward-crossover",
          "roofline",
          "accuracy",
          "decode");

  @TempDir private static Path folder;
  @TempDir private Path empty;

  private static List<Measured> points;

  /** Points of invented machines: linear for us, quadratic for softmax, out of memory if naive. */
  @BeforeAll
  static void measure() throws IOException {
    PointFile file = PointFile.open(folder.resolve("points.json"));
    for (PaperSweep sweep : PaperSweep.values()) {
      if (sweep == PaperSweep.MOVEMENT) {
        continue; // most machines have no ncu
      }
      for (BenchCase each : sweep.ours(false)) {
        double work = work(each);
        put(file, each, sweep, "linattn", 1e-10 * work * each.shape().keyDim() + 2e-3);
        put(file, each, sweep, "copy", 1e-8 * work);
      }
      for (BenchCase each : sweep.peers(false)) {
        put(file, each, sweep, "softmax flash", 1e-12 * work(each) * attended(each) * 10 + 1e-3);
        naive(file, each, sweep);
        file.put(
            RUN,
            Point.without(
                each.problem(sweep.title(), "fla gla"), Status.MISSING, "no, \"fla\" is missing"));
      }
    }
    points = file.measured();
  }

  private static double work(BenchCase each) {
    return (double) each.shape().output().elements() * (each.pass().hasBackward() ? 2 : 1);
  }

  private static double attended(BenchCase each) {
    return Math.max(each.shape().tokens(), each.context());
  }

  private static void put(
      PointFile file, BenchCase each, PaperSweep sweep, String method, double millis)
      throws IOException {
    file.put(
        RUN,
        new Point(
            each.problem(sweep.title(), method),
            0,
            Status.OK,
            "",
            Samples.of(
                Samples.Clock.DEVICE,
                1,
                true,
                2,
                true,
                5.0,
                null,
                List.of(millis, millis * 1.1, millis * 0.9)),
            each.traffic(),
            each.memoryBytes(0),
            Map.of("o", 1e-7 * Math.sqrt(each.shape().tokens())),
            1e-2,
            null,
            null));
  }

  private static void naive(PointFile file, BenchCase each, PaperSweep sweep) throws IOException {
    if (attended(each) > 10_000) {
      Problem problem = each.problem(sweep.title(), "softmax naive");
      file.put(RUN, Point.without(problem, Status.OUT_OF_MEMORY, "needs 300 GB"));
    } else {
      put(file, each, sweep, "softmax naive", 1e-11 * work(each) * attended(each) * 10);
    }
  }

  @Test
  void everyFigureIsAPictureADrawingAndItsPoints() throws IOException {
    Path out = folder.resolve("out");
    Cli cli = Cli.run("bench", "figures", folder, "--out=" + out);
    assertThat(cli.exitCode()).as(cli.err()).isZero();
    for (String figure : FIGURES) {
      assertThat(out.resolve(figure + ".png")).as(figure).isNotEmptyFile();
      assertThat(out.resolve(figure + ".svg")).content().contains("<svg", "</svg>");
      assertThat(cli.out()).contains(figure + ".svg");
    }
    assertThat(Files.readAllLines(out.resolve("table-1.md")))
        .contains("| fla gla | bf16 | missing | missing | - | - | - |")
        .anyMatch(line -> line.startsWith("| linattn | f32 tf32 | "));
  }

  @Test
  void aTypeThatNothingHasIsDamageAndNothingIsWritten() throws IOException {
    String text = Files.readString(folder.resolve("points.json"));
    Path damaged =
        Files.writeString(
            empty.resolve("points.json"), text.replace("\"dtype\":\"f16\"", "\"dtype\":\"x\""));
    Cli cli = Cli.run("bench", "figures", empty);
    assertThat(cli.exitCode()).isEqualTo(2);
    assertThat(cli.err()).contains(damaged + " holds no points: dtype is 'x'; it is one of ");
    assertThat(empty.toFile().list()).containsExactly("points.json");
  }

  @Test
  void speedUpsCompareTypesOfAsManyBytes() {
    List<String> lines = SpeedUpTable.lines(points.stream().map(Measured::point).toList());
    assertThat(lines)
        .hasSize(4 + 2 * 5)
        .contains(
            "| bf16 | forward | - | - | 7.80, 1.00 (softmax flash bf16) |",
            "| f32 tf32 | backward | - | - | 7.81, 1.00 (softmax flash f32) |",
            "| f16 | forward | - | - | 7.80, 1.00 (softmax flash bf16) |");
    assertThat(SpeedUpTable.lines(List.of())).isEmpty();
  }

  /** The CPU beside peers on the CPU and over its own copy, though a GPU is in the same file. */
  @Test
  void theCpuHasATableOfItsOwn() throws IOException {
    PointFile file = PointFile.open(empty.resolve("points.json"));
    PaperSweep sweep = PaperSweep.TOKENS;
    for (BenchCase each : sweep.ours(true)) {
      put(file, each, sweep, "linattn", 1);
      put(file, each, sweep, "copy", 0.5);
      put(file, each, sweep, "paper", 9);
      put(file, each, sweep, "softmax flash", 7);
      put(file, each, sweep, "linattn cpu", 100);
      put(file, each, sweep, "copy cpu", 80);
      put(file, each, sweep, "linear plain cpu", 250);
    }
    List<Point> both = file.points();
    assertThat(SpeedUpTable.lines(both))
        .contains(
            "| bf16 | forward | 9.00, 1.94 | - | 7.00, 1.00 (softmax flash bf16) |",
            "| f32 default | forward | 9.00, 1.00 | - | 7.00, 1.00 (softmax flash f32) |",
            "| bf16 | backward | - | - | 2.50, 1.00 (linear plain cpu bf16) |");
    assertThat(PaperTable.lines(both))
        .anyMatch(line -> line.startsWith("| linattn | bf16 | 1.000 (2.00) | 1.000 (2.00) |"))
        .anyMatch(line -> line.startsWith("| linattn cpu | bf16 | 100.000 (1.25) |"));
  }

  private static Figure figure(String name) {
    return named(Figures.of(points), name);
  }

  private static List<String> legend(String name) {
    return figure(name).curves().stream().map(Curve::name).toList();
  }

  @Test
  void aPointAloneIsNoCurveBesideOthers() throws IOException {
    PointFile file = PointFile.open(empty.resolve("alone.json"));
    BenchCase first = BenchCase.of(AttentionShape.of(4, 16, 1000, 128), Precision.BF16);
    BenchCase second = BenchCase.of(AttentionShape.of(4, 16, 3000, 128), Precision.F16);
    put(file, second, PaperSweep.TOKENS, "fla linear", 3);
    assertThat(namesOfCurves(file)).containsExactly("fla linear f16");
    put(file, first, PaperSweep.TOKENS, "linattn", 1);
    put(file, BenchCase.of(second.shape(), Precision.BF16), PaperSweep.TOKENS, "linattn", 3);
    assertThat(namesOfCurves(file)).containsExactly("linattn bf16, N^1.00");
  }

  private static List<String> namesOfCurves(PointFile file) {
    return named(Figures.of(file.measured()), "forward-time-tokens-half").curves().stream()
        .map(Curve::name)
        .toList();
  }

  @Test
  void legendsHaveSlopesAndCrossovers() {
    assertThat(legend("forward-time-tokens-half"))
        .containsExactly(
            "linattn bf16, N^1.00",
            "copy bf16, N^1.00",
            "linattn f16, N^1.00",
            "copy f16, N^1.00",
            "softmax flash bf16, N^2.00",
            "softmax naive bf16, N^2.00");
    assertThat(legend("backward-time-head-dims-single"))
        .contains("linattn f32 tf32, D^2.00", "linattn f32 accurate, D^2.00")
        .containsOnlyOnce("copy f32 default, D^1.00")
        .noneMatch(name -> name.contains("16") || name.startsWith("copy f32 tf32"));
    assertThat(legend("forward-crossover")).contains("softmax flash bf16, slower from N = 2048");
    assertThat(legend("roofline")).first().asString().startsWith("memory, copying at ");
    assertThat(legend("accuracy")).contains("linattn f32 tf32, positive");
    assertThat(figure("forward-time-tokens-half").title())
        .isEqualTo("forward, 16 bits, B=4 H=16 D=128, A GPU");
  }

  @Test
  void movingDataIsCountedWhereItCanBe() throws IOException {
    assertThat(legend("forward-moving-data"))
        .hasSize(5)
        .allMatch(name -> name.matches("linattn .*, from the copy floor"));

    PointFile file = PointFile.open(empty.resolve("points.json"));
    for (Measured each : points) {
      file.put(RUN, each.point());
    }
    for (BenchCase each : PaperSweep.MOVEMENT.ours(false)) {
      if (each.precision().dtype() == DType.BF16) {
        Ncu.Call call = new Ncu.Call(2, 1000, 0.75);
        file.put(RUN, BenchPoints.of(each, "movement", Method.LINATTN, call));
      }
    }
    List<Figure> figures = Figures.of(file.measured());
    Figure share = named(figures, "forward-moving-data");
    assertThat(share.curves()).hasSize(1 + 4);
    Curve counted = share.curves().getFirst();
    assertThat(counted.name()).isEqualTo("linattn bf16, counted by ncu");
    assertThat(counted.style()).isEqualTo(Curve.Style.JOINED);
    assertThat(counted.marks()).hasSize(5).allMatch(mark -> mark.y() == 0.75);
    Curve other = named(share, "linattn f16, from the copy floor");
    assertThat(other.style()).isEqualTo(Curve.Style.DASHED);
    assertThat(other.marks()).hasSize(6);
    assertThat(named(figures, "forward-moving-data-time").curves().getFirst().marks())
        .allMatch(mark -> mark.y() == 1.5);
    assertThat(Cli.run("bench", "figures", empty).exitCode()).isZero();
    assertThat(empty.resolve("forward-moving-data.csv"))
        .content()
        .contains("\"linattn bf16, counted by ncu\",1000.0,0.75,OK")
        .contains("\"linattn f16, from the copy floor\",1000.0,");
  }

  private static Figure named(List<Figure> figures, String name) {
    return figures.stream().filter(each -> each.name().equals(name)).findFirst().orElseThrow();
  }

  private static Curve named(Figure figure, String name) {
    return figure.curves().stream()
        .filter(each -> each.name().equals(name))
        .findFirst()
        .orElseThrow();
  }

  /** Peaks as NVIDIA tells them: A100 312, 156 and 19.5, H100 66.9 TFLOP/s. */
  @Test
  void roofsFollowFromTheMachine() {
    String clocks = "345 MHz, 3201 MHz, %d MHz, 84.31 W, 700.00 W, 38";
    String at = ", %d multiprocessors at %d MHz, the highest by nvidia-smi";
    String hopper = at.formatted(132, 1980);
    Figure figure = roofline("sm_90", 132, clocks.formatted(1980), "one pass, wgmma");
    assertThat(lines(figure))
        .hasSize(3)
        .endsWith(
            "tensor cores, 16 bits (bf16, f16, f32 tf32): 1071 TFLOP/s" + hopper,
            "tensor cores, 16 bits, 3 products for one (f32 accurate, f32 default): 357 TFLOP/s"
                + hopper);
    List<Curve.Mark> memory = figure.curves().getFirst().marks();
    List<Curve.Mark> highest = figure.curves().get(1).marks();
    assertThat(memory.getLast().x()).isEqualTo(highest.getFirst().x());
    assertThat(memory.getLast().y()).isCloseTo(1070.5, offset(0.1));
    assertThat(highest).extracting(Curve.Mark::y).containsOnly(highest.getFirst().y());

    String ampere = at.formatted(108, 1410);
    assertThat(lines(roofline("sm_80", 108, clocks.formatted(1410), "one pass, mma")))
        .containsSubsequence(
            "tensor cores, 16 bits (bf16): 312 TFLOP/s" + ampere,
            "tensor cores, TF32 (f16, f32 tf32): 156 TFLOP/s" + ampere,
            "tensor cores, TF32, 3 products for one (f32 accurate, f32 default): 52 TFLOP/s"
                + ampere);
    assertThat(lines(roofline("sm_90", 132, clocks.formatted(1980), "paper")))
        .hasSize(2)
        .anyMatch(name -> name.startsWith("FMA of fp32 (") && name.contains(": 67 TFLOP/s, "));
  }

  @Test
  void withoutTheMachineThereIsTheRoofOfMemoryAlone() {
    String clocks = "345 MHz, 3201 MHz, 1980 MHz, 84.31 W, 700.00 W, 38";
    assertThat(lines(roofline("sm_90", null, clocks, "one pass, wgmma"))).hasSize(1);
    assertThat(lines(roofline("sm_90", 132, "not read", "one pass, wgmma"))).hasSize(1);
    assertThat(lines(roofline("sm_89", 132, clocks, "one pass, mma"))).hasSize(1);
    assertThat(lines(roofline("", null, "2600 MHz", "one pass"))).hasSize(1);
  }

  private static List<String> lines(Figure figure) {
    return figure.curves().stream()
        .filter(curve -> curve.style() == Curve.Style.LINE)
        .map(Curve::name)
        .toList();
  }

  /** The points of another machine. */
  private static Figure roofline(
      String architecture, @Nullable Integer multiprocessors, String clocks, String plan) {
    Run run = new Run("t", "M", architecture, multiprocessors, "580", clocks, "abc", Map.of());
    List<Measured> there =
        points.stream().map(each -> new Measured(planned(each.point(), plan), run)).toList();
    return named(Figures.of(there), "roofline");
  }

  private static Point planned(Point point, String plan) {
    return new Point(
        point.problem(),
        point.run(),
        point.status(),
        point.why(),
        point.samples(),
        point.bytes(),
        point.memoryBytes(),
        point.errors(),
        point.bound(),
        new Point.Choice(plan, "", 0),
        null);
  }

  @Test
  void theTableOfPointsHasWhatASpreadsheetNeeds() throws IOException {
    assertThat(Cli.run("bench", "figures", folder).exitCode()).isZero();
    List<String> lines = Files.readAllLines(folder.resolve("forward-time-tokens-half.csv"));
    int columns = lines.getFirst().split(",").length;
    assertThat(lines.subList(1, lines.size()))
        .allMatch(line -> line.replaceAll("\"[^\"]*\"", "x").split(",", -1).length == columns)
        .allMatch(line -> line.contains("A GPU,580,1980 MHz,abc,torch 2"))
        .anyMatch(line -> line.contains("OUT_OF_MEMORY,needs 300 GB,tokens,softmax naive"));
  }

  @Test
  void onlyMeasuredTimesAreDrawn() throws IOException {
    ToDoubleFunction<String> largest =
        line -> line.split(",", -1)[2].isEmpty() ? 0 : Double.parseDouble(line.split(",", -1)[2]);
    assertThat(Cli.run("bench", "figures", folder).exitCode()).isZero();
    List<String> naive =
        Files.readAllLines(folder.resolve("forward-time-tokens-half.csv")).stream()
            .filter(line -> line.contains("softmax naive"))
            .map(line -> line.replaceAll("\"[^\"]*\"", "x"))
            .toList();
    assertThat(naive).hasSize(6);
    assertThat(naive).filteredOn(line -> line.contains("OUT_OF_MEMORY")).hasSize(3);
    assertThat(naive)
        .filteredOn(line -> line.contains("OUT_OF_MEMORY"))
        .allMatch(line -> largest.applyAsDouble(line) == 0);
  }

  @Test
  void foldersWithoutPointsAreMisuse() throws IOException {
    assertMisuse(empty, "there is no JSON file");
    assertMisuse(folder.resolve("nowhere"), "there is no folder");
    Files.writeString(empty.resolve("a.json"), "[]");
    assertMisuse(empty, "a.json holds no points");
    Files.writeString(empty.resolve("a.json"), "{\"schema\":1,\"runs\":[],\"points\":[]}");
    assertMisuse(empty, "belong to no figure");
    Path inner = Files.createDirectory(empty.resolve("b.json"));
    assertMisuse(empty, "can't read " + inner + ": ");
    Files.delete(inner);
    for (String copy : new String[] {"a.json", "b.json"}) {
      Files.copy(
          folder.resolve("points.json"), empty.resolve(copy), StandardCopyOption.REPLACE_EXISTING);
    }
    assertMisuse(empty, "both have linattn");
  }

  @Test
  void whatCantBeAFolderOfFiguresIsMisuse() throws IOException {
    Path file = Files.createFile(empty.resolve("file"));
    for (String[] each :
        new String[][] {
          {"", "--out " + file + " is a file; name a folder"},
          {"/below", "--out " + file + "/below: can't make this folder: "}
        }) {
      Cli cli = Cli.run("bench", "figures", folder, "--out=" + file + each[0]);
      assertThat(cli.exitCode()).isEqualTo(2);
      assertThat(cli.err()).contains(each[1]).doesNotContain("Exception");
    }
  }

  private static void assertMisuse(Path folder, String sentence) {
    Cli cli = Cli.run("bench", "figures", folder);
    assertThat(cli.exitCode()).as(cli.err()).isEqualTo(2);
    assertThat(cli.err()).contains(sentence);
  }
}
