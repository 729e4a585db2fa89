package io.github.linattn.internal.cuda;

import static org.assertj.core.api.Assertions.assertThat;

import io.github.linattn.AttentionShape;
import io.github.linattn.DType;
import io.github.linattn.Mode;
import io.github.linattn.Sequences;
import io.github.linattn.internal.Checkpoints;
import io.github.linattn.io.Tuning;
import io.github.linattn.io.Tuning.Choice;
import io.github.linattn.io.Tuning.Entry;
import io.github.linattn.io.Tuning.Pass;
import io.github.linattn.io.Tuning.Problem;
import io.github.linattn.io.Tuning.Range;
import io.github.linattn.kernelgen.Technique;
import java.util.List;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** Breaks when a tuned plan is not taken, or is taken for a problem that was not tuned. */
class PlansTest {
  private static final String GPU = "some GPU";
  private static final AttentionShape SHAPE = AttentionShape.of(4, 16, 10_000, 128);

  private static Plans plans(Choice choice) {
    return plans(List.of(entry(Pass.FORWARD, choice), entry(Pass.BACKWARD, choice)));
  }

  private static Plans plans(List<Entry> entries) {
    var planner = new Planner(AnyKernel.H200, AnyKernel::find);
    var gradients = new GradientPlanner(AnyKernel.H200, AnyKernel::find);
    return new Plans(planner, gradients, Tuning.NONE.with(entries), GPU);
  }

  private static Entry entry(Pass pass, Choice choice) {
    var problem = new Problem(GPU, pass, 128, DType.BF16, Mode.DEFAULT, false);
    return new Entry(problem, new Range(64, 127), new Range(8192, 16383), choice, 0.5);
  }

  private static Question question(
      AttentionShape shape, boolean causal, @Nullable Sequences packing) {
    return new Question(
        shape, DType.BF16, Mode.DEFAULT, causal, false, packing, false, false, false, true);
  }

  @AfterEach
  void askForNothing() {
    System.clearProperty("linattn.plan");
  }

  @Test
  void whatWasTunedIsTaken() {
    Plans plans = plans(new Choice("mma", 4, 1));
    ForwardPlan forward = plans.forward(question(SHAPE, true, null), null).orElseThrow();
    assertThat(forward.kind()).isEqualTo(ForwardPlan.Kind.SEGMENTED);
    assertThat(forward.forwardCut().itemTokens()).isEqualTo(2560);
    assertThat(forward.steps().get(forward.steps().size() - 2).kernel().technique())
        .isEqualTo(Technique.MMA);
    assertThat(forward.reason()).endsWith(", as tuned");
    GradientPlan backward = plans.backward(question(SHAPE, true, null)).orElseThrow();
    assertThat(backward.kind()).isEqualTo(GradientPlan.Kind.SEGMENTED);
    assertThat(backward.cut().itemTokens()).isEqualTo(2560);
    assertThat(backward.reason()).endsWith(", as tuned");
  }

  @Test
  void aRelayThatWasTunedIsTaken() {
    Plans plans = plans(new Choice("wgmma", 4, 1, true));
    ForwardPlan forward = plans.forward(question(SHAPE, true, null), null).orElseThrow();
    assertThat(forward.kind()).isEqualTo(ForwardPlan.Kind.RELAY);
    assertThat(forward.forwardCut().itemTokens()).isEqualTo(2560);
    GradientPlan backward = plans.backward(question(SHAPE, true, null)).orElseThrow();
    assertThat(backward.kind()).isEqualTo(GradientPlan.Kind.RELAY);
    assertThat(backward.outputs().itemTokens()).isEqualTo(2560);
  }

  @Test
  void oneSweepComesBeforeWhatWasTunedWithoutItsState() {
    Question fromState = question(SHAPE, true, null).ofBackward(true, null);
    assertThat(plans(new Choice("mma", 4, 1)).backward(fromState).orElseThrow().kind())
        .isEqualTo(GradientPlan.Kind.ONE_SWEEP);
  }

  @Test
  void aForwardOfManyTokensKeepsAChainForItsBackward() {
    Plans plans = plans(new Choice("mma", 4, 1));
    Question question = question(AttentionShape.of(4, 16, 100_000, 128), true, null).keeping(true);
    Checkpoints.Form form = plans.checkpoints(question).orElseThrow();
    assertThat(form).isEqualTo(Checkpoints.Form.ofChain(14_336));
    ForwardPlan forward = plans.forward(question, form).orElseThrow();
    assertThat(forward.kind()).isEqualTo(ForwardPlan.Kind.CHAIN);
    assertThat(forward.parts())
        .hasSize(7)
        .allMatch(part -> part.kind() == ForwardPlan.Kind.FORWARD);
    assertThat(forward.cut().itemTokens()).isEqualTo(14_336);
    assertThat(forward.micros())
        .as("no more than to start again")
        .isLessThan(1.05 * plans.forward(question, null).orElseThrow().micros());
    assertThat(forward.reason()).startsWith("chain: 7 items of up to 14336 tokens");
    assertThat(forward.summary()).isEqualTo("chain 14336, wgmma");
    assertThat(plans.checkpoints(question.keeping(false))).as("nobody asks").isEmpty();
    assertThat(plans.checkpoints(question.summingSlope(true)))
        .as("db is summed by two sweeps")
        .isEmpty();
    Question grows =
        new Question(
            question.shape(), DType.BF16, Mode.DEFAULT, true, false, null, true, true, true, true);
    assertThat(plans.checkpoints(grows)).as("a state in place").isEmpty();
  }

  /** Segments cost a forward more than one pass, and their states save its backward yet more. */
  @Test
  void aForwardThatMayKeepStatesIsPlannedWithItsBackward() {
    Plans plans =
        new Plans(
            new Planner(AnyKernel.H100, AnyKernel::find),
            new GradientPlanner(AnyKernel.H100, AnyKernel::find),
            Tuning.NONE,
            GPU);
    Question few = question(AttentionShape.of(1, 24, 10_000, 128), true, null);
    assertThat(plans.forward(few, null).orElseThrow().kind()).isEqualTo(ForwardPlan.Kind.FORWARD);
    Checkpoints.Form halves = plans.checkpoints(few.keeping(true)).orElseThrow();
    assertThat(halves).isEqualTo(Checkpoints.Form.ofSegments(5056));
    assertThat(plans.forward(few.keeping(true), halves).orElseThrow().kind())
        .as("in stages, as one pass is faster than segments")
        .isEqualTo(ForwardPlan.Kind.STAGES);
    assertThat(plans.forward(few.keeping(true), null).orElseThrow().kind())
        .as("for a state alone")
        .isEqualTo(ForwardPlan.Kind.FORWARD);
    assertThat(plans.backward(few.ofBackward(true, halves)).orElseThrow().startsFromKept())
        .isTrue();

    Question one = question(AttentionShape.of(1, 4, 1 << 20, 128), true, null);
    Checkpoints.Form ofOne = plans.checkpoints(one.keeping(true)).orElseThrow();
    assertThat(ofOne.segment()).as("one sweep takes no longer ones").isLessThanOrEqualTo(16_384);
    assertThat(plans.checkpoints(one.keeping(true).summingSlope(true)).orElseThrow().segment())
        .as("two sweeps do")
        .isGreaterThan(16_384);
    assertThat(plans.backward(one.ofBackward(true, ofOne)).orElseThrow().kind())
        .isEqualTo(GradientPlan.Kind.SWEPT_SEGMENTS);

    ForwardPlan inSegments = plans.forward(one.keeping(true), ofOne).orElseThrow();
    assertThat(inSegments.kind()).isEqualTo(ForwardPlan.Kind.SEGMENTED);
    assertThat(inSegments.workspaceBytes())
        .as("states stand where they are kept")
        .isEqualTo(inSegments.markBytes());

    Question many = question(SHAPE, true, null).keeping(true);
    assertThat(plans.forward(many, null).orElseThrow().kind()).isEqualTo(ForwardPlan.Kind.FORWARD);
    assertThat(plans.checkpoints(many)).isEmpty();
  }

  /** A forward is tuned without the states that segments keep for its backward. */
  @Test
  void whatWasTunedIsTakenWhereItKeepsWhatIsPlannedToBeKept() {
    Plans whole = plans(new Choice("wgmma", 1, 1));
    Plans segments = plans(new Choice("wgmma", 4, 1));
    Question question = question(SHAPE, true, null).keeping(true);
    assertThat(whole.checkpoints(question)).isEmpty();
    assertThat(segments.forward(question, null).orElseThrow().reason()).endsWith(", as tuned");
    assertThat(segments.checkpoints(question)).as("of its segments").isEmpty();
  }

  @Test
  void otherProblemsArePlannedByTheModel() {
    Plans plans = plans(new Choice("mma", 4, 1));
    List<Question> others =
        List.of(
            question(AttentionShape.of(4, 16, 20_000, 128), true, null),
            question(AttentionShape.of(8, 16, 10_000, 128), true, null),
            question(AttentionShape.of(4, 16, 10_000, 64), true, null),
            question(new AttentionShape(4, 16, 16, 10_000, 128, 64), true, null),
            question(SHAPE, false, null),
            question(AttentionShape.of(1, 64, 10_000, 128), true, Sequences.ofLengths(4000, 6000)));
    for (Question other : others) {
      assertThat(plans.forward(other, null).orElseThrow().reason()).doesNotContain("tuned");
      assertThat(plans.backward(other).orElseThrow().reason()).doesNotContain("tuned");
    }
  }

  /** Blocks of a forward count query heads, those of dk and dv key/value heads. */
  @Test
  void backwardsOfGroupedHeadsArePlannedByTheModel() {
    Plans plans = plans(new Choice("mma", 4, 1));
    Question grouped = question(new AttentionShape(4, 16, 4, 10_000, 128, 128), true, null);
    assertThat(plans.forward(grouped, null).orElseThrow().reason()).endsWith(", as tuned");
    assertThat(plans.backward(grouped).orElseThrow().reason()).doesNotContain("tuned");
  }

  @Test
  void aPlanThatIsNotPossibleIsLeftToTheModel() {
    var inTurns = new Choice("mma", 1, 2); // its blocks take no turns
    Plans plans = plans(List.of(entry(Pass.FORWARD, inTurns)));
    assertThat(plans.forward(question(SHAPE, true, null), null).orElseThrow().reason())
        .doesNotContain("tuned");
  }

  @Test
  void aPlanThatIsAskedForComesFirst() {
    System.setProperty("linattn.plan", "wgmma");
    ForwardPlan plan =
        plans(new Choice("mma", 4, 1)).forward(question(SHAPE, true, null), null).orElseThrow();
    assertThat(plan.steps().getFirst().kernel().technique()).isEqualTo(Technique.WGMMA);
  }
}
