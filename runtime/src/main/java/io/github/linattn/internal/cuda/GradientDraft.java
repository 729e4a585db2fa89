package io.github.linattn.internal.cuda;

import io.github.linattn.AttentionShape;
import io.github.linattn.internal.cuda.ForwardPlan.Step;
import io.github.linattn.internal.cuda.GradientPlan.Kind;
import io.github.linattn.internal.cuda.GradientPlan.Launch;
import io.github.linattn.internal.cuda.GradientPlan.Marks;
import io.github.linattn.internal.cuda.GradientPlan.Memory;
import io.github.linattn.internal.cuda.GradientPlan.Role;
import io.github.linattn.kernelgen.KernelEntry;
import io.github.linattn.kernelgen.Operation;
import io.github.linattn.kernelgen.Technique;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.function.ToDoubleFunction;

/**
 * A plan of a backward that comes about: launches are added in their order, each with what it is
 * expected to take, and the plan says what they work on. A launch that is not there leaves no plan.
 * Of one thread.
 */
final class GradientDraft {
  private static final int GRADIENTS_OF_A_PAIR = 3;
  private static final int LEAST_COEFFICIENT_TOKENS = 512;

  private final LaunchModel model;
  private final Question question;
  private final AttentionShape shape;
  private final Cut cut;
  private final List<Launch> launches = new ArrayList<>();
  private boolean complete = true;
  private double micros;
  private Cut outputs;
  private Cut keyOutputs;
  private int turns = 1;
  private int summed;
  private int gradientSummed;
  private int keptStep;
  private long stateBytes;
  private long totalBytes;

  /**
   * Without launches yet.
   *
   * @param cut items of sums, and of the sweeps that are not given others
   */
  GradientDraft(LaunchModel model, Question question, Cut cut) {
    this.model = model;
    this.question = question;
    this.shape = question.shape();
    this.cut = cut;
    this.outputs = cut;
    this.keyOutputs = cut;
  }

  /** What the launches so far are expected to take; infinite where one is not there. */
  double micros() {
    return complete ? micros : Double.POSITIVE_INFINITY;
  }

  /** Whether the blocks of any launch so far are more than run at once. */
  boolean comesInRounds() {
    return launches.stream().anyMatch(launch -> launch.step().blocks() > model.multiprocessors());
  }

  /** The plan of these launches. */
  Optional<GradientPlan> plan(Kind kind) {
    return plan(kind, marks());
  }

  /** The same of launches whose gradients nobody repairs. */
  Optional<GradientPlan> planWithoutMarks(Kind kind) {
    return plan(kind, Marks.ofSums(sumMarks()));
  }

  private Optional<GradientPlan> plan(Kind kind, Marks marks) {
    return complete
        ? Optional.of(
            new GradientPlan(
                kind,
                launches,
                cut,
                outputs,
                keyOutputs,
                summed,
                gradientSummed,
                keptStep,
                tiles(),
                turns,
                coefficientParts(),
                memory(marks),
                List.of(),
                micros,
                ""))
        : Optional.empty();
  }

  private Memory memory(Marks marks) {
    long queryRows = question.heads() * shape.tokens() * Float.BYTES;
    long keyRows = question.keyValueHeads() * shape.tokens() * Float.BYTES;
    boolean scales = !question.lengthsAreKept();
    return new Memory(
        stateBytes,
        totalBytes,
        queryRows,
        scales ? queryRows : 0,
        scales ? keyRows : 0,
        question.heads() * outputs.items() * turns * tiles() * 2 * Double.BYTES,
        coefficientParts() == 1 ? 0 : question.heads() * coefficientParts() * Double.BYTES,
        marks);
  }

  /** Blocks of da and db: at most one for each multiprocessor, and for so many tokens. */
  private int coefficientParts() {
    int most = Math.ceilDiv(shape.tokens(), LEAST_COEFFICIENT_TOKENS);
    return question.sumsSlope()
        ? 1
        : Math.clamp(model.multiprocessors() / question.heads(), 1, most);
  }

  /** One for each tile of columns that a block of a sweep writes. */
  private Marks marks() {
    long queryItems = question.heads() * outputs.items() * Integer.BYTES;
    long keyItems = question.keyValueHeads() * keyOutputs.items() * Integer.BYTES;
    int valueTiles = Math.ceilDiv(shape.valueDim(), LaunchModel.COLUMNS);
    return new Marks(
        queryItems * turns * tiles(), keyItems * tiles(), keyItems * valueTiles, sumMarks());
  }

  private long sumMarks() {
    boolean areRepaired =
        launches.stream()
            .map(Launch::role)
            .anyMatch(role -> role == Role.STATE_SUMS_REPAIR || role == Role.GRADIENT_SUMS_REPAIR);
    return LaunchModel.sumMarkBytes(question, areRepaired, Math.max(summed, gradientSummed));
  }

  /** Of columns of dq and dk. */
  private int tiles() {
    return Math.ceilDiv(shape.keyDim(), LaunchModel.COLUMNS);
  }

  /** Reserves states, beside those that were before. */
  void reserve(long ofStates) {
    stateBytes += ofStates;
  }

  /** The sweeps start from states that a forward kept, of so many of its segments each. */
  void startFromKept(int segments) {
    keptStep = segments;
  }

  /** Adds what no launch takes by itself. */
  void lengthen(double longer) {
    micros += longer;
  }

  private void add(Role role, Optional<Step> step, ToDoubleFunction<Step> estimate) {
    complete &= step.isPresent();
    step.ifPresent(
        known -> {
          double taken = estimate.applyAsDouble(known);
          launches.add(new Launch(role, known.lasting(taken)));
          micros += taken + Rates.LAUNCH_MICROS;
        });
  }

  /**
   * d, and the lengths of the rows of q and of k, as far as they are wanted: a part of the grid
   * each.
   */
  void addRows(KernelEntry query) {
    if (query.formsDelta() && !question.normalize()) {
      return;
    }
    long queries = question.heads() * shape.tokens();
    long keys = question.keyValueHeads() * shape.tokens();
    int ofDelta = query.formsDelta() ? 0 : 1;
    int queryParts = ofDelta + (question.normalize() ? 1 : 0);
    int read =
        question.lengthsAreKept() ? ofDelta : queryParts; // pairs of tensors: o and dO, q and k
    add(
        Role.ROWS,
        model
            .simt(question, Operation.GRADIENT_ROWS)
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
  private void addDelta(int tokens) {
    double bytes = question.queryBytes() * tokens / shape.tokens();
    add(
        Role.ROWS,
        model
            .simt(question, Operation.GRADIENT_ROWS)
            .flatMap(kernel -> model.step(kernel, question, question.heads() * tokens)),
        step -> bytes / model.bytesPerMicro());
  }

  /** The states before items: sums of the first so many, and a scan. */
  void addStates(Cut items, int count) {
    addStateSums(items, count);
    addRepair(Role.STATE_SUMS, Role.STATE_SUMS_REPAIR, model.repairedSums(question, count));
    addScan(Role.STATE_SCAN, items);
  }

  /** S, z and u of whole sequences, unless the state after the last token is at hand. */
  void addStateTotals() {
    if (!question.lastState()) {
      addStateSums(cut, cut.items());
      addRepair(Role.STATE_SUMS, Role.STATE_SUMS_REPAIR, model.repairedSums(question, cut.items()));
      addTotals(Role.STATE_SCAN, question.initialState());
    }
  }

  /** Their gradients, in the same places where they have no others. */
  void addGradientTotals() {
    addGradientSums(cut.items(), cut.items(), Technique.WGMMA);
    addRepair(Role.GRADIENT_SUMS, Role.GRADIENT_SUMS_REPAIR, repairedGradientSums(cut.items()));
    addTotals(Role.GRADIENT_SCAN, question.lastGradient());
  }

  /** Sums by mma behind those that may have left the range of their operands. */
  private void addRepair(Role sums, Role repair, Optional<Step> byWarps) {
    boolean isNeeded =
        launches.stream()
            .filter(launch -> launch.role() == sums)
            .anyMatch(launch -> LaunchModel.mayLeaveRange(launch.step().kernel()));
    if (isNeeded) {
      add(repair, byWarps, step -> 0);
    }
  }

  /** A scan of sums, unless they are the totals as they are. */
  private void addTotals(Role scan, boolean hasMore) {
    totalBytes = StateArrays.bytes(shape, cut.sequences());
    if (hasMore || !cut.hasOneItemEach()) {
      stateBytes = StateArrays.bytes(shape, cut.items());
      addScan(scan, cut, cut.sequences());
    }
  }

  private void addStateSums(Cut items, int count) {
    summed = count;
    double bytes = question.keyValueBytes() + StateArrays.bytes(shape, count);
    add(
        Role.STATE_SUMS,
        model.sums(question, count),
        step -> micros(step, shape.keyDim(), items, count, 1, bytes));
  }

  /**
   * The gradients after items: sums of the last so many, and a scan. Expected is what sums of all
   * take: reckoned by what is left, segments were chosen where whole sequences measured less.
   */
  void addGradients(int count, Technique technique) {
    addGradients(count, cut.items(), technique);
  }

  private void addGradients(int count, int reckoned, Technique technique) {
    addGradientSums(count, reckoned, technique);
    addRepair(Role.GRADIENT_SUMS, Role.GRADIENT_SUMS_REPAIR, repairedGradientSums(count));
    addScan(Role.GRADIENT_SCAN, cut);
  }

  private void addGradientSums(int count, int reckoned, Technique technique) {
    gradientSummed = count;
    double share = (double) reckoned / cut.items();
    double bytes = question.queryBytes() * share + StateArrays.bytes(shape, reckoned);
    int heads = shape.headsPerKeyValueHead();
    add(
        Role.GRADIENT_SUMS,
        gradientSums(count, technique),
        step ->
            micros(
                gradientSums(reckoned, technique).orElse(step),
                shape.keyDim(),
                cut,
                reckoned,
                heads,
                bytes));
  }

  private Optional<Step> gradientSums(int count, Technique technique) {
    return model
        .gradient(question, Operation.GRADIENT_SUMS, technique, shape.keyDim(), 0)
        .flatMap(kernel -> model.step(kernel, question, question.keyValueHeads() * count));
  }

  private Optional<Step> repairedGradientSums(int count) {
    return gradientSums(count, Technique.MMA).map(model::repairing);
  }

  /** The same after d of their tokens, where no launch before has formed that. */
  void addDeltaAndGradients(int count) {
    addDelta(shape.tokens() - (cut.items() - count) * cut.itemTokens());
    addGradients(count, count, Technique.WGMMA);
  }

  private void addScan(Role role, Cut items) {
    addScan(role, items, items.items());
  }

  /** Which reads what was summed of items and writes so many states. */
  private void addScan(Role role, Cut items, int written) {
    int states = items.items() + written;
    add(
        role,
        model.scan(question, items),
        step -> model.scanMicros(Rates.GRADIENT_SCAN_MICROS, question, items, states));
  }

  /** dq of items, of which so many blocks write chunks in turn. */
  void addQuery(KernelEntry query, Cut items, int blocksInTurn) {
    outputs = items;
    turns = blocksInTurn;
    int width = shape.valueDim();
    double chunk = Rates.chunkMicros(query, width, turns);
    double start = Rates.gradientStartMicros(query) + Rates.stateMicros(width);
    double ofOutputs = query.formsDelta() ? question.queryBytes() / 2 : 0; // o
    double ofOwn = query.finishesGradients() ? question.queryRowBytes() : 0; // q
    double bytes = question.keyValueBytes() + question.queryBytes() + ofOutputs + ofOwn;
    long shares = (long) items.items() * turns;
    add(
        Role.QUERY,
        model.step(query, question.heads() * shares, width, shape.keyDim(), 1),
        step -> model.micros(step, items, shares, start, chunk, bytes));
  }

  /** The same by blocks that hand states on from item to item. */
  void addRelayedQuery(KernelEntry query, Cut items) {
    addQuery(query, items, 1);
    handOn(items, 1, Role.QUERY);
  }

  /** dk and dv of items; by one launch where a kernel forms both. */
  void addKeyAndValue(KernelEntry key, KernelEntry value, Cut items) {
    keyOutputs = items;
    int group = shape.headsPerKeyValueHead();
    if (key.technique() == Technique.WGMMA && key.equals(value)) {
      add(
          Role.KEY_AND_VALUE,
          bothTasks(key, items),
          step -> taskMicros(Role.KEY, step, items, group, GradientStructs.HOPPER_TASKS));
    } else {
      addTask(Role.KEY, key, items, group);
      addTask(Role.VALUE, value, items, group);
    }
  }

  /** The same by blocks that hand states on from item to item. */
  void addRelayedKeyAndValue(KernelEntry key, KernelEntry value, Cut items) {
    addKeyAndValue(key, value, items);
    handOn(items, 2, Role.KEY, Role.VALUE, Role.KEY_AND_VALUE);
  }

  /** With what blocks of these roles take longer, and room for the states of the gradients. */
  private void handOn(Cut items, int gradients, Role... roles) {
    List<Role> relayed = List.of(roles);
    micros +=
        launches.stream()
            .filter(launch -> relayed.contains(launch.role()))
            .map(Launch::step)
            .mapToDouble(step -> model.rounds(step) * Rates.relayedMicros(step.kernel()))
            .sum();
    micros += gradients * Relay.micros(shape, items, model.bytesPerMicro());
    stateBytes += gradients * Relay.bytes(shape, items);
  }

  /** dk and dv of rows against sums over all tokens. */
  void addKeyAndValueOfRows(KernelEntry key, KernelEntry value, Cut items) {
    keyOutputs = items;
    addTask(Role.KEY, key, items, 1);
    addTask(Role.VALUE, value, items, 1);
  }

  /**
   * dq, dk and dv of items.
   *
   * @param longer what its blocks take beside their chunks, all of a round together
   */
  void addOneSweep(KernelEntry kernel, Cut items, double longer) {
    outputs = items;
    keyOutputs = items;
    // q, k, v, o and dO are read once, dq, dk and dv written; of rows g is read and d written
    double bytes = 2 * (question.queryBytes() + question.keyValueBytes());
    add(
        Role.ONE_SWEEP,
        bothTasks(kernel, items),
        step ->
            micros(step, shape.keyDim(), items, items.items(), 1, bytes)
                + longer * model.rounds(step));
  }

  /** A launch with the blocks of dk and as many of dv. */
  private Optional<Step> bothTasks(KernelEntry kernel, Cut items) {
    return task(Role.KEY, kernel, items)
        .filter(key -> key.blocks() <= Integer.MAX_VALUE / GradientStructs.HOPPER_TASKS)
        .map(
            key ->
                new Step(
                    key.kernel(),
                    key.blocks() * GradientStructs.HOPPER_TASKS,
                    clusterOfBoth(key),
                    key.threads(),
                    key.sharedBytes(),
                    key.startsEarly()));
  }

  /** Two tiles of a task, or of both where they have no pairs. */
  private static int clusterOfBoth(Step oneTask) {
    return oneTask.cluster() == 1 ? GradientStructs.HOPPER_TASKS : oneTask.cluster();
  }

  /** A launch for one of the gradients, which adds up the rows of so many heads. */
  private void addTask(Role role, KernelEntry kernel, Cut items, int heads) {
    add(role, task(role, kernel, items), step -> taskMicros(role, step, items, heads, 1));
  }

  private Optional<Step> task(Role role, KernelEntry kernel, Cut items) {
    int outWidth = role == Role.VALUE ? shape.valueDim() : shape.keyDim();
    long count = question.keyValueHeads() * items.items();
    return model.step(kernel, count, width(role), outWidth, shape.headsPerKeyValueHead());
  }

  private double taskMicros(Role role, Step step, Cut items, int heads, int tasks) {
    double bytes = tasks * question.keyValueBytes() + question.queryBytes(); // q and dO are shared
    return micros(step, width(role), items, items.items(), heads, bytes);
  }

  /** Columns of the rows that dk or dv multiplies. */
  private int width(Role role) {
    return role == Role.VALUE ? shape.keyDim() : shape.valueDim();
  }

  /** Of blocks that walk their item once for each of so many heads. */
  private double micros(Step step, int width, Cut of, int items, int heads, double bytes) {
    KernelEntry kernel = step.kernel();
    double start = Rates.gradientStartMicros(kernel) + Rates.stateMicros(width);
    return model.micros(step, of, items, start, heads * Rates.chunkMicros(kernel, width), bytes);
  }

  /** dq where its sweep marked it, mostly nowhere, before a scan replaces the states of that. */
  void addQueryRepair() {
    addRecurrence(Role.QUERY_REPAIR, outputs, question.heads(), 0);
  }

  /** da and db, and the gradients that the sweeps before marked: mostly there are none. */
  void addCoefficients() {
    long tiles = GRADIENTS_OF_A_PAIR * question.heads();
    addRecurrence(Role.COEFFICIENTS, cut, tiles, Rates.SCAN_MICROS);
  }

  private void addRecurrence(Role role, Cut items, long tilesOfItem, double taken) {
    int widest = Math.max(shape.keyDim(), shape.valueDim());
    addRecurrence(role, tilesOfItem * items.items(), widest, taken);
  }

  /** da and db alone. */
  void addCoefficientsWithoutRepair() {
    addRecurrence(Role.COEFFICIENTS, question.heads(), 1, Rates.SCAN_MICROS);
  }

  /** Of so many items with so many columns; for da and db at least with a block for each part. */
  private void addRecurrence(Role role, long count, int columns, double taken) {
    long least = role == Role.COEFFICIENTS ? question.heads() * coefficientParts() : 0;
    add(
        role,
        model
            .simt(question, Operation.GRADIENT_RECURRENCE)
            .flatMap(kernel -> model.step(kernel, Math.max(count, least), columns, columns, 1)),
        step -> taken);
  }

  /** From the gradients of rows that were divided to those of the rows. */
  void addNormalized() {
    if (question.normalize()) {
      addNormalized(Role.NORMALIZED_QUERY, question.heads());
      addNormalized(Role.NORMALIZED_KEY, question.keyValueHeads());
    }
  }

  private void addNormalized(Role role, long heads) {
    long rows = heads * shape.tokens();
    double bytes = 3.0 * rows * shape.keyDim() * question.dtype().bytes();
    add(
        role,
        model
            .simt(question, Operation.NORMALIZE_ROWS_GRADIENT)
            .flatMap(kernel -> model.step(kernel, question, rows)),
        step -> bytes / model.bytesPerMicro());
  }
}
