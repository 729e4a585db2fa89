package io.github.linattn.internal.cuda;

import io.github.linattn.AttentionShape;
import io.github.linattn.DType;
import io.github.linattn.internal.cuda.ForwardPlan.Kind;
import io.github.linattn.internal.cuda.ForwardPlan.Step;
import io.github.linattn.kernelgen.ElementType;
import io.github.linattn.kernelgen.KernelEntry;
import io.github.linattn.kernelgen.KernelSpec;
import io.github.linattn.kernelgen.Operation;
import io.github.linattn.kernelgen.Precision;
import io.github.linattn.kernelgen.Technique;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import java.util.function.ToDoubleFunction;
import java.util.function.ToIntFunction;
import java.util.stream.IntStream;
import java.util.stream.Stream;

/**
 * Chooses the kernels of a forward of the family {@code chunked} and how the tokens are cut, by a
 * model of what each choice costs. Pure: asks neither a GPU nor a clock, so that the same question
 * has the same answer. Immutable.
 */
final class Planner {
  /** Tokens of a chunk, and the step between lengths of segments. */
  static final int CHUNK = KernelSpec.CHUNK;

  /** A part of a segment that is summed alone has so many tokens for each column of q and k. */
  private static final int LEAST_PART_PER_COLUMN = 16;

  /** More parts take at most so much of the time of fewer. */
  private static final double WORTH_PARTS = 0.9;

  /** With more, a chunk more is nothing. */
  private static final int LONG_SEGMENT = 4096;

  /** More of them cost a forward more than they save a backward. */
  private static final int MOST_STAGES = 4;

  private final LaunchModel model;

  /** Which kernels there are for the device. */
  interface Built {
    Optional<KernelEntry> find(
        Operation operation,
        Technique technique,
        int headDim,
        ElementType element,
        Precision precision);
  }

  /** For one device. */
  Planner(GpuTraits gpu, Built built) {
    this.model = new LaunchModel(gpu, built);
  }

  /**
   * The plan that the model finds fastest, of each segment where a chain is to be kept; empty where
   * kernels for it are not built.
   */
  Optional<ForwardPlan> plan(Question question) {
    if (question.kept() != null) {
      return chain(question, question.kept().segment());
    }
    List<ForwardPlan> candidates = candidates(question);
    return least(candidates, ForwardPlan::micros).map(best -> explained(best, candidates));
  }

  /**
   * The plan of a forward that may keep what a backward wants, with which both take least.
   *
   * @param both micros of the two
   */
  Optional<ForwardPlan> planWith(Question question, ToDoubleFunction<ForwardPlan> both) {
    List<ForwardPlan> candidates = new ArrayList<>(candidates(question));
    int tokens = question.shape().tokens();
    List<KernelEntry> forwards = forwards(question);
    // stages of fp32 take longer than is expected of them
    int most = question.dtype() == DType.F32 ? 1 : MOST_STAGES;
    for (int parts = 2; parts <= most && tokens / parts >= LaunchModel.LEAST_SEGMENT; parts++) {
      stages(question, forwards, Cut.segment(tokens, parts, CHUNK)).ifPresent(candidates::add);
    }
    return least(candidates, both)
        .map(best -> explained(best, List.of()))
        .map(best -> best.because(best.reason() + ", chosen with its backward"));
  }

  private static Optional<ForwardPlan> least(
      List<ForwardPlan> plans, ToDoubleFunction<ForwardPlan> micros) {
    return plans.stream()
        .map(plan -> Map.entry(plan, micros.applyAsDouble(plan)))
        .min(Map.Entry.comparingByValue())
        .map(Map.Entry::getKey);
  }

  private List<ForwardPlan> candidates(Question question) {
    if (isDecode(question)) { // causal or not
      Optional<ForwardPlan> decode = decode(question);
      if (decode.isPresent()) {
        return List.of(decode.get());
      }
    }
    if (!question.causal()) {
      return nonCausal(question, Technique.WGMMA, 0).stream().toList();
    }
    List<ForwardPlan> candidates = new ArrayList<>();
    for (KernelEntry forward : forwards(question)) {
      add(candidates, question, forward);
    }
    return candidates;
  }

  /**
   * The plan of this choice where there are several, without causality that of its technique and,
   * if it has segments at once, of sums of these; else the only one. Empty where kernels for it are
   * not built or its items would be too long.
   */
  Optional<ForwardPlan> plan(Question question, PlanChoice choice) {
    if (!question.causal()) {
      return nonCausal(question, choice.technique(), choice.segmentOfTotals())
          .filter(plan -> plan.steps().getLast().kernel().technique() == choice.technique());
    }
    if (question.kept() != null || isDecode(question)) {
      return plan(question);
    }
    int tokens = question.shape().tokens();
    Cut cut = question.cut(choice.segment());
    boolean summed = choice.order() == PlanChoice.Order.SUMMED;
    int walked = summed ? cut.longest() : tokens;
    ToIntFunction<KernelEntry> ofSegments =
        summed ? Rates::mostSummedTokens : Rates::mostHandedOnTokens;
    ToIntFunction<KernelEntry> most = choice.segment() == 0 ? Rates::mostItemTokens : ofSegments;
    return forwards(question).stream()
        .filter(forward -> forward.technique() == choice.technique())
        .filter(forward -> walked <= most.applyAsInt(forward))
        .filter(forward -> choice.turns() <= LaunchModel.mostTurns(forward))
        .findFirst()
        .flatMap(
            forward ->
                choice.segment() == 0
                    ? whole(question, forward, cut, choice.turns())
                    : switch (choice.order()) {
                      case SUMMED -> segmented(question, forward, cut, choice.turns());
                      case RELAY -> relay(question, forward, cut);
                      case STAGES -> stages(question, List.of(forward), choice.segment());
                    })
        .map(plan -> explained(plan, List.of()));
  }

  private Optional<ForwardPlan> chain(Question question, int segment) {
    Cut cut = new Cut(question.shape().tokens(), null, segment);
    List<ForwardPlan> parts = new ArrayList<>();
    cut.forEach(
        (i, sequence, start, length) ->
            plan(question.window(length, i > 0 || question.initialState(), true))
                .ifPresent(parts::add));
    return parts.size() == cut.items()
        ? Optional.of(ForwardPlan.chain(cut, parts))
        : Optional.empty();
  }

  /** One pass of each segment, one after the other; empty where no states can be kept. */
  private Optional<ForwardPlan> stages(Question question, List<KernelEntry> forwards, int segment) {
    AttentionShape shape = question.shape();
    Cut cut = new Cut(shape.tokens(), null, segment);
    boolean suits =
        question.keepsForBackward()
            && question.packing() == null
            && !question.normalize() // no part knows where lengths of rows are kept
            && cut.items() > 1;
    if (!suits) {
      return Optional.empty();
    }
    List<KernelEntry> together =
        forwards.stream()
            .filter(forward -> shape.tokens() <= Rates.mostHandedOnTokens(forward))
            .toList();
    List<ForwardPlan> parts = new ArrayList<>();
    cut.forEach(
        (i, sequence, start, length) ->
            onePass(question.window(length, i > 0 || question.initialState(), true), together)
                .ifPresent(parts::add));
    long state = StateArrays.bytes(shape, 1);
    double longer =
        Rates.STAGE_MICROS
            + 2.0 * state / model.bytesPerMicro()
            + Rates.SCAN_MICROS
            + Rates.LAUNCH_MICROS;
    long handedOn = 2 * ChunkedCall.alignedBytes(state);
    return parts.size() == cut.items()
        ? model
            .scan(question, cut)
            .map(
                scan ->
                    ForwardPlan.stages(cut, parts, scan, question.initialState(), handedOn, longer))
        : Optional.empty();
  }

  /** The fastest without sums. */
  private Optional<ForwardPlan> onePass(Question question, List<KernelEntry> forwards) {
    Cut whole = new Cut(question.shape().tokens(), null, 0);
    List<ForwardPlan> candidates = new ArrayList<>();
    forwards.forEach(forward -> addOnePass(candidates, question, forward, whole));
    return least(candidates, ForwardPlan::micros).map(best -> explained(best, candidates));
  }

  private static boolean isDecode(Question question) {
    return question.shape().tokens() == 1
        && question.packing() == null
        && (question.initialState() || question.finalState());
  }

  private List<KernelEntry> forwards(Question question) {
    int keyDim = question.shape().keyDim();
    return Stream.concat(
            model.wgmma(question, Operation.FORWARD, keyDim, question.precision()).stream(),
            model.mma(question, Operation.FORWARD, keyDim).stream())
        .toList();
  }

  private void add(List<ForwardPlan> candidates, Question question, KernelEntry forward) {
    int limit = Rates.mostSummedTokens(forward);
    Cut whole = question.cut(0);
    Optional<ForwardPlan> sums =
        segmented(question, forward, question.cut(segments(whole, limit)), 1);
    if (whole.longest() <= Rates.mostItemTokens(forward) || sums.isEmpty()) {
      addOnePass(candidates, question, forward, whole);
    }
    sums.ifPresent(candidates::add);
    int longest = whole.longest();
    for (int segment : segments(longest, blocks(question)).toArray()) {
      Cut cut = question.cut(segment);
      for (int turns = 1;
          segment <= limit && isWorthIt(question, forward, cut, turns);
          turns *= 2) {
        segmented(question, forward, cut, turns).ifPresent(candidates::add);
      }
    }
  }

  /** Of two parts or more, long ones such that sums of halves are possible. */
  private IntStream segments(int longest, long blocks) {
    int pair = 2 * CHUNK;
    return model
        .segments(longest, 2, blocks)
        .map(tokens -> tokens < LONG_SEGMENT ? tokens : Math.ceilDiv(tokens, pair) * pair)
        .distinct();
  }

  private void addOnePass(
      List<ForwardPlan> candidates, Question question, KernelEntry forward, Cut whole) {
    for (int turns = 1; isWorthIt(question, forward, whole, turns); turns *= 2) {
      whole(question, forward, whole, turns).ifPresent(candidates::add);
    }
    addRelays(candidates, question, forward, whole);
  }

  /** Where blocks of whole sequences come in more than one round, with an odd one at the end. */
  private void addRelays(
      List<ForwardPlan> candidates, Question question, KernelEntry forward, Cut whole) {
    boolean comesInRounds =
        model
            .step(forward, question, question.heads() * whole.items())
            .filter(step -> step.blocks() > model.multiprocessors())
            .isPresent();
    if (comesInRounds && whole.longest() <= Rates.mostHandedOnTokens(forward)) {
      Relay.cuts(whole)
          .forEach(items -> relay(question, forward, items).ifPresent(candidates::add));
    }
  }

  /** Blocks that take turns cost memory traffic; more than fill the GPU once gain nothing. */
  private boolean isWorthIt(Question question, KernelEntry forward, Cut cut, int turns) {
    return turns == 1 || model.hasRoomForTurns(forward, cut, blocks(question, cut), turns);
  }

  /** The fewest segments that respect the limit. */
  private static int segments(Cut whole, int limit) {
    int parts = Math.ceilDiv(Math.max(1, whole.longest()), limit);
    return Math.max(CHUNK, Cut.segment(whole.longest(), parts, CHUNK));
  }

  private static long blocks(Question question, Cut cut) {
    return blocks(question) * cut.items();
  }

  /** For each item. */
  private static long blocks(Question question) {
    return question.heads() * Math.ceilDiv(question.shape().valueDim(), LaunchModel.COLUMNS);
  }

  /** Each sequence from its own initial state. */
  private Optional<ForwardPlan> whole(Question question, KernelEntry forward, Cut cut, int turns) {
    Optional<Step> recurrence = recurrence(question, cut);
    Optional<Step> step = model.step(forward, question, question.heads() * cut.items() * turns);
    if (step.isEmpty() || recurrence.isEmpty()) {
      return Optional.empty();
    }
    double states =
        (question.initialState() ? 1 : 0) * question.stateBytes()
            + (question.finalState() ? 1 : 0) * question.stateBytes();
    double bytes =
        question.keyValueBytes()
            + question.queryBytes()
            + states * question.keyValueHeads() * cut.sequences();
    double micros = pass(question, step.get(), cut, cut.items(), turns, bytes, states > 0);
    long copy =
        question.inPlace() ? question.stateBytes() * question.keyValueHeads() * cut.sequences() : 0;
    return Optional.of(
        new ForwardPlan(
            Kind.FORWARD,
            List.of(step.get().lasting(micros), recurrence.get()),
            cut,
            null,
            0,
            turns,
            0,
            markBytes(question, cut, turns),
            copy,
            List.of(),
            micros + 2 * Rates.LAUNCH_MICROS,
            ""));
  }

  /** Each sequence from its own initial state, by blocks that hand it on. */
  private Optional<ForwardPlan> relay(Question question, KernelEntry forward, Cut items) {
    Cut whole = question.cut(0);
    Optional<Step> recurrence = recurrence(question, whole);
    Optional<Step> step = model.step(forward, question, question.heads() * items.items());
    if (step.isEmpty() || recurrence.isEmpty() || !whole.isRegular() || !Relay.isFor(forward)) {
      return Optional.empty();
    }
    double bytes = question.keyValueBytes() + question.queryBytes();
    double micros = pass(question, step.get(), items, items.items(), 1, bytes, true);
    return Optional.of(
        new ForwardPlan(
            Kind.RELAY,
            List.of(step.get().lasting(micros), recurrence.get()),
            whole,
            items,
            0,
            1,
            Relay.bytes(question.shape(), items),
            markBytes(question, items, 1),
            0,
            List.of(),
            micros
                + Relay.micros(question.shape(), items, model.bytesPerMicro())
                + 2 * Rates.LAUNCH_MICROS,
            ""));
  }

  private static long markBytes(Question question, Cut cut, int turns) {
    return blocks(question, cut) * turns * Integer.BYTES;
  }

  /** Sums of segments, the states before them, a forward of each. */
  private Optional<ForwardPlan> segmented(
      Question question, KernelEntry forward, Cut cut, int turns) {
    Optional<Sums> found = sums(question, cut);
    Optional<Step> step = model.step(forward, question, question.heads() * cut.items() * turns);
    Optional<Step> recurrence = recurrence(question, cut);
    if (found.isEmpty() || step.isEmpty() || recurrence.isEmpty()) {
      return Optional.empty();
    }
    Sums sums = found.get();
    double bytes = question.keyValueBytes() + question.queryBytes() + sums.stateBytes;
    double micros = pass(question, step.get(), cut, cut.items(), turns, bytes, true);
    List<Step> steps = new ArrayList<>(sums.steps);
    steps.add(step.get().lasting(micros));
    steps.add(recurrence.get());
    return Optional.of(
        new ForwardPlan(
            Kind.SEGMENTED,
            steps,
            sums.cut,
            sums.parts == 1 ? null : cut,
            sums.summed,
            turns,
            sums.stateBytes,
            Math.max(markBytes(question, cut, turns), sums.markBytes(question)),
            0,
            List.of(),
            sums.micros + micros + steps.size() * Rates.LAUNCH_MICROS,
            ""));
  }

  /**
   * Sums over items of k and v, and the scan that makes states of them.
   *
   * @param parts items of {@code cut} for each of the forward
   * @param summed items whose sums are wanted
   * @param steps the sums, their repair where they may want one, and the scan
   */
  private record Sums(
      int parts, Cut cut, int summed, List<Step> steps, long stateBytes, double micros) {
    long blocks() {
      return steps.get(0).blocks();
    }

    long markBytes(Question question) {
      return LaunchModel.sumMarkBytes(question, steps.size() > 2, summed);
    }
  }

  /**
   * A power of two of parts: as many as give every multiprocessor a block, because the blocks of
   * sums are fewer than those of the forward; more where the last round of blocks is then fuller,
   * while the states stay small beside what is summed.
   */
  private Optional<Sums> sums(Question question, Cut cut) {
    Optional<Sums> found = sums(question, cut, 1);
    if (found.isEmpty() || !cut.isRegular()) {
      return found;
    }
    int segment = cut.itemTokens();
    Sums best = found.get();
    long blocks = best.blocks();
    for (int parts = 2;
        !model.isAmple(blocks)
            && segment % (parts * CHUNK) == 0
            && segment / parts >= LaunchModel.LEAST_SEGMENT;
        parts *= 2) {
      boolean idle = blocks * 10 < model.multiprocessors() * 7L;
      if (!idle && segment / parts < LEAST_PART_PER_COLUMN * question.shape().keyDim()) {
        break;
      }
      Sums next = sums(question, cut, parts).orElseThrow();
      if (idle || next.micros < WORTH_PARTS * best.micros) {
        best = next;
      }
      blocks = next.blocks();
    }
    return Optional.of(best);
  }

  private Optional<Sums> sums(Question question, Cut forwards, int parts) {
    Cut cut = parts == 1 ? forwards : question.cut(forwards.itemTokens() / parts);
    boolean all = question.finalState() || question.packing() != null;
    int summed = all ? cut.items() : Math.max(1, (forwards.items() - 1) * parts);
    Optional<Step> sums = model.sums(question, summed);
    Optional<Step> scan = model.scan(question, forwards);
    if (sums.isEmpty() || scan.isEmpty()) {
      return Optional.empty();
    }
    long stateBytes =
        question.stateBytes() * question.keyValueHeads() * Math.min(summed + 1, cut.items());
    double bytes = (double) (question.keyValueBytes() + stateBytes) * summed / cut.items();
    double first = pass(question, sums.get(), cut, summed, 1, bytes, true);
    double second =
        model.scanMicros(Rates.SCAN_MICROS, question, cut, 2 * Math.min(summed + 1, cut.items()));
    return repaired(question, sums.get().lasting(first), summed)
        .map(
            steps -> {
              steps.add(scan.get());
              return new Sums(parts, cut, summed, steps, stateBytes, first + second);
            });
  }

  /** Sums, and behind them those by mma where these may leave the range of their operands. */
  private Optional<List<Step>> repaired(Question question, Step sums, int items) {
    List<Step> steps = new ArrayList<>(List.of(sums));
    if (!LaunchModel.mayLeaveRange(sums.kernel())) {
      return Optional.of(steps);
    }
    return model
        .repairedSums(question, items)
        .map(
            repair -> {
              steps.add(repair);
              return steps;
            });
  }

  private Optional<ForwardPlan> decode(Question question) {
    Cut cut = new Cut(1, null, 0);
    return model
        .simt(question, Operation.DECODE)
        .flatMap(kernel -> model.step(kernel, question, question.keyValueHeads()))
        .map(
            step -> {
              long states = question.stateBytes() * question.keyValueHeads();
              return new ForwardPlan(
                  Kind.DECODE,
                  List.of(step),
                  cut,
                  null,
                  0,
                  1,
                  0,
                  0,
                  0,
                  List.of(),
                  2.0 * states / model.bytesPerMicro() + Rates.LAUNCH_MICROS,
                  "one token: its state is read and written once");
            });
  }

  /** The sums over all tokens, then every query against them, by this technique or else by mma. */
  private Optional<ForwardPlan> nonCausal(Question question, Technique technique, int segment) {
    return model
        .outputsKernel(question, Operation.STATE_OUTPUTS, technique)
        .flatMap(kernel -> nonCausal(question, kernel, segment));
  }

  private Optional<ForwardPlan> nonCausal(Question question, KernelEntry kernel, int segment) {
    Cut outputs =
        model.itemsOfOutputs(
            question,
            kernel,
            question.heads(),
            question.shape().keyDim(),
            question.shape().valueDim(),
            question.queryBytes());
    return model
        .step(kernel, question, question.heads() * outputs.items())
        .flatMap(
            answers ->
                least(
                    model.itemsOfTotals(question, Rates.SAFE_ITEM_TOKENS, segment).stream()
                        .map(cut -> nonCausal(question, cut, outputs, answers))
                        .flatMap(Optional::stream)
                        .toList(),
                    ForwardPlan::micros));
  }

  private Optional<ForwardPlan> nonCausal(Question question, Cut cut, Cut outputs, Step answers) {
    Optional<Step> sums = model.sums(question, cut.items());
    boolean scans = question.initialState() || !cut.hasOneItemEach();
    Optional<Step> scan = scans ? model.scan(question, cut) : Optional.empty();
    if (sums.isEmpty() || (scans && scan.isEmpty())) {
      return Optional.empty();
    }
    Optional<List<Step>> repaired = repaired(question, sums.get(), cut.items());
    if (repaired.isEmpty()) {
      return Optional.empty();
    }
    List<Step> steps = repaired.get();
    long markBytes = LaunchModel.sumMarkBytes(question, steps.size() > 1, cut.items());
    scan.ifPresent(steps::add);
    steps.add(answers);
    int written = (scans ? cut.items() : 0) + cut.sequences();
    int reserved = written - (question.finalState() ? cut.sequences() : 0);
    long ofStates = question.stateBytes() * question.keyValueHeads();
    double bytes = question.keyValueBytes() + ofStates * cut.items();
    double ofSums = pass(question, sums.get(), cut, cut.items(), 1, bytes, true);
    double ofScan = scans ? model.scanMicros(Rates.SCAN_MICROS, question, cut, written) : 0;
    double ofOutputs =
        pass(question, answers, outputs, outputs.items(), 1, question.queryBytes(), true);
    return Optional.of(
        new ForwardPlan(
            Kind.NON_CAUSAL,
            steps,
            cut,
            outputs,
            cut.items(),
            1,
            ofStates * reserved,
            markBytes,
            0,
            List.of(),
            ofSums + ofScan + ofOutputs + steps.size() * Rates.LAUNCH_MICROS,
            "not causal: %s are summed, then every query reads the sum, by %s on %d multiprocessors"
                .formatted(cut, answers.kernel().technique().id(), model.multiprocessors())));
  }

  private Optional<Step> recurrence(Question question, Cut cut) {
    return model
        .simt(question, Operation.RECURRENCE)
        .flatMap(kernel -> model.step(kernel, question, question.heads() * cut.items()));
  }

  /**
   * Micros of a launch.
   *
   * @param items that the blocks have
   * @param turns of the blocks of an item
   * @param bytes that all blocks read and write
   * @param states whether blocks read or write states
   */
  private double pass(
      Question question, Step step, Cut cut, int items, int turns, double bytes, boolean states) {
    KernelEntry kernel = step.kernel();
    int keyDim = question.shape().keyDim();
    double chunk = Rates.chunkMicros(kernel, keyDim, turns, cut.longest());
    double start =
        Rates.startMicros(kernel.technique())
            + (states ? Rates.stateMicros(keyDim) : 0)
            + (turns > 1 ? Rates.TURNS_MICROS : 0);
    boolean segmented = cut.items() > cut.sequences();
    double again = segmented ? (turns - 1) * Rates.TURNS_SHARE * question.keyValueBytes() : 0;
    return model.micros(step, cut, (long) items * turns, start, chunk, bytes + again);
  }

  private ForwardPlan explained(ForwardPlan best, List<ForwardPlan> candidates) {
    if (!best.reason().isEmpty()) {
      return best;
    }
    KernelEntry forward = best.kernel();
    String how =
        switch (best.kind()) {
          case SEGMENTED ->
              "segments: %s with a scan between two passes".formatted(best.forwardCut());
          case RELAY ->
              "relay: one pass, by blocks of %s that hand states on".formatted(best.forwardCut());
          default ->
              best.forwardCut().longest() <= CHUNK
                  ? "short: one chunk, without a state between chunks"
                  : "one pass: %s".formatted(best.forwardCut());
        };
    if (best.turns() > 1) {
      how += ", whose chunks %d blocks write in turn".formatted(best.turns());
    }
    Optional<ForwardPlan> other =
        candidates.stream()
            .filter(plan -> plan.kind() != best.kind() || plan.kernel() != forward)
            .reduce((a, b) -> b.micros() < a.micros() ? b : a);
    String against =
        other
            .map(
                plan ->
                    String.format(
                        Locale.ROOT,
                        "; next best %s by %s, %.1f µs",
                        plan.kind().text(),
                        plan.kernel().technique().id(),
                        plan.micros()))
            .orElse("");
    String reason =
        String.format(
            Locale.ROOT,
            "%s, by %s on %d multiprocessors%s",
            how,
            forward.technique().id(),
            model.multiprocessors(),
            against);
    return best.because(reason);
  }
}
