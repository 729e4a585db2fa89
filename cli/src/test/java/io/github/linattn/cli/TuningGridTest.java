package io.github.linattn.cli;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.assertj.core.api.Assertions.within;

import io.github.linattn.AttentionShape;
import io.github.linattn.DType;
import io.github.linattn.Mode;
import io.github.linattn.cuda.CudaOutOfMemoryException;
import io.github.linattn.io.Tuning;
import io.github.linattn.io.Tuning.Choice;
import io.github.linattn.io.Tuning.Entry;
import io.github.linattn.io.Tuning.Range;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.OptionalInt;
import java.util.OptionalLong;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** Breaks when another plan than the best of a class is kept. The clock is a function. */
class TuningGridTest {
  private static final Choice TURNS = new Choice("wgmma", 1, 2);
  private static final Choice SEGMENTS = new Choice("wgmma", 2, 1);
  private static final Tuning.Problem PROBLEM =
      new Tuning.Problem("GPU", Tuning.Pass.FORWARD, 64, DType.BF16, Mode.DEFAULT, false);
  private static final TuningGrid GRID = new TuningGrid(List.of(8, 16, 32), List.of(1024, 2048));

  private final List<String> said = new ArrayList<>();

  private static BenchCase kind(BenchPass pass) {
    return BenchCase.of(AttentionShape.of(1, 1, 1, 64), new Precision(DType.BF16, Mode.DEFAULT))
        .with(pass);
  }

  private List<Entry> tune(PlanClock clock) {
    TuningGrid.Listener listener =
        new TuningGrid.Listener() {
          @Override
          public void timed(BenchCase point) {
            said.add(point.name());
          }

          @Override
          public void leftOut(BenchCase point, RuntimeException why) {
            said.add("left out: " + point.name());
          }
        };
    return GRID.tune(PROBLEM, kind(BenchPass.FORWARD), clock, listener);
  }

  @Test
  void keepsThePlanThatGainsMost() {
    List<Entry> kept =
        tune((point, choices) -> new PlanClock.Times(2, Map.of(TURNS, 1.8, SEGMENTS, 1.0)));
    assertThat(kept).hasSize(2);
    assertThat(kept).extracting(Entry::heads).containsExactly(new Range(8, 15), new Range(16, 31));
    assertThat(kept)
        .allSatisfy(
            entry -> {
              assertThat(entry.problem()).isEqualTo(PROBLEM);
              assertThat(entry.tokens()).isEqualTo(new Range(1024, 2047));
              assertThat(entry.choice()).isEqualTo(SEGMENTS);
              assertThat(entry.ratio()).isCloseTo(0.5, within(1e-9));
            });
    assertThat(said).hasSize(GRID.points()).contains("B=1 H=32 N=2048 D=64");
  }

  @Test
  void aPlanThatLosesAtACornerIsNotKept() {
    List<Entry> kept =
        tune(
            (point, choices) ->
                new PlanClock.Times(
                    2, Map.of(TURNS, point.shape().heads() == 32 ? 2.1 : 1.0, SEGMENTS, 1.8)));
    assertThat(kept).extracting(Entry::choice).containsExactly(TURNS, SEGMENTS);
  }

  @Test
  void noiseIsNoGain() {
    assertThat(tune((point, choices) -> new PlanClock.Times(2, Map.of(TURNS, 1.97, SEGMENTS, 3.0))))
        .hasSize(2)
        .allSatisfy(
            entry -> {
              assertThat(entry.choice()).isEqualTo(Choice.PLANNERS);
              assertThat(entry.ratio()).isCloseTo(0.985, within(1e-9));
            });
  }

  @Test
  void aPlanHasToBePossibleAtEveryCorner() {
    assertThat(
            tune(
                (point, choices) ->
                    new PlanClock.Times(
                        2, point.shape().heads() == 8 ? Map.of() : Map.of(TURNS, 1.0))))
        .extracting(Entry::heads)
        .containsExactly(new Range(16, 31));
  }

  private static Stream<RuntimeException> whatADeviceMayLack() {
    return Stream.of(
        new UnsupportedOperationException("no kernel"),
        new BenchRun.NoRoomException("too large"),
        new CudaOutOfMemoryException(
            "cudaMalloc", 2, "", "", OptionalInt.of(0), null, 1, OptionalLong.empty()));
  }

  @ParameterizedTest
  @MethodSource("whatADeviceMayLack")
  void whatTheDeviceCantDoIsLeftOut(RuntimeException lack) {
    List<Entry> kept =
        tune(
            (point, choices) -> {
              if (point.shape().heads() == 32) {
                throw lack;
              }
              return new PlanClock.Times(2, Map.of(TURNS, 1.0));
            });
    assertThat(kept).extracting(Entry::heads).containsExactly(new Range(8, 15));
    assertThat(said).contains("left out: B=1 H=32 N=1024 D=64");
  }

  @Test
  void theNeighbourhoodEndsWhereNothingIsToBeGained() {
    AttentionShape shape = AttentionShape.of(1, 8, 4096, 64);
    assertThat(TuningGrid.choices(kind(BenchPass.FORWARD).with(shape)))
        .contains(
            new Choice("wgmma", 1, 8),
            new Choice("wgmma", 8, 4),
            new Choice("mma", 1, 1),
            new Choice("mma", 64, 1))
        .doesNotContain(
            new Choice("wgmma", 8, 8), new Choice("wgmma", 128, 1), new Choice("mma", 1, 2))
        .doesNotHaveDuplicates();
    assertThat(TuningGrid.choices(kind(BenchPass.BACKWARD).with(shape)))
        .hasSize(2 * 7)
        .allMatch(choice -> choice.turns() == 1);
  }

  @Test
  void segmentsAreARelayTooWhereBlocksComeInRounds() {
    for (BenchPass pass : List.of(BenchPass.FORWARD, BenchPass.BACKWARD)) {
      BenchCase kind = kind(pass);
      assertThat(TuningGrid.choices(kind.with(AttentionShape.of(1, 144, 8192, 64))))
          .filteredOn(Choice::relay)
          .containsExactly(
              new Choice("wgmma", 2, 1, true),
              new Choice("wgmma", 4, 1, true),
              new Choice("wgmma", 8, 1, true));
      assertThat(TuningGrid.choices(kind.with(AttentionShape.of(1, 64, 8192, 64))))
          .noneMatch(Choice::relay);
    }
  }

  @Test
  void bordersAscend() {
    for (List<Integer> wrong : List.of(List.of(8), List.of(8, 8), List.of(0, 8))) {
      assertThatThrownBy(() -> new TuningGrid(wrong, List.of(1, 2)))
          .isInstanceOf(CommandFailure.class)
          .hasMessageContaining("--heads has two borders");
    }
  }
}
