package io.github.linattn.internal.cuda;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatIllegalArgumentException;

import io.github.linattn.AttentionShape;
import io.github.linattn.DType;
import io.github.linattn.Mode;
import io.github.linattn.Sequences;
import io.github.linattn.internal.Checkpoints;
import io.github.linattn.internal.cuda.ForwardPlan.Kind;
import io.github.linattn.kernelgen.ElementType;
import io.github.linattn.kernelgen.HopperPlan;
import io.github.linattn.kernelgen.KernelEntry;
import io.github.linattn.kernelgen.Operation;
import io.github.linattn.kernelgen.Precision;
import io.github.linattn.kernelgen.Technique;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;
import org.junit.jupiter.api.Test;

/**
 * Breaks when a shape gets another plan than the model's constants give, or a plan breaks a rule.
 */
class PlannerTest {
  private static final int MULTIPROCESSORS = AnyKernel.H200.multiprocessors();
  private static final int KEY_DIM = 128;

  private static final Planner EVERY = new Planner(AnyKernel.H200, AnyKernel::find);
  private static final Planner EVERY_BY_MMA =
      new Planner(
          AnyKernel.AMPERE,
          (operation, technique, headDim, element, precision) ->
              technique == Technique.WGMMA
                  ? Optional.empty()
                  : AnyKernel.find(operation, technique, headDim, element, precision));

  /** The kernels of a Hopper GPU for D = 128, or those that every GPU has. */
  private static Planner planner(boolean hopper) {
    return new Planner(
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
    boolean wgmma = technique == Technique.WGMMA;
    boolean ofOneHeadDim =
        operation != Operation.STATE_OUTPUTS && (wgmma || operation == Operation.FORWARD);
    if (ofOneHeadDim && headDim != KEY_DIM || wgmma && !hopper) {
      return Optional.empty();
    }
    return AnyKernel.find(operation, technique, headDim, element, precision);
  }

  private static ForwardPlan plan(Question question) {
    return planner(true).plan(question).orElseThrow();
  }

  private static Question causal(AttentionShape shape, DType dtype, Mode mode) {
    return Question.of(shape, dtype, mode, true, false);
  }

  private static Question packed(int heads, int... lengths) {
    Sequences packing = Sequences.ofLengths(lengths);
    AttentionShape shape = AttentionShape.of(1, heads, packing.tokens(), KEY_DIM);
    return new Question(
        shape, DType.BF16, Mode.DEFAULT, true, false, packing, false, true, false, true);
  }

  private static Question withState(AttentionShape shape, boolean inPlace) {
    return new Question(
        shape, DType.BF16, Mode.DEFAULT, true, false, null, true, true, inPlace, true);
  }

  @Test
  void manyHeadsTakeOnePassInClusters() {
    AttentionShape shape = AttentionShape.of(4, 16, 10_000, KEY_DIM);
    ForwardPlan plan = plan(causal(shape, DType.BF16, Mode.DEFAULT));
    assertThat(plan.kind()).isEqualTo(Kind.FORWARD);
    assertThat(plan.steps()).hasSize(2);
    ForwardPlan.Step forward = plan.steps().getFirst();
    assertThat(forward.kernel().symbol()).isEqualTo("la_chunked_forward_wgmma_d128_bf16");
    assertThat(forward.blocks()).isEqualTo(128);
    assertThat(forward.cluster()).isEqualTo(2);
    assertThat(forward.startsEarly()).as("long").isFalse();
    assertThat(plan.steps().get(1).kernel().operation()).isEqualTo(Operation.RECURRENCE);
    assertThat(plan.steps().get(1).blocks()).isEqualTo(256);
    assertThat(plan.steps().get(1).startsEarly()).isTrue();
    assertThat(plan.markBytes()).isEqualTo(128 * 4);
    assertThat(plan.workspaceBytes()).isEqualTo(128 * 4);
    assertThat(plan.micros()).isBetween(160.0, 200.0);
    assertThat(plan.reason()).contains("one pass", "wgmma", "132 multiprocessors");
    assertThat(plan.summary()).isEqualTo("one pass, wgmma");
  }

  @Test
  void whatIsLongStartsInTurnSoThatItsBlocksLieSideBySide() {
    AttentionShape few = AttentionShape.of(1, 8, 131_072, KEY_DIM);
    assertThat(plan(causal(few, DType.BF16, Mode.DEFAULT)).steps())
        .filteredOn(step -> !step.startsEarly())
        .extracting(step -> step.kernel().operation())
        .containsExactly(Operation.STATE_SUMS, Operation.FORWARD);
    AttentionShape shorter = AttentionShape.of(4, 16, 512, KEY_DIM);
    assertThat(plan(causal(shorter, DType.BF16, Mode.DEFAULT)).steps())
        .allMatch(ForwardPlan.Step::startsEarly);
  }

  @Test
  void fewHeadsAreCutIntoSegmentsThatFillTheDevice() {
    ForwardPlan plan =
        plan(causal(AttentionShape.of(1, 4, 65_536, KEY_DIM), DType.BF16, Mode.DEFAULT));
    assertThat(plan.kind()).isEqualTo(Kind.SEGMENTED);
    assertThat(plan.steps().stream().map(step -> step.kernel().operation()))
        .containsExactly(
            Operation.STATE_SUMS, Operation.STATE_SCAN, Operation.FORWARD, Operation.RECURRENCE);
    int segment = plan.cut().itemTokens();
    assertThat(segment % 64).isZero();
    assertThat(segment).isGreaterThanOrEqualTo(512);
    assertThat(4 * 2 * plan.cut().items()).isBetween(MULTIPROCESSORS / 2, 8 * MULTIPROCESSORS);
    long state = 4L * (KEY_DIM * KEY_DIM + 2 * KEY_DIM);
    assertThat(plan.stateBytes()).isEqualTo(4 * plan.cut().items() * state);
    ForwardPlan.Step recurrence = plan.steps().getLast();
    assertThat(recurrence.blocks()).isEqualTo(Math.min(16 * plan.cut().items(), 264));
    assertThat(plan.reason()).contains("segments");
    assertThat(plan.summary()).isEqualTo("segments %d, wgmma".formatted(segment));
  }

  @Test
  void fewHeadsHaveSegmentsDownToAChunk() {
    Question short128 = causal(AttentionShape.of(1, 2, 1344, KEY_DIM), DType.F32, Mode.DEFAULT);
    ForwardPlan plan = plan(short128);
    assertThat(plan.kind()).isEqualTo(Kind.SEGMENTED);
    assertThat(plan.cut().itemTokens()).isEqualTo(64);
    assertThat(plan.micros()).isLessThan(0.6 * estimate(short128, "wgmma:512"));
  }

  @Test
  void packedSequencesOfOneLengthTakeAsLongAsBatchRowsOfIt() {
    int[] lengths = new int[32];
    Arrays.fill(lengths, 1024);
    ForwardPlan packed = plan(packed(8, lengths));
    ForwardPlan rows =
        plan(causal(AttentionShape.of(32, 8, 1024, KEY_DIM), DType.BF16, Mode.DEFAULT));
    assertThat(packed.kind()).isEqualTo(rows.kind());
    assertThat(packed.micros()).isBetween(0.9 * rows.micros(), 1.3 * rows.micros());
  }

  @Test
  void everyItemOfPackedSequencesHasToStart() {
    int[] lengths = new int[1024];
    Arrays.fill(lengths, 64);
    double ofMany = plan(packed(8, lengths)).micros();
    Arrays.fill(lengths, 0, 512, 128);
    double ofFewer = plan(packed(8, Arrays.copyOf(lengths, 512))).micros();
    assertThat(ofMany).isGreaterThan(1.3 * ofFewer);
  }

  @Test
  void oneLongSequenceIsCutAsFinelyWithManyShortOnesBeside() {
    for (int heads : new int[] {1, 8}) {
      ForwardPlan alone = plan(packed(heads, 300_000));
      int[] lengths = new int[133];
      Arrays.fill(lengths, 10);
      lengths[100] = 300_000;
      ForwardPlan plan = plan(packed(heads, lengths));
      assertThat(plan.kind()).isEqualTo(Kind.SEGMENTED);
      assertThat(plan.cut().longest()).isLessThanOrEqualTo(2 * alone.cut().longest());
      assertThat(plan.micros()).isLessThan(1.5 * alone.micros());
    }
  }

  private static double estimate(Question question, String plan) {
    return planner(true).plan(question, PlanChoice.parse(plan)).orElseThrow().micros();
  }

  @Test
  void statesBeforeSegmentsAreKeptWhereTheyAreFew() {
    AttentionShape shape = AttentionShape.of(1, 4, 65_536, KEY_DIM);
    Question plain = causal(shape, DType.BF16, Mode.DEFAULT);
    Question keeping = plain.keeping(true);
    ForwardPlan plan = plan(keeping);
    assertThat(plan.toKeep(keeping)).contains(Checkpoints.Form.ofSegments(plan.cut().itemTokens()));
    assertThat(10 * plan.stateBytes()).isLessThanOrEqualTo(3L * 4 * 65_536 * KEY_DIM * 2);
    assertThat(plan(plain).toKeep(plain)).as("nobody asks for them").isEmpty();
    Question many = causal(AttentionShape.of(4, 16, 10_000, KEY_DIM), DType.BF16, Mode.DEFAULT);
    assertThat(plan(many.keeping(true)).toKeep(many.keeping(true))).as("one pass").isEmpty();
    Question few = causal(AttentionShape.of(1, 1, 8192, KEY_DIM), DType.BF16, Mode.DEFAULT);
    ForwardPlan fine = plan(few.keeping(true));
    assertThat(fine.kind()).isEqualTo(Kind.SEGMENTED);
    assertThat(fine.cut().itemTokens()).as("a state takes 860 tokens").isLessThan(860);
    assertThat(fine.toKeep(few.keeping(true))).isEmpty();
    Question packed = packed(2, 70_000, 10, 0, 140_000);
    assertThat(plan(packed).kind()).isEqualTo(Kind.SEGMENTED);
    assertThat(plan(packed).toKeep(packed)).isEmpty();
    Question inPlace = withState(shape, true);
    assertThat(plan(inPlace).toKeep(inPlace)).isEmpty();
  }

  @Test
  void lengthsOfRowsAreKeptWhereTheForwardFindsThem() {
    AttentionShape shape = AttentionShape.of(4, 16, 10_000, KEY_DIM);
    Question keeping = normalized(shape).keeping(true);
    Checkpoints.Form lengths = Checkpoints.Form.ofSegments(0).withLengths();
    assertThat(plan(keeping).toKeep(keeping)).contains(lengths);
    assertThat(lengths.elements(shape)).isEqualTo(2L * 4 * 16 * 10_000);
    Question few = normalized(AttentionShape.of(1, 4, 65_536, KEY_DIM)).keeping(true);
    assertThat(plan(few).toKeep(few))
        .contains(Checkpoints.Form.ofSegments(plan(few).cut().itemTokens()).withLengths());
    assertThat(planner(false).plan(keeping).orElseThrow().toKeep(keeping)).as("by mma").isEmpty();
    Question all = Question.of(shape, DType.BF16, Mode.DEFAULT, false, true).keeping(true);
    assertThat(plan(all).toKeep(all)).as("without causality").contains(lengths);
    assertThat(planner(false).plan(all).orElseThrow().toKeep(all)).as("by mma").isEmpty();
    AttentionShape odd = AttentionShape.of(4, 16, 10_000, KEY_DIM - 16);
    Question byWarps = Question.of(odd, DType.BF16, Mode.DEFAULT, false, true).keeping(true);
    assertThat(plan(byWarps).toKeep(byWarps)).as("sums by mma").isEmpty();
  }

  @Test
  void sumsThatMayLeaveTheirRangeAreFormedAgain() {
    AttentionShape shape = AttentionShape.of(1, 4, 65_536, KEY_DIM);
    for (boolean causal : new boolean[] {false, true}) {
      for (DType dtype : DType.values()) {
        for (Mode mode : Mode.values()) {
          for (boolean normalize : new boolean[] {false, true}) {
            Question all = Question.of(shape, dtype, mode, causal, normalize);
            ForwardPlan plan = plan(all);
            boolean scales = dtype == DType.F32 && mode != Mode.DEFAULT;
            assertThat(plan.steps().stream().filter(plan::repairsSums))
                .as("%s %s, causal: %s, normalised: %s", dtype, mode, causal, normalize)
                .hasSize(normalize || scales ? 1 : 0);
            ForwardPlan byWarps = planner(false).plan(all).orElseThrow();
            assertThat(byWarps.steps()).noneMatch(byWarps::repairsSums);
          }
        }
      }
    }
  }

  private static Question normalized(AttentionShape shape) {
    return Question.of(shape, DType.BF16, Mode.DEFAULT, true, true);
  }

  @Test
  void noItemIsLongerThanAccumulatorsBear() {
    for (Mode mode : Mode.values()) {
      AttentionShape shape = AttentionShape.of(8, 64, 2_000_000, KEY_DIM);
      ForwardPlan plan = plan(causal(shape, DType.F32, mode));
      int most =
          switch (mode) {
            case TF32 -> 32_768;
            case ACCURATE -> 163_840;
            case DEFAULT -> 524_288;
          };
      assertThat(plan.kind()).as(mode.name()).isEqualTo(Kind.SEGMENTED);
      assertThat(plan.cut().longest()).as(mode.name()).isBetween(most / 2, most);
    }
    ForwardPlan longer =
        plan(causal(AttentionShape.of(4, 16, 400_000, KEY_DIM), DType.F32, Mode.TF32));
    assertThat(longer.cut().longest()).as("sums of segments truncate").isLessThanOrEqualTo(32_768);
    ForwardPlan packed = plan(packed(64, 70_000, 10, 0, 340_000));
    assertThat(packed.kind()).isEqualTo(Kind.SEGMENTED);
    assertThat(packed.cut().longest()).as("of bf16").isLessThanOrEqualTo(327_680);
    assertThat(packed.cut().items(2)).isZero();
  }

  @Test
  void itemsThatLoseNothingAreLonger() {
    for (int dim : new int[] {32, 64, 128, 192, 256}) {
      for (boolean normalize : new boolean[] {false, true}) {
        // up to 128 a state takes in chunks rounded
        assertLongest(dim, DType.F32, Mode.TF32, normalize, dim <= 128);
        assertLongest(dim, DType.F16, Mode.DEFAULT, normalize, putsBy(dim, normalize));
      }
    }
  }

  /** Of 300,000 tokens on an H200, whole or in as long items as without that, and by mma. */
  private static void assertLongest(
      int dim, DType dtype, Mode mode, boolean normalize, boolean whole) {
    AttentionShape shape = AttentionShape.of(1, 132, 300_000, dim);
    Question question = Question.of(shape, dtype, mode, true, normalize);
    int most = whole ? 300_000 : 32_768;
    assertThat(EVERY.plan(question).orElseThrow().cut().longest())
        .as("%s, D = %d, normalised: %s", dtype, dim, normalize)
        .isBetween(most / 2, most);
    assertThat(EVERY_BY_MMA.plan(question).orElseThrow().cut().longest())
        .as("%s by mma", dtype)
        .isLessThanOrEqualTo(32_768);
  }

  private static boolean putsBy(int dim, boolean normalize) {
    return dim > 32 && dim <= 128 && !normalize;
  }

  @Test
  void whatStartsFromAStateHasShorterItemsOfHalf() {
    Question longHalf = causal(AttentionShape.of(4, 16, 400_000, KEY_DIM), DType.F16, Mode.DEFAULT);
    assertThat(plan(longHalf).cut().longest()).isLessThanOrEqualTo(32_768);
    Question manyHalf =
        causal(AttentionShape.of(1, 135, 300_000, KEY_DIM), DType.F16, Mode.DEFAULT);
    assertThat(planner(true).plan(manyHalf).orElseThrow().kind())
        .as("a chain adds to what it is given")
        .isNotEqualTo(Kind.RELAY);
    for (int dim : new int[] {32, 64, 128, 192, 256}) {
      for (boolean normalize : new boolean[] {false, true}) {
        AttentionShape shape = AttentionShape.of(1, 132, 300_000, dim);
        Question half = Question.of(shape, DType.F16, Mode.DEFAULT, true, normalize).keeping(true);
        for (PlanChoice.Order order : List.of(PlanChoice.Order.RELAY, PlanChoice.Order.STAGES)) {
          var choice = new PlanChoice(Technique.WGMMA, 50_048, 1, order);
          assertThat(EVERY.plan(half, choice)).as("%s, D = %d", order, dim).isEmpty();
        }
      }
    }
    int putBy = 64 * HopperPlan.putByChunks(Operation.FORWARD, KEY_DIM, ElementType.F16);
    assertThat(2 * putBy)
        .as("what starts from a given state truncates at twice the rate")
        .isEqualTo(Rates.mostChainTokens(ElementType.F16));
  }

  @Test
  void oneChunkIsShort() {
    ForwardPlan plan = plan(causal(AttentionShape.of(2, 8, 64, KEY_DIM), DType.BF16, Mode.DEFAULT));
    assertThat(plan.kind()).isEqualTo(Kind.FORWARD);
    assertThat(plan.steps().getFirst().kernel().technique()).isEqualTo(Technique.WGMMA);
    assertThat(plan.reason()).contains("short");
  }

  @Test
  void halfAChunkIsForMma() {
    for (DType dtype : List.of(DType.BF16, DType.F16)) {
      Question half = causal(AttentionShape.of(4, 16, 32, KEY_DIM), dtype, Mode.DEFAULT);
      assertThat(plan(half).steps().getFirst().kernel().technique()).isEqualTo(Technique.MMA);
      Question more = causal(AttentionShape.of(4, 16, 128, KEY_DIM), dtype, Mode.DEFAULT);
      assertThat(plan(more).steps().getFirst().kernel().technique()).isEqualTo(Technique.WGMMA);
    }
  }

  @Test
  void oneTokenFromAStateIsDecoded() {
    AttentionShape shape = new AttentionShape(2, 8, 4, 1, KEY_DIM, 64);
    ForwardPlan plan = plan(withState(shape, true));
    assertThat(plan.kind()).isEqualTo(Kind.DECODE);
    assertThat(plan.steps()).hasSize(1);
    ForwardPlan.Step step = plan.steps().getFirst();
    assertThat(step.cluster()).isEqualTo(1);
    assertThat(step.blocks()).as("tiles of 32 of 64 value columns").isEqualTo(2 * 4 * 2);
    assertThat(plan.workspaceBytes()).as("a state in place is not copied").isZero();
    assertThat(plan.ticketBytes()).isEqualTo(2 * 4 * 2 * 128);
    AttentionShape wide = new AttentionShape(1, 2, 2, 1, KEY_DIM, 512);
    assertThat(plan(withState(wide, true)).steps().getFirst().blocks()).isEqualTo(2 * 16);
  }

  @Test
  void oneTokenIsDecodedTheSameWayWhereKernelsCannotStartEarly() {
    AttentionShape shape = new AttentionShape(2, 8, 4, 1, KEY_DIM, 64);
    ForwardPlan plan = planner(false).plan(withState(shape, true)).orElseThrow();
    ForwardPlan.Step step = plan.steps().getFirst();
    assertThat(step.startsEarly()).isFalse();
    assertThat(step.blocks()).isEqualTo(2 * 4 * 2);
    assertThat(plan.workspaceBytes()).isZero();
  }

  @Test
  void aStateInPlaceIsCopiedUnlessAScanWritesIt() {
    AttentionShape shape = AttentionShape.of(4, 32, 1000, KEY_DIM);
    ForwardPlan plan = plan(withState(shape, true));
    assertThat(plan.kind()).isEqualTo(Kind.FORWARD);
    assertThat(plan.copyBytes()).isEqualTo(4L * 32 * 4 * (KEY_DIM * KEY_DIM + 2 * KEY_DIM));
    ForwardPlan segmented = plan(withState(AttentionShape.of(1, 1, 100_000, KEY_DIM), true));
    assertThat(segmented.kind()).isEqualTo(Kind.SEGMENTED);
    assertThat(segmented.copyBytes()).isZero();
  }

  @Test
  void nonCausalIsTwoPassesForAnyHeadDimension() {
    Question question =
        Question.of(AttentionShape.of(1, 8, 50_000, 48), DType.F16, Mode.DEFAULT, false, true);
    ForwardPlan plan = plan(question);
    assertThat(plan.kind()).isEqualTo(Kind.NON_CAUSAL);
    assertThat(plan.steps().stream().map(step -> step.kernel().operation()))
        .containsExactly(Operation.STATE_SUMS, Operation.STATE_SCAN, Operation.STATE_OUTPUTS);
    assertThat(plan.outputs()).isNotNull();
    assertThat(plan.reason()).contains("not causal");
    assertThat(plan.summary()).isEqualTo("not causal %d, wgmma".formatted(plan.cut().longest()));
  }

  @Test
  void theSumsOfOneItemAreThoseOfTheSequence() {
    AttentionShape shape = AttentionShape.of(4, 16, 512, KEY_DIM);
    ForwardPlan plan = plan(Question.of(shape, DType.BF16, Mode.DEFAULT, false, false));
    assertThat(plan.steps().stream().map(step -> step.kernel().operation()))
        .containsExactly(Operation.STATE_SUMS, Operation.STATE_OUTPUTS);
    assertThat(plan.stateBytes()).isEqualTo(StateArrays.bytes(shape, 1));
  }

  @Test
  void totalsAreTheFinalStateWhereThatIsWanted() {
    AttentionShape shape = AttentionShape.of(4, 16, 512, KEY_DIM);
    Question question = Question.of(shape, DType.BF16, Mode.DEFAULT, false, false);
    assertThat(plan(question.keeping(true)).workspaceBytes()).isZero();
    Question window = question.window(512, true, true);
    ForwardPlan continued = plan(window);
    assertThat(continued.steps().stream().map(step -> step.kernel().operation()))
        .as("a scan adds the initial state")
        .containsExactly(Operation.STATE_SUMS, Operation.STATE_SCAN, Operation.STATE_OUTPUTS);
    assertThat(continued.workspaceBytes())
        .isEqualTo(StateArrays.bytes(shape, continued.cut().items()));
  }

  @Test
  void withoutCausalityEveryWidthHasAPlan() {
    for (DType dtype : DType.values()) {
      for (Mode mode : dtype == DType.F32 ? Mode.values() : new Mode[] {Mode.DEFAULT}) {
        for (int dim = 16; dim <= 512; dim += 16) {
          AttentionShape shape = AttentionShape.of(1, 2, 300, dim);
          Question question = Question.of(shape, dtype, mode, false, true);
          String technique = plan(question).steps().getLast().kernel().technique().id();
          boolean hasRoom = dtype != DType.F32 || dim <= 320;
          assertThat(technique)
              .as("%s %s, D = %d", dtype, mode, dim)
              .isEqualTo(hasRoom ? "wgmma" : "mma");
        }
      }
    }
  }

  @Test
  void sumsOfWholeSequencesNeedNoScanThoughSomeAreEmpty() {
    AttentionShape shape = AttentionShape.of(4, 16, 512, KEY_DIM);
    Question question = Question.of(shape, DType.BF16, Mode.DEFAULT, false, false);
    ForwardPlan plan = plan(question.packed(Sequences.ofLengths(0, 200, 0, 312)));
    assertThat(plan.steps().stream().map(step -> step.kernel().operation()))
        .containsExactly(Operation.STATE_SUMS, Operation.STATE_OUTPUTS);
    assertThat(plan.stateBytes()).isEqualTo(StateArrays.bytes(shape, 4));
  }

  @Test
  void sumsAreCutAsIsAskedFor() {
    AttentionShape shape = AttentionShape.of(4, 16, 512, KEY_DIM);
    Question question =
        Question.of(shape, DType.BF16, Mode.DEFAULT, false, false)
            .packed(Sequences.ofLengths(0, 200, 0, 312));
    assertThat(askedItems(question, "wgmma:64")).isEqualTo(4 + 5);
    assertThat(askedItems(question, "wgmma:320")).as("whole sequences").isEqualTo(4);
    assertThat(askedItems(question, "wgmma:64+")).as("sums hand nothing on").isEqualTo(4);
    Question tooLong =
        Question.of(
            AttentionShape.of(1, 1, 50_000, KEY_DIM), DType.BF16, Mode.DEFAULT, false, false);
    assertThat(planner(true).plan(tooLong, PlanChoice.parse("wgmma:50048"))).isEmpty();
  }

  private static int askedItems(Question question, String name) {
    return planner(true).plan(question, PlanChoice.parse(name)).orElseThrow().cut().items();
  }

  @Test
  void outputsWithoutCausalityAreOfTheLeastItemsThatFillAGpu() {
    AttentionShape shape = AttentionShape.of(4, 16, 10_000, KEY_DIM);
    Question question = Question.of(shape, DType.BF16, Mode.DEFAULT, false, false);
    ForwardPlan.Step hopper = planner(true).plan(question).orElseThrow().steps().getLast();
    assertThat(hopper.kernel().symbol()).isEqualTo("la_chunked_state_outputs_wgmma_bf16");
    assertThat(hopper.blocks()).isEqualTo(64 * 2);
    assertThat(hopper.threads()).as("two warpgroups").isEqualTo(256);
    ForwardPlan.Step other = planner(false).plan(question).orElseThrow().steps().getLast();
    assertThat(other.kernel().symbol()).isEqualTo("la_chunked_state_outputs_mma_bf16");
    PlanChoice wgmma = PlanChoice.parse("wgmma");
    assertThat(planner(false).plan(question, wgmma)).as("asked for, not there").isEmpty();
    assertThat(planner(true).plan(question, PlanChoice.parse("mma")).orElseThrow().steps())
        .last()
        .extracting(step -> step.kernel().symbol())
        .isEqualTo("la_chunked_state_outputs_mma_bf16");
    Question tf32 = Question.of(shape, DType.F32, Mode.TF32, false, false);
    assertThat(planner(true).plan(tf32).orElseThrow().steps().getLast().kernel().symbol())
        .isEqualTo("la_chunked_state_outputs_wgmma_f32_default");
  }

  @Test
  void outputsOfManySequencesAreOfBlocksOfOneWarpgroup() {
    for (int heads : new int[] {263, 264, 265, 768}) {
      AttentionShape shape = AttentionShape.of(1, heads, 197, KEY_DIM);
      Question question = Question.of(shape, DType.BF16, Mode.DEFAULT, false, false);
      ForwardPlan.Step outputs = plan(question).steps().getLast();
      int warpgroups = heads > 2 * 132 ? 1 : 2;
      assertThat(outputs.blocks()).isEqualTo(heads);
      assertThat(outputs.threads()).as("%d heads", heads).isEqualTo(warpgroups * 128);
      assertThat(outputs.sharedBytes())
          .isEqualTo(outputs.kernel().shared().bytes(KEY_DIM, warpgroups));
    }
    Question wide =
        Question.of(AttentionShape.of(1, 768, 197, 256), DType.F32, Mode.DEFAULT, false, false);
    assertThat(plan(wide).steps().getLast().threads())
        .as("a multiprocessor has shared memory for one block")
        .isEqualTo(256);
  }

  @Test
  void sumsHaveAMultiprocessorForEachBlockWhereThereAreEnough() {
    for (int heads : new int[] {1, 66, 67, 768}) {
      ForwardPlan.Step sums = sums(heads, KEY_DIM, DType.BF16);
      assertThat(sums.kernel().symbol()).isEqualTo("la_chunked_state_sums_wgmma_d128_bf16");
      assertThat(sums.cluster()).isEqualTo(2);
      assertThat(sums.blocks()).isEqualTo(2 * heads);
      expectPairs(sums, heads > 66);
    }
    for (int heads : new int[] {1, 132, 133}) {
      ForwardPlan.Step sums = sums(heads, 64, DType.F32);
      assertThat(sums.kernel().symbol()).isEqualTo("la_chunked_state_sums_wgmma_d64_f32_default");
      assertThat(sums.blocks()).isEqualTo(heads);
      expectPairs(sums, heads > 132);
    }
  }

  private static ForwardPlan.Step sums(int heads, int keyDim, DType type) {
    AttentionShape shape = AttentionShape.of(1, heads, 60, keyDim);
    Question question = Question.of(shape, type, Mode.DEFAULT, false, false);
    return EVERY.plan(question).orElseThrow().steps().getFirst();
  }

  private static void expectPairs(ForwardPlan.Step sums, boolean inPairs) {
    // each of two blocks of a multiprocessor with 228 KiB, 1 of them the system's
    int mostOfTwo = 115_712;
    assertThat(sums.sharedBytes() <= mostOfTwo).as("%d", sums.blocks()).isEqualTo(inPairs);
    assertThat(sums.kernel().sharedBytes()).isLessThanOrEqualTo(mostOfTwo);
  }

  @Test
  void modesChooseTheirKernels() {
    AttentionShape shape = AttentionShape.of(4, 16, 4096, KEY_DIM);
    List<String> symbols = new ArrayList<>();
    for (boolean hopper : new boolean[] {true, false}) {
      for (Mode mode : Mode.values()) {
        planner(hopper).plan(causal(shape, DType.F32, mode)).orElseThrow().steps().stream()
            .map(ForwardPlan.Step::kernel)
            .filter(kernel -> kernel.operation() == Operation.FORWARD)
            .forEach(kernel -> symbols.add(kernel.symbol()));
      }
    }
    assertThat(symbols)
        .containsExactly(
            "la_chunked_forward_wgmma_d128_f32_accurate",
            "la_chunked_forward_wgmma_d128_f32_default",
            "la_chunked_forward_wgmma_d128_f32_tf32",
            "la_chunked_forward_mma_d128_f32_accurate",
            "la_chunked_forward_mma_d128_f32_accurate",
            "la_chunked_forward_mma_d128_f32_tf32");
  }

  @Test
  void normalizedRowsHaveAKernelOfTheirOwnOnHopper() {
    Question question =
        Question.of(AttentionShape.of(4, 16, 4096, KEY_DIM), DType.BF16, Mode.DEFAULT, true, true);
    assertThat(plan(question).steps().getFirst().kernel().symbol())
        .isEqualTo("la_chunked_normalized_forward_wgmma_d128_bf16");
    assertThat(
            planner(false).plan(question).orElseThrow().steps().stream()
                .map(step -> step.kernel().symbol()))
        .contains("la_chunked_forward_mma_d128_bf16");
  }

  @Test
  void stridesThatTheCopyEngineCannotTakeAreLeftToMma() {
    Question question =
        new Question(
            AttentionShape.of(4, 16, 4096, KEY_DIM),
            DType.BF16,
            Mode.DEFAULT,
            true,
            false,
            null,
            false,
            false,
            false,
            false);
    assertThat(plan(question).steps().getFirst().kernel().technique()).isEqualTo(Technique.MMA);
  }

  @Test
  void aHeadDimensionThatIsNotBuiltHasNoCausalPlan() {
    assertThat(planner(true).plan(causal(AttentionShape.of(1, 1, 64, 96), DType.F32, Mode.DEFAULT)))
        .isEmpty();
  }

  @Test
  void blocksTakeTurnsWhereHeadsLeaveMultiprocessorsIdle() {
    Question question = causal(AttentionShape.of(1, 8, 10_000, KEY_DIM), DType.BF16, Mode.DEFAULT);
    ForwardPlan one = planner(true).plan(question, PlanChoice.parse("wgmma")).orElseThrow();
    ForwardPlan two = planner(true).plan(question, PlanChoice.parse("wgmma*2")).orElseThrow();
    assertThat(two.turns()).isEqualTo(2);
    assertThat(two.steps().getFirst().blocks()).isEqualTo(2 * one.steps().getFirst().blocks());
    assertThat(two.markBytes()).isEqualTo(2 * one.markBytes());
    assertThat(two.micros()).isLessThan(one.micros());
    assertThat(two.summary()).isEqualTo("one pass, wgmma*2");
    assertThat(two.reason())
        .isEqualTo(
            "one pass: 1 items of up to 10000 tokens, whose chunks 2 blocks write in turn, by wgmma"
                + " on 132 multiprocessors");
    assertThat(planner(true).plan(question, PlanChoice.parse("mma*2"))).isEmpty();
    assertThat(planner(true).plan(question, PlanChoice.parse("wgmma*16"))).isEmpty();
    assertThat(
            planner(true)
                .plan(
                    causal(AttentionShape.of(1, 8, 10_000, KEY_DIM), DType.F32, Mode.TF32),
                    PlanChoice.parse("wgmma*2")))
        .isEmpty();
  }

  @Test
  void aChoiceOfPlanHasAForm() {
    assertThat(PlanChoice.parse("wgmma:128*4"))
        .isEqualTo(new PlanChoice(Technique.WGMMA, 128, 4, PlanChoice.Order.SUMMED));
    assertThat(PlanChoice.parse("wgmma:128*4")).hasToString("linattn.plan=wgmma:128*4");
    for (String wrong :
        List.of(
            "",
            "wgmma:",
            "wgmma*",
            "wgmma:100",
            "wgmma*3",
            "wgmma*2:64",
            "wgmma:64*2+",
            "wgmma:64+/",
            "wgmma/",
            "wgmma+")) {
      assertThatIllegalArgumentException().isThrownBy(() -> PlanChoice.parse(wrong));
    }
  }

  /** 160 blocks are two rounds for 132 multiprocessors, 640 a quarter as long are five quarters. */
  @Test
  void statesAreHandedOnWhereBlocksComeInRounds() {
    AttentionShape shape = AttentionShape.of(4, 20, 10_000, KEY_DIM);
    ForwardPlan plan = plan(causal(shape, DType.F32, Mode.DEFAULT));
    assertThat(plan.kind()).isEqualTo(Kind.RELAY);
    assertThat(plan.cut().items()).isEqualTo(1);
    assertThat(plan.forwardCut().items()).isEqualTo(4);
    assertThat(plan.steps().getFirst().blocks()).isEqualTo(80 * 4 * 2);
    assertThat(plan.markBytes()).isEqualTo(80 * 4 * 2 * Integer.BYTES);
    assertThat(plan.stateBytes())
        .isEqualTo(Relay.bytes(shape, plan.forwardCut()))
        .isGreaterThan(80 * 5 * 65_536);
    assertThat(plan.summary()).isEqualTo("relay 2560, wgmma");
    assertThat(plan.reason())
        .startsWith(
            "relay: one pass, by blocks of 4 items of up to 2560 tokens that hand states on, by"
                + " wgmma on 132 multiprocessors; next best segments by wgmma, ");
    Question keeping = causal(shape, DType.F32, Mode.DEFAULT).keeping(true);
    assertThat(planner(true).plan(keeping).orElseThrow().toKeep(keeping)).isEmpty();
    for (int heads : new int[] {64, 128}) { // 128 and 256 blocks fill one round and two
      AttentionShape full = AttentionShape.of(1, heads, 10_000, KEY_DIM);
      assertThat(plan(causal(full, DType.F32, Mode.DEFAULT)).kind()).isEqualTo(Kind.FORWARD);
    }
    AttentionShape brief = AttentionShape.of(4, 20, 1000, KEY_DIM);
    assertThat(plan(causal(brief, DType.F32, Mode.DEFAULT)).kind()).isEqualTo(Kind.FORWARD);
    assertThat(planner(false).plan(causal(shape, DType.F32, Mode.DEFAULT)).orElseThrow().kind())
        .as("blocks by mma hand nothing on")
        .isEqualTo(Kind.FORWARD);
  }

  /** Sums read k and v once more, for which few heads on a slow memory have no time. */
  @Test
  void theMemoryOfTheGpuTellsWhetherSegmentsAreWorthIt() {
    Question question = causal(AttentionShape.of(1, 24, 10_000, KEY_DIM), DType.BF16, Mode.DEFAULT);
    ForwardPlan plan = new Planner(AnyKernel.H100, AnyKernel::find).plan(question).orElseThrow();
    assertThat(plan.kind()).isEqualTo(Kind.FORWARD);
    assertThat(plan.turns()).isEqualTo(2);
    assertThat(plan(question).kind()).as("on an H200").isEqualTo(Kind.SEGMENTED);
  }

  @Test
  void aRelayCanBeAskedFor() {
    Question question = causal(AttentionShape.of(1, 2, 200, KEY_DIM), DType.BF16, Mode.DEFAULT);
    PlanChoice relay = PlanChoice.parse("wgmma:64+");
    assertThat(relay)
        .isEqualTo(new PlanChoice(Technique.WGMMA, 64, 1, PlanChoice.Order.RELAY))
        .hasToString("linattn.plan=wgmma:64+");
    ForwardPlan plan = planner(true).plan(question, relay).orElseThrow();
    assertThat(plan.kind()).isEqualTo(Kind.RELAY);
    assertThat(plan.forwardCut().items()).isEqualTo(4);
    assertThat(planner(true).plan(question, PlanChoice.parse("mma:64+"))).isEmpty();
    Question tooLong = causal(AttentionShape.of(1, 2, 600_000, KEY_DIM), DType.F32, Mode.TF32);
    assertThat(planner(true).plan(tooLong, PlanChoice.parse("wgmma:2048"))).isPresent();
    assertThat(planner(true).plan(tooLong, PlanChoice.parse("wgmma:2048+")))
        .as("it adds to one state all along")
        .isEmpty();
  }

  @Test
  void stagesAreOnePassEachAndKeepTheStatesBetween() {
    Question plain = causal(AttentionShape.of(1, 32, 10_000, KEY_DIM), DType.BF16, Mode.DEFAULT);
    Question question = plain.keeping(true);
    PlanChoice choice = PlanChoice.parse("wgmma:5056/");
    assertThat(choice)
        .isEqualTo(new PlanChoice(Technique.WGMMA, 5056, 1, PlanChoice.Order.STAGES))
        .hasToString("linattn.plan=wgmma:5056/");
    ForwardPlan plan = planner(true).plan(question, choice).orElseThrow();
    assertThat(plan.kind()).isEqualTo(Kind.STAGES);
    assertThat(plan.parts()).hasSize(2).allMatch(part -> part.kind() == Kind.FORWARD);
    assertThat(plan.steps())
        .extracting(step -> step.kernel().operation())
        .containsExactly(
            Operation.FORWARD,
            Operation.RECURRENCE,
            Operation.FORWARD,
            Operation.RECURRENCE,
            Operation.STATE_SCAN);
    assertThat(plan.toKeep(question)).contains(Checkpoints.Form.ofSegments(5056));
    assertThat(plan.workspaceBytes())
        .as("two states, and marks of one part")
        .isEqualTo(2 * 32 * (128 * 128 + 256) * 4L + plan.parts().getFirst().markBytes());
    assertThat(plan.summary()).isEqualTo("stages 5056, wgmma");
    assertThat(plan.reason())
        .isEqualTo(
            "stages: 2 items of up to 5056 tokens one after the other, whose states are kept");
    assertThat(planner(true).plan(plain, choice)).as("nobody asks").isEmpty();
    Question normalized =
        Question.of(plain.shape(), DType.BF16, Mode.DEFAULT, true, true).keeping(true);
    assertThat(planner(true).plan(normalized, choice)).as("lengths of rows").isEmpty();
    assertThat(planner(true).plan(question, PlanChoice.parse("wgmma:10048/")))
        .as("one part")
        .isEmpty();
  }

  /** Sums of fewer blocks than multiprocessors are cut finer than the forward. */
  @Test
  void sumsHaveItemsOfTheirOwn() {
    Question question = causal(AttentionShape.of(1, 4, 65_536, KEY_DIM), DType.BF16, Mode.DEFAULT);
    ForwardPlan plan = planner(true).plan(question, PlanChoice.parse("wgmma:8192")).orElseThrow();
    assertThat(plan.forwardCut().items()).isEqualTo(8);
    assertThat(plan.slotStep()).isEqualTo(2);
    assertThat(plan.cut().itemTokens()).isEqualTo(4096);
    assertThat(plan.summed()).isEqualTo(14);
    assertThat(plan.slots()).isEqualTo(15);
    assertThat(plan.steps().getFirst().blocks()).isEqualTo(4 * 14 * 2);
    long stateBytes = 4L * (KEY_DIM * KEY_DIM + 2 * KEY_DIM) * Float.BYTES;
    assertThat(plan.stateBytes()).isEqualTo(15 * stateBytes);
  }

  /** 96 blocks are a round for 132 multiprocessors, 384 a quarter as long are three. */
  @Test
  void sumsHaveShorterItemsWhereTheirLastRoundIsFullerThen() {
    AttentionShape shape = AttentionShape.of(1, 8, 131_072, KEY_DIM);
    Question question = causal(shape, DType.F32, Mode.DEFAULT);
    ForwardPlan plan = planner(true).plan(question, PlanChoice.parse("wgmma:32768")).orElseThrow();
    assertThat(plan.forwardCut().items()).isEqualTo(4);
    assertThat(plan.slotStep()).isEqualTo(8);
    assertThat(plan.steps().getFirst().blocks()).isEqualTo(8 * 3 * 8 * 2);
    AttentionShape shorter = AttentionShape.of(1, 8, 32_768, KEY_DIM);
    Question shortOne = causal(shorter, DType.F32, Mode.DEFAULT);
    assertThat(
            planner(true).plan(shortOne, PlanChoice.parse("wgmma:8192")).orElseThrow().slotStep())
        .as("a state is that of 2048 tokens at least")
        .isEqualTo(2);
  }

  /** Breaks when sums are cut into more blocks than a launch can have. */
  @Test
  void moreHeadsThanAnyMemoryHoldsHaveAPlan() {
    AttentionShape absurd = AttentionShape.of(1 << 12, 1 << 12, 1 << 20, KEY_DIM);
    assertThat(planner(true).plan(causal(absurd, DType.F32, Mode.ACCURATE))).isPresent();
  }

  @Test
  void aPlanCanBeAskedFor() {
    Question question = causal(AttentionShape.of(4, 16, 10_000, KEY_DIM), DType.BF16, Mode.DEFAULT);
    ForwardPlan whole =
        planner(true)
            .plan(question, new PlanChoice(Technique.MMA, 0, 1, PlanChoice.Order.SUMMED))
            .orElseThrow();
    assertThat(whole.kind()).isEqualTo(Kind.FORWARD);
    assertThat(whole.steps().getFirst().kernel().technique()).isEqualTo(Technique.MMA);
    ForwardPlan cut =
        planner(true)
            .plan(question, new PlanChoice(Technique.WGMMA, 2048, 1, PlanChoice.Order.SUMMED))
            .orElseThrow();
    assertThat(cut.kind()).isEqualTo(Kind.SEGMENTED);
    assertThat(cut.cut().longest()).isEqualTo(2048);
    assertThat(cut.reason())
        .isEqualTo(
            "segments: 5 items of up to 2048 tokens with a scan between"
                + " two passes, by wgmma on 132 multiprocessors");
    assertThat(
            planner(false)
                .plan(question, new PlanChoice(Technique.WGMMA, 0, 1, PlanChoice.Order.SUMMED)))
        .isEmpty();
    Question tooLong = causal(AttentionShape.of(1, 1, 400_000, KEY_DIM), DType.BF16, Mode.DEFAULT);
    assertThat(
            planner(true)
                .plan(tooLong, new PlanChoice(Technique.WGMMA, 0, 1, PlanChoice.Order.SUMMED)))
        .isEmpty();
    Question tooLongByMma =
        causal(AttentionShape.of(1, 1, 200_000, KEY_DIM), DType.BF16, Mode.DEFAULT);
    assertThat(
            planner(true)
                .plan(tooLongByMma, new PlanChoice(Technique.MMA, 0, 1, PlanChoice.Order.SUMMED)))
        .isEmpty();
  }

  @Test
  void cutsCoverEveryTokenOnce() {
    Sequences packing = Sequences.ofLengths(0, 130, 1, 0, 512, 700);
    for (int segment : new int[] {0, 64, 512, 2048}) {
      Cut cut = new Cut(packing.tokens(), packing, segment);
      int[] seen = new int[packing.tokens()];
      int[] count = {0};
      cut.forEach(
          (index, sequence, start, length) -> {
            assertThat(index).isEqualTo(count[0]++);
            assertThat(start).isBetween(packing.start(sequence), packing.start(sequence + 1));
            for (int i = start; i < start + length; i++) {
              seen[i]++;
            }
          });
      assertThat(seen).containsOnly(1);
      assertThat(count[0]).isEqualTo(cut.items());
      long chunks = 0;
      for (int i = 0; i < packing.count(); i++) {
        int left = packing.length(i);
        while (left > 0) {
          int item = segment == 0 ? left : Math.min(segment, left);
          chunks += Math.ceilDiv(item, 64);
          left -= item;
        }
      }
      assertThat(cut.chunks()).isEqualTo(chunks);
    }
  }
}
