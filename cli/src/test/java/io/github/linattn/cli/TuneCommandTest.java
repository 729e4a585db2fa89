package io.github.linattn.cli;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.github.linattn.DType;
import io.github.linattn.files.LockedFile;
import io.github.linattn.io.Tuning;
import io.github.linattn.io.Tuning.Choice;
import io.github.linattn.io.Tuning.Pass;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;
import picocli.CommandLine;

/** Breaks when what was timed does not reach the file. The clock is a function. */
class TuneCommandTest {
  private static final Choice SEGMENTS = new Choice("mma", 2, 1);
  private static final PlanClock CLOCK =
      (problem, choices) -> {
        double half = problem.pass() == BenchPass.BACKWARD ? 1 : 0.5;
        return new PlanClock.Times(1, Map.of(SEGMENTS, half));
      };

  @TempDir Path folder;
  private final ByteArrayOutputStream said = new ByteArrayOutputStream();

  private void tune(String gpu, String... more) throws IOException {
    tune(CLOCK, gpu, more);
  }

  private void tune(PlanClock clock, String gpu, String... more) throws IOException {
    var print = new PrintStream(said, true, UTF_8);
    var command = new TuneCommand(new Console(print, print));
    List<String> options = new ArrayList<>();
    options.addAll(List.of("--head-dim=64", "--tokens=1024,2048,4096", "--out=" + file()));
    options.addAll(List.of(more));
    new CommandLine(command).parseArgs(options.toArray(String[]::new));
    command.tune(gpu, clock);
  }

  private void tuneToo(String... options) {
    try {
      tune(CLOCK, "A", options);
    } catch (IOException failed) {
      throw new UncheckedIOException(failed);
    }
  }

  private Path file() {
    return folder.resolve("tuning.json");
  }

  @Test
  void writesWhatIsFastest() throws IOException {
    tune("A", "--heads=8,16");
    assertThat(said.toString(UTF_8))
        .contains("forward  B x H 8 to 15, N 1024 to 2047: mma, 2 segments, 1 turns, 0.50 of")
        .contains("2 of 4 classes have a faster plan");
    assertThat(Tuning.read(file()).entries())
        .hasSize(4)
        .allSatisfy(
            entry -> {
              boolean forward = entry.problem().pass() == Pass.FORWARD;
              assertThat(entry.problem().gpu()).isEqualTo("A");
              assertThat(entry.choice()).isEqualTo(forward ? SEGMENTS : Choice.PLANNERS);
              assertThat(entry.ratio()).isEqualTo(forward ? 0.5 : 1);
            });
  }

  @Test
  void keepsWhatOthersTuned() throws IOException {
    tune("A", "--heads=8,16");
    tune("B", "--heads=1,2");
    tune("A", "--heads=4,16", "--pass=forward");
    assertThat(Tuning.read(file()).entries())
        .extracting(entry -> entry.problem().gpu() + " " + entry.heads().least())
        .containsExactly("A 8", "A 8", "B 1", "B 1", "B 1", "B 1", "A 4", "A 4");
  }

  @Test
  void whatIsWrittenMeanwhileStays() throws IOException {
    PlanClock beside =
        (problem, choices) -> {
          if (problem.precision().dtype() == DType.BF16) {
            tuneToo("--heads=8,16", "--dtype=f16", "--pass=forward");
          }
          return CLOCK.time(problem, choices);
        };
    tune(beside, "A", "--heads=8,16", "--dtype=bf16", "--pass=forward");
    assertThat(Tuning.read(file()).entries())
        .extracting(entry -> entry.problem().dtype())
        .containsOnly(DType.BF16, DType.F16);
  }

  @Test
  void runsThatEndTogetherTakeTurns() throws IOException, InterruptedException {
    tune("A", "--heads=8,16", "--dtype=bf16", "--pass=forward");
    Tuning ofAnother = Tuning.read(file());
    Files.delete(file());
    var tuning = new Thread(() -> tuneToo("--heads=8,16", "--dtype=f16", "--pass=forward"));
    LockedFile.change(
        file(),
        () -> {
          tuning.start();
          while (tuning.isAlive() && tuning.getState() != Thread.State.BLOCKED) {
            Thread.yield();
          }
          ofAnother.write(file()); // who has read before the other wrote
        });
    tuning.join();
    assertThat(Tuning.read(file()).entries())
        .extracting(entry -> entry.problem().dtype())
        .containsOnly(DType.BF16, DType.F16);
  }

  @Test
  void whereNothingCanBeTimedTheFileStays() throws IOException {
    tune("A", "--heads=8,16");
    String before = Files.readString(file());
    PlanClock never =
        (problem, choices) -> {
          throw new UnsupportedOperationException("not here");
        };
    assertThatThrownBy(() -> tune(never, "A", "--heads=8,16"))
        .isInstanceOf(CommandFailure.class)
        .hasMessageContaining("no class could be timed");
    assertThat(file()).hasContent(before);
  }

  @Test
  void noOtherPlansStandBesideThePlanners() throws IOException {
    tune("A", "--heads=8,16");
    Cli cli = Cli.run("tune", "--head-dim=64", "--out=" + file(), "--tuning=" + file());
    assertThat(cli.exitCode()).isEqualTo(ExitCode.MISUSED);
    assertThat(cli.err()).contains("--tuning: plans are tuned beside the planner's own");
  }

  @ParameterizedTest
  @ValueSource(ints = {-16, 0, 24, 63, 272, 512, 1024})
  void aHeadDimensionWithoutPlansIsRefused(int dim) {
    Cli cli = Cli.run("tune", "--head-dim=" + dim, "--out=" + file());
    assertThat(cli.exitCode()).isEqualTo(2);
    assertThat(cli.err()).contains("plans to tune is a multiple of 16 from 16 to 256, not " + dim);
  }

  @Test
  void anotherFileIsNotOverwritten() throws IOException {
    Files.writeString(file(), "[]");
    Cli cli = Cli.run("tune", "--head-dim=64", "--out=" + file());
    assertThat(cli.exitCode()).isEqualTo(2);
    assertThat(cli.err()).contains("is no tuning file");
    assertThat(file()).content().isEqualTo("[]");
  }
}
