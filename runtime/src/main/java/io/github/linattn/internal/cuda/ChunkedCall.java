package io.github.linattn.internal.cuda;

import static java.lang.foreign.ValueLayout.JAVA_LONG;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.AttentionState;
import io.github.linattn.Sequences;
import io.github.linattn.Tensor;
import io.github.linattn.bindings.Cuda;
import io.github.linattn.bindings.LaunchScratch;
import io.github.linattn.bindings.PreparedCopy;
import io.github.linattn.bindings.PreparedLaunch;
import io.github.linattn.internal.Checkpoints;
import io.github.linattn.internal.ForwardCall;
import io.github.linattn.internal.Operator;
import io.github.linattn.internal.cuda.ForwardPlan.Step;
import io.github.linattn.kernelgen.ElementType;
import io.github.linattn.kernelgen.Operation;
import io.github.linattn.kernelgen.Technique;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * A forward of the family {@code chunked} with everything filled in: copies, launches and their
 * arguments. Running it again takes no memory and looks nothing up. Its memory serves one call
 * after the other, because CUDA reads arguments before a launch returns. The caller holds the
 * queue's lock.
 */
final class ChunkedCall {
  private static final int MOST_LAUNCHES = 4;

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
  private final PreparedLaunch[] launches = new PreparedLaunch[MOST_LAUNCHES];
  private int launchCount;
  private List<PreparedCopy> copies = List.of();

  private @Nullable ForwardCall call;
  private @Nullable Sequences packing;
  private @Nullable AttentionState initial;
  private boolean listed;
  private long[] counts = {};

  ChunkedCall(CudaQueue queue, Arena owner) {
    this.queue = queue;
    for (int i = 0; i < MOST_LAUNCHES; i++) {
      scratch[i] = new LaunchScratch(owner);
    }
    this.hopper = Arguments.allocate(owner, ChunkedStructs.HOPPER);
    this.hopperSums = Arguments.allocate(owner, ChunkedStructs.HOPPER);
    this.main = Arguments.allocate(owner, ChunkedStructs.CHUNKED);
    this.sums = Arguments.allocate(owner, ChunkedStructs.CHUNKED);
    this.scan = Arguments.allocate(owner, ChunkedStructs.STATE_SCAN);
  }

  /** Forgets what it was filled with. */
  void clear() {
    call = null;
    packing = null;
    initial = null;
    launchCount = 0;
    copies = List.of();
  }

  /** Whether it is this very call, with tensors that are still open and a list that still fits. */
  boolean isFor(
      Operator operator,
      Tensor q,
      Tensor k,
      Tensor v,
      @Nullable Sequences packing,
      @Nullable AttentionState initial,
      Tensor o,
      Tensor g,
      @Nullable AttentionState finalState,
      @Nullable Checkpoints checkpoints) {
    ForwardCall filled = call;
    if (filled == null) {
      return false;
    }
    AttentionInput input = filled.input();
    return filled.operator() == operator
        && input.q() == q
        && input.k() == k
        && input.v() == v
        && filled.output() == o
        && filled.normalizer() == g
        && this.packing == packing
        && this.initial == initial
        && filled.finalState() == finalState
        && filled.checkpoints() == checkpoints
        && q.isOpen()
        && k.isOpen()
        && v.isOpen()
        && o.isOpen()
        && g.isOpen()
        && isOpen(initial)
        && isOpen(finalState)
        && (checkpoints == null || checkpoints.memory().isOpen())
        && (!listed || hasCounts(initial));
  }

  private static boolean isOpen(@Nullable AttentionState state) {
    return state == null || (state.s().isOpen() && state.z().isOpen() && state.u().isOpen());
  }

  private boolean hasCounts(@Nullable AttentionState state) {
    for (int i = 0; i < counts.length; i++) {
      if (counts[i] != (state == null ? 0 : state.count(i))) {
        return false;
      }
    }
    return true;
  }

  /** Gives the copies and launches to the stream. */
  void run() {
    Cuda cuda = queue.device().enter();
    if (!listed && initial != null) {
      setCount(initial.count(0));
    }
    for (int i = 0; i < copies.size(); i++) {
      cuda.copy(copies.get(i));
    }
    for (int i = 0; i < launchCount; i++) {
      cuda.launch(launches[i]);
    }
  }

  private void setCount(long count) {
    main.memory().set(JAVA_LONG, INITIAL_COUNT, count);
    hopper.memory().set(JAVA_LONG, HOPPER_CHUNKED + INITIAL_COUNT, count);
  }

  /**
   * Fills it in for a call.
   *
   * @param workspace device address of the plan's workspace, used by the calls of the queue in turn
   * @param tickets device address of zeros, which a step of decoding leaves as zeros
   */
  void fill(ForwardCall forward, ForwardPlan plan, Kernels kernels, long workspace, long tickets) {
    clear();
    AttentionInput input = forward.input();
    packing = input.isPacked() ? input.sequences() : null;
    initial = input.initialState().orElse(null);
    counts = new long[input.sequences().count()];
    for (int i = 0; i < counts.length; i++) {
      counts[i] = initial == null ? 0 : initial.count(i);
    }
    Checkpoints kept = forward.checkpoints();
    long states = kept == null ? workspace : address(kept.memory());
    long marks = workspace + plan.stateBytes();
    long copy = marks + alignedBytes(plan.markBytes());
    fillCommon(main, forward);
    main.set("turns", plan.turns()).set("slot_step", plan.slotStep()).set("tickets", tickets);
    copies = new ArrayList<>();
    switch (plan.kind()) {
      case FORWARD, DECODE -> fillWhole(forward, plan, marks, copy);
      case SEGMENTED -> fillSegmented(forward, plan, states, marks);
      case NON_CAUSAL -> fillNonCausal(forward, plan, states);
    }
    for (Step step : plan.steps()) {
      launches[launchCount] = prepare(step, kernels.load(step.kernel()), forward);
      launchCount++;
    }
    call = forward;
  }

  /** Workspace is cut at multiples of this. */
  static long alignedBytes(long bytes) {
    return Math.ceilDiv(bytes, 256L) * 256;
  }

  private PreparedLaunch prepare(Step step, LoadedKernel kernel, ForwardCall forward) {
    Arguments arguments =
        switch (step.kernel().operation()) {
          case STATE_SUMS, NORMALIZED_STATE_SUMS -> sums;
          case STATE_SCAN -> scan;
          default -> main;
        };
    if (step.kernel().technique() == Technique.WGMMA) {
      Arguments withMaps = arguments.equals(sums) ? hopperSums : hopper;
      fillHopper(withMaps, arguments, forward, step.kernel().elementType());
      arguments = withMaps;
    }
    return queue.prepare(scratch[launchCount], step, kernel, arguments);
  }

  private void fillCommon(Arguments struct, ForwardCall forward) {
    AttentionInput input = forward.input();
    AttentionShape shape = input.shape();
    Operator operator = forward.operator();
    struct
        .clear()
        .set("query", input.q())
        .set("key", input.k())
        .set("value", input.v())
        .set("out", forward.output())
        .set("normalizer", forward.normalizer())
        .set("a", operator.isUniform() ? operator.a(0) : 0)
        .set("b", operator.isUniform() ? operator.b(0) : 0)
        .set("tokens", shape.tokens())
        .set("heads", shape.heads())
        .set("group", shape.headsPerKeyValueHead())
        .set("key_dim", shape.keyDim())
        .set("value_dim", shape.valueDim())
        .set("normalize", operator.normalize() ? 1 : 0)
        .set("batches", shape.batch());
    if (!operator.isUniform()) {
      struct
          .set("a_per_head", queue.lists().floats(operator.a()))
          .set("b_per_head", queue.lists().floats(operator.b()));
    }
  }

  private static void setItems(Arguments struct, Cut cut, int slots) {
    struct.set("item_tokens", cut.itemTokens()).set("num_items", cut.items()).set("slots", slots);
  }

  /** Each item is a sequence and starts from its state. */
  private void fillWhole(ForwardCall forward, ForwardPlan plan, long marks, long copy) {
    Cut cut = plan.cut();
    setItems(main, cut, cut.sequences());
    listed = !cut.isRegular();
    if (listed) {
      main.set("items", queue.lists().itemsOfSequences(cut, counts));
    }
    if (plan.markBytes() > 0) {
      main.set("marks", marks);
    }
    AttentionState last = forward.finalState();
    if (last != null && last == initial && plan.copyBytes() > 0) {
      long z = copy + last.s().byteSpan();
      main.setState(
          "_in",
          new StateArrays(
              copied(last.s(), copy),
              copied(last.z(), z),
              copied(last.u(), z + last.z().byteSpan())));
    } else if (initial != null) {
      main.setState("_in", StateArrays.of(initial));
    }
    if (last != null) {
      main.setState("_out", StateArrays.of(last));
    }
  }

  private long copied(Tensor tensor, long target) {
    copies.add(queue.copyOf(address(tensor), target, tensor.byteSpan()));
    return target;
  }

  /** Each item is a segment: its sums, the states before it, and the forward from these. */
  private void fillSegmented(ForwardCall forward, ForwardPlan plan, long states, long marks) {
    Cut cut = plan.cut();
    AttentionShape shape = forward.input().shape();
    setItems(main, plan.forwardCut(), plan.slots());
    main.set("marks", marks);
    listed = !cut.isRegular();
    if (listed) {
      main.set("items", queue.lists().itemsOfSegments(cut, counts));
    }
    sums.copyOf(main);
    StateArrays before = StateArrays.at(states, shape, plan.slots());
    sums.setState("_out", before);
    ofKeyValueHeads(sums, shape);
    setItems(sums, cut, plan.slots());
    sums.set("num_items", plan.summed());
    main.setState("_in", before);
    fillScan(cut, plan.slots(), before, shape);
    if (initial != null) {
      scan.setState("_in", StateArrays.of(initial));
    }
    if (forward.finalState() != null) {
      scan.setState("_out", StateArrays.of(forward.finalState()));
    }
  }

  /** Sums of segments, their total, and every query against the total of its sequence. */
  private void fillNonCausal(ForwardCall forward, ForwardPlan plan, long states) {
    Cut cut = plan.cut();
    AttentionShape shape = forward.input().shape();
    sums.copyOf(main);
    setItems(sums, cut, cut.items());
    if (!cut.isRegular()) {
      sums.set("items", queue.lists().itemsOfSegments(cut, counts));
    }
    StateArrays before = StateArrays.at(states, shape, cut.items());
    sums.setState("_out", before);
    ofKeyValueHeads(sums, shape);
    fillScan(cut, cut.items(), before, shape);
    StateArrays total =
        StateArrays.at(states + StateArrays.bytes(shape, cut.items()), shape, cut.sequences());
    scan.setState("_out", total);
    Cut outputs = plan.outputs();
    if (outputs == null) {
      throw new IllegalStateException("a plan without causality has items of outputs");
    }
    setItems(main, outputs, cut.sequences());
    main.set("items", queue.lists().itemsOfTotals(outputs));
    main.setState("_in", total);
    listed = false;
  }

  /** Sums know no query heads. */
  private static void ofKeyValueHeads(Arguments sums, AttentionShape shape) {
    sums.set("heads", shape.keyValueHeads())
        .set("group", 1)
        .set("a_per_head", 0L)
        .set("b_per_head", 0L)
        .set("marks", 0L)
        .set("turns", 1)
        .set("slot_step", 1);
  }

  private void fillScan(Cut cut, int slots, StateArrays items, AttentionShape shape) {
    scan.clear()
        .setState("", items)
        .set("spans", cut.isRegular() ? 0 : queue.lists().spans(cut))
        .set("num_items", slots)
        .set("num_sequences", cut.sequences())
        .set("key_dim", shape.keyDim())
        .set("value_dim", shape.valueDim());
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

  private void setMap(Arguments struct, String member, Tensor tensor, ElementType element) {
    MemorySegment map = struct.memory().asSlice(struct.offset(member));
    TensorMaps.write(queue.tensorMaps(), map, tensor, element);
  }

  private static long address(Tensor tensor) {
    return tensor.segment().address();
  }

  @Override
  public String toString() {
    return call == null ? "nothing" : Operation.FORWARD.id() + " of " + call.input().shape();
  }
}
