package io.github.linattn.cli;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.github.linattn.AttentionShape;
import io.github.linattn.Backend;
import io.github.linattn.DType;
import io.github.linattn.Diagnostics;
import io.github.linattn.LinearAttention;
import io.github.linattn.Mode;
import io.github.linattn.Stream;
import io.github.linattn.Tensor;
import io.github.linattn.cli.points.Point;
import io.github.linattn.cli.points.Run;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;
import picocli.CommandLine;

/** Breaks when the benchmark of the backward times another call, or lets a wrong gradient pass. */
class BenchBackwardCommandTest {
  private static final Precision BF16 = new Precision(DType.BF16, Mode.DEFAULT);
  private static final Precision EXACT = new Precision(DType.F32, Mode.ACCURATE);

  private static List<String> cases(String... args) {
    var sink = new PrintStream(new ByteArrayOutputStream(), true, UTF_8);
    var command = new BenchBackwardCommand(new Console(sink, sink));
    new CommandLine(command).parseArgs(args);
    return command.cases().stream()
        .map(
            each ->
                each.name()
                    + " "
                    + Text.id(each.precision().dtype())
                    + " "
                    + Text.id(each.precision().mode()))
        .toList();
  }

  @Test
  void theTargetsAreThoseOfTheDesign() {
    assertThat(cases("--preset=targets"))
        .containsExactly(
            "B=4 H=16 N=10000 D=128 bf16 default",
            "B=4 H=16 N=10000 D=128 from state bf16 default",
            "B=4 H=16 N=10000 D=128 f16 default",
            "B=4 H=16 N=10000 D=128 from state f16 default",
            "B=4 H=16 N=10000 D=128 f32 tf32",
            "B=4 H=16 N=10000 D=128 f32 default",
            "B=4 H=16 N=10000 D=128 f32 accurate",
            "B=4 H=16 N=10000 D=64 bf16 default",
            "B=4 H=16 N=10000 D=64 from state bf16 default",
            "B=4 H=16 N=10000 D=256 bf16 default",
            "B=1 H=8 N=131072 D=128 bf16 default",
            "B=1 H=8 N=131072 D=128 from state bf16 default",
            "B=1 H=1 N=1048576 D=128 bf16 default",
            "B=1 H=1 N=1048576 D=128 from state bf16 default");
  }

  @Test
  void presetsHaveTheirRows() {
    assertThat(cases("--preset=head-dims"))
        .hasSize(6 * 5)
        .startsWith("B=4 H=16 N=4096 D=32 bf16 default");
    assertThat(cases("--preset=tokens"))
        .hasSize(7)
        .endsWith("B=1 H=16 N=1000000 D=128 bf16 default");
    assertThat(cases("--preset=heads")).hasSize(9);
    assertThat(cases("--preset=accuracy"))
        .hasSize(2 * 2 * 4 * 5)
        .endsWith("B=1 H=2 N=1048576 D=64 positive f32 accurate");
  }

  @Test
  void aForwardMayBeTimedWithIt() {
    assertThat(cases("--with-forward", "--heads=4", "--kv-heads=2", "--tokens=9,8"))
        .containsExactly(
            "B=4 H=4 K=2 N=9 D=128 bf16 default",
            "B=4 H=4 K=2 N=9 D=128 and forward bf16 default",
            "B=4 H=4 K=2 N=8 D=128 bf16 default",
            "B=4 H=4 K=2 N=8 D=128 and forward bf16 default");
  }

  @Test
  void theStateOfTheForwardMayBeKept() {
    assertThat(cases("--keep-state", "--with-forward", "--heads=4", "--tokens=9"))
        .containsExactly(
            "B=4 H=4 N=9 D=128 from state bf16 default",
            "B=4 H=4 N=9 D=128 from state and forward bf16 default");
    assertThat(cases("--keep-state", "--preset=targets")).hasSize(9);
    assertThat(cases("--non-causal", "--preset=targets")).hasSameSizeAs(cases("--preset=targets"));
    assertThat(cases("--keep-state", "--non-causal", "--heads=4", "--tokens=9"))
        .containsExactly("B=4 H=4 N=9 D=128 full from state bf16 default");
    BenchCase backward =
        BenchCase.of(AttentionShape.of(1, 2, 100, 64), BF16).with(BenchPass.BACKWARD);
    BenchCase kept = backward.keepingState();
    long state = 2 * (64 * 64 + 64 + 64) * 4;
    assertThat(kept.traffic()).isEqualTo(backward.traffic() + state);
    assertThat(kept.memoryBytes(0)).isEqualTo(backward.memoryBytes(0) + state);
    assertThat(kept.problem("", "linattn").pass()).isEqualTo("backward from state");
    assertThat(kept.problem("tokens", "linattn").pass()).isEqualTo("backward");
  }

  @ParameterizedTest
  @CsvSource(
      delimiter = '|',
      value = {
        "--preset=targets --heads=5 | shapes of its own",
        "--family=paper --all-plans | one plan",
        "--family=paper --beside-paper | another family than paper"
      })
  void wrongOptionsAreMisuse(String options, String reason) {
    List<String> args = new ArrayList<>(List.of("bench", "backward"));
    args.addAll(List.of(options.split(" ")));
    Cli cli = Cli.run(args.toArray());
    assertThat(cli.exitCode()).as(cli.err()).isEqualTo(2);
    assertThat(cli.err()).contains(reason);
  }

  @Test
  void itNeedsAGpuAndSaysSo() {
    assumeTrue(Diagnostics.cuda().isEmpty(), "there is a GPU here");
    Cli cli = Cli.run("bench", "backward", "--beside-paper");
    assertThat(cli.exitCode()).isEqualTo(3);
    assertThat(cli.err()).startsWith("linattn: no usable GPU: ");
    assertThat(System.getProperty("linattn.family")).isNull();
    assertThat(Cli.run("bench", "backward", "--help").out())
        .contains("--with-forward")
        .contains("--beside-paper");
  }

  @Test
  void aFloorMovesWhatTheBackwardMoves() {
    BenchCase forward = BenchCase.of(AttentionShape.of(1, 2, 100, 64), BF16);
    BenchCase backward = forward.with(BenchPass.BACKWARD);
    BenchCase both = forward.with(BenchPass.BOTH);
    assertThat(backward.traffic()).isEqualTo(2 * (100 * (8 * 64 * 2 + 4) + 2 * 4));
    assertThat(both.traffic()).isEqualTo(forward.traffic() + backward.traffic());
    assertThat(both.footprint()).isEqualTo(backward.traffic());
    var grouped = new AttentionShape(1, 4, 1, 100, 64, 32);
    assertThat(BenchCase.of(grouped, BF16).with(BenchPass.BACKWARD).traffic())
        .isEqualTo(2 * 100 * (4 * (64 + 32) + 64 + 32) * 2 + 400 * 4 + 2 * 4 * 4);
    for (BenchCase each : List.of(backward, both)) {
      assertThat(BenchTensors.bytes(each)).isGreaterThanOrEqualTo(each.traffic());
    }
  }

  /** With memory for a few sets of tensors, since every sample is a call with each. */
  private static BenchResult onCpu(BenchCase problem) {
    long few = 3 * BenchTensors.bytes(problem);
    try (Backend cpu = Backend.cpu(2)) {
      return new BenchRun(cpu, () -> (1L << 30) + (8L << 20) + few).run(problem);
    }
  }

  @ParameterizedTest
  @EnumSource(
      value = BenchPass.class,
      names = {"BACKWARD", "BOTH"})
  void gradientsOfAnyLengthAreChecked(BenchPass pass) {
    BenchCase whole = BenchCase.of(AttentionShape.of(2, 2, 600, 32), EXACT).with(pass);
    var grouped = new AttentionShape(1, 6, 3, 21_000, 16, 32);
    BenchCase parts = BenchCase.of(grouped, EXACT).with(pass);
    for (BenchCase each :
        List.of(
            whole,
            whole.with(false, true),
            whole.keepingState(),
            parts,
            parts.with(BenchData.Kind.POSITIVE),
            parts.with(true, true),
            parts.with(false, false),
            parts.with(false, true))) {
      BenchResult result = onCpu(each);
      assertThat(result.right()).as("%s: %s", each.name(), result.errors()).isTrue();
      assertThat(result.errors().values().keySet())
          .containsAll(pass.quantities())
          .hasSize(pass == BenchPass.BOTH ? 7 : 5);
      assertThat(result.errors().largest()).as(each.name()).isBetween(1e-9, 1e-4);
      assertThat(result.times().millis()).hasSize(11);
      assertThat(result.ratio()).isPositive();
    }
  }

  @Test
  void wrongGradientsAreFound() {
    BenchCase problem =
        BenchCase.of(AttentionShape.of(1, 1, 21_000, 16), EXACT).with(BenchPass.BACKWARD);
    try (Backend cpu = Backend.cpu(1);
        Stream stream = cpu.newStream();
        var set = new BenchTensors(cpu, problem)) {
      var data = new BenchData(problem, 7);
      var check = new BenchCheck(problem, data);
      LinearAttention attention = LinearAttention.builder().on(cpu);
      set.fill(stream, data);
      set.prepare(attention);
      set.poison(stream);
      assertThat(check.errors(List.of(set)).largest()).isNaN();
      set.run(attention);
      assertThat(check.errors(List.of(set)).within(EXACT)).isTrue();
      for (Quantity quantity : List.of(Quantity.DQ, Quantity.DK, Quantity.DV)) {
        for (int token : new int[] {0, 1000, 20_999}) {
          set.run(attention);
          Tensor tensor = Objects.requireNonNull(set.outputs().get(quantity));
          tensor.sliced(2, token, 1).copyFrom(new float[16]);
          assertThat(check.errors(List.of(set)).of(quantity))
              .as("%s of token %d", quantity, token)
              .isGreaterThan(token == 0 && quantity == Quantity.DQ ? 0 : 1e-4);
        }
      }
      set.run(attention);
      Objects.requireNonNull(set.outputs().get(Quantity.DA)).copyFrom(new float[] {0});
      assertThat(check.errors(List.of(set)).of(Quantity.DA)).isEqualTo(1);
    }
  }

  @Test
  void whatVanishesByChanceIsMeasuredByItsTerms() {
    BenchCase problem =
        BenchCase.of(new AttentionShape(1, 2, 1, 1017, 32, 32), EXACT).with(BenchPass.BACKWARD);
    try (Backend cpu = Backend.cpu(1);
        Stream stream = cpu.newStream();
        var set = new BenchTensors(cpu, problem)) {
      var data = new BenchData(problem, 20251);
      var check = new BenchCheck(problem, data);
      LinearAttention attention = LinearAttention.builder().on(cpu);
      set.fill(stream, data);
      set.prepare(attention);
      set.run(attention);
      assertThat(check.errors(List.of(set)).within(EXACT)).isTrue();
      Tensor da = Objects.requireNonNull(set.outputs().get(Quantity.DA));
      for (float each : da.toFloats()) {
        assertThat(Math.abs(each)).as("its terms have a norm of 3.8").isLessThan(0.05f);
      }
      da.copyFrom(new float[2]);
      assertThat(check.errors(List.of(set)).of(Quantity.DA)).isBetween(0.005, 0.02);
    }
  }

  @Test
  void onlyPointsOfAFigureLeaveOutThatAllStartFromAState() {
    BenchCase kept =
        BenchCase.of(AttentionShape.of(1, 2, 200, 16), EXACT)
            .with(BenchPass.BACKWARD)
            .keepingState();
    assertThat(List.of(BenchCase.NO_SWEEP, BenchCase.sustained(2), "tokens"))
        .extracting(sweep -> kept.problem(sweep, "linattn").pass())
        .containsExactly("backward from state", "backward from state", "backward");
  }

  @Test
  void aRowAndAPointHaveEveryGradient() {
    BenchResult result =
        onCpu(BenchCase.of(AttentionShape.of(1, 2, 200, 16), EXACT).with(BenchPass.BACKWARD));
    var here = new Run("t", "GPU", "sm_90", 132, "580", "1980 MHz", "abc", Map.of());
    assertThat(BenchReport.head(here, "chunked", BenchPass.BACKWARD, 0).get(1))
        .startsWith("Device time of a backward, ")
        .contains("dq, dk, dv, da, db: relative errors");
    assertThat(BenchReport.head(here, "chunked", BenchPass.BACKWARD, 0.5).get(1))
        .startsWith("Device time of a backward that has gone on for 0.5 s, median");
    assertThat(BenchReport.head(here, "chunked", BenchPass.BACKWARD, 0).get(2))
        .endsWith("ratio       dq      dk      dv      da      db   bound  ok");
    assertThat(BenchReport.rows(result).getFirst()).startsWith("B=1 H=2 N=200 D=16 ");
    HostTime host;
    try (Backend cpu = Backend.cpu(1)) {
      host = HostTime.measure(cpu, DType.F32, BenchPass.BACKWARD, 1);
    }
    assertThat(BenchReport.host(host)).startsWith("host, f32, backwardInto of B=1 H=4 N=64 D=64");
    Point point = BenchPoints.of(result, "", Method.LINATTN).getFirst();
    assertThat(point.problem().pass()).isEqualTo("backward");
    assertThat(point.errors()).containsOnlyKeys("dq", "dk", "dv", "da", "db");
  }
}
