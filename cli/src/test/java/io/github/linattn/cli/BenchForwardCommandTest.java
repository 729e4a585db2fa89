package io.github.linattn.cli;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.github.linattn.AttentionShape;
import io.github.linattn.Backend;
import io.github.linattn.DType;
import io.github.linattn.Diagnostics;
import io.github.linattn.LinearAttention;
import io.github.linattn.Mode;
import io.github.linattn.Plan;
import io.github.linattn.Stream;
import io.github.linattn.cli.points.Point;
import io.github.linattn.cli.points.Problem;
import io.github.linattn.cli.points.Run;
import io.github.linattn.cli.points.Samples;
import io.github.linattn.cli.points.Status;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import picocli.CommandLine;

/** Breaks when the benchmark reads its options, or tells its results, in another way. */
class BenchForwardCommandTest {
  private static final Precision BF16 = new Precision(DType.BF16, Mode.DEFAULT);
  private static final Run HERE =
      new Run("2026-11-21T00:00:00Z", "GPU A", "sm_90", 132, "580", "1980 MHz", "abc", Map.of());

  @TempDir Path folder;

  private static List<String> cases(String... args) {
    var sink = new PrintStream(new ByteArrayOutputStream(), true, UTF_8);
    var command = new BenchForwardCommand(new Console(sink, sink));
    new CommandLine(command).parseArgs(args);
    return command.cases().stream()
        .map(each -> each.name() + " " + precision(each.precision()))
        .toList();
  }

  private static String precision(Precision precision) {
    return Text.id(precision.dtype()) + " " + Text.id(precision.mode());
  }

  @Test
  void withoutOptionsItIsOneCase() {
    assertThat(cases()).containsExactly("B=4 H=16 N=10000 D=128 bf16 default");
  }

  @Test
  void listsGiveTheirProduct() {
    assertThat(
            cases(
                "--dtype=bf16,f32",
                "--mode=tf32,accurate",
                "--batch=2",
                "--heads=4,8",
                "--kv-heads=2",
                "--tokens=100,7",
                "--value-dim=64",
                "--non-causal",
                "--normalize"))
        .hasSize(3 * 2 * 2)
        .contains("B=2 H=8 K=2 N=7 D=128 Dv=64 full unit f32 tf32")
        .endsWith("B=2 H=8 K=2 N=7 D=128 Dv=64 full unit f32 accurate");
  }

  @Test
  void aModeAloneMeansF32() {
    assertThat(cases("--mode=tf32", "--head-dim=64"))
        .containsExactly("B=4 H=16 N=10000 D=64 f32 tf32");
  }

  @Test
  void theTargetsAreThoseOfTheDesign() {
    assertThat(cases("--preset=targets"))
        .containsExactly(
            "B=4 H=16 N=10000 D=128 bf16 default",
            "B=4 H=16 N=10000 D=128 f16 default",
            "B=4 H=16 N=10000 D=128 f32 tf32",
            "B=4 H=16 N=10000 D=128 f32 default",
            "B=4 H=16 N=10000 D=128 f32 accurate",
            "B=4 H=16 N=10000 D=64 bf16 default",
            "B=4 H=16 N=10000 D=256 bf16 default",
            "B=1 H=8 N=131072 D=128 bf16 default",
            "B=1 H=1 N=1048576 D=128 bf16 default",
            "B=4 H=16 N=1 D=128 bf16 default");
    List<BenchCase> targets = BenchPreset.TARGETS.cases(List.of(), BenchPass.FORWARD);
    assertThat(targets.stream().filter(BenchCase::decode)).containsExactly(targets.getLast());
    assertThat(cases("--preset=targets", "--dtype=f16")).hasSize(1);
  }

  @Test
  void presetsHaveTheirRows() {
    assertThat(cases("--preset=head-dims"))
        .hasSize(6 * 5)
        .startsWith("B=4 H=16 N=4096 D=32 bf16 default")
        .endsWith("B=4 H=16 N=4096 D=256 f32 accurate");
    assertThat(cases("--preset=tokens"))
        .hasSize(7)
        .endsWith("B=4 H=16 N=1000000 D=128 bf16 default");
    assertThat(cases("--preset=heads"))
        .hasSize(9)
        .startsWith("B=1 H=1 N=10000 D=128 bf16 default")
        .endsWith("B=1 H=256 N=10000 D=128 bf16 default");
    assertThat(cases("--preset=grid", "--dtype=f16")).hasSize(60);
    assertThat(cases("--preset=accuracy"))
        .hasSize(2 * 2 * 4 * 5)
        .startsWith("B=1 H=2 N=1024 D=128 bf16 default")
        .endsWith("B=1 H=2 N=1048576 D=64 positive f32 accurate");
    assertThat(cases("--preset=accuracy", "--dtype=f16", "--data=positive"))
        .hasSize(2 * 4)
        .allMatch(name -> name.endsWith(" positive f16 default"));
  }

  @Test
  void drawnProblemsFollowFromTheirSeed() {
    List<String> drawn = cases("--drawn=300");
    assertThat(drawn).hasSize(300).isEqualTo(cases("--drawn=300", "--seed=1"));
    assertThat(cases("--drawn=20")).isEqualTo(drawn.subList(0, 20));
    assertThat(cases("--drawn=300", "--seed=2")).isNotEqualTo(drawn);
    assertThat(drawn)
        .anyMatch(name -> name.contains(" K="))
        .allMatch(name -> name.contains("B=1 "));
    for (String each : List.of("bf16 default", "f16 default", "f32 tf32", "f32 accurate")) {
      assertThat(drawn).anyMatch(name -> name.endsWith(each));
    }
    assertThat(cases("--drawn=30", "--dtype=f16")).allMatch(name -> name.endsWith("f16 default"));
    assertThat(new BenchDraw(300, 1).cases(BenchPreset.ALL))
        .allMatch(each -> each.shape().q().elements() < 1 << 22 && each.shape().tokens() >= 256);
  }

  @ParameterizedTest
  @CsvSource(
      delimiter = '|',
      value = {
        "--preset=targets --tokens=5 | shapes of its own",
        "--dtype=bf16 --mode=tf32 | --mode is for f32",
        "--head-dim=40 | multiple of 16",
        "--heads=6 --kv-heads=4 | evenly",
        "--dtype=f64 | f32",
        "--sustained=-1 | 0 to 600 seconds, not -1.0",
        "--sustained=NaN | not NaN",
        "--preset=all | head-dims",
        "--drawn=0 | a number of problems",
        "--drawn=3 --tokens=5 | shapes of its own",
        "--drawn=3 --preset=targets | in place of a preset",
        "--seed=3 | is for --drawn",
        "--data=negative | normal, positive",
        "--family=other | chunked or paper",
        "--family=paper --all-plans | one plan"
      })
  void wrongOptionsAreMisuse(String options, String reason) {
    List<String> args = new ArrayList<>(List.of("bench", "forward"));
    args.addAll(List.of(options.split(" ")));
    Cli cli = Cli.run(args.toArray());
    assertThat(cli.exitCode()).as(cli.err()).isEqualTo(2);
    assertThat(cli.err()).contains(reason);
  }

  @Test
  void itNeedsAGpuAndSaysSo() {
    assumeTrue(Diagnostics.cuda().isEmpty(), "there is a GPU here");
    assertThat(Cli.run("bench", "forward", "--json", folder))
        .returns(ExitCode.MISUSED, Cli::exitCode)
        .satisfies(cli -> assertThat(cli.err()).contains("can't read " + folder + ": "));
    Cli cli = Cli.run("bench", "forward", "--json", folder.resolve("none.json"));
    assertThat(cli.exitCode()).isEqualTo(3);
    assertThat(cli.err()).startsWith("linattn: no usable GPU: ");
    assertThat(cli.out()).isEmpty();
    assertThat(Files.exists(folder.resolve("none.json"))).isFalse();
    assertThat(System.getProperty("linattn.family")).isNull();
    assertThat(Cli.run("bench").exitCode()).isEqualTo(2);
    assertThat(Cli.run("bench", "forward", "--help").out()).contains("--all-plans");
  }

  private static DeviceTimes times(int calls, double... millis) {
    List<Double> samples = new ArrayList<>();
    for (double each : millis) {
      samples.add(each);
    }
    return new DeviceTimes(2.5, calls, true, samples);
  }

  private static BenchResult result(double error, BenchResult.Other... others) {
    var errors = new Errors();
    errors.put(Quantity.O, error);
    errors.put(Quantity.G, 1e-7);
    return new BenchResult(
        BenchCase.of(AttentionShape.of(4, 16, 10_000, 128), BF16),
        "one pass, wgmma",
        "one pass: why",
        170,
        2,
        true,
        1000,
        times(1, 0.19, 0.176, 0.175),
        times(1, 0.16, 0.17, 0.15),
        errors,
        1.2e-2,
        List.of(others));
  }

  @Test
  void aRowHasTheFigures() {
    assertThat(BenchReport.rows(result(2e-3)))
        .containsExactly(
            "B=4 H=16 N=10000 D=128             bf16  default   one pass, wgmma                 0.1760"
                + "      (0.1750 to 0.1900)     0.1600   1.10  2.0e-03 1.0e-07 1.2e-02  ok");
    assertThat(BenchReport.rows(result(Double.NaN)).getFirst())
        .endsWith("     NaN 1.0e-07 1.2e-02  FAILED");
    assertThat(result(Double.NaN).right()).isFalse();
    assertThat(BenchReport.head(HERE, "chunked", BenchPass.FORWARD, 0)).hasSize(3);
  }

  @Test
  void thePlannersChoiceIsJudged() {
    BenchResult well = result(1e-3, new BenchResult.Other("wgmma", 171, 1e-3, times(1, 0.17)));
    BenchResult badly = result(1e-3, new BenchResult.Other("mma:512", 300, 1e-3, times(1, 0.088)));
    BenchResult wrong = result(1e-3, new BenchResult.Other("mma", 300, 0.5, null));
    assertThat(BenchReport.rows(well).get(1)).contains("choice / best 1.04; wgmma 0.1700");
    assertThat(BenchReport.rows(badly).get(1)).contains("2.00 (!); mma:512 0.0880");
    assertThat(wrong.right()).isFalse();
    assertThat(BenchReport.rows(wrong).get(1)).contains("mma WRONG (5.0e-01)");
    assertThat(BenchReport.planner(List.of(well, badly, result(1e-3))))
        .contains("in 1 of 2 cases (50 %), in the mean (geometric) 1.439 of it, at worst 2.00");
  }

  @Test
  void aResultIsAPointOfItsPassOneOfTheCopyAndOneOfEachPlan() {
    List<Point> points =
        BenchPoints.of(
            result(1e-3, new BenchResult.Other("mma", 300, 1e-3, times(64, 0.3))),
            "s",
            Method.LINATTN);
    assertThat(points)
        .extracting(each -> each.problem().method() + " " + each.problem().plan())
        .containsExactly("linattn ", "copy ", "linattn mma");
    Point chosen = points.getFirst();
    assertThat(chosen.problem())
        .isEqualTo(
            new Problem(
                "s", "linattn", "", "forward", 4, 16, 16, 10_000, 128, 128, 0, "bf16", "default",
                true, false, "normal"));
    assertThat(chosen.millis()).isEqualTo(0.176);
    assertThat(chosen.samples())
        .isEqualTo(
            Samples.of(
                Samples.Clock.DEVICE, 1, true, 2, true, 2.5, null, List.of(0.19, 0.176, 0.175)));
    assertThat(chosen.bytes()).isEqualTo(64L * 10_000 * (4 * 128 * 2 + 4));
    assertThat(chosen.memoryBytes()).isEqualTo(1000);
    assertThat(chosen.errors()).containsEntry("o", 1e-3).containsEntry("g", 1e-7);
    assertThat(points.get(1).millis()).isEqualTo(0.16);
    assertThat(points.get(2).millis()).isEqualTo(0.3);
  }

  @Test
  void aWrongResultIsAPointThatFailed() {
    List<Point> points =
        BenchPoints.of(
            result(Double.NaN, new BenchResult.Other("mma", 300, 0.5, null)), "s", Method.LINATTN);
    assertThat(points)
        .extracting(Point::status)
        .containsExactly(Status.FAILED, Status.OK, Status.FAILED);
    assertThat(points.getFirst().millis()).isNaN();
    assertThat(points.getFirst().errors()).containsEntry("o", null);
  }

  @Test
  void whatCouldNotBeTimedIsAPointToo() {
    BenchCase each = BenchCase.of(AttentionShape.of(1, 2, 100, 64), BF16);
    assertThat(
            BenchPoints.of(
                    each, "s", Method.LINATTN, new UnsupportedOperationException("not built"))
                .status())
        .isEqualTo(Status.MISSING);
    Point large =
        BenchPoints.of(each, "s", Method.LINATTN, new BenchRun.NoRoomException("needs 300 GB"));
    assertThat(large.status()).isEqualTo(Status.OUT_OF_MEMORY);
    assertThat(large.why()).isEqualTo("needs 300 GB");
    assertThatThrownBy(
            () -> BenchPoints.of(each, "s", Method.LINATTN, new IllegalStateException("a fault")))
        .hasMessage("a fault");
  }

  @Test
  void hostTimeIsAPointOfTheHostsClock() {
    Point host = BenchPoints.of(new HostTime(DType.BF16, BenchPass.FORWARD, 6.25, 16));
    Samples samples = Objects.requireNonNull(host.samples());
    assertThat(samples.clock()).isEqualTo(Samples.Clock.HOST);
    assertThat(samples.heapBytes()).isEqualTo(16);
    assertThat(host.millis()).isEqualTo(0.00625);
    assertThat(host.problem().sweep()).isEqualTo("host");
  }

  @Test
  void memoryIsWhatComesToTheInputs() {
    BenchCase forward = BenchCase.of(AttentionShape.of(1, 2, 100, 64), BF16);
    assertThat(forward.memoryBytes(7)).isEqualTo(2 * 100 * (64 * 2 + 4) + 7);
    assertThat(forward.with(BenchPass.BACKWARD).memoryBytes(7))
        .isEqualTo(2 * 100 * (4 * 64 * 2 + 4) + 2 * 2 * 4 + 7);
  }

  @Test
  void plansToTimeCoverTheChoice() {
    BenchCase few = BenchCase.of(AttentionShape.of(1, 1, 1_048_576, 128), BF16);
    assertThat(BenchPlans.names(few))
        .hasSize(2 * (1 + 10) + 3)
        .endsWith("mma:2048", "mma:1024")
        .startsWith("wgmma", "wgmma*2", "wgmma*4", "wgmma*8", "wgmma:524288");
    BenchCase many = BenchCase.of(AttentionShape.of(1, 256, 1000, 256), BF16);
    assertThat(BenchPlans.names(many)).containsExactly("wgmma", "wgmma:512", "mma", "mma:512");
    BenchCase inRounds = BenchCase.of(AttentionShape.of(1, 80, 2000, 128), BF16);
    assertThat(BenchPlans.names(inRounds))
        .startsWith("wgmma", "wgmma:1024+", "wgmma:704+", "wgmma:1024");
    assertThat(BenchPlans.names(many.with(false, false)))
        .as("the planner's, by mma, whole sequences, segments")
        .containsExactly("wgmma", "mma", "wgmma:1024", "wgmma:512");
    assertThat(BenchPlans.segments(1100, 2)).containsExactly(576, 320, 192, 128, 64);
    assertThat(BenchPlans.segments(65, 2)).containsExactly(64);
    assertThat(BenchPlans.segments(64, 2)).isEmpty();
    AttentionShape grouped = new AttentionShape(1, 8, 2, 200, 128, 64);
    assertThat(BenchPlans.names(BenchCase.of(grouped, BF16).with(BenchPass.BACKWARD)))
        .containsExactly(
            "wgmma",
            "wgmma:128",
            "wgmma:128:0",
            "wgmma:64",
            "wgmma:64:0",
            "mma",
            "mma:128",
            "mma:64");
    assertThat(BenchPlans.names(inRounds.with(BenchPass.BACKWARD)))
        .startsWith("wgmma", "wgmma:1024+", "wgmma:704+", "wgmma:1024", "wgmma:512");
    assertThat(BenchPlans.names(inRounds.with(BenchPass.BOTH))).isEmpty();
    var chosen = new Plan.Pass(List.of(), 0, 0, 1, "one pass, wgmma*2", "why");
    assertThat(BenchPlans.word(many, chosen)).isEqualTo("one pass, wgmma*2");
    assertThat(BenchPlans.word(many, new Plan.Pass(List.of(), 0, 0))).isEqualTo("paper");
    BenchPlans.asking(
        BenchPass.FORWARD,
        "mma",
        () -> assertThat(System.getProperty(BenchPlans.PROPERTY)).isEqualTo("mma"));
    assertThat(System.getProperty(BenchPlans.PROPERTY)).isNull();
  }

  @Test
  void aFloorMovesWhatTheForwardMoves() {
    BenchCase plain = BenchCase.of(AttentionShape.of(1, 2, 100, 64), BF16);
    assertThat(plain.traffic()).isEqualTo(2 * 100 * (4 * 64 * 2 + 4));
    BenchCase decode = BenchCase.decode(AttentionShape.of(1, 2, 1, 64), BF16, 1000);
    assertThat(decode.traffic()).isEqualTo(2 * (4 * 64 * 2 + 4) + 2 * 2 * (64 * 64 + 128) * 4);
    for (BenchCase each : List.of(plain, decode)) {
      assertThat(BenchTensors.bytes(each)).isGreaterThanOrEqualTo(each.traffic());
    }
    assertThat(BenchRun.sets(plain, 0, 100_000_000_000L)).isEqualTo(64);
    BenchCase steps = BenchCase.decode(AttentionShape.of(4, 16, 1, 128), BF16, 1000);
    assertThat(BenchRun.sets(steps, 0, 100_000_000_000L)).isEqualTo(42);
    BenchCase large = BenchCase.of(AttentionShape.of(4, 16, 10_000, 128), BF16);
    assertThat(BenchRun.sets(large, 0, 100_000_000_000L)).isEqualTo(2);
    assertThat(BenchRun.sets(large, 0, 2_000_000_000L)).isEqualTo(1);
    assertThat(BenchRun.sets(large, 0, 1_500_000_000L)).isZero();
  }

  private static BenchResult onCpu(BenchCase problem) {
    try (Backend cpu = Backend.cpu(2)) {
      return new BenchRun(cpu, () -> 8L << 30).run(problem);
    }
  }

  @Test
  void aCaseForWhichTheHostHasNoMemoryHasNoRoom() {
    BenchCase large = BenchCase.of(AttentionShape.of(1, 1 << 14, 1 << 30, 512), BF16);
    try (Backend cpu = Backend.cpu(2)) {
      var bench = new BenchRun(cpu, () -> Long.MAX_VALUE);
      assertThatThrownBy(() -> bench.run(large))
          .isInstanceOf(BenchRun.NoRoomException.class)
          .hasMessageContaining("no memory for the ")
          .hasCauseInstanceOf(OutOfMemoryError.class);
    }
  }

  @Test
  void outputsOfAnyLengthAreChecked() {
    Precision exact = new Precision(DType.F32, Mode.ACCURATE);
    BenchCase whole = BenchCase.of(AttentionShape.of(2, 2, 600, 32), exact);
    var grouped = new AttentionShape(1, 4, 2, 21_000, 16, 32);
    for (BenchCase each :
        List.of(
            whole,
            whole.with(false, true),
            BenchCase.of(grouped, exact),
            BenchCase.of(grouped, exact).with(BenchData.Kind.POSITIVE),
            BenchCase.of(grouped, exact).with(false, false),
            BenchCase.of(grouped, exact).with(true, true),
            BenchCase.decode(AttentionShape.of(1, 4, 1, 32), exact, 12_345))) {
      BenchResult result = onCpu(each);
      assertThat(result.errors().largest()).as(each.name()).isBetween(1e-9, 2e-6);
      assertThat(result.right()).isTrue();
      assertThat(result.times().millis()).hasSize(11);
      assertThat(result.ratio()).isPositive();
      assertThat(result.sets()).isGreaterThan(1);
    }
  }

  @Test
  void anOutputThatIsNotWrittenIsFound() {
    BenchCase problem = BenchCase.of(AttentionShape.of(1, 1, 2000, 16), BF16);
    try (Backend cpu = Backend.cpu(1);
        Stream stream = cpu.newStream();
        var set = new BenchTensors(cpu, problem)) {
      var data = new BenchData(problem, 7);
      var check = new BenchCheck(problem, data);
      set.fill(stream, data);
      set.poison(stream);
      assertThat(check.errors(List.of(set)).largest()).isNaN();
      set.run(LinearAttention.builder().on(cpu));
      assertThat(check.errors(List.of(set)).largest()).isLessThan(1.2e-2);
      Objects.requireNonNull(set.outputs().get(Quantity.O))
          .sliced(2, 1999, 1)
          .copyFrom(new float[16]);
      assertThat(check.errors(List.of(set)).largest()).isGreaterThan(1e-3);
      Objects.requireNonNull(set.outputs().get(Quantity.G))
          .sliced(2, 1000, 1)
          .copyFrom(new float[] {Float.NaN});
      assertThat(check.errors(List.of(set)).largest()).isNaN();
    }
  }

  @Test
  void positiveDataAreNormalWithoutSigns() {
    BenchCase problem = BenchCase.of(AttentionShape.of(1, 1, 1, 16), BF16);
    float[] positive = new BenchData(problem.with(BenchData.Kind.POSITIVE), 7).v();
    float[] normal = new BenchData(problem, 7).v();
    assertThat(normal).isNotEqualTo(positive);
    for (int i = 0; i < normal.length; i++) {
      normal[i] = Math.abs(normal[i]);
    }
    assertThat(normal).isEqualTo(positive);
  }

  @Test
  void hostTimeIsMeasured() {
    try (Backend cpu = Backend.cpu(1)) {
      HostTime host = HostTime.measure(cpu, DType.F32, BenchPass.FORWARD, 1);
      assertThat(host.micros()).isPositive();
      assertThat(host.heapBytes()).isPositive();
      assertThat(BenchReport.host(host)).startsWith("host, f32, forwardInto of B=1 H=4 N=64 D=64");
    }
  }
}
