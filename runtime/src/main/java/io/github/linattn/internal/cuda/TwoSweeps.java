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

    /** The most tokens of an item; the sums for a key take in all query heads of its group. */
    int mostTokens(int group) {
      int most =
          Math.min(
              Rates.mostItemTokens(query),
              Math.min(Rates.mostItemTokens(key), Rates.mostItemTokens(value)) / group);
      return Math.max(1, most / Planner.CHUNK) * Planner.CHUNK;
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
    Cut cut = new Cut(shape.tokens(), question.packing(), choice.segment());
    int walked = choice.kind() == Kind.RELAY ? shape.tokens() : cut.longest();
    return kernels(question, choice.technique())
        .filter(kernels -> kernels.has(choice.technique()))
        .filter(kernels -> walked <= kernels.mostTokens(shape.headsPerKeyValueHead()))
        .flatMap(
            kernels ->
                switch (choice.kind()) {
                  case SWEEPS -> whole(question, kernels, cut);
                  case RELAY ->
                      kernels.mayRelayQuery() && kernels.mayRelayKeyAndValue() && cut.isRegular()
                          ? relay(question, kernels, new Cut(shape.tokens(), null, 0), cut, cut)
                          : Optional.empty();
                  default -> segmented(question, kernels, cut, 0);
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

  /**
   * Sums of segments and a scan before each sweep; but for dq, where a forward kept the states.
   *
   * @param keptStep segments of these for each item; 0 where they are summed
   */
  Optional<GradientPlan> segmented(Question question, Kernels kernels, Cut cut, int keptStep) {
    boolean packed = question.packing() != null;
    int allButOne = Math.max(1, cut.items() - 1);
    var draft = new GradientDraft(model, question, cut);
    draft.reserve(StateArrays.bytes(question.shape(), cut.items()));
    draft.addRows(kernels.query());
    if (keptStep > 0) {
      draft.startFromKept(keptStep);
    } else {
      // nobody reads the state after the last item of the only sequence
      draft.addStates(packed ? cut.items() : allButOne);
    }
    draft.addQuery(kernels.query(), cut, turns(question, kernels.query(), cut));
    draft.addQueryRepair();
    // nobody reads the gradient before the first item, unless that of the initial state is wanted
    draft.addGradients(
        packed || question.finalState() ? cut.items() : allButOne, kernels.value().technique());
    draft.addKeyAndValue(kernels.key(), kernels.value(), cut);
    draft.addCoefficients();
    draft.addNormalized();
    return draft.plan(Kind.SEGMENTED);
  }
}
