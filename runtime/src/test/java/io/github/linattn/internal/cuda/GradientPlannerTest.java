package io.github.linattn.internal.cuda;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatIllegalArgumentException;

import io.github.linattn.AttentionShape;
import io.github.linattn.DType;
import io.github.linattn.Mode;
import io.github.linattn.Sequences;
import io.github.linattn.internal.Checkpoints;
import io.github.linattn.internal.cuda.ForwardPlan.Step;
import io.github.linattn.internal.cuda.GradientPlan.Kind;
import io.github.linattn.internal.cuda.GradientPlan.Launch;
import io.github.linattn.internal.cuda.GradientPlan.Role;
import io.github.linattn.kernelgen.ElementType;
import io.github.linattn.kernelgen.KernelEntry;
import io.github.linattn.kernelgen.Operation;
import io.github.linattn.kernelgen.Precision;
import io.github.linattn.kernelgen.Technique;
import java.util.Collections;
import java.util.List;
import java.util.Optional;
import java.util.Set;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Breaks when a backward gets launches, items or memory that do not fit one another. */
class GradientPlannerTest {
  private static final Set<Integer> HEAD_DIMS = Set.of(64, 128);

  /** The kernels of a Hopper GPU for D = 64 and 128, or those that every GPU has. */
  private static GradientPlanner planner(boolean hopper) {
    return new GradientPlanner(
        hopper ? AnyKernel.H200 : AnyKernel.AMPERE,
        (operation, technique, headDim, element, precision) ->
            built(hopper, operation, technique, headDim, element, precision));
  }

  private static Optional<KernelEntry> built(
      boolean hopper,
      Operation operation,
      Technique technique,
      int headDim,
      ElementType element,
      Precision precision) {
    if (headDim != 0 && !HEAD_DIMS.contains(headDim) || technique == Technique.WGMMA && !hopper) {
      return Optional.empty();
    }
    return AnyKernel.find(operation, technique, headDim, element, precision);
  }

  private static Question causal(AttentionShape shape, boolean normalize) {
    return Question.of(shape, DType.BF16, Mode.DEFAULT, true, normalize);
  }

  private static Question packed(AttentionShape shape, int... lengths) {
    return new Question(
        shape,
        DType.BF16,
        Mode.DEFAULT,
        true,
        false,
        Sequences.ofLengths(lengths),
        true,
        true,
        false,
        true);
  }

  private static List<Role> roles(GradientPlan plan) {
    return plan.launches().stream().map(Launch::role).toList();
  }

  private static List<Role> early(GradientPlan plan) {
    return plan.launches().stream()
        .filter(launch -> launch.step().startsEarly())
        .map(Launch::role)
        .toList();
  }

  private static long aligned(long bytes) {
    return Math.ceilDiv(bytes, 256L) * 256;
  }

  private static long stateBytes(int keyDim, int valueDim) {
    return 4L * (keyDim * valueDim + keyDim + valueDim);
  }

  @Test
  void manyHeadsTakeTwoSweeps() {
    GradientPlan plan =
        planner(true).plan(causal(AttentionShape.of(4, 16, 10_000, 128), false)).orElseThrow();
    assertThat(plan.kind()).isEqualTo(Kind.SWEEPS);
    assertThat(roles(plan))
        .as("dq forms d itself")
        .containsExactly(Role.QUERY, Role.KEY_AND_VALUE, Role.COEFFICIENTS);
    assertThat(plan.step(Role.QUERY).blocks()).isEqualTo(64 * 2);
    assertThat(plan.step(Role.QUERY).cluster()).isEqualTo(2);
    assertThat(plan.step(Role.KEY_AND_VALUE).blocks()).as("both tasks").isEqualTo(2 * 64);
    assertThat(plan.step(Role.KEY_AND_VALUE).cluster()).isEqualTo(2);
    assertThat(early(plan)).as("sweeps are long").containsExactly(Role.COEFFICIENTS);
    assertThat(plan.tiles()).isEqualTo(2);
    assertThat(plan.workspaceBytes())
        .as("d, partial sums, those of two parts of a head, marks of each gradient")
        .isEqualTo(
            aligned(64L * 10_000 * 4)
                + aligned(64L * 2 * 2 * 8)
                + aligned(64L * 2 * 8)
                + 3 * aligned(64L * 2 * 4));
    assertThat(plan.coefficientParts()).isEqualTo(2);
    assertThat(plan.reason()).contains("two sweeps", "dq by wgmma", "132 multiprocessors");
    assertThat(plan.summary()).isEqualTo("two sweeps, wgmma");
  }

  @Test
  void oneSweepOf64ColumnsHasClustersOfBothGradients() {
    Question question = causal(AttentionShape.of(4, 16, 10_000, 64), false);
    GradientPlan plan = planner(true).plan(question.ofBackward(true, null)).orElseThrow();
    assertThat(plan.kind()).isEqualTo(Kind.ONE_SWEEP);
    assertThat(plan.step(Role.ONE_SWEEP).blocks()).isEqualTo(64 * 2);
    assertThat(plan.step(Role.ONE_SWEEP).cluster()).isEqualTo(2);
    assertThat(plan.tiles()).isEqualTo(1);
  }

  @Test
  void shortSweepsStartEarly() {
    GradientPlan plan =
        planner(true).plan(causal(AttentionShape.of(4, 16, 256, 128), false)).orElseThrow();
    assertThat(early(plan)).isEqualTo(roles(plan));
  }

  @Test
  void fromTheLastStateOneSweepFormsAllGradients() {
    Question without = causal(AttentionShape.of(4, 16, 10_000, 128), false);
    GradientPlan plan = planner(true).plan(without.ofBackward(true, null)).orElseThrow();
    assertThat(plan.kind()).isEqualTo(Kind.ONE_SWEEP);
    assertThat(roles(plan)).containsExactly(Role.ONE_SWEEP, Role.COEFFICIENTS);
    assertThat(plan.step(Role.ONE_SWEEP).kernel().symbol())
        .isEqualTo("la_chunked_one_sweep_gradient_wgmma_d128_bf16");
    assertThat(plan.step(Role.ONE_SWEEP).blocks()).as("one for dk, one for dv").isEqualTo(64 * 2);
    assertThat(plan.step(Role.ONE_SWEEP).cluster()).isEqualTo(2);
    assertThat(early(plan)).containsExactly(Role.COEFFICIENTS);
    GradientPlan sweeps = planner(true).plan(without).orElseThrow();
    assertThat(sweeps.kind()).isEqualTo(Kind.SWEEPS);
    assertThat(plan.memory()).as("what two sweeps take").isEqualTo(sweeps.memory());
    assertThat(plan.turns()).isEqualTo(1);
    assertThat(plan.micros()).isBetween(420.0, 460.0).isLessThan(sweeps.micros());
    assertThat(plan.summary()).isEqualTo("one sweep, wgmma");
    assertThat(plan.reason())
        .startsWith("one sweep: ")
        .contains("dq, dk and dv by wgmma", "next best two sweeps");
    assertThat(sweeps.reason()).contains("from the state that a forward keeps one sweep, 4");
  }

  /** 144 blocks are two rounds for 132 multiprocessors, or ten eighths. */
  @Test
  void oneSweepHandsStatesOnWhereBlocksComeInRounds() {
    AttentionShape shape = AttentionShape.of(4, 18, 10_000, 128);
    GradientPlan plan = planner(true).plan(of(shape, DType.BF16)).orElseThrow();
    assertThat(plan.kind()).isEqualTo(Kind.ONE_SWEEP);
    assertThat(plan.handsOn()).isTrue();
    assertThat(plan.cut().items()).isEqualTo(1);
    int items = plan.outputs().items();
    assertThat(items).isGreaterThan(3).isEqualTo(plan.keyOutputs().items());
    assertThat(plan.step(Role.ONE_SWEEP).blocks()).isEqualTo(72 * items * 2);
    assertThat(plan.memory().states()).isEqualTo(3 * Relay.bytes(shape, plan.outputs()));
    assertThat(plan.memory().marks().value()).isEqualTo(aligned(72L * items * 2 * 4));
    assertThat(plan.partials()).isEqualTo(items * 2);
    assertThat(plan.reason())
        .startsWith("one sweep: 1 items of up to 10000 tokens by blocks of " + plan.outputs())
        .contains(" that hand states on, dq, dk and dv by wgmma");
    for (int heads : new int[] {15, 16}) {
      Question one = of(AttentionShape.of(4, heads, 10_000, 128), DType.BF16);
      assertThat(planner(true).plan(one).orElseThrow().handsOn()).as("one round").isFalse();
    }
  }

  @Test
  void aRelayOfOneSweepCanBeAskedFor() {
    GradientChoice choice = GradientChoice.parse("one_sweep:128+");
    assertThat(choice)
        .isEqualTo(new GradientChoice(Kind.ONE_SWEEP, Technique.WGMMA, 128))
        .hasToString("linattn.gradient.plan=one_sweep:128+");
    Question question = of(AttentionShape.of(1, 2, 300, 128), DType.F16);
    GradientPlan plan = planner(true).plan(question, choice).orElseThrow();
    assertThat(plan.handsOn()).isTrue();
    assertThat(plan.outputs().items()).isEqualTo(3);
    assertThat(planner(true).plan(question, GradientChoice.parse("one_sweep:64+")))
        .as("the first chunk of a sequence tells how good its state is")
        .isEmpty();
    assertThat(planner(true).plan(question.ofBackward(false, null), choice))
        .as("without the state")
        .isEmpty();
  }

  /** With the memory of an H100 few heads are bound by bytes, of which one sweep moves fewer. */
  @Test
  void oneSweepTakesSegmentsOfFewHeadsAtOnce() {
    AttentionShape shape = AttentionShape.of(1, 8, 131_072, 128);
    var onH100 = new GradientPlanner(AnyKernel.H100, AnyKernel::find);
    Question kept = of(shape, DType.BF16).keeping(Checkpoints.Form.ofSegments(16_384));
    GradientPlan plan = onH100.plan(kept).orElseThrow();
    assertThat(plan.kind()).isEqualTo(Kind.SWEPT_SEGMENTS);
    assertThat(plan.summary()).isEqualTo("swept segments 16384, wgmma");
    assertThat(roles(plan))
        .containsExactly(
            Role.ROWS, Role.GRADIENT_SUMS, Role.GRADIENT_SCAN, Role.ONE_SWEEP, Role.COEFFICIENTS);
    assertThat(plan.cut().items()).isEqualTo(8);
    assertThat(plan.gradientSummed()).as("behind the first").isEqualTo(7);
    assertThat(plan.step(Role.GRADIENT_SUMS).blocks()).isEqualTo(8 * 7 * 2);
    assertThat(plan.step(Role.ONE_SWEEP).blocks()).isEqualTo(8 * 8 * 2);
    assertThat(plan.keptStep()).isEqualTo(1);
    assertThat(plan.startsFromKept()).isTrue();
    assertThat(plan.memory().states()).isEqualTo(StateArrays.bytes(shape, 8));
    assertThat(plan.reason())
        .startsWith(
            "swept segments: 8 items of up to 16384 tokens from the states that the forward")
        .contains("kept, with a scan before one sweep of all at once, dq, dk and dv by wgmma");
    assertThat(planner(true).plan(kept).orElseThrow().kind())
        .as("on an H200")
        .isEqualTo(Kind.SEGMENTED);
    assertThat(
            onH100.plan(of(AttentionShape.of(1, 4, 10_000, 128), DType.BF16)).orElseThrow().kind())
        .as("launches")
        .isEqualTo(Kind.SEGMENTED);
  }

  @Test
  void oneSweepOfSegmentsCanBeAskedFor() {
    GradientChoice choice = GradientChoice.parse("one_sweep:128*");
    assertThat(choice)
        .isEqualTo(new GradientChoice(Kind.SWEPT_SEGMENTS, Technique.WGMMA, 128))
        .hasToString("linattn.gradient.plan=one_sweep:128*");
    AttentionShape shape = AttentionShape.of(1, 2, 300, 128);
    Question question = of(shape, DType.F16);
    GradientPlan plan = planner(true).plan(question, choice).orElseThrow();
    assertThat(plan.summed()).as("nobody kept states").isEqualTo(2);
    assertThat(plan.memory().states()).isEqualTo(aligned(2 * StateArrays.bytes(shape, 3)));
    assertThat(plan.reason()).contains(" with two scans before one sweep of all at once");
    Question through = causal(shape, false).keeping(true).ofBackward(true, null);
    assertThat(planner(true).plan(through, choice).orElseThrow().gradientSummed())
        .as("for the gradient of the initial state")
        .isEqualTo(3);
    GradientChoice longest = GradientChoice.parse("one_sweep:8192*");
    assertThat(planner(true).plan(of(AttentionShape.of(1, 1, 1 << 20, 128), DType.BF16), longest))
        .as("each segment starts from sums of its own")
        .isPresent();
    assertThat(planner(true).plan(of(AttentionShape.of(1, 1, 65_537, 128), DType.F16), longest))
        .as("S is an operand as it is")
        .isEmpty();
    assertThat(planner(true).plan(question, GradientChoice.parse("one_sweep:320*")))
        .as("one segment")
        .isEmpty();
    assertThat(planner(true).plan(question.ofBackward(false, null), choice))
        .as("without the state")
        .isEmpty();
    Question tooLong = of(AttentionShape.of(1, 2, 65_537, 128), DType.F16);
    assertThat(planner(true).plan(tooLong, GradientChoice.parse("one_sweep:8192*")))
        .as("than a chain may be")
        .isEmpty();
    AttentionShape shared = new AttentionShape(1, 4, 2, 300, 128, 128);
    assertThat(planner(true).plan(of(shared, DType.BF16), choice)).isEmpty();
  }

  @Test
  void oneSweepIsForSomeBackwardsAlone() {
    AttentionShape shape = AttentionShape.of(4, 16, 10_000, 128);
    Question suits = causal(shape, false).ofBackward(true, null);
    GradientChoice choice = GradientChoice.parse("one_sweep");
    assertThat(planner(true).plan(suits, choice)).isPresent();
    assertThat(planner(false).plan(suits, choice)).as("without its kernel").isEmpty();
    List<Question> others =
        List.of(
            causal(shape, false),
            suits.summingSlope(true).ofBackward(true, null),
            causal(shape, true).ofBackward(true, null),
            of(new AttentionShape(4, 16, 8, 10_000, 128, 128), DType.BF16),
            of(new AttentionShape(4, 16, 16, 10_000, 128, 64), DType.BF16),
            of(AttentionShape.of(4, 16, 10_000, 64), DType.F16),
            of(AttentionShape.of(4, 16, 16_385, 128), DType.BF16),
            of(shape, DType.F32));
    for (Question other : others) {
      assertThat(planner(true).plan(other, choice)).as("%s", other).isEmpty();
      assertThat(planner(true).plan(other).orElseThrow().kind()).isNotEqualTo(Kind.ONE_SWEEP);
    }
    assertThat(planner(true).plan(of(AttentionShape.of(4, 16, 16_384, 128), DType.BF16), choice))
        .isPresent();
  }

  @Test
  void fp16TakesOneSweepToo() {
    for (int tokens : new int[] {64, 1000, 10_000}) {
      Question question = of(AttentionShape.of(4, 16, tokens, 128), DType.F16);
      GradientPlan plan = planner(true).plan(question).orElseThrow();
      assertThat(plan.kind()).isEqualTo(Kind.ONE_SWEEP);
      assertThat(plan.step(Role.ONE_SWEEP).kernel().symbol())
          .isEqualTo("la_chunked_one_sweep_gradient_wgmma_d128_f16");
    }
  }

  @Test
  void longerSequencesAreAChainOfSegments() {
    AttentionShape shape = AttentionShape.of(4, 16, 40_000, 128);
    for (DType dtype : new DType[] {DType.BF16, DType.F16}) {
      Question question = of(shape, dtype);
      Checkpoints.Form form = planner(true).chain(question).orElseThrow();
      int parts = dtype == DType.BF16 ? 3 : 4; // of about the same length
      int segment = dtype == DType.BF16 ? 13_376 : 10_048;
      assertThat(form).isEqualTo(chained(segment));
      GradientPlan plan = planner(true).plan(question.keeping(form)).orElseThrow();
      assertThat(plan.kind()).isEqualTo(Kind.CHAIN);
      assertThat(roles(plan))
          .isEqualTo(
              Collections.nCopies(parts, List.of(Role.ONE_SWEEP, Role.COEFFICIENTS)).stream()
                  .flatMap(List::stream)
                  .toList());
      assertThat(plan.cut().itemTokens()).isEqualTo(segment);
      GradientPlan part = plan.parts().getFirst();
      assertThat(part.kind()).isEqualTo(Kind.ONE_SWEEP);
      assertThat(plan.workspaceBytes())
          .as("gradients of two states, and what a part takes")
          .isEqualTo(2 * StateArrays.bytes(shape, 1) + part.workspaceBytes());
      assertThat(plan.reason())
          .startsWith(
              "chain: %d items of up to %d tokens one after the other".formatted(parts, segment))
          .contains("from the states that the forward kept", "next best two sweeps");
      assertThat(plan.micros()).isLessThan(planner(true).plan(question).orElseThrow().micros());
    }
  }

  @Test
  void segmentsOfAChainHandStatesOnLikewise() {
    Question question =
        of(AttentionShape.of(4, 18, 40_000, 128), DType.BF16).keeping(chained(13_376));
    GradientChoice choice = GradientChoice.parse("one_sweep:13376");
    GradientPlan plan = planner(true).plan(question, choice).orElseThrow();
    assertThat(plan.kind()).isEqualTo(Kind.CHAIN);
    assertThat(plan.handsOn()).isTrue();
    assertThat(plan.parts()).allMatch(GradientPlan::handsOn);
    assertThat(plan.reason()).contains("the forward kept, by blocks that hand states on, dq");
    assertThat(plan.workspaceBytes())
        .isEqualTo(
            2 * StateArrays.bytes(question.shape(), 1)
                + plan.parts().stream().mapToLong(GradientPlan::workspaceBytes).max().orElse(0));
  }

  @Test
  void aChainIsForSomeBackwardsAlone() {
    AttentionShape shape = AttentionShape.of(4, 16, 40_000, 128);
    Question suits = of(shape, DType.BF16);
    assertThat(planner(false).chain(suits)).as("without its kernel").isEmpty();
    List<Question> others =
        List.of(
            of(AttentionShape.of(4, 16, 16_384, 128), DType.BF16), // one sweep of all
            of(AttentionShape.of(4, 16, 327_681, 128), DType.BF16), // errors would add up
            of(AttentionShape.of(4, 16, 65_537, 128), DType.F16),
            of(AttentionShape.of(1, 2, 40_000, 128), DType.BF16), // segments at once are faster
            of(shape, DType.F32),
            of(AttentionShape.of(4, 16, 40_000, 64), DType.F16),
            of(new AttentionShape(4, 16, 8, 40_000, 128, 128), DType.BF16),
            causal(shape, true).ofBackward(true, null),
            suits.summingSlope(true).ofBackward(true, null));
    for (Question other : others) {
      assertThat(planner(true).chain(other)).as("%s", other).isEmpty();
    }
    Question withoutState = suits.ofBackward(false, chained(13_376));
    assertThat(planner(true).plan(withoutState).orElseThrow().kind()).isEqualTo(Kind.SWEEPS);
  }

  @Test
  void aChainThatIsAskedForNeedsWhatTheForwardKept() {
    Question question = of(AttentionShape.of(1, 2, 1000, 128), DType.BF16);
    GradientChoice choice = GradientChoice.parse("one_sweep:128");
    assertThat(planner(true).plan(question, choice)).isEmpty();
    assertThat(planner(true).plan(question.keeping(chained(192)), choice)).isEmpty();
    GradientPlan plan = planner(true).plan(question.keeping(chained(128)), choice).orElseThrow();
    assertThat(plan.parts()).hasSize(8);
  }

  private static Checkpoints.Form chained(int segment) {
    return Checkpoints.Form.ofChain(segment);
  }

  private static Question of(AttentionShape shape, DType dtype) {
    return Question.of(shape, dtype, Mode.DEFAULT, true, false).ofBackward(true, null);
  }

  @Test
  void aChunkOrLessNeedsNoLastState() {
    for (int tokens : new int[] {64, 65}) {
      Question question = causal(AttentionShape.of(4, 16, tokens, 128), false);
      assertThat(planner(true).plan(question).orElseThrow().kind())
          .isEqualTo(tokens == 64 ? Kind.ONE_SWEEP : Kind.SWEEPS);
    }
  }

  @Test
  void packedSequencesTakeNoSingleSweep() {
    Question question = packed(AttentionShape.of(1, 64, 300, 128), 0, 64, 236);
    GradientChoice choice = GradientChoice.parse("one_sweep");
    assertThat(planner(true).plan(question.ofBackward(true, null), choice)).isEmpty();
    assertThat(planner(true).plan(question.ofBackward(true, null)).map(GradientPlan::kind))
        .contains(Kind.SWEEPS);
  }

  @Test
  void fewHeadsStaySegmentedWhateverIsAtHand() {
    Question question = causal(AttentionShape.of(1, 4, 10_000, 128), false);
    GradientPlan plan = planner(true).plan(question.ofBackward(true, null)).orElseThrow();
    assertThat(plan.kind()).isEqualTo(Kind.SEGMENTED);
    assertThat(planner(true).plan(question).orElseThrow().reason()).doesNotContain("one sweep");
    assertThat(plan.summary()).isEqualTo("segments %d, wgmma".formatted(plan.cut().longest()));
  }

  @ParameterizedTest
  @EnumSource(Mode.class)
  void rowsOfFp32NeedNoPassOfTheirOwn(Mode mode) {
    AttentionShape shape = AttentionShape.of(4, 16, 10_000, 128);
    GradientPlan plan =
        planner(true).plan(Question.of(shape, DType.F32, mode, true, false)).orElseThrow();
    assertThat(roles(plan)).containsExactly(Role.QUERY, Role.KEY_AND_VALUE, Role.COEFFICIENTS);
    assertThat(plan.step(Role.KEY_AND_VALUE).blocks())
        .as("both tasks, both tiles in a block")
        .isEqualTo(2 * 64);
    assertThat(plan.step(Role.KEY_AND_VALUE).cluster()).isEqualTo(2);
  }

  @Test
  void fewHeadsHaveSegmentsDownToAChunk() {
    Question question =
        Question.of(AttentionShape.of(1, 2, 950, 128), DType.F32, Mode.DEFAULT, true, false);
    GradientPlan plan = planner(true).plan(question).orElseThrow();
    assertThat(plan.kind()).isEqualTo(Kind.SEGMENTED);
    assertThat(plan.cut().itemTokens()).isEqualTo(Planner.CHUNK);
    GradientPlan packed =
        planner(true).plan(question.packed(Sequences.ofLengths(0, 20, 930))).orElseThrow();
    assertThat(packed.kind()).isEqualTo(Kind.SEGMENTED);
    assertThat(packed.cut().itemTokens()).isEqualTo(Planner.CHUNK);
  }

  @Test
  void rowsAreDividedInsideTheSweeps() {
    AttentionShape shape = AttentionShape.of(1, 4, 128, 128);
    GradientPlan plan = planner(true).plan(causal(shape, true)).orElseThrow();
    assertThat(roles(plan))
        .as("the first finds the lengths")
        .containsExactly(
            Role.ROWS,
            Role.QUERY,
            Role.KEY_AND_VALUE,
            Role.COEFFICIENTS,
            Role.NORMALIZED_QUERY,
            Role.NORMALIZED_KEY);
    assertThat(plan.step(Role.QUERY).kernel().symbol())
        .isEqualTo("la_chunked_normalized_query_gradient_wgmma_d128_bf16");
    assertThat(plan.step(Role.KEY_AND_VALUE).kernel().symbol())
        .isEqualTo("la_chunked_normalized_key_value_gradient_wgmma_d128_bf16");
    assertThat(plan.turns()).as("blocks of dq take turns, divided or not").isEqualTo(2);
  }

  @Test
  void withoutHopperEachGradientHasALaunch() {
    AttentionShape shape = new AttentionShape(4, 16, 16, 1000, 128, 64);
    GradientPlan plan = planner(false).plan(causal(shape, true)).orElseThrow();
    assertThat(plan.kind()).isEqualTo(Kind.SWEEPS);
    assertThat(roles(plan))
        .containsExactly(
            Role.ROWS,
            Role.QUERY,
            Role.KEY,
            Role.VALUE,
            Role.COEFFICIENTS,
            Role.NORMALIZED_QUERY,
            Role.NORMALIZED_KEY);
    assertThat(plan.step(Role.QUERY).blocks()).as("tiles of dq").isEqualTo(64 * 2);
    assertThat(plan.step(Role.KEY).blocks()).as("tiles of dk").isEqualTo(64 * 2);
    assertThat(plan.step(Role.VALUE).blocks()).as("tiles of dv").isEqualTo(64);
    assertThat(plan.launches()).noneMatch(launch -> launch.step().startsEarly());
    GradientPlan.Memory memory = plan.memory();
    assertThat(memory.states()).isZero();
    assertThat(memory.delta()).isEqualTo(aligned(64_000 * 4));
    assertThat(memory.queryScale()).isEqualTo(memory.delta());
    assertThat(memory.keyScale()).isEqualTo(memory.delta());
    assertThat(memory.partials()).isEqualTo(aligned(64 * 2 * 16));
    assertThat(plan.workspaceBytes())
        .isEqualTo(
            2 * memory.delta()
                + memory.keyScale()
                + memory.partials()
                + memory.products()
                + 2 * aligned(64L * 2 * 4)
                + aligned(64L * 4));
  }

  @Test
  void lengthsThatAForwardKeptTakeNoWorkspace() {
    Question question = causal(AttentionShape.of(4, 16, 1000, 128), true);
    GradientPlan measuring = planner(true).plan(question).orElseThrow();
    Checkpoints.Form lengths = Checkpoints.Form.ofSegments(0).withLengths();
    GradientPlan kept = planner(true).plan(question.ofBackward(true, lengths)).orElseThrow();
    assertThat(roles(kept)).as("rows are looked at").isEqualTo(roles(measuring));
    assertThat(kept.memory().queryScale()).isZero();
    assertThat(kept.workspaceBytes())
        .isEqualTo(measuring.workspaceBytes() - 2 * aligned(64_000 * 4));
    assertThat(kept.micros()).isLessThan(measuring.micros());
  }

  @Test
  void theWidthOfWhatIsMultipliedChoosesTheKernel() {
    AttentionShape shape = new AttentionShape(4, 16, 16, 1000, 128, 64);
    GradientPlan plan = planner(true).plan(causal(shape, false)).orElseThrow();
    assertThat(roles(plan)).containsExactly(Role.QUERY, Role.KEY, Role.VALUE, Role.COEFFICIENTS);
    assertThat(plan.step(Role.QUERY).kernel().headDim()).isEqualTo(64);
    assertThat(plan.step(Role.KEY).kernel().headDim()).isEqualTo(64);
    assertThat(plan.step(Role.VALUE).kernel().headDim()).isEqualTo(128);
    assertThat(plan.step(Role.VALUE).blocks()).isEqualTo(64);
    assertThat(plan.step(Role.KEY).cluster()).isEqualTo(2);
  }

  @Test
  void fewHeadsAreCutIntoSegmentsWithAScanBeforeEachSweep() {
    AttentionShape shape = new AttentionShape(1, 4, 2, 65_536, 128, 64);
    GradientPlan plan = planner(false).plan(causal(shape, false)).orElseThrow();
    assertThat(plan.kind()).isEqualTo(Kind.SEGMENTED);
    assertThat(roles(plan))
        .containsExactly(
            Role.ROWS,
            Role.STATE_SUMS,
            Role.STATE_SCAN,
            Role.QUERY,
            Role.QUERY_REPAIR,
            Role.GRADIENT_SUMS,
            Role.GRADIENT_SCAN,
            Role.KEY,
            Role.VALUE,
            Role.COEFFICIENTS);
    int items = plan.cut().items();
    int queryItems = plan.outputs().items();
    assertThat(items).isBetween(8, 128);
    assertThat(plan.cut().itemTokens() % 64).isZero();
    assertThat(queryItems).isBetween(8, items);
    assertThat(plan.outputs().itemTokens() % 64).isZero();
    assertThat(plan.summed()).isEqualTo(queryItems - 1);
    assertThat(plan.step(Role.STATE_SUMS).blocks()).isEqualTo(2 * (queryItems - 1) * 2);
    assertThat(plan.gradientSummed()).as("behind the first").isEqualTo(items - 1);
    assertThat(plan.step(Role.GRADIENT_SUMS).blocks()).isEqualTo(2 * (items - 1) * 2);
    assertThat(plan.step(Role.QUERY).blocks()).isEqualTo(4 * queryItems * 2);
    assertThat(plan.step(Role.KEY).blocks()).isEqualTo(2 * items * 2);
    assertThat(plan.memory().states())
        .as("of both scans in turn")
        .isEqualTo(aligned(2 * items * stateBytes(128, 64)));
    assertThat(plan.memory().totals()).isZero();
    assertThat(plan.memory().partials()).isEqualTo(aligned(4L * queryItems * 2 * 16));
    assertThat(plan.reason()).contains("segments", "next best two sweeps");
    GradientPlan ofInitial = planner(false).plan(causal(shape, false).keeping(true)).orElseThrow();
    assertThat(ofInitial.gradientSummed()).as("for dS0").isEqualTo(ofInitial.cut().items());
  }

  /** A key/value head has as many rows of q and dO for each token as it has query heads. */
  @Test
  void theHeadsOfAGroupAreCutForDkAndDvAlone() {
    AttentionShape shape = new AttentionShape(1, 64, 4, 2048, 128, 128);
    GradientPlan plan = planner(true).plan(causal(shape, false)).orElseThrow();
    assertThat(plan.kind()).isEqualTo(Kind.SEGMENTED);
    assertThat(roles(plan))
        .containsExactly(
            Role.QUERY,
            Role.QUERY_REPAIR,
            Role.GRADIENT_SUMS,
            Role.GRADIENT_SCAN,
            Role.KEY_AND_VALUE,
            Role.COEFFICIENTS);
    assertThat(plan.outputs().items()).isEqualTo(1);
    assertThat(plan.summed()).isZero();
    assertThat(plan.cut().itemTokens()).as("measured to be best").isEqualTo(128);
    assertThat(plan.memory().states()).isEqualTo(aligned(4L * 16 * stateBytes(128, 128)));
    assertThat(plan.memory().partials()).isEqualTo(aligned(64L * 2 * 16));
    assertThat(plan.reason()).contains("16 items of up to 128 tokens of dk and dv", "dq of whole");
    GradientPlan fewer =
        planner(true)
            .plan(causal(new AttentionShape(1, 32, 8, 10_000, 128, 128), false))
            .orElseThrow();
    assertThat(fewer.outputs().items()).isBetween(2, fewer.cut().items() - 1);
    assertThat(fewer.summed()).isEqualTo(fewer.outputs().items() - 1);
    assertThat(fewer.reason())
        .contains("of dk and dv, %d of dq, with a scan".formatted(fewer.outputs().items()));
  }

  /** Sums for a key take in all query heads of its group, S those of one. */
  @Test
  void accumulatorsBearMoreTokensOfDqThanOfAGroup() {
    AttentionShape shape = new AttentionShape(4, 32, 8, 20_000, 128, 128);
    Question question = Question.of(shape, DType.F32, Mode.TF32, true, false);
    GradientPlan plan = planner(true).plan(question).orElseThrow();
    assertThat(plan.outputs().items()).isEqualTo(1);
    assertThat(4 * plan.cut().longest()).isLessThanOrEqualTo(32_768);
    assertThat(plan.has(Role.STATE_SUMS)).isFalse();
  }

  /** Of ACCURATE the sums for dk and dv end at 65,536 tokens; S bears more of plain rows. */
  @Test
  void accumulatorsBearMoreTokensOfDqThanOfDkAndDv() {
    AttentionShape shape = AttentionShape.of(4, 16, 100_000, 128);
    GradientPlan plan = accurate(shape, false);
    assertThat(plan.kind()).isEqualTo(Kind.SEGMENTED);
    assertThat(plan.outputs().items()).isEqualTo(1);
    assertThat(plan.cut().items()).isEqualTo(2);
    assertThat(plan.has(Role.STATE_SUMS)).isFalse();
    assertThat(accurate(AttentionShape.of(4, 16, 102_465, 128), false).outputs().items())
        .isEqualTo(2);
    assertThat(accurate(shape, true).outputs().longest())
        .as("of rows that are normalised")
        .isLessThanOrEqualTo(65_536);
    assertThat(accurate(AttentionShape.of(4, 16, 65_536, 128), false).kind())
        .as("whole sequences suit all three")
        .isNotEqualTo(Kind.SEGMENTED);
  }

  private static GradientPlan accurate(AttentionShape shape, boolean normalize) {
    Question question = Question.of(shape, DType.F32, Mode.ACCURATE, true, normalize);
    return planner(true).plan(question).orElseThrow();
  }

  @Test
  void segmentsStartFromTheStatesThatAForwardKept() {
    Question summed = causal(AttentionShape.of(1, 8, 131_072, 128), false);
    Question kept = summed.ofBackward(true, Checkpoints.Form.ofSegments(2048));
    GradientPlan plan = planner(true).plan(kept).orElseThrow();
    assertThat(roles(plan))
        .containsExactly(
            Role.QUERY,
            Role.QUERY_REPAIR,
            Role.GRADIENT_SUMS,
            Role.GRADIENT_SCAN,
            Role.KEY_AND_VALUE,
            Role.COEFFICIENTS);
    assertThat(plan.keptStep()).isPositive();
    assertThat(plan.outputs().itemTokens()).isEqualTo(2048 * plan.keptStep());
    assertThat(plan.summed()).isZero();
    assertThat(plan.startsFromKept()).isTrue();
    assertThat(plan.reason()).contains("from the states that the forward kept");
    GradientPlan without = planner(true).plan(summed).orElseThrow();
    assertThat(without.startsFromKept()).isFalse();
    assertThat(without.micros()).isGreaterThan(plan.micros());
    assertThat(plan.memory().states())
        .as("of the gradients after segments")
        .isEqualTo(aligned(8L * plan.cut().items() * stateBytes(128, 128)));
    GradientPlan asked = planner(true).plan(kept, GradientChoice.parse("wgmma:4096")).orElseThrow();
    assertThat(asked.keptStep()).as("as asked").isZero();
    Question grouped =
        Question.of(
                new AttentionShape(8, 64, 4, 32_768, 128, 128),
                DType.BF16,
                Mode.DEFAULT,
                true,
                false)
            .ofBackward(true, Checkpoints.Form.ofSegments(16_384));
    assertThat(16 * planner(true).plan(grouped).orElseThrow().cut().longest())
        .as("no longer than accumulators bear")
        .isLessThanOrEqualTo(327_680);
  }

  @Test
  void packedSequencesWithoutTokensHaveAnItemInSweepsAlone() {
    AttentionShape shape = AttentionShape.of(1, 64, 300, 128);
    GradientPlan plan = planner(true).plan(packed(shape, 0, 1, 0, 299)).orElseThrow();
    assertThat(plan.kind()).isEqualTo(Kind.SWEEPS);
    assertThat(plan.cut().items()).isEqualTo(4);
    GradientPlan segmented =
        planner(true)
            .plan(packed(shape, 0, 1, 0, 299), GradientChoice.parse("wgmma:128"))
            .orElseThrow();
    assertThat(segmented.cut().items()).isEqualTo(1 + 3);
    assertThat(segmented.summed()).as("sequences end where they do").isEqualTo(4);
  }

  @Test
  void theHeadsOfAGroupShareWhatAccumulatorsBear() {
    AttentionShape shape = new AttentionShape(8, 64, 4, 32_768, 128, 128);
    GradientPlan plan = planner(true).plan(causal(shape, false)).orElseThrow();
    assertThat(plan.kind()).isEqualTo(Kind.SEGMENTED);
    assertThat(16 * plan.cut().longest()).isLessThanOrEqualTo(327_680);
    AttentionShape wide = new AttentionShape(1, 4096, 1, 1000, 128, 128);
    assertThat(planner(true).plan(causal(wide, false)).orElseThrow().cut().longest())
        .as("at least a chunk")
        .isEqualTo(64);
  }

  @Test
  void nonCausalIsSumsThenOutputsForAnyHeadDimension() {
    AttentionShape shape = new AttentionShape(1, 8, 4, 50_000, 48, 80);
    GradientPlan plan =
        planner(true).plan(Question.of(shape, DType.F32, Mode.DEFAULT, false, true)).orElseThrow();
    assertThat(plan.kind()).isEqualTo(Kind.NON_CAUSAL);
    assertThat(plan.summary()).isEqualTo("not causal %d, wgmma".formatted(plan.cut().longest()));
    assertThat(roles(plan))
        .containsExactly(
            Role.ROWS,
            Role.STATE_SUMS,
            Role.STATE_SCAN,
            Role.QUERY,
            Role.GRADIENT_SUMS,
            Role.GRADIENT_SCAN,
            Role.KEY,
            Role.VALUE,
            Role.COEFFICIENTS);
    assertThat(plan.step(Role.QUERY).kernel().operation())
        .isEqualTo(Operation.NORMALIZED_GRADIENT_OUTPUTS);
    assertThat(plan.step(Role.VALUE).kernel().operation()).isEqualTo(Operation.GRADIENT_OUTPUTS);
    int outputs = plan.outputs().items();
    assertThat(plan.step(Role.QUERY).blocks()).isEqualTo(8 * outputs);
    assertThat(plan.step(Role.VALUE).blocks())
        .as("tiles of 128 columns")
        .isEqualTo(4 * plan.keyOutputs().items());
    assertThat(plan.memory().states())
        .isEqualTo(aligned(4L * plan.cut().items() * stateBytes(48, 80)));
    assertThat(plan.memory().totals()).isEqualTo(aligned(4L * stateBytes(48, 80)));
    assertThat(plan.memory().partials()).isEqualTo(aligned(8L * outputs * 16));
  }

  @Test
  void withoutCausalityGradientsOfDividedRowsNeedNoPassByWgmma() {
    for (DType dtype : DType.values()) {
      for (int dim = 16; dim <= 256; dim += 16) {
        Question question =
            Question.of(AttentionShape.of(1, 2, 300, dim), dtype, Mode.DEFAULT, false, true);
        GradientPlan plan = planner(true).plan(question).orElseThrow();
        String what = "%s, D = %d".formatted(dtype, dim);
        assertThat(plan.has(Role.NORMALIZED_QUERY) || plan.has(Role.NORMALIZED_KEY))
            .as(what)
            .isFalse();
        for (Role role : List.of(Role.QUERY, Role.KEY)) {
          assertThat(plan.step(role).kernel().finishesGradients()).as(what).isTrue();
          assertThat(plan.step(role).cluster()).as(what).isEqualTo(dim <= 128 ? 1 : 2);
        }
        assertThat(plan.step(Role.VALUE).kernel().finishesGradients()).as(what).isFalse();
        assertThat(plan.step(Role.VALUE).cluster()).as(what).isEqualTo(1);
        GradientPlan byMma = planner(false).plan(question).orElseThrow();
        assertThat(byMma.has(Role.NORMALIZED_QUERY) && byMma.has(Role.NORMALIZED_KEY))
            .as(what)
            .isTrue();
      }
    }
  }

  @Test
  void withoutCausalitySumsThatMayLeaveTheirRangeAreFormedAgain() {
    AttentionShape shape = AttentionShape.of(4, 16, 10_000, 128);
    for (DType dtype : DType.values()) {
      for (boolean normalize : new boolean[] {false, true}) {
        Question all = Question.of(shape, dtype, Mode.ACCURATE, false, normalize);
        GradientPlan plan = planner(true).plan(all).orElseThrow();
        String what = "%s, normalised: %s".formatted(dtype, normalize);
        assertThat(plan.has(Role.STATE_SUMS_REPAIR))
            .as(what)
            .isEqualTo(normalize || dtype == DType.F32);
        assertThat(plan.has(Role.GRADIENT_SUMS_REPAIR)).as(what).isEqualTo(dtype != DType.BF16);
        GradientPlan byWarps = planner(false).plan(all).orElseThrow();
        assertThat(byWarps.has(Role.STATE_SUMS_REPAIR)).isFalse();
        assertThat(byWarps.has(Role.GRADIENT_SUMS_REPAIR)).isFalse();
      }
    }
  }

  @Test
  void withoutCausalityEveryGroupAndLengthHasAPlan() {
    for (boolean hopper : new boolean[] {true, false}) {
      for (int group : new int[] {1, 37, 48, 64, 71, 128, 4096}) {
        for (int tokens : new int[] {1, 65, 300, 600, 700, 833, 1100, 40_000}) {
          AttentionShape shape = new AttentionShape(1, group, 1, tokens, 64, 64);
          Question question = Question.of(shape, DType.BF16, Mode.DEFAULT, false, false);
          GradientPlan plan = planner(hopper).plan(question).orElseThrow();
          assertThat((long) group * plan.cut().longest())
              .as("%d heads of a group, %d tokens", group, tokens)
              .isLessThanOrEqualTo(Math.max(32_768, 64 * group));
        }
      }
    }
  }

  @Test
  void withoutCausalityEveryWidthHasAPlan() {
    for (DType dtype : DType.values()) {
      for (int dim = 16; dim <= 512; dim += 16) {
        AttentionShape shape = AttentionShape.of(1, 2, 300, 512).withValueDim(dim);
        Question question = Question.of(shape, dtype, Mode.DEFAULT, false, true);
        assertThat(planner(true).plan(question)).as("%s, Dv = %d", dtype, dim).isPresent();
      }
    }
  }

  @Test
  void theSumsOfOneItemAreThoseOfTheSequence() {
    AttentionShape shape = AttentionShape.of(4, 16, 512, 128);
    GradientPlan plan =
        planner(true)
            .plan(Question.of(shape, DType.BF16, Mode.DEFAULT, false, false))
            .orElseThrow();
    assertThat(roles(plan))
        .containsExactly(
            Role.STATE_SUMS,
            Role.QUERY,
            Role.GRADIENT_SUMS,
            Role.KEY,
            Role.VALUE,
            Role.COEFFICIENTS);
    assertThat(plan.memory().states()).isZero();
    assertThat(plan.memory().totals()).isEqualTo(aligned(StateArrays.bytes(shape, 1)));
  }

  @Test
  void aStateThatIsAtHandIsNotSummedAgain() {
    AttentionShape shape = AttentionShape.of(4, 16, 10_000, 128);
    Question question = Question.of(shape, DType.BF16, Mode.DEFAULT, false, false);
    GradientPlan plan = planner(true).plan(question).orElseThrow();
    GradientPlan kept = planner(true).plan(question.ofBackward(true, null)).orElseThrow();
    assertThat(plan.has(Role.STATE_SUMS)).isTrue();
    assertThat(kept.has(Role.STATE_SUMS)).isFalse();
    assertThat(kept.has(Role.STATE_SCAN)).isFalse();
    assertThat(kept.micros()).isLessThan(0.9 * plan.micros());
    assertThat(kept.reason()).contains("from the kept state");
  }

  @Test
  void dIsFormedWithDqByWarpgroupsAlone() {
    AttentionShape shape = AttentionShape.of(2, 2, 300, 64);
    for (DType dtype : DType.values()) {
      Question question = Question.of(shape, dtype, Mode.DEFAULT, false, false);
      assertThat(planner(true).plan(question).orElseThrow().has(Role.ROWS)).isFalse();
      assertThat(planner(false).plan(question).orElseThrow().has(Role.ROWS)).isTrue();
    }
  }

  @Test
  void modesChooseTheirKernels() {
    AttentionShape shape = AttentionShape.of(4, 16, 4096, 128);
    List<String> symbols =
        IntStream.range(0, Mode.values().length)
            .mapToObj(i -> Mode.values()[i])
            .map(mode -> Question.of(shape, DType.F32, mode, true, false))
            .map(question -> planner(false).plan(question).orElseThrow())
            .map(plan -> plan.step(Role.QUERY).kernel().symbol())
            .toList();
    assertThat(symbols)
        .containsExactly(
            "la_chunked_query_gradient_mma_d128_f32_accurate",
            "la_chunked_query_gradient_mma_d128_f32_accurate",
            "la_chunked_query_gradient_mma_d128_f32_tf32");
  }

  @Test
  void aChunkOrLessIsMultipliedAccurately() {
    for (int tokens : new int[] {64, 65}) {
      AttentionShape shape = AttentionShape.of(4, 16, tokens, 128);
      Question question = Question.of(shape, DType.F32, Mode.DEFAULT, true, false);
      assertThat(planner(true).plan(question).orElseThrow().step(Role.QUERY).kernel().precision())
          .isEqualTo(tokens == 64 ? Precision.ACCURATE : Precision.DEFAULT);
    }
  }

  @Test
  void whatIsNotBuiltHasNoPlan() {
    assertThat(planner(true).plan(causal(AttentionShape.of(1, 1, 64, 96), false))).isEmpty();
    AttentionShape narrow = AttentionShape.of(1, 1, 64, 64).withValueDim(96);
    assertThat(planner(true).plan(causal(narrow, false))).isEmpty();
    for (Operation missing :
        List.of(
            Operation.QUERY_GRADIENT,
            Operation.KEY_VALUE_GRADIENT,
            Operation.GRADIENT_RECURRENCE)) {
      GradientPlanner planner =
          new GradientPlanner(
              AnyKernel.H200,
              (operation, technique, headDim, element, precision) ->
                  operation == missing
                      ? Optional.empty()
                      : AnyKernel.find(operation, technique, headDim, element, precision));
      assertThat(planner.plan(causal(AttentionShape.of(4, 16, 64, 64), false)))
          .as("without " + missing)
          .isEmpty();
    }
  }

  @Test
  void aPlanCanBeAskedFor() {
    Question question = causal(AttentionShape.of(4, 16, 10_000, 128), false);
    GradientPlan mma = planner(true).plan(question, GradientChoice.parse("mma")).orElseThrow();
    assertThat(mma.kind()).isEqualTo(Kind.SWEEPS);
    assertThat(mma.step(Role.QUERY).kernel().technique()).isEqualTo(Technique.MMA);
    assertThat(mma.step(Role.VALUE).kernel().technique()).isEqualTo(Technique.MMA);
    GradientPlan cut =
        planner(true).plan(question, GradientChoice.parse("wgmma:2048")).orElseThrow();
    assertThat(cut.kind()).isEqualTo(Kind.SEGMENTED);
    assertThat(cut.cut().items()).isEqualTo(5);
    assertThat(cut.step(Role.GRADIENT_SUMS).kernel().technique()).isEqualTo(Technique.WGMMA);
    assertThat(cut.step(Role.GRADIENT_SUMS).blocks()).isEqualTo(64 * 4 * 2);
    assertThat(cut.step(Role.GRADIENT_SUMS).cluster()).isEqualTo(2);
    assertThat(planner(false).plan(question, GradientChoice.parse("wgmma"))).isEmpty();
    Question tooLong = causal(AttentionShape.of(1, 1, 400_000, 128), false);
    assertThat(planner(true).plan(tooLong, GradientChoice.parse("wgmma"))).isEmpty();
    Question strided =
        new Question(
            question.shape(),
            DType.BF16,
            Mode.DEFAULT,
            true,
            false,
            null,
            false,
            false,
            false,
            false);
    Step query = planner(true).plan(strided).orElseThrow().step(Role.QUERY);
    assertThat(query.kernel().technique()).isEqualTo(Technique.MMA);
  }

  /** Of as many items as suit dq, and dk and dv, which come in rounds of their own. */
  @Test
  void statesAreHandedOnWhereBlocksComeInRounds() {
    AttentionShape shape = AttentionShape.of(4, 20, 10_000, 128);
    Question question = Question.of(shape, DType.F32, Mode.DEFAULT, true, false);
    GradientPlan plan = planner(true).plan(question).orElseThrow();
    assertThat(plan.kind()).isEqualTo(Kind.RELAY);
    assertThat(plan.cut().items()).isEqualTo(1);
    int ofQuery = plan.outputs(Role.QUERY).items();
    int ofKey = plan.outputs(Role.KEY).items();
    assertThat(ofQuery).isEqualTo(4);
    assertThat(ofKey).isGreaterThan(1).isEqualTo(plan.outputs(Role.VALUE).items());
    int shortest = plan.outputs(ofQuery > ofKey ? Role.QUERY : Role.KEY).longest();
    assertThat(plan.summary()).isEqualTo("relay %d, wgmma".formatted(shortest));
    assertThat(plan.step(Role.QUERY).blocks()).isEqualTo(80 * ofQuery * 2);
    assertThat(plan.memory().states())
        .isEqualTo(
            Relay.bytes(shape, plan.outputs(Role.QUERY))
                + 2 * Relay.bytes(shape, plan.outputs(Role.KEY)));
    assertThat(plan.memory().marks().query()).isEqualTo(aligned(80L * ofQuery * 2 * 4));
    assertThat(plan.memory().marks().key()).isEqualTo(aligned(80L * ofKey * 2 * 4));
    assertThat(plan.partials()).isEqualTo(ofQuery * 2);
    assertThat(plan.reason())
        .startsWith(
            "relay: 1 items of up to 10000 tokens by blocks that hand states on: dq of %d items, dk"
                    .formatted(ofQuery)
                + " and dv of %d, dq by wgmma".formatted(ofKey));
    Question full =
        Question.of(AttentionShape.of(4, 16, 10_000, 128), DType.F32, Mode.DEFAULT, true, false);
    assertThat(planner(true).plan(full).orElseThrow().kind()).isEqualTo(Kind.SWEEPS);
  }

  @Test
  void aRelayCanBeAskedFor() {
    AttentionShape shape = AttentionShape.of(1, 2, 200, 128);
    Question question = causal(shape, false);
    GradientChoice relay = GradientChoice.parse("wgmma:64+");
    assertThat(relay)
        .isEqualTo(new GradientChoice(Kind.RELAY, Technique.WGMMA, 64))
        .hasToString("linattn.gradient.plan=wgmma:64+");
    GradientPlan plan = planner(true).plan(question, relay).orElseThrow();
    assertThat(plan.handsOn(Role.QUERY)).isTrue();
    assertThat(plan.handsOn(Role.VALUE)).isTrue();
    assertThat(plan.outputs().items()).isEqualTo(4);
    assertThat(planner(true).plan(question, GradientChoice.parse("mma:64+"))).isEmpty();
    Question normalized = Question.of(shape, DType.BF16, Mode.DEFAULT, true, true);
    assertThat(planner(true).plan(normalized, relay)).as("dq of it hands nothing on").isEmpty();
  }

  @Test
  void aChoiceOfPlanHasAForm() {
    assertThat(GradientChoice.parse("wgmma:128"))
        .isEqualTo(new GradientChoice(Kind.SEGMENTED, Technique.WGMMA, 128))
        .hasToString("linattn.gradient.plan=wgmma:128");
    assertThat(GradientChoice.parse("wgmma:128:0"))
        .isEqualTo(new GradientChoice(Kind.SEGMENTED, Technique.WGMMA, 128, 0))
        .hasToString("linattn.gradient.plan=wgmma:128:0");
    assertThat(GradientChoice.parse("mma:128:256"))
        .isEqualTo(new GradientChoice(Kind.SEGMENTED, Technique.MMA, 128, 256))
        .hasToString("linattn.gradient.plan=mma:128:256");
    assertThat(GradientChoice.parse("one_sweep"))
        .isEqualTo(new GradientChoice(Kind.ONE_SWEEP, Technique.WGMMA, 0))
        .hasToString("linattn.gradient.plan=one_sweep");
    assertThat(GradientChoice.parse("one_sweep:128"))
        .isEqualTo(new GradientChoice(Kind.CHAIN, Technique.WGMMA, 128))
        .hasToString("linattn.gradient.plan=one_sweep:128");
    for (String wrong :
        List.of(
            "",
            "one_sweep:100",
            "one_sweep:",
            "one_sweep:128:64",
            "one_sweep:128:128",
            "mma:",
            "mma:100",
            "mma:64:100",
            "mma:64:",
            "mma:64+:64",
            "mma:0:64",
            "mma*2",
            "mma:64*",
            "tensor")) {
      assertThatIllegalArgumentException().isThrownBy(() -> GradientChoice.parse(wrong));
    }
  }
}
