package io.github.linattn.internal.cuda;

import io.github.linattn.AttentionShape;
import io.github.linattn.internal.Checkpoints;
import io.github.linattn.internal.cuda.GradientPlan.Kind;
import io.github.linattn.internal.cuda.GradientPlan.Role;
import io.github.linattn.kernelgen.KernelEntry;
import io.github.linattn.kernelgen.Operation;
import io.github.linattn.kernelgen.Technique;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Locale;
import java.util.Optional;

/**
 * Chooses the kernels of a backward of the family {@code chunked} and how the tokens are cut, as
 * {@link Planner} does for a forward. Pure and immutable.
 */
final class GradientPlanner {
  private final LaunchModel model;
  private final TwoSweeps twoSweeps;
  private final OneSweeps oneSweeps;

  /** For one device, as {@link Planner}. */
  GradientPlanner(GpuTraits gpu, Planner.Built built) {
    this.model = new LaunchModel(gpu, built);
    this.twoSweeps = new TwoSweeps(model);
    this.oneSweeps = new OneSweeps(model);
  }

  /** The plan that the model finds fastest; empty where kernels for it are not built. */
  Optional<GradientPlan> plan(Question question) {
    if (!question.causal()) {
      return nonCausal(question, Technique.WGMMA, 0);
    }
    return twoSweeps
        .kernels(question, Technique.WGMMA)
        .flatMap(kernels -> fastest(question, kernels));
  }

  /**
   * The plan of this choice, without causality that of its technique and, if it has segments at
   * once, of sums of these; empty where kernels for it are not built or its items would be too
   * long.
   */
  Optional<GradientPlan> plan(Question question, GradientChoice choice) {
    if (!question.causal()) {
      return nonCausal(question, choice.technique(), choice.segmentOfTotals())
          .filter(plan -> plan.step(Role.QUERY).kernel().technique() == choice.technique());
    }
    Optional<GradientPlan> asked =
        switch (choice.kind()) {
          case CHAIN, ONE_SWEEP, SWEPT_SEGMENTS -> oneSweeps.plan(question, choice);
          default -> twoSweeps.plan(question, choice);
        };
    return asked.map(plan -> explained(plan, List.of()));
  }

  private Optional<GradientPlan> fastest(Question question, TwoSweeps.Kernels kernels) {
    AttentionShape shape = question.shape();
    List<GradientPlan> candidates = new ArrayList<>();
    Cut whole = question.cut(0);
    int limit = kernels.mostTokens(shape.headsPerKeyValueHead());
    int longest = whole.longest();
    if (longest <= limit) {
      twoSweeps.whole(question, kernels, whole).ifPresent(candidates::add);
      twoSweeps.relay(question, kernels, whole).ifPresent(candidates::add);
    }
    long blocks = question.keyValueHeads() * Math.ceilDiv(shape.keyDim(), LaunchModel.COLUMNS);
    int fewest = Math.max(2, Math.ceilDiv(longest, limit));
    for (int segment : model.segments(longest, fewest, blocks).toArray()) {
      Cut cut = question.cut(segment);
      twoSweeps.segmented(question, kernels, cut).ifPresent(candidates::add);
      if (segment >= LaunchModel.LEAST_SEGMENT) {
        oneSweeps.segments(question, segment).ifPresent(candidates::add);
      }
    }
    twoSweeps.segmentedApart(question, kernels).ifPresent(candidates::add);
    Checkpoints.Form form = question.kept();
    if (form != null && form.chained()) {
      oneSweeps.chain(question, form).ifPresent(candidates::add);
    }
    candidates.addAll(fromKept(question, kernels, Integer.MAX_VALUE));
    Optional<GradientPlan> one = oneSweeps.fastest(question);
    boolean hasStates = OneSweeps.hasStates(question, whole);
    if (hasStates) {
      one.ifPresent(candidates::add);
    }
    return fastest(candidates)
        .map(best -> explained(best, candidates))
        .map(best -> hasStates ? best : withHint(best, one));
  }

  /** From the states that a forward kept of segments, if it did: up to so many at a time. */
  private List<GradientPlan> fromKept(Question question, TwoSweeps.Kernels kernels, int mostSteps) {
    Checkpoints.Form form = question.kept();
    int kept = form == null || form.chained() ? 0 : form.segment();
    if (kept == 0) {
      return List.of();
    }
    List<GradientPlan> plans = new ArrayList<>();
    int longest = question.shape().tokens();
    int most = kernels.mostTokens(question.shape().headsPerKeyValueHead());
    for (int step = 1; step <= mostSteps && kept * step <= Math.min(most, longest); step *= 2) {
      Cut cut = new Cut(longest, null, kept * step);
      twoSweeps.fromKept(question, kernels, cut, step).ifPresent(plans::add);
    }
    oneSweeps.segments(question, kept).ifPresent(plans::add);
    return plans;
  }

  /** The fastest from the states that a forward kept of segments, if it did: one at a time. */
  Optional<GradientPlan> planFromKept(Question question) {
    return twoSweeps
        .kernels(question, Technique.WGMMA)
        .flatMap(kernels -> fastest(fromKept(question, kernels, 1)));
  }

  private static Optional<GradientPlan> fastest(List<GradientPlan> plans) {
    return plans.stream().min(Comparator.comparingDouble(GradientPlan::micros));
  }

  /** Tells what the state after the last token would be worth where it is not at hand. */
  private static GradientPlan withHint(GradientPlan best, Optional<GradientPlan> one) {
    return one.filter(plan -> plan.micros() < best.micros())
        .map(
            plan ->
                best.because(
                    String.format(
                        Locale.ROOT,
                        "%s; from the state that a forward keeps one sweep, %.1f µs",
                        best.reason(),
                        plan.micros())))
        .orElse(best);
  }

  /**
   * The segments before which a forward should keep states, so that its backward takes one sweep of
   * each; empty where that would not be faster.
   *
   * @param question about the backward, with the state after the last token at hand
   */
  Optional<Checkpoints.Form> chain(Question question) {
    int tokens = question.shape().tokens();
    int most = oneSweeps.kernel(question).map(Rates::mostItemTokens).orElse(tokens);
    if (tokens <= most || tokens > Rates.mostChainTokens(question.element())) {
      return Optional.empty();
    }
    int segment = Cut.segment(tokens, Math.ceilDiv(tokens, most), Planner.CHUNK);
    Checkpoints.Form form = Checkpoints.Form.ofChain(segment);
    return plan(question.keeping(form)).filter(plan -> plan.kind() == Kind.CHAIN).map(plan -> form);
  }

  /** The sums over all tokens, then every row against them, by this technique or else by mma. */
  private Optional<GradientPlan> nonCausal(Question question, Technique technique, int segment) {
    return model
        .outputsKernel(question, Operation.GRADIENT_OUTPUTS, technique)
        .flatMap(kernel -> nonCausal(question, kernel, segment))
        .map(
            plan ->
                plan.because(
                    "not causal: %s %s are summed, then every row reads the sums, by %s on %d multiprocessors"
                        .formatted(
                            question.lastState()
                                ? "from the kept state, gradients of"
                                : "states of",
                            plan.cut(),
                            plan.step(Role.QUERY).kernel().technique().id(),
                            model.multiprocessors())));
  }

  private Optional<GradientPlan> nonCausal(Question question, KernelEntry kernel, int segment) {
    AttentionShape shape = question.shape();
    int most =
        Math.max(1, Rates.SAFE_ITEM_TOKENS / shape.headsPerKeyValueHead() / Planner.CHUNK)
            * Planner.CHUNK;
    Cut ofQuery =
        model.itemsOfOutputs(
            question,
            kernel,
            question.heads(),
            shape.valueDim(),
            shape.keyDim(),
            question.queryBytes());
    Cut ofKey =
        model.itemsOfOutputs(
            question,
            kernel,
            question.keyValueHeads(),
            Math.max(shape.keyDim(), shape.valueDim()),
            Math.min(shape.keyDim(), shape.valueDim()),
            question.keyValueBytes());
    KernelEntry ofDivided = model.finishingKernel(question, kernel).orElse(kernel);
    return fastest(
        model.itemsOfTotals(question, most, segment).stream()
            .map(cut -> nonCausal(question, kernel, ofDivided, cut, ofQuery, ofKey))
            .flatMap(Optional::stream)
            .toList());
  }

  /**
   * By {@code ofDivided} for dq and dk, which is another kernel where that makes gradients of rows
   * that were divided those of the rows.
   */
  private Optional<GradientPlan> nonCausal(
      Question question,
      KernelEntry kernel,
      KernelEntry ofDivided,
      Cut cut,
      Cut ofQuery,
      Cut ofKey) {
    var draft = new GradientDraft(model, question, cut);
    draft.addRows(ofDivided);
    draft.addStateTotals();
    draft.addQuery(ofDivided, ofQuery, 1);
    draft.addGradientTotals();
    draft.addKeyAndValueOfRows(ofDivided, kernel, ofKey);
    draft.addCoefficientsWithoutRepair();
    if (!ofDivided.finishesGradients()) {
      draft.addNormalized();
    }
    return draft.planWithoutMarks(Kind.NON_CAUSAL);
  }

  private GradientPlan explained(GradientPlan best, List<GradientPlan> candidates) {
    String against =
        candidates.stream()
            .filter(plan -> plan.kind() != best.kind())
            .reduce((a, b) -> b.micros() < a.micros() ? b : a)
            .map(
                plan ->
                    String.format(
                        Locale.ROOT, "; next best %s, %.1f µs", plan.kind().text(), plan.micros()))
            .orElse("");
    boolean one = best.has(Role.ONE_SWEEP);
    return best.because(
        String.format(
            Locale.ROOT,
            "%s: %s%s, %s by %s, on %d multiprocessors%s",
            best.kind().text(),
            best.cut(),
            scans(best),
            one ? "dq, dk and dv" : "dq",
            best.technique().id(),
            model.multiprocessors(),
            against));
  }

  private static String scans(GradientPlan plan) {
    if (plan.kind() == Kind.CHAIN) {
      String how = plan.handsOn() ? ", by blocks that hand states on" : "";
      return " one after the other, from the states that the forward kept" + how;
    }
    boolean swept = plan.kind() == Kind.SWEPT_SEGMENTS;
    if (plan.keptStep() > 0) {
      String before = swept ? "one sweep of all at once" : "the second sweep";
      return " from the states that the forward kept, with a scan before " + before;
    }
    return switch (plan.kind()) {
      case SWEPT_SEGMENTS -> " with two scans before one sweep of all at once";
      case SEGMENTED -> scansOfSegments(plan);
      case RELAY ->
          " by blocks that hand states on: dq of %d items, dk and dv of %d"
              .formatted(plan.outputs().items(), plan.keyOutputs().items());
      case ONE_SWEEP ->
          plan.handsOn() ? " by blocks of %s that hand states on".formatted(plan.outputs()) : "";
      default -> "";
    };
  }

  private static String scansOfSegments(GradientPlan plan) {
    if (!plan.has(Role.STATE_SCAN)) {
      return " of dk and dv with a scan before them, dq of whole sequences";
    }
    return plan.outputs().items() == plan.cut().items()
        ? " with a scan before each sweep"
        : " of dk and dv, %d of dq, with a scan before each sweep"
            .formatted(plan.outputs().items());
  }
}
