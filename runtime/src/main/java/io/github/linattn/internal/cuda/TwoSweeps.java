package io.github.linattn.internal.cuda;

import io.github.linattn.AttentionShape;
import io.github.linattn.internal.cuda.GradientPlan.Kind;
import io.github.linattn.kernelgen.KernelEntry;
import io.github.linattn.kernelgen.Operation;
import io.github.linattn.kernelgen.Technique;
import java.util.List;
import java.util.Optional;
import java.util.function.BiConsumer;

/**
 * Plans of a causal backward that sweeps twice: forwards for dq, backwards for dk and dv. For every
 * dtype, mode and shape. Pure and immutable.
 */
record TwoSweeps(LaunchModel model) {
  /** The kernels of the three gradients. */
  record Kernels(KernelEntry query, KernelEntry key, KernelEntry value) {
    boolean has(Technique technique) {
      return query.technique() == technique
          || key.technique() == technique
          || value.technique() == technique;
    }

    /** The most tokens of an item of every sweep. */
    int mostTokens(int group) {
      return Math.min(mostQueryTokens(), mostKeyTokens(group));
    }

    /** The most tokens of an item of dq. */
    int mostQueryTokens() {
      return wholeChunks(Rates.mostItemTokens(query));
    }

    /** The same of dk and dv, whose sums take in all query heads of a group. */
    int mostKeyTokens(int group) {
      int most = Math.min(Rates.mostItemTokens(key), Rates.mostItemTokens(value));
      return wholeChunks(most / group);
    }

    private static int wholeChunks(int tokens) {
      return Math.max(1, tokens / Planner.CHUNK) * Planner.CHUNK;
    }

    private boolean mayRelayQuery() {
      return Relay.isFor(query);
    }

    private boolean mayRelayKeyAndValue() {
      return Relay.isFor(key) && Relay.isFor(value);
    }
  }

  /** Of the technique where there are such, else by mma; empty where one is missing. */
  Optional<Kernels> kernels(Question question, Technique technique) {
    int keyDim = question.shape().keyDim();
    int valueDim = question.shape().valueDim();
    return kernel(question, Operation.QUERY_GRADIENT, technique, valueDim)
        .flatMap(
            query ->
                kernel(question, Operation.KEY_VALUE_GRADIENT, technique, valueDim)
                    .flatMap(
                        key ->
                            kernel(question, Operation.KEY_VALUE_GRADIENT, technique, keyDim)
                                .map(value -> new Kernels(query, key, value))));
  }

  /** For rows x and y of this width. */
  private Optional<KernelEntry> kernel(
      Question question, Operation operation, Technique technique, int width) {
    return model.gradient(question, operation, technique, width, width);
  }

  /** The plan of this choice; empty where it cannot be. */
  Optional<GradientPlan> plan(Question question, GradientChoice choice) {
    AttentionShape shape = question.shape();
    Cut cut = question.cut(choice.segment());
    Cut ofQuery = question.cut(choice.querySegment());
    Cut whole = question.cut(0);
    boolean relays = choice.kind() == Kind.RELAY;
    int group = shape.headsPerKeyValueHead();
    return kernels(question, choice.technique())
        .filter(kernels -> kernels.has(choice.technique()))
        .filter(kernels -> (relays ? whole : ofQuery).longest() <= kernels.mostQueryTokens())
        .filter(kernels -> (relays ? whole : cut).longest() <= kernels.mostKeyTokens(group))
        .flatMap(
            kernels ->
                switch (choice.kind()) {
                  case SWEEPS -> whole(question, kernels, cut);
                  case RELAY ->
                      kernels.mayRelayQuery() && kernels.mayRelayKeyAndValue() && cut.isRegular()
                          ? relay(question, kernels, whole, cut, cut)
                          : Optional.empty();
                  default -> segmented(question, kernels, ofQuery, cut, 0);
                });
  }

  /** Each sequence from its states. */
  Optional<GradientPlan> whole(Question question, Kernels kernels, Cut whole) {
    return relay(question, kernels, whole, whole, whole);
  }

  /**
   * The same by blocks that hand states on, of as many items as suit each of the sweeps; empty
   * where whole sequences suit both.
   */
  Optional<GradientPlan> relay(Question question, Kernels kernels, Cut whole) {
    Cut ofQuery =
        kernels.mayRelayQuery()
            ? items(
                question, whole, (draft, items) -> addQuery(draft, question, kernels, whole, items))
            : whole;
    Cut ofKey =
        kernels.mayRelayKeyAndValue()
            ? items(question, whole, (draft, items) -> addKeyAndValue(draft, kernels, whole, items))
            : whole;
    return ofQuery != whole || ofKey != whole
        ? relay(question, kernels, whole, ofQuery, ofKey)
        : Optional.empty();
  }

  /** The items of a relay with which a sweep takes least, or whole sequences. */
  private Cut items(Question question, Cut whole, BiConsumer<GradientDraft, Cut> sweep) {
    var ofWhole = new GradientDraft(model, question, whole);
    sweep.accept(ofWhole, whole);
    double least = ofWhole.micros();
    Cut found = whole;
    for (Cut items : ofWhole.comesInRounds() ? Relay.cuts(whole) : List.<Cut>of()) {
      var relayed = new GradientDraft(model, question, whole);
      sweep.accept(relayed, items);
      if (relayed.micros() < least) {
        least = relayed.micros();
        found = items;
      }
    }
    return found;
  }

  /** Of relayed items, or of whole sequences where these are not cut. */
  private Optional<GradientPlan> relay(
      Question question, Kernels kernels, Cut whole, Cut ofQuery, Cut ofKey) {
    var draft = new GradientDraft(model, question, whole);
    draft.addRows(kernels.query());
    addQuery(draft, question, kernels, whole, ofQuery);
    addKeyAndValue(draft, kernels, whole, ofKey);
    draft.addCoefficients();
    draft.addNormalized();
    boolean relays = isCut(ofQuery, whole) || isCut(ofKey, whole);
    return draft.plan(relays ? Kind.RELAY : Kind.SWEEPS);
  }

  private static boolean isCut(Cut items, Cut whole) {
    return items.items() > whole.items();
  }

  private void addQuery(
      GradientDraft draft, Question question, Kernels kernels, Cut whole, Cut items) {
    if (isCut(items, whole)) {
      draft.addRelayedQuery(kernels.query(), items);
    } else {
      draft.addQuery(kernels.query(), items, turns(question, kernels.query(), whole));
    }
  }

  private static void addKeyAndValue(GradientDraft draft, Kernels kernels, Cut whole, Cut items) {
    if (isCut(items, whole)) {
      draft.addRelayedKeyAndValue(kernels.key(), kernels.value(), items);
    } else {
      draft.addKeyAndValue(kernels.key(), kernels.value(), items);
    }
  }

  /** Blocks that take turns with the chunks of dq: as many as the GPU has room for beside. */
  private int turns(Question question, KernelEntry query, Cut cut) {
    AttentionShape shape = question.shape();
    long blocks =
        query.gridRule().blocks(question.heads() * cut.items(), shape.valueDim(), shape.keyDim());
    int turns = 1;
    while (model.hasRoomForTurns(query, cut, blocks, 2 * turns)) {
      turns *= 2;
    }
    return turns;
  }

  /** Sums of segments and a scan before each sweep. */
  Optional<GradientPlan> segmented(Question question, Kernels kernels, Cut cut) {
    return segmented(question, kernels, cut, cut, 0);
  }

  /**
   * The same of as many segments as suit each of the sweeps, of grouped heads or of sequences too
   * long for dk and dv and not for dq: dq of whole ones where that is best; empty where it is best
   * for dk and dv.
   */
  Optional<GradientPlan> segmentedApart(Question question, Kernels kernels) {
    int group = question.shape().headsPerKeyValueHead();
    int longest = question.cut(0).longest();
    boolean isTooLongForKeys =
        longest > kernels.mostKeyTokens(group) && longest <= kernels.mostQueryTokens();
    if (group == 1 && !isTooLongForKeys) {
      return Optional.empty();
    }
    Cut ofKey = keySegments(question, kernels);
    return ofKey.hasSegments()
        ? segmented(question, kernels, querySegments(question, kernels), ofKey, 0)
        : Optional.empty();
  }

  /** The same but for dq, which starts from so many of the segments that a forward kept. */
  Optional<GradientPlan> fromKept(Question question, Kernels kernels, Cut cut, int keptStep) {
    return segmented(question, kernels, cut, cut, keptStep);
  }

  private Cut querySegments(Question question, Kernels kernels) {
    long blocks = question.heads() * Math.ceilDiv(question.shape().keyDim(), LaunchModel.COLUMNS);
    return segments(
        question,
        kernels.mostQueryTokens(),
        blocks,
        (draft, cut) -> addSegmentsOfQuery(draft, question, kernels, cut));
  }

  private Cut keySegments(Question question, Kernels kernels) {
    AttentionShape shape = question.shape();
    int group = shape.headsPerKeyValueHead();
    long blocks = question.keyValueHeads() * Math.ceilDiv(shape.keyDim(), LaunchModel.COLUMNS);
    return segments(
        question,
        kernels.mostKeyTokens(group),
        blocks,
        (draft, cut) -> addSegmentsOfKeyAndValue(draft, question, kernels, cut));
  }

  /**
   * The segments with which a sweep and the sums before it take least; whole sequences where
   * accumulators bear them and these do.
   *
   * @param blocks for each segment
   */
  private Cut segments(
      Question question, int mostTokens, long blocks, BiConsumer<GradientDraft, Cut> sweep) {
    int longest = question.cut(0).longest();
    int fewest = Math.max(1, Math.ceilDiv(longest, mostTokens));
    int first = fewest == 1 ? 0 : Cut.segment(longest, fewest, Planner.CHUNK);
    Cut found = question.cut(first);
    double least = micros(question, found, sweep);
    for (int segment : model.segments(longest, fewest + 1, blocks).toArray()) {
      Cut cut = question.cut(segment);
      double micros = micros(question, cut, sweep);
      if (micros < least) {
        least = micros;
        found = cut;
      }
    }
    return found;
  }

  private double micros(Question question, Cut cut, BiConsumer<GradientDraft, Cut> sweep) {
    var draft = new GradientDraft(model, question, cut);
    sweep.accept(draft, cut);
    return draft.micros();
  }

  private Optional<GradientPlan> segmented(
      Question question, Kernels kernels, Cut ofQuery, Cut cut, int keptStep) {
    var draft = new GradientDraft(model, question, cut);
    int states = keptStep == 0 && ofQuery.hasSegments() ? ofQuery.items() : 0;
    draft.reserve(StateArrays.bytes(question.shape(), Math.max(states, cut.items())));
    draft.addRows(kernels.query());
    if (keptStep > 0) {
      draft.startFromKept(keptStep);
      addSweepOfQuery(draft, question, kernels, ofQuery);
    } else {
      addSegmentsOfQuery(draft, question, kernels, ofQuery);
    }
    addSegmentsOfKeyAndValue(draft, question, kernels, cut);
    draft.addCoefficients();
    draft.addNormalized();
    return draft.plan(Kind.SEGMENTED);
  }

  private void addSegmentsOfQuery(
      GradientDraft draft, Question question, Kernels kernels, Cut items) {
    if (items.hasSegments()) {
      // nobody reads the state after the last item of the only sequence
      boolean all = question.packing() != null;
      draft.addStates(items, all ? items.items() : Math.max(1, items.items() - 1));
    }
    addSweepOfQuery(draft, question, kernels, items);
  }

  private void addSweepOfQuery(GradientDraft draft, Question question, Kernels kernels, Cut items) {
    draft.addQuery(kernels.query(), items, turns(question, kernels.query(), items));
    draft.addQueryRepair();
  }

  private static void addSegmentsOfKeyAndValue(
      GradientDraft draft, Question question, Kernels kernels, Cut items) {
    if (items.hasSegments()) {
      // nobody reads the gradient before the first item, unless that of the initial state is wanted
      boolean all = question.packing() != null || question.finalState();
      draft.addGradients(
          all ? items.items() : Math.max(1, items.items() - 1), kernels.value().technique());
    }
    draft.addKeyAndValue(kernels.key(), kernels.value(), items);
  }
}
