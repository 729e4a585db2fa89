package io.github.linattn.cli;

import static org.assertj.core.api.Assertions.assertThat;

import java.util.List;
import java.util.function.LongFunction;
import java.util.stream.LongStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Breaks when a soak fails though nothing grows, or passes though something does. */
final class SoakTest {
  private static final long MIB = 1 << 20;
  private static final int ROUNDS = 12;

  private static List<Footprint> course(LongFunction<Footprint> round) {
    return LongStream.range(0, ROUNDS).mapToObj(round).toList();
  }

  @Test
  void mixedWorkOnTheCpuDoesNotGrow() {
    Cli cli = Cli.run("selftest", "--soak", "0.05", "--backend", "cpu");
    assertThat(cli.exitCode()).as(cli.out() + cli.err()).isZero();
    assertThat(cli.out().lines()).hasSize(1 + ROUNDS + 1);
    assertThat(cli.out()).contains(" 0 refused by the backend; from the first half");
  }

  @Test
  void whatGoesUpAndDownDoesNotGrow() {
    List<Footprint> waves =
        course(i -> new Footprint(i % 3 * 100 * MIB, i % 2 * 500 * MIB, (i + 1) % 4 * 50 * MIB));
    assertThat(Footprint.Kind.values()).noneMatch(kind -> kind.hasGrown(waves));
    List<Footprint> warmed = course(i -> new Footprint(99, Math.min(i, 4) * 500 * MIB, 99));
    assertThat(Footprint.Kind.values()).noneMatch(kind -> kind.hasGrown(warmed));
  }

  @ParameterizedTest
  @CsvSource({"DEVICE, 4", "HOST, 12", "HEAP, 6"})
  void whatGrowsSteadilyGrows(Footprint.Kind kind, long mibPerRound) {
    List<Footprint> grown =
        course(
            i -> {
              long bytes = i * mibPerRound * MIB;
              return switch (kind) {
                case DEVICE -> new Footprint(bytes, 0, 0);
                case HOST -> new Footprint(0, bytes, 0);
                case HEAP -> new Footprint(0, 0, bytes);
              };
            });
    assertThat(Footprint.Kind.values())
        .allSatisfy(any -> assertThat(any.hasGrown(grown)).isEqualTo(any == kind));
  }

  @ParameterizedTest
  @CsvSource(
      delimiter = '|',
      value = {
        "--soak 0                 | --soak takes minutes above 0",
        "--soak NaN               | --soak takes minutes above 0",
        "--soak x                 | 'x' is not a double",
        "--backend cpu            | --backend is for --soak",
        "--soak 1 --backend gpu   | it is one of auto, cpu, cuda, not 'gpu'",
      })
  void wrongOptionsAreRefused(String options, String sentence) {
    Cli cli = Cli.run(("selftest " + options).split(" "));
    assertThat(cli.err()).contains(sentence);
    assertThat(cli.exitCode()).isEqualTo(2);
  }
}
