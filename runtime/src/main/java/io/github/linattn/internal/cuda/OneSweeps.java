package io.github.linattn.internal.cuda;

import io.github.linattn.AttentionShape;
import io.github.linattn.internal.Checkpoints;
import io.github.linattn.internal.cuda.GradientPlan.Kind;
import io.github.linattn.internal.cuda.GradientPlan.Role;
import io.github.linattn.kernelgen.KernelEntry;
import io.github.linattn.kernelgen.Operation;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/**
 * Plans of a causal backward that forms dq, dk and dv in one sweep from the last token, from states
 * that its forward kept. Pure and immutable.
 */
record OneSweeps(LaunchModel model) {
  /** Empty where one sweep does not do this. */
  Optional<KernelEntry> kernel(Question question) {
    AttentionShape shape = question.shape();
    boolean suits =
        question.packing() == null
            && !question.normalize()
            && !question.sumsSlope()
            && shape.headsPerKeyValueHead() == 1
            && shape.keyDim() == shape.valueDim();
    return suits
        ? model.wgmma(question, Operation.ONE_SWEEP, shape.keyDim(), question.precision())
        : Optional.empty();
  }

  /** The plan of this choice; empty where it cannot be. */
  Optional<GradientPlan> plan(Question question, GradientChoice choice) {
    int tokens = question.shape().tokens();
    return switch (choice.kind()) {
      case CHAIN -> chain(question, choice.form());
      case SWEPT_SEGMENTS -> segments(question, choice.segment());
      default ->
          of(question, new Cut(tokens, null, choice.segment()))
              .filter(plan -> hasStates(question, plan.cut()));
    };
  }

  /** A sequence of one chunk needs the state before it alone. */
  static boolean hasStates(Question question, Cut whole) {
    return question.lastState() || whole.longest() <= Planner.CHUNK;
  }

  /**
   * Each sequence from its last token, by blocks that hand states on where these come in rounds and
   * it is faster so; empty where this cannot be, but for the states, which {@link #hasStates} asks
   * for.
   */
  Optional<GradientPlan> fastest(Question question) {
    Cut whole = new Cut(question.shape().tokens(), null, 0);
    return of(question, whole)
        .map(
            plan ->
                plan.step(Role.ONE_SWEEP).blocks() <= model.multiprocessors()
                    ? plan
                    : Relay.cuts(whole).stream()
                        .flatMap(items -> of(question, items).stream())
                        .reduce(plan, (best, next) -> next.micros() < best.micros() ? next : best));
  }

  /**
   * Each sequence from its last token, likewise.
   *
   * @param items that blocks walk, which hand states on; or a whole sequence
   */
  private Optional<GradientPlan> of(Question question, Cut items) {
    Cut whole = new Cut(question.shape().tokens(), null, 0);
    return kernel(question)
        .filter(kernel -> whole.longest() <= Rates.mostItemTokens(kernel))
        .filter(kernel -> items.items() == 1 || Relay.isForOneSweep(items))
        .flatMap(kernel -> of(question, kernel, whole, items));
  }

  private Optional<GradientPlan> of(Question question, KernelEntry kernel, Cut whole, Cut items) {
    AttentionShape shape = question.shape();
    boolean handsOn = items.items() > 1;
    var draft = new GradientDraft(model, question, whole);
    draft.addOneSweep(kernel, items, handsOn ? Rates.handingOnMicros(kernel, shape.keyDim()) : 0);
    draft.addCoefficients();
    if (handsOn) {
      draft.reserve(3 * Relay.bytes(shape, items));
      draft.lengthen(3 * Rates.RELAY_MICROS);
    }
    return draft.plan(Kind.ONE_SWEEP);
  }

  /** One sweep of each segment of a chain that a forward kept, from the last one on. */
  Optional<GradientPlan> chain(Question question, Checkpoints.Form form) {
    Cut cut = new Cut(question.shape().tokens(), null, form.segment());
    List<GradientPlan> parts = new ArrayList<>();
    cut.forEach(
        (i, sequence, start, length) ->
            fastest(question.window(length, i > 0 || question.initialState(), true))
                .ifPresent(parts::add));
    boolean isThere = form.equals(question.kept()) && parts.size() == cut.items();
    return isThere && question.lastState()
        ? Optional.of(GradientPlan.chain(cut, parts, StateArrays.bytes(question.shape(), 1)))
        : Optional.empty();
  }

  /**
   * One sweep of segments of so many tokens, all at once; empty where this cannot be. Nobody reads
   * the sums of the first of them but for the gradient of the initial state.
   */
  Optional<GradientPlan> segments(Question question, int segment) {
    Cut cut = new Cut(question.shape().tokens(), null, segment);
    return kernel(question)
        .filter(kernel -> question.lastState() && cut.items() > 1)
        .filter(kernel -> question.shape().tokens() <= Rates.mostSweptTokens(kernel.elementType()))
        .filter(kernel -> cut.itemTokens() <= Rates.mostItemTokens(kernel))
        .flatMap(kernel -> segments(question, kernel, cut));
  }

  private Optional<GradientPlan> segments(Question question, KernelEntry kernel, Cut cut) {
    AttentionShape shape = question.shape();
    Checkpoints.Form form = question.kept();
    boolean isKept = form != null && !form.chained() && form.segment() == cut.itemTokens();
    int behindFirst = cut.items() - 1;
    var draft = new GradientDraft(model, question, cut);
    draft.reserve((isKept ? 1 : 2) * StateArrays.bytes(shape, cut.items()));
    if (isKept) {
      draft.startFromKept(1);
    } else {
      draft.addStates(cut, behindFirst);
    }
    draft.addDeltaAndGradients(question.finalState() ? cut.items() : behindFirst);
    draft.addOneSweep(kernel, cut, Rates.segmentMicros(shape.keyDim()));
    draft.addCoefficients();
    return draft.plan(Kind.SWEPT_SEGMENTS);
  }
}
