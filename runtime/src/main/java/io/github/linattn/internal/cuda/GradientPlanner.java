package io.github.linattn.internal.cuda;

import io.github.linattn.AttentionShape;
import io.github.linattn.internal.Checkpoints;
import io.github.linattn.internal.cuda.ForwardPlan.Step;
import io.github.linattn.internal.cuda.GradientPlan.Kind;
import io.github.linattn.internal.cuda.GradientPlan.Launch;
import io.github.linattn.internal.cuda.GradientPlan.Marks;
import io.github.linattn.internal.cuda.GradientPlan.Memory;
import io.github.linattn.internal.cuda.GradientPlan.Role;
import io.github.linattn.kernelgen.GridRule;
import io.github.linattn.kernelgen.KernelEntry;
import io.github.linattn.kernelgen.Operation;
import io.github.linattn.kernelgen.Precision;
import io.github.linattn.kernelgen.Technique;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Locale;
import java.util.Optional;
import java.util.function.Function;
import java.util.function.ToDoubleFunction;

/**
 * Chooses the kernels of a backward of the family {@code chunked} and how the tokens are cut, as
 * {@link Planner} does for a forward. Pure and immutable.
 */
final class GradientPlanner {
  /** Of the states of items and of the gradients after them. */
  private static final int LEAST_SEGMENT = 512;

  private static final int LEAST_OUTPUT_SEGMENT = 256;

  private static final int COLUMNS = 64;

  private final LaunchModel model;

  /** The kernels of the three gradients. */
  private record Sweeps(KernelEntry query, KernelEntry key, KernelEntry value) {
    /** Whether one launch forms dk and dv. */
    boolean isJoined() {
      return key.technique() == Technique.WGMMA && key.equals(value);
    }

    /** Whether the blocks of each can hand states on. */
    boolean canRelay() {
      return Relay.isFor(query) && Relay.isFor(key) && Relay.isFor(value);
    }

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
  }

  /** For one device, as {@link Planner}. */
  GradientPlanner(GpuTraits gpu, Planner.Built built) {
    this.model = new LaunchModel(gpu, built);
  }

  /** The plan that the model finds fastest; empty where kernels for it are not built. */
  Optional<GradientPlan> plan(Question question) {
    if (!question.causal()) {
      return nonCausal(question);
    }
    return sweeps(question, Technique.WGMMA).flatMap(kernels -> fastest(question, kernels));
  }

  /**
   * The plan of this choice where there are several, else the only one; empty where kernels for it
   * are not built or its items would be too long.
   */
  Optional<GradientPlan> plan(Question question, GradientChoice choice) {
    if (!question.causal()) {
      return nonCausal(question);
    }
    int tokens = question.shape().tokens();
    return switch (choice.kind()) {
      case CHAIN -> ofOneSweep(question, chain(question, choice.form()));
      case ONE_SWEEP ->
          ofOneSweep(question, oneSweep(question, new Cut(tokens, null, choice.segment())));
      case SWEPT_SEGMENTS -> ofOneSweep(question, sweptSegments(question, choice.segment()));
      default -> ofTwoSweeps(question, choice);
    };
  }

  private Optional<GradientPlan> ofOneSweep(Question question, Optional<GradientPlan> asked) {
    return asked
        .filter(plan -> hasStates(question, plan.cut()))
        .map(plan -> explained(plan, List.of()));
  }

  private Optional<GradientPlan> ofTwoSweeps(Question question, GradientChoice choice) {
    AttentionShape shape = question.shape();
    Cut cut = new Cut(shape.tokens(), question.packing(), choice.segment());
    int walked = choice.kind() == Kind.RELAY ? shape.tokens() : cut.longest();
    return sweeps(question, choice.technique())
        .filter(kernels -> kernels.has(choice.technique()))
        .filter(kernels -> walked <= kernels.mostTokens(shape.headsPerKeyValueHead()))
        .flatMap(
            kernels ->
                switch (choice.kind()) {
                  case SWEEPS -> whole(question, kernels, cut);
                  case RELAY ->
                      kernels.canRelay() && cut.isRegular()
                          ? sweeps(question, kernels, new Cut(shape.tokens(), null, 0), cut, cut)
                          : Optional.empty();
                  default -> segmented(question, kernels, cut, 0);
                })
        .map(plan -> explained(plan, List.of()));
  }

  /** Of the technique where there are such, else by mma; empty where one is missing. */
  private Optional<Sweeps> sweeps(Question question, Technique technique) {
    int keyDim = question.shape().keyDim();
    int valueDim = question.shape().valueDim();
    return sweep(question, Operation.QUERY_GRADIENT, technique, valueDim)
        .flatMap(
            query ->
                sweep(question, Operation.KEY_VALUE_GRADIENT, technique, valueDim)
                    .flatMap(
                        key ->
                            sweep(question, Operation.KEY_VALUE_GRADIENT, technique, keyDim)
                                .map(value -> new Sweeps(query, key, value))));
  }

  /** For rows x and y of this width. */
  private Optional<KernelEntry> sweep(
      Question question, Operation operation, Technique technique, int width) {
    return find(question, operation, technique, width, width);
  }

  /** Of the technique where there are tensor maps, else by mma. */
  private Optional<KernelEntry> find(
      Question question, Operation operation, Technique technique, int width, int widthByMma) {
    Planner.Built built = model.built();
    Optional<KernelEntry> wgmma =
        technique == Technique.WGMMA && question.tensorMaps()
            ? built.find(
                question.normalize() ? operation.normalized() : operation,
                Technique.WGMMA,
                width,
                question.element(),
                precision(question))
            : Optional.empty();
    return wgmma.or(
        () ->
            built.find(
                operation,
                Technique.MMA,
                widthByMma,
                question.element(),
                question.warpPrecision()));
  }

  /**
   * In a chunk or less few terms share an error and o . dO nearly cancels what it is taken from, so
   * that DEFAULT would miss its bound; nothing is lost, because what such a call takes is its
   * launches.
   */
  private static Precision precision(Question question) {
    boolean isShort =
        new Cut(question.shape().tokens(), question.packing(), 0).longest() <= Planner.CHUNK;
    return isShort && question.precision() == Precision.DEFAULT
        ? Precision.ACCURATE
        : question.precision();
  }

  private Optional<GradientPlan> fastest(Question question, Sweeps kernels) {
    AttentionShape shape = question.shape();
    List<GradientPlan> candidates = new ArrayList<>();
    Cut whole = new Cut(shape.tokens(), question.packing(), 0);
    int limit = kernels.mostTokens(shape.headsPerKeyValueHead());
    int longest = whole.longest();
    if (longest <= limit) {
      whole(question, kernels, whole).ifPresent(candidates::add);
      relay(question, kernels, whole).ifPresent(candidates::add);
    }
    long blocks = question.keyValueHeads() * Math.ceilDiv(shape.keyDim(), COLUMNS);
    for (int parts = Math.max(2, Math.ceilDiv(longest, limit));
        candidates.isEmpty() || Math.ceilDiv(longest, parts) >= LEAST_SEGMENT;
        parts++) {
      int segment = Cut.segment(longest, parts, Planner.CHUNK);
      Cut cut = new Cut(shape.tokens(), question.packing(), segment);
      Optional<GradientPlan> plan = segmented(question, kernels, cut, 0);
      plan.ifPresent(candidates::add);
      sweptSegments(question, segment).ifPresent(candidates::add);
      if (plan.isEmpty() || blocks * parts > 8L * model.multiprocessors()) {
        break; // more parts only add states
      }
    }
    Checkpoints.Form form = question.kept();
    if (form != null && form.chained()) {
      chain(question, form).ifPresent(candidates::add);
    }
    candidates.addAll(fromKept(question, kernels, Integer.MAX_VALUE));
    Optional<GradientPlan> one = fastestOneSweep(question);
    boolean hasStates = hasStates(question, whole);
    if (hasStates) {
      one.ifPresent(candidates::add);
    }
    return fastest(candidates)
        .map(best -> explained(best, candidates))
        .map(best -> hasStates ? best : withHint(best, one));
  }

  /** From the states that a forward kept of segments, if it did: up to so many at a time. */
  private List<GradientPlan> fromKept(Question question, Sweeps kernels, int mostSteps) {
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
      segmented(question, kernels, cut, step).ifPresent(plans::add);
    }
    sweptSegments(question, kept).ifPresent(plans::add);
    return plans;
  }

  /** The fastest from the states that a forward kept of segments, if it did: one at a time. */
  Optional<GradientPlan> planFromKept(Question question) {
    return sweeps(question, Technique.WGMMA)
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

  /** Collects launches and what they take; a launch that is not there leaves no plan. */
  private static final class Collected {
    private final List<Launch> launches = new ArrayList<>();
    private boolean complete = true;
    private double micros;

    /** Adds a launch with its estimate, which is asked for where the launch is there. */
    void add(Role role, Optional<Step> step, ToDoubleFunction<Step> estimate) {
      complete &= step.isPresent();
      step.ifPresent(
          known -> {
            double taken = estimate.applyAsDouble(known);
            launches.add(new Launch(role, known.lasting(taken)));
            micros += taken + Rates.LAUNCH_MICROS;
          });
    }

    void addAll(Collected others) {
      launches.addAll(others.launches);
      complete &= others.complete;
      micros += others.micros;
    }
  }

  /** Each sequence from its states. */
  private Optional<GradientPlan> whole(Question question, Sweeps kernels, Cut cut) {
    return sweeps(question, kernels, cut, cut, cut);
  }

  /** The same by blocks that hand states on, of as many items as suit each of the sweeps. */
  private Optional<GradientPlan> relay(Question question, Sweeps kernels, Cut whole) {
    Cut ofQuery =
        Relay.isFor(kernels.query())
            ? items(whole, items -> ofQuery(question, kernels, whole, items))
            : whole;
    Cut ofKey =
        Relay.isFor(kernels.key()) && Relay.isFor(kernels.value())
            ? items(whole, items -> ofKey(question, kernels, whole, items))
            : whole;
    return ofQuery != whole || ofKey != whole
        ? sweeps(question, kernels, whole, ofQuery, ofKey)
        : Optional.empty();
  }

  /** The items of a relay with which a sweep takes least, or whole sequences. */
  private Cut items(Cut whole, Function<Cut, Collected> sweep) {
    Collected ofWhole = sweep.apply(whole);
    boolean comesInRounds =
        ofWhole.launches.stream()
            .anyMatch(launch -> launch.step().blocks() > model.multiprocessors());
    double least = ofWhole.micros;
    Cut found = whole;
    for (Cut items : comesInRounds ? Relay.cuts(whole) : List.<Cut>of()) {
      Collected steps = sweep.apply(items);
      if (steps.complete && steps.micros < least) {
        least = steps.micros;
        found = items;
      }
    }
    return found;
  }

  /** dq of items, by blocks that hand states on where these are not the whole ones. */
  private Collected ofQuery(Question question, Sweeps kernels, Cut whole, Cut items) {
    boolean relays = items.items() > whole.items();
    Collected steps = new Collected();
    addQuery(steps, question, kernels, items, relays ? 1 : turns(question, kernels.query(), whole));
    return relays ? handingOn(steps, question, items, 1) : steps;
  }

  /** dk and dv likewise. */
  private Collected ofKey(Question question, Sweeps kernels, Cut whole, Cut items) {
    Collected steps = new Collected();
    addKeyAndValue(steps, question, kernels, items);
    return items.items() > whole.items() ? handingOn(steps, question, items, 2) : steps;
  }

  /** With what each block takes longer, and states of so many gradients for all items. */
  private Collected handingOn(Collected steps, Question question, Cut items, int gradients) {
    double longer =
        steps.launches.stream()
            .map(Launch::step)
            .mapToDouble(step -> model.rounds(step) * Rates.relayedMicros(step.kernel()))
            .sum();
    steps.micros +=
        longer + gradients * Relay.micros(question.shape(), items, model.bytesPerMicro());
    return steps;
  }

  /** Of relayed items, or of whole sequences where these are not cut. */
  private Optional<GradientPlan> sweeps(
      Question question, Sweeps kernels, Cut cut, Cut ofQuery, Cut ofKey) {
    boolean relays = ofQuery.items() > cut.items();
    boolean keyRelays = ofKey.items() > cut.items();
    int turns = relays ? 1 : turns(question, kernels.query(), cut);
    Collected steps = new Collected();
    addRows(steps, question, kernels.query());
    steps.addAll(ofQuery(question, kernels, cut, ofQuery));
    steps.addAll(ofKey(question, kernels, cut, ofKey));
    addRepair(steps, Role.COEFFICIENTS, question, cut);
    addNormalized(steps, question);
    AttentionShape shape = question.shape();
    long states =
        (relays ? Relay.bytes(shape, ofQuery) : 0)
            + (keyRelays ? 2 * Relay.bytes(shape, ofKey) : 0);
    Marks marks = marks(question, ofQuery, turns, ofKey);
    Memory memory = memory(question, states, 0, ofQuery, turns, marks);
    Kind kind = relays || keyRelays ? Kind.RELAY : Kind.SWEEPS;
    return plan(kind, steps, cut, ofQuery, ofKey, 0, 0, 0, tiles(question), turns, memory);
  }

  /**
   * The segments before which a forward should keep states, so that its backward takes one sweep of
   * each; empty where that would not be faster.
   *
   * @param question about the backward, with the state after the last token at hand
   */
  Optional<Checkpoints.Form> chain(Question question) {
    int tokens = question.shape().tokens();
    int most = oneSweepKernel(question).map(Rates::mostItemTokens).orElse(tokens);
    if (tokens <= most || tokens > Rates.mostChainTokens(question.element())) {
      return Optional.empty();
    }
    int segment = Cut.segment(tokens, Math.ceilDiv(tokens, most), Planner.CHUNK);
    Checkpoints.Form form = Checkpoints.Form.ofChain(segment);
    return plan(question.keeping(form)).filter(plan -> plan.kind() == Kind.CHAIN).map(plan -> form);
  }

  /** One sweep of each segment of a chain, from the last one on. */
  private Optional<GradientPlan> chain(Question question, Checkpoints.Form form) {
    Cut cut = new Cut(question.shape().tokens(), null, form.segment());
    List<GradientPlan> parts = new ArrayList<>();
    cut.forEach(
        (i, sequence, start, length) ->
            fastestOneSweep(question.window(length, i > 0 || question.initialState(), true))
                .ifPresent(parts::add));
    boolean isThere = form.equals(question.kept()) && parts.size() == cut.items();
    return isThere && question.lastState()
        ? Optional.of(GradientPlan.chain(cut, parts, StateArrays.bytes(question.shape(), 1)))
        : Optional.empty();
  }

  /** By blocks that hand states on where these come in rounds and it is faster so. */
  private Optional<GradientPlan> fastestOneSweep(Question question) {
    Cut whole = new Cut(question.shape().tokens(), null, 0);
    return oneSweep(question, whole)
        .map(
            plan ->
                plan.step(Role.ONE_SWEEP).blocks() <= model.multiprocessors()
                    ? plan
                    : Relay.cuts(whole).stream()
                        .flatMap(items -> oneSweep(question, items).stream())
                        .reduce(plan, (best, next) -> next.micros() < best.micros() ? next : best));
  }

  /**
   * Each sequence from its last token, all three gradients at once; empty where this cannot be, but
   * for the states, which {@link #hasStates} asks for.
   *
   * @param items that blocks walk, which hand states on; or a whole sequence
   */
  private Optional<GradientPlan> oneSweep(Question question, Cut items) {
    Cut whole = new Cut(question.shape().tokens(), null, 0);
    return oneSweepKernel(question)
        .filter(kernel -> whole.longest() <= Rates.mostItemTokens(kernel))
        .filter(kernel -> items.items() == 1 || Relay.isForOneSweep(items))
        .flatMap(kernel -> oneSweep(question, kernel, whole, items));
  }

  /** Empty where one sweep does not do this. */
  private Optional<KernelEntry> oneSweepKernel(Question question) {
    AttentionShape shape = question.shape();
    boolean suits =
        question.tensorMaps()
            && question.packing() == null
            && !question.normalize()
            && !question.sumsSlope()
            && shape.headsPerKeyValueHead() == 1
            && shape.keyDim() == shape.valueDim();
    return suits
        ? model
            .built()
            .find(
                Operation.ONE_SWEEP,
                Technique.WGMMA,
                shape.keyDim(),
                question.element(),
                question.precision())
        : Optional.empty();
  }

  private Optional<GradientPlan> oneSweep(
      Question question, KernelEntry kernel, Cut whole, Cut items) {
    AttentionShape shape = question.shape();
    boolean handsOn = items.items() > 1;
    double handingOn = handsOn ? Rates.handingOnMicros(kernel, shape.keyDim()) : 0;
    Collected steps = new Collected();
    addOneSweep(steps, question, kernel, items, handingOn);
    addRepair(steps, Role.COEFFICIENTS, question, whole);
    long states = 0;
    if (handsOn) {
      states = 3 * Relay.bytes(shape, items);
      steps.micros += 3 * Rates.RELAY_MICROS;
    }
    Memory memory = memory(question, states, 0, items, 1, marks(question, items, 1, items));
    return plan(Kind.ONE_SWEEP, steps, whole, items, items, 0, 0, 0, tiles(question), 1, memory);
  }

  /** Whose blocks take so much longer beside their chunks, all of a round together. */
  private void addOneSweep(
      Collected steps, Question question, KernelEntry kernel, Cut items, double longer) {
    int width = question.shape().keyDim();
    // q, k, v, o and dO are read once, dq, dk and dv written; of rows g is read and d written
    double bytes = 2 * (question.queryBytes() + question.keyValueBytes());
    steps.add(
        Role.ONE_SWEEP,
        bothTasks(question, kernel, items),
        step -> micros(step, width, items, items.items(), 1, bytes) + longer * model.rounds(step));
  }

  /**
   * One sweep of segments of so many tokens, all at once; empty where this cannot be. Nobody reads
   * the sums of the first of them but for the gradient of the initial state.
   */
  private Optional<GradientPlan> sweptSegments(Question question, int segment) {
    Cut cut = new Cut(question.shape().tokens(), null, segment);
    return oneSweepKernel(question)
        .filter(kernel -> question.lastState() && cut.items() > 1)
        .filter(kernel -> question.shape().tokens() <= Rates.mostSweptTokens(kernel.elementType()))
        .filter(kernel -> cut.itemTokens() <= Rates.mostItemTokens(kernel))
        .flatMap(kernel -> sweptSegments(question, kernel, cut));
  }

  private Optional<GradientPlan> sweptSegments(Question question, KernelEntry kernel, Cut cut) {
    AttentionShape shape = question.shape();
    Checkpoints.Form form = question.kept();
    boolean isKept = form != null && !form.chained() && form.segment() == cut.itemTokens();
    int behindFirst = cut.items() - 1;
    int gradientSummed = question.finalState() ? cut.items() : behindFirst;
    int summedTokens = shape.tokens() - (cut.items() - gradientSummed) * cut.itemTokens();
    Collected steps = new Collected();
    if (!isKept) {
      addSums(steps, question, cut, behindFirst);
      addScan(steps, Role.STATE_SCAN, question, cut);
    }
    addDelta(steps, question, summedTokens);
    addGradientSums(steps, question, cut, gradientSummed, Technique.WGMMA);
    addScan(steps, Role.GRADIENT_SCAN, question, cut);
    addOneSweep(steps, question, kernel, cut, Rates.segmentMicros(shape.keyDim()));
    addRepair(steps, Role.COEFFICIENTS, question, cut);
    long states = (isKept ? 1 : 2) * StateArrays.bytes(shape, cut.items());
    return plan(
        Kind.SWEPT_SEGMENTS,
        steps,
        cut,
        cut,
        cut,
        isKept ? 0 : behindFirst,
        gradientSummed,
        isKept ? 1 : 0,
        tiles(question),
        1,
        memory(question, states, 0, cut, 1, marks(question, cut, 1, cut)));
  }

  /** A sequence of one chunk needs the state before it alone. */
  private static boolean hasStates(Question question, Cut cut) {
    return question.lastState() || cut.longest() <= Planner.CHUNK;
  }

  /**
   * Sums of segments and a scan before each sweep; but for dq, where a forward kept the states.
   *
   * @param keptStep segments of these for each item; 0 where they are summed
   */
  private Optional<GradientPlan> segmented(
      Question question, Sweeps kernels, Cut cut, int keptStep) {
    Collected steps = new Collected();
    AttentionShape shape = question.shape();
    addRows(steps, question, kernels.query());
    int summed = 0;
    if (keptStep == 0) {
      // nobody reads the state after the last item of the only sequence
      summed = question.packing() != null ? cut.items() : Math.max(1, cut.items() - 1);
      addSums(steps, question, cut, summed);
      addScan(steps, Role.STATE_SCAN, question, cut);
    }
    int turns = turns(question, kernels.query(), cut);
    addQuery(steps, question, kernels, cut, turns);
    // dq is repaired of the states that the next scan replaces
    addRepair(steps, Role.QUERY_REPAIR, question, cut);
    addGradientSums(steps, question, cut, cut.items(), kernels.value().technique());
    addScan(steps, Role.GRADIENT_SCAN, question, cut);
    addKeyAndValue(steps, question, kernels, cut);
    addRepair(steps, Role.COEFFICIENTS, question, cut);
    addNormalized(steps, question);
    long states = StateArrays.bytes(shape, cut.items());
    Memory memory = memory(question, states, 0, cut, turns, marks(question, cut, turns, cut));
    return plan(
        Kind.SEGMENTED,
        steps,
        cut,
        cut,
        cut,
        summed,
        cut.items(),
        keptStep,
        tiles(question),
        turns,
        memory);
  }

  /** The sums over all tokens, then every row against them. */
  private Optional<GradientPlan> nonCausal(Question question) {
    AttentionShape shape = question.shape();
    int tokens = shape.tokens();
    int group = shape.headsPerKeyValueHead();
    long tilesOfState =
        (long) Math.ceilDiv(shape.keyDim(), COLUMNS) * Math.ceilDiv(shape.valueDim(), COLUMNS);
    int most = Math.max(1, Rates.SAFE_ITEM_TOKENS / group / Planner.CHUNK) * Planner.CHUNK;
    int least = Math.min(LEAST_SEGMENT, most);
    int segment = model.segmentFor(question.keyValueHeads() * tilesOfState, tokens, least, most);
    Cut cut = new Cut(tokens, question.packing(), segment);
    long narrowest = Math.ceilDiv(Math.min(shape.keyDim(), shape.valueDim()), COLUMNS);
    int rows =
        model.segmentFor(
            question.keyValueHeads() * narrowest,
            tokens,
            LEAST_OUTPUT_SEGMENT,
            Rates.SAFE_ITEM_TOKENS);
    Cut outputs = new Cut(tokens, question.packing(), rows);
    Optional<KernelEntry> kernel =
        model
            .built()
            .find(
                Operation.GRADIENT_OUTPUTS,
                Technique.MMA,
                0,
                question.element(),
                question.warpPrecision());
    if (kernel.isEmpty()) {
      return Optional.empty();
    }
    KernelEntry answers = kernel.get();
    Collected steps = new Collected();
    addRows(steps, question, answers);
    addSums(steps, question, cut, cut.items());
    addScan(steps, Role.STATE_SCAN, question, cut);
    addQuery(steps, question, new Sweeps(answers, answers, answers), outputs, 1);
    addGradientSums(steps, question, cut, cut.items(), Technique.WGMMA);
    addScan(steps, Role.GRADIENT_SCAN, question, cut);
    addTask(steps, Role.KEY, question, answers, outputs, 1);
    addTask(steps, Role.VALUE, question, answers, outputs, 1);
    steps.add(
        Role.COEFFICIENTS,
        rowKernel(question, Operation.GRADIENT_RECURRENCE)
            .flatMap(ends -> model.step(ends, question.heads(), 1, 1, 1)),
        step -> Rates.SCAN_MICROS);
    addNormalized(steps, question);
    Memory memory =
        memory(
            question,
            StateArrays.bytes(shape, cut.items()),
            StateArrays.bytes(shape, cut.sequences()),
            outputs,
            1,
            Marks.NONE);
    return plan(
            Kind.NON_CAUSAL,
            steps,
            cut,
            outputs,
            outputs,
            cut.items(),
            cut.items(),
            0,
            tiles(question),
            1,
            memory)
        .map(
            plan ->
                plan.because(
                    "not causal: %s are summed, then every row reads the sums".formatted(cut)));
  }

  private static Optional<GradientPlan> plan(
      Kind kind,
      Collected steps,
      Cut cut,
      Cut outputs,
      Cut keyOutputs,
      int summed,
      int gradientSummed,
      int keptStep,
      int tiles,
      int turns,
      Memory memory) {
    return steps.complete
        ? Optional.of(
            new GradientPlan(
                kind,
                steps.launches,
                cut,
                outputs,
                keyOutputs,
                summed,
                gradientSummed,
                keptStep,
                tiles,
                turns,
                memory,
                List.of(),
                steps.micros,
                ""))
        : Optional.empty();
  }

  /** Tiles of 64 columns of dq and dk. */
  private static int tiles(Question question) {
    return Math.ceilDiv(question.shape().keyDim(), COLUMNS);
  }

  /** Blocks that take turns with the chunks of dq: as many as the GPU has room for beside. */
  private int turns(Question question, KernelEntry query, Cut cut) {
    if (query.gridRule().per() != GridRule.Per.CLUSTER_IN_TURNS) {
      return 1;
    }
    AttentionShape shape = question.shape();
    long blocks =
        query.gridRule().blocks(question.heads() * cut.items(), shape.valueDim(), shape.keyDim());
    int turns = 1;
    while (2 * turns <= Planner.MOST_TURNS
        && blocks * 2 * turns <= model.multiprocessors()
        && cut.longest() > (2 * turns - 1) * Planner.CHUNK) {
      turns *= 2;
    }
    return turns;
  }

  private static Memory memory(
      Question question, long states, long totals, Cut outputs, int turns, Marks marks) {
    int tokens = question.shape().tokens();
    long queryRows = question.heads() * tokens * Float.BYTES;
    long keyRows = question.keyValueHeads() * tokens * Float.BYTES;
    boolean scales = !question.lengthsAreKept();
    return new Memory(
        states,
        totals,
        queryRows,
        scales ? queryRows : 0,
        scales ? keyRows : 0,
        question.heads() * outputs.items() * turns * tiles(question) * 2 * Double.BYTES,
        marks);
  }

  /** One for each tile of 64 columns that a block of a sweep writes. */
  private static Marks marks(Question question, Cut ofQuery, int turns, Cut ofKey) {
    long queryItems = question.heads() * ofQuery.items() * Integer.BYTES;
    long keyItems = question.keyValueHeads() * ofKey.items() * Integer.BYTES;
    int valueTiles = Math.ceilDiv(question.shape().valueDim(), COLUMNS);
    return new Marks(
        queryItems * turns * tiles(question), keyItems * tiles(question), keyItems * valueTiles);
  }

  private Optional<KernelEntry> rowKernel(Question question, Operation operation) {
    return model
        .built()
        .find(operation, Technique.SIMT, 0, question.element(), question.exactPrecision());
  }

  /**
   * d, and the lengths of the rows of q and of k, as far as they are wanted: a part of the grid
   * each.
   */
  private void addRows(Collected steps, Question question, KernelEntry query) {
    if (query.formsDelta() && !question.normalize()) {
      return;
    }
    long tokens = question.shape().tokens();
    long queries = question.heads() * tokens;
    long keys = question.keyValueHeads() * tokens;
    int ofDelta = query.formsDelta() ? 0 : 1;
    int queryParts = ofDelta + (question.normalize() ? 1 : 0);
    int read =
        question.lengthsAreKept() ? ofDelta : queryParts; // pairs of tensors: o and dO, q and k
    steps.add(
        Role.ROWS,
        rowKernel(question, Operation.GRADIENT_ROWS)
            .flatMap(
                kernel -> {
                  int block = kernel.gridRule().size();
                  long wholeQueries = Math.ceilDiv(queries, block) * block;
                  long rows = queryParts * wholeQueries + (question.normalize() ? keys : 0);
                  return model.step(kernel, question, rows);
                }),
        step -> read * question.queryBytes() / model.bytesPerMicro());
  }

  /** d of the last {@code tokens} of each sequence. */
  private void addDelta(Collected steps, Question question, int tokens) {
    double bytes = question.queryBytes() * tokens / question.shape().tokens();
    steps.add(
        Role.ROWS,
        rowKernel(question, Operation.GRADIENT_ROWS)
            .flatMap(kernel -> model.step(kernel, question, question.heads() * tokens)),
        step -> bytes / model.bytesPerMicro());
  }

  private void addSums(Collected steps, Question question, Cut cut, int summed) {
    double bytes = question.keyValueBytes() + StateArrays.bytes(question.shape(), summed);
    steps.add(
        Role.STATE_SUMS,
        model.sums(question, summed),
        step -> micros(step, question.shape().keyDim(), cut, summed, 1, bytes));
  }

  private void addGradientSums(
      Collected steps, Question question, Cut cut, int items, Technique technique) {
    AttentionShape shape = question.shape();
    int group = shape.headsPerKeyValueHead();
    double share = (double) items / cut.items();
    double bytes = question.queryBytes() * share + StateArrays.bytes(shape, items);
    steps.add(
        Role.GRADIENT_SUMS,
        find(question, Operation.GRADIENT_SUMS, technique, shape.keyDim(), 0)
            .flatMap(kernel -> model.step(kernel, question, question.keyValueHeads() * items)),
        step -> micros(step, shape.keyDim(), cut, items, group, bytes));
  }

  private void addScan(Collected steps, Role role, Question question, Cut cut) {
    double bytes = 2.0 * StateArrays.bytes(question.shape(), cut.items());
    steps.add(
        role, model.scan(question, cut), step -> bytes / model.bytesPerMicro() + Rates.SCAN_MICROS);
  }

  private void addQuery(Collected steps, Question question, Sweeps kernels, Cut cut, int turns) {
    KernelEntry query = kernels.query();
    AttentionShape shape = question.shape();
    double chunk =
        (Rates.chunkMicros(query, shape.valueDim())
                + (turns - 1) * Rates.addedChunkMicros(query, shape.valueDim()))
            / turns;
    double start = Rates.startMicros(query.technique()) + Rates.stateMicros(shape.valueDim());
    double outputs = query.formsDelta() ? question.queryBytes() / 2 : 0; // o
    double bytes = question.keyValueBytes() + question.queryBytes() + outputs;
    long items = (long) cut.items() * turns;
    steps.add(
        Role.QUERY,
        model.step(query, question.heads() * items, shape.valueDim(), shape.keyDim(), 1),
        step -> model.micros(step, cut, items, start, chunk, bytes));
  }

  private void addKeyAndValue(Collected steps, Question question, Sweeps kernels, Cut cut) {
    int group = question.shape().headsPerKeyValueHead();
    if (!kernels.isJoined()) {
      addTask(steps, Role.KEY, question, kernels.key(), cut, group);
      addTask(steps, Role.VALUE, question, kernels.value(), cut, group);
      return;
    }
    steps.add(
        Role.KEY_AND_VALUE,
        bothTasks(question, kernels.key(), cut),
        step -> taskMicros(Role.KEY, question, step, cut, group, GradientStructs.HOPPER_TASKS));
  }

  /** A launch with the blocks of dk and as many of dv. */
  private Optional<Step> bothTasks(Question question, KernelEntry kernel, Cut cut) {
    return task(Role.KEY, question, kernel, cut)
        .filter(key -> key.blocks() <= Integer.MAX_VALUE / GradientStructs.HOPPER_TASKS)
        .map(
            key ->
                new Step(
                    key.kernel(),
                    key.blocks() * GradientStructs.HOPPER_TASKS,
                    clusterOfBoth(key),
                    key.sharedBytes(),
                    key.startsEarly()));
  }

  /** Two tiles of a task, or of both where they have no pairs. */
  private static int clusterOfBoth(Step oneTask) {
    return oneTask.cluster() == 1 ? GradientStructs.HOPPER_TASKS : oneTask.cluster();
  }

  /** A launch for one of the gradients, which adds up the rows of so many heads. */
  private void addTask(
      Collected steps, Role role, Question question, KernelEntry kernel, Cut cut, int heads) {
    steps.add(
        role,
        task(role, question, kernel, cut),
        step -> taskMicros(role, question, step, cut, heads, 1));
  }

  private Optional<Step> task(Role role, Question question, KernelEntry kernel, Cut cut) {
    AttentionShape shape = question.shape();
    long heads = role == Role.QUERY ? question.heads() : question.keyValueHeads();
    int width = role == Role.VALUE ? shape.keyDim() : shape.valueDim();
    int outWidth = role == Role.VALUE ? shape.valueDim() : shape.keyDim();
    int group = shape.headsPerKeyValueHead();
    return model.step(kernel, heads * cut.items(), width, outWidth, group);
  }

  private double taskMicros(
      Role role, Question question, Step step, Cut cut, int heads, int tasks) {
    AttentionShape shape = question.shape();
    int width = role == Role.VALUE ? shape.keyDim() : shape.valueDim();
    double bytes = tasks * question.keyValueBytes() + question.queryBytes(); // q and dO are shared
    return micros(step, width, cut, cut.items(), heads, bytes);
  }

  /** Of blocks that walk their item once for each of so many heads. */
  private double micros(Step step, int width, Cut cut, int items, int heads, double bytes) {
    KernelEntry kernel = step.kernel();
    double start = Rates.startMicros(kernel.technique()) + Rates.stateMicros(width);
    return model.micros(step, cut, items, start, heads * Rates.chunkMicros(kernel, width), bytes);
  }

  /** The gradients that the sweeps before marked: mostly there are none. */
  private void addRepair(Collected steps, Role role, Question question, Cut cut) {
    AttentionShape shape = question.shape();
    int widest = Math.max(shape.keyDim(), shape.valueDim());
    long tiles = role == Role.QUERY_REPAIR ? question.heads() : 3 * question.heads();
    steps.add(
        role,
        rowKernel(question, Operation.GRADIENT_RECURRENCE)
            .flatMap(kernel -> model.step(kernel, tiles * cut.items(), widest, widest, 1)),
        step -> role == Role.COEFFICIENTS ? Rates.SCAN_MICROS : 0);
  }

  /** From the gradients of rows that were divided to those of the rows. */
  private void addNormalized(Collected steps, Question question) {
    if (question.normalize()) {
      addNormalized(steps, Role.NORMALIZED_QUERY, question, question.heads());
      addNormalized(steps, Role.NORMALIZED_KEY, question, question.keyValueHeads());
    }
  }

  private void addNormalized(Collected steps, Role role, Question question, long heads) {
    long rows = heads * question.shape().tokens();
    double bytes = 3.0 * rows * question.shape().keyDim() * question.dtype().bytes();
    steps.add(
        role,
        rowKernel(question, Operation.NORMALIZE_ROWS_GRADIENT)
            .flatMap(kernel -> model.step(kernel, question, rows)),
        step -> bytes / model.bytesPerMicro());
  }

  private GradientPlan explained(GradientPlan best, List<GradientPlan> candidates) {
    String against =
        candidates.stream()
            .filter(plan -> plan.kind() != best.kind())
            .reduce((a, b) -> b.micros() < a.micros() ? b : a)
            .map(
                plan ->
                    String.format(
                        Locale.ROOT, "; next best %s, %.1f µs", name(plan.kind()), plan.micros()))
            .orElse("");
    boolean one = best.has(Role.ONE_SWEEP);
    return best.because(
        String.format(
            Locale.ROOT,
            "%s: %s%s, %s by %s, on %d multiprocessors%s",
            name(best.kind()),
            best.cut(),
            scans(best),
            one ? "dq, dk and dv" : "dq",
            best.step(one ? Role.ONE_SWEEP : Role.QUERY).kernel().technique().id(),
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
      case SEGMENTED -> " with a scan before each sweep";
      case RELAY ->
          " by blocks that hand states on: dq of %d items, dk and dv of %d"
              .formatted(plan.outputs().items(), plan.keyOutputs().items());
      case ONE_SWEEP ->
          plan.handsOn() ? " by blocks of %s that hand states on".formatted(plan.outputs()) : "";
      default -> "";
    };
  }

  private static String name(Kind kind) {
    return switch (kind) {
      case ONE_SWEEP -> "one sweep";
      case CHAIN -> "chain";
      case SEGMENTED -> "segments";
      case SWEPT_SEGMENTS -> "swept segments";
      case RELAY -> "relay";
      default -> "two sweeps";
    };
  }
}
