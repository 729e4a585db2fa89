package io.github.linattn.internal.cuda;

import static java.lang.foreign.ValueLayout.JAVA_LONG;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.Tensor;
import io.github.linattn.bindings.Cuda;
import io.github.linattn.bindings.LaunchScratch;
import io.github.linattn.bindings.Prepared;
import io.github.linattn.internal.Checkpoints;
import io.github.linattn.internal.ForwardCall;
import io.github.linattn.internal.cuda.ForwardPlan.Kind;
import io.github.linattn.internal.cuda.ForwardPlan.Step;
import io.github.linattn.kernelgen.ElementType;
import io.github.linattn.kernelgen.Operation;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * What one forward plan gives to a stream, in order, with its arguments. The caller holds the
 * queue's lock.
 */
final class ForwardLaunches {
  private static final int MOST_LAUNCHES = 6; // of segments, and a scan behind them

  private static final long INITIAL_COUNT =
      ChunkedStructs.offset(ChunkedStructs.CHUNKED, "initial_count");
  private static final long HOPPER_CHUNKED =
      ChunkedStructs.offset(ChunkedStructs.HOPPER, "chunked");

  private final CudaQueue queue;
  private final LaunchScratch[] scratch = new LaunchScratch[MOST_LAUNCHES];
  private final Arguments hopper;
  private final Arguments hopperSums;
  private final Arguments main;
  private final Arguments sums;
  private final Arguments scan;
  private final Arguments repair;
  private final List<Prepared> work = new ArrayList<>();
  private final List<Prepared> beforeRepair = new ArrayList<>();
  private long[] counts = {};

  /**
   * The states at the ends of what is computed.
   *
   * @param before the first token, or null for zeros
   * @param after the last token, or null where it is not wanted
   */
  record Boundary(@Nullable StateArrays before, @Nullable StateArrays after) {}

  ForwardLaunches(CudaQueue queue, Arena owner) {
    this.queue = queue;
    for (int i = 0; i < MOST_LAUNCHES; i++) {
      scratch[i] = new LaunchScratch(owner);
    }
    this.hopper = Arguments.allocate(owner, ChunkedStructs.HOPPER);
    this.hopperSums = Arguments.allocate(owner, ChunkedStructs.HOPPER);
    this.main = Arguments.allocate(owner, ChunkedStructs.CHUNKED);
    this.sums = Arguments.allocate(owner, ChunkedStructs.CHUNKED);
    this.scan = Arguments.allocate(owner, ChunkedStructs.STATE_SCAN);
    this.repair = Arguments.allocate(owner, ChunkedStructs.CHUNKED);
  }

  /** Tells how many tokens the initial state holds where there is one sequence. */
  void setCount(long count) {
    main.memory().set(JAVA_LONG, INITIAL_COUNT, count);
    repair.memory().set(JAVA_LONG, INITIAL_COUNT, count);
    hopper.memory().set(JAVA_LONG, HOPPER_CHUNKED + INITIAL_COUNT, count);
  }

  /** Gives it to the stream. */
  void run(Cuda cuda) {
    for (int i = 0; i < work.size(); i++) {
      cuda.run(work.get(i));
    }
  }

  /**
   * Fills it in.
   *
   * @param forward the call, or the part of one that the plan is for
   * @param ends its states, if any
   * @param tokensBefore in the initial state of each sequence
   * @param workspace device address of the plan's workspace, used by the calls of the queue in turn
   * @param tickets device address of zeros, which a step of decoding leaves as zeros
   */
  void fill(
      ForwardCall forward,
      ForwardPlan plan,
      Boundary ends,
      long[] tokensBefore,
      Kernels kernels,
      long workspace,
      long tickets) {
    work.clear();
    beforeRepair.clear();
    counts = tokensBefore;
    Checkpoints kept = forward.checkpoints();
    long states = kept != null && kept.hasStates() ? kept.memory().segment().address() : workspace;
    long marks = workspace + plan.stateBytes();
    long copy = marks + ChunkedCall.alignedBytes(plan.markBytes());
    AttentionShape shape = forward.input().shape();
    fillCommon(main, forward);
    main.set("turns", plan.turns()).set("slot_step", plan.slotStep());
    switch (plan.kind()) {
      case FORWARD -> fillWhole(plan, shape, ends, marks, copy);
      case DECODE -> {
        fillWhole(plan, shape, ends, marks, copy);
        main.set("tickets", tickets); // with which another kernel would hand states on
      }
      case RELAY -> fillRelay(plan, shape, ends, states, marks);
      case SEGMENTED -> fillSegmented(plan, shape, ends, states, marks);
      case NON_CAUSAL -> fillNonCausal(plan, shape, ends, workspace, marks, kept);
      case CHAIN, STAGES -> throw new IllegalStateException("each part has launches of its own");
    }
    List<Step> steps = plan.steps();
    for (int i = 0; i < steps.size(); i++) {
      Step step = steps.get(i);
      if (step.kernel().operation() == Operation.RECURRENCE) {
        work.addAll(beforeRepair);
      }
      work.add(prepare(scratch[i], plan, step, kernels.load(step.kernel()), forward));
    }
  }

  /** Adds zeros at a device address. */
  void clear(long address, long bytes) {
    work.add(queue.clearOf(address, bytes));
  }

  /**
   * Adds a launch that brings a state to the place of a segment among those that are kept, which
   * holds numbers. There is no other scan.
   */
  void keep(
      Step step,
      StateArrays state,
      StateArrays kept,
      Cut cut,
      int segment,
      AttentionShape shape,
      Kernels kernels) {
    scan.clear()
        .setScan(kept, cut, cut.items(), shape, queue.lists())
        .set("spans", queue.lists().spanOf(segment))
        .setState("_in", state);
    LaunchScratch last = scratch[MOST_LAUNCHES - 1];
    work.add(queue.prepare(last, step, kernels.load(step.kernel()), scan));
  }

  private Prepared prepare(
      LaunchScratch mine, ForwardPlan plan, Step step, LoadedKernel kernel, ForwardCall forward) {
    Arguments arguments =
        switch (step.kernel().operation()) {
          case STATE_SUMS, NORMALIZED_STATE_SUMS -> plan.repairsSums(step) ? repair : sums;
          case STATE_SCAN -> scan;
          case RECURRENCE -> plan.kind() == Kind.RELAY ? repair : main;
          default -> main;
        };
    if (step.kernel().takesTensorMaps()) {
      Arguments withMaps = arguments.equals(sums) ? hopperSums : hopper;
      fillHopper(withMaps, arguments, forward, step.kernel().elementType());
      withMaps.set("row_scales", rowScales(plan, forward, withMaps.equals(hopperSums)));
      arguments = withMaps;
    }
    return queue.prepare(mine, step, kernel, arguments);
  }

  private void fillCommon(Arguments struct, ForwardCall forward) {
    AttentionInput input = forward.input();
    struct
        .clear()
        .setRows(input.q(), input.k(), input.v(), forward.output(), forward.normalizer())
        .setProblem(forward.operator(), input.shape(), counts[0], queue.lists());
  }

  /** Each item is a sequence and starts from its state. */
  private void fillWhole(
      ForwardPlan plan, AttentionShape shape, Boundary states, long marks, long copy) {
    Cut cut = plan.cut();
    main.setSequences(cut, counts, queue.lists());
    if (plan.markBytes() > 0) {
      main.set("marks", marks);
    }
    if (states.before() != null) {
      boolean overwritten = plan.copyBytes() > 0;
      main.setState(
          "_in",
          overwritten ? copied(states.before(), shape, cut.sequences(), copy) : states.before());
    }
    if (states.after() != null) {
      main.setState("_out", states.after());
    }
  }

  /**
   * Blocks of each item go on where those of the one before have stopped. The repair has whole
   * sequences, and marks of items in the places of turns.
   */
  private void fillRelay(
      ForwardPlan plan, AttentionShape shape, Boundary ends, long handedOn, long marks) {
    Cut items = plan.forwardCut();
    Relay relay = new Relay(shape, items, false, handedOn);
    relay.start(ends.before() == null ? StateArrays.NONE : ends.before(), queue, work);
    main.set("marks", marks).setItems(plan.cut(), 1).setState("_in", relay.in());
    repair.copyOf(main).set("turns", items.items());
    if (ends.after() != null) {
      repair.setState("_out", ends.after());
      beforeRepair.addAll(
          queue.copiesOf(relay.before(items.items()), ends.after(), StateArrays.sizes(shape)));
    }
    relay.handOn(main, counts[0], queue.lists()).setState("_out", relay.out());
  }

  /** The state at another place, which the copies before the launches bring there. */
  private StateArrays copied(StateArrays state, AttentionShape shape, int sequences, long target) {
    StateArrays copy = StateArrays.at(target, shape, sequences);
    work.addAll(
        queue.copiesOf(state, copy, StateArrays.NONE.further(StateArrays.sizes(shape), sequences)));
    return copy;
  }

  /** Each item is a segment: its sums, the states before it, and the forward from these. */
  private void fillSegmented(
      ForwardPlan plan, AttentionShape shape, Boundary ends, long states, long marks) {
    Cut cut = plan.cut();
    StateArrays before = StateArrays.at(states, shape, plan.slots());
    main.setSegments(plan.forwardCut(), plan.slots(), counts, queue.lists());
    fillSums(plan, plan.slots(), shape, before, marks);
    main.set("marks", marks).setState("_in", before);
    scan.clear().setScan(before, cut, plan.slots(), shape, queue.lists());
    if (ends.before() != null) {
      scan.setState("_in", ends.before());
    }
    if (ends.after() != null) {
      scan.setState("_out", ends.after());
    }
  }

  /**
   * Sums of segments, the totals of sequences from these where they are not the totals themselves,
   * and every query against the total of its own.
   */
  private void fillNonCausal(
      ForwardPlan plan,
      AttentionShape shape,
      Boundary ends,
      long workspace,
      long marks,
      @Nullable Checkpoints kept) {
    Cut cut = plan.cut();
    boolean scans = plan.steps().stream().anyMatch(Step::scansStates);
    long behind = scans ? StateArrays.bytes(shape, cut.items()) : 0;
    StateArrays totals =
        ends.after() == null
            ? StateArrays.at(workspace + behind, shape, cut.sequences())
            : ends.after();
    StateArrays sums = scans ? StateArrays.at(workspace, shape, cut.items()) : totals;
    fillSums(plan, cut.items(), shape, sums, marks);
    if (scans) {
      scan.clear().setScan(sums, cut, cut.items(), shape, queue.lists()).setTotals(totals);
      if (ends.before() != null) {
        scan.setState("_in", ends.before());
      }
    }
    Cut outputs = plan.outputs();
    if (outputs == null) {
      throw new IllegalStateException("a plan without causality has items of outputs");
    }
    main.setOutputs(outputs, counts, queue.lists()).setState("_in", totals);
    main.inner("key", ChunkedStructs.TENSOR_VIEW).clear(); // nobody reads k: lengths of q, or null
    main.set("key", kept == null ? 0 : kept.lengthsAddress(shape));
  }

  /** Of sums that are repaired both launches have marks, which the second reads. */
  private void fillSums(
      ForwardPlan plan, int slots, AttentionShape shape, StateArrays out, long marks) {
    sums.copyOf(main)
        .setSegments(plan.cut(), slots, counts, queue.lists())
        .setKeyValueHeads(shape)
        .setDivisor("num_items", plan.summed())
        .set("turns", 1)
        .set("slot_step", 1)
        .setState("_out", out);
    if (plan.steps().stream().anyMatch(plan::repairsSums)) {
      repair.copyOf(sums.set("marks", marks));
    }
  }

  private void fillHopper(
      Arguments struct, Arguments chunked, ForwardCall forward, ElementType element) {
    AttentionInput input = forward.input();
    struct.inner("chunked", ChunkedStructs.CHUNKED).copyOf(chunked);
    setMap(struct, "query", input.q(), element);
    setMap(struct, "key", input.k(), element);
    setMap(struct, "value", input.v(), element);
    setMap(struct, "out", forward.output(), element);
  }

  /** Where the lengths of rows are kept: sums find those of k, and keep them if no other does. */
  private static long rowScales(ForwardPlan plan, ForwardCall forward, boolean isOfSums) {
    Checkpoints kept = forward.checkpoints();
    AttentionShape shape = forward.input().shape();
    if (kept == null || (isOfSums && plan.kind() != Kind.NON_CAUSAL)) {
      return 0;
    }
    return isOfSums ? kept.keyLengthsAddress(shape) : kept.lengthsAddress(shape);
  }

  private void setMap(Arguments struct, String member, Tensor tensor, ElementType element) {
    MemorySegment map = struct.memory().asSlice(struct.offset(member));
    TensorMaps.write(queue.tensorMaps(), map, tensor, element);
  }
}
