package io.github.linattn.internal.cuda;

import static java.lang.foreign.ValueLayout.JAVA_FLOAT;
import static java.lang.foreign.ValueLayout.JAVA_INT;
import static java.lang.foreign.ValueLayout.JAVA_LONG;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.AttentionState;
import io.github.linattn.Sequences;
import io.github.linattn.Tensor;
import io.github.linattn.bindings.Cuda;
import io.github.linattn.bindings.LaunchOrder;
import io.github.linattn.bindings.LaunchScratch;
import io.github.linattn.bindings.PreparedCopy;
import io.github.linattn.bindings.PreparedLaunch;
import io.github.linattn.bindings.TensorMapWriter;
import io.github.linattn.internal.ForwardCall;
import io.github.linattn.internal.Operator;
import io.github.linattn.internal.cuda.ForwardPlan.Step;
import io.github.linattn.kernelgen.ElementType;
import io.github.linattn.kernelgen.Operation;
import io.github.linattn.kernelgen.Technique;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
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
  private static final int BOX_ROWS = Planner.CHUNK;
  private static final int BOX_BYTES = 128;

  private static final long INITIAL_COUNT =
      ChunkedStructs.offset(ChunkedStructs.CHUNKED, "initial_count");
  private static final long HOPPER_CHUNKED =
      ChunkedStructs.offset(ChunkedStructs.HOPPER, "chunked");

  private final CudaQueue queue;
  private final LaunchScratch[] scratch = new LaunchScratch[MOST_LAUNCHES];
  private final MemorySegment hopper;
  private final MemorySegment hopperSums;
  private final MemorySegment main;
  private final MemorySegment sums;
  private final MemorySegment scan;
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
    this.hopper = owner.allocate(ChunkedStructs.HOPPER);
    this.hopperSums = owner.allocate(ChunkedStructs.HOPPER);
    this.main = owner.allocate(ChunkedStructs.CHUNKED);
    this.sums = owner.allocate(ChunkedStructs.CHUNKED);
    this.scan = owner.allocate(ChunkedStructs.STATE_SCAN);
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
      @Nullable AttentionState finalState) {
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
        && q.isOpen()
        && k.isOpen()
        && v.isOpen()
        && o.isOpen()
        && g.isOpen()
        && isOpen(initial)
        && isOpen(finalState)
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
    main.set(JAVA_LONG, INITIAL_COUNT, count);
    hopper.set(JAVA_LONG, HOPPER_CHUNKED + INITIAL_COUNT, count);
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
    long states = workspace;
    long marks = states + plan.stateBytes();
    long copy = marks + alignedBytes(plan.markBytes());
    fillCommon(main, forward);
    setInt(main, "turns", plan.turns());
    setInt(main, "slot_step", plan.slotStep());
    setLong(main, "tickets", tickets);
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
    MemorySegment arguments =
        switch (step.kernel().operation()) {
          case STATE_SUMS, NORMALIZED_STATE_SUMS -> sums;
          case STATE_SCAN -> scan;
          default -> main;
        };
    if (step.kernel().technique() == Technique.WGMMA) {
      MemorySegment withMaps = arguments.equals(sums) ? hopperSums : hopper;
      fillHopper(withMaps, arguments, forward, step.kernel().elementType());
      arguments = withMaps;
    }
    return queue
        .device()
        .cuda()
        .prepare(
            scratch[launchCount],
            kernel.kernel(),
            step.blocks(),
            step.cluster(),
            step.kernel().threads(),
            step.sharedBytes(),
            step.startsEarly() ? LaunchOrder.EARLY : LaunchOrder.IN_TURN,
            queue.stream(),
            arguments);
  }

  private void fillCommon(MemorySegment struct, ForwardCall forward) {
    struct.fill((byte) 0);
    AttentionInput input = forward.input();
    AttentionShape shape = input.shape();
    Operator operator = forward.operator();
    setView(struct, "query", input.q());
    setView(struct, "key", input.k());
    setView(struct, "value", input.v());
    setView(struct, "out", forward.output());
    setView(struct, "normalizer", forward.normalizer());
    if (!operator.isUniform()) {
      setLong(struct, "a_per_head", queue.constants().of(bytes(operator.a())));
      setLong(struct, "b_per_head", queue.constants().of(bytes(operator.b())));
    }
    setInt(struct, "tokens", shape.tokens());
    setInt(struct, "heads", shape.heads());
    setInt(struct, "group", shape.headsPerKeyValueHead());
    setInt(struct, "key_dim", shape.keyDim());
    setInt(struct, "value_dim", shape.valueDim());
    setInt(struct, "normalize", operator.normalize() ? 1 : 0);
    setInt(struct, "batches", shape.batch());
    struct.set(JAVA_FLOAT, offset("a"), operator.isUniform() ? operator.a(0) : 0);
    struct.set(JAVA_FLOAT, offset("b"), operator.isUniform() ? operator.b(0) : 0);
  }

  private void setItems(MemorySegment struct, Cut cut, int slots) {
    setInt(struct, "item_tokens", cut.itemTokens());
    setInt(struct, "num_items", cut.items());
    setInt(struct, "slots", slots);
  }

  /** Each item is a sequence and starts from its state. */
  private void fillWhole(ForwardCall forward, ForwardPlan plan, long marks, long copy) {
    Cut cut = plan.cut();
    setItems(main, cut, cut.sequences());
    listed = !cut.isRegular();
    if (listed) {
      setLong(main, "items", items(cut, false));
    }
    if (plan.markBytes() > 0) {
      setLong(main, "marks", marks);
    }
    AttentionState last = forward.finalState();
    if (last != null && last == initial && plan.copyBytes() > 0) {
      long z = copy + last.s().byteSpan();
      setState(
          main,
          "_in",
          copied(last.s(), copy),
          copied(last.z(), z),
          copied(last.u(), z + last.z().byteSpan()));
    } else if (initial != null) {
      setState(main, "_in", initial);
    }
    if (last != null) {
      setState(main, "_out", last);
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
    setLong(main, "marks", marks);
    listed = !cut.isRegular();
    if (listed) {
      setLong(main, "items", items(cut, true));
    }
    MemorySegment.copy(main, 0, sums, 0, main.byteSize());
    State before = State.at(states, shape, plan.slots());
    before.set(sums, "_out");
    ofKeyValueHeads(sums, shape);
    setItems(sums, cut, plan.slots());
    setInt(sums, "num_items", plan.summed());
    before.set(main, "_in");
    fillScan(cut, plan.slots(), before, shape);
    if (initial != null) {
      setScanState("_in", initial);
    }
    if (forward.finalState() != null) {
      setScanState("_out", forward.finalState());
    }
  }

  /** Sums of segments, their total, and every query against the total of its sequence. */
  private void fillNonCausal(ForwardCall forward, ForwardPlan plan, long states) {
    Cut cut = plan.cut();
    AttentionShape shape = forward.input().shape();
    MemorySegment.copy(main, 0, sums, 0, main.byteSize());
    setItems(sums, cut, cut.items());
    if (!cut.isRegular()) {
      setLong(sums, "items", items(cut, true));
    }
    State before = State.at(states, shape, cut.items());
    before.set(sums, "_out");
    ofKeyValueHeads(sums, shape);
    fillScan(cut, cut.items(), before, shape);
    State total = State.at(before.end(), shape, cut.sequences());
    total.setScan(scan, "_out");
    Cut outputs = plan.outputs();
    if (outputs == null) {
      throw new IllegalStateException("a plan without causality has items of outputs");
    }
    setItems(main, outputs, cut.sequences());
    setLong(main, "items", outputItems(outputs));
    total.set(main, "_in");
    listed = false;
  }

  /** Sums know no query heads. */
  private static void ofKeyValueHeads(MemorySegment sums, AttentionShape shape) {
    setInt(sums, "heads", shape.keyValueHeads());
    setInt(sums, "group", 1);
    setLong(sums, "a_per_head", 0);
    setLong(sums, "b_per_head", 0);
    setLong(sums, "marks", 0);
    setInt(sums, "turns", 1);
    setInt(sums, "slot_step", 1);
  }

  private void fillScan(Cut cut, int slots, State items, AttentionShape shape) {
    scan.fill((byte) 0);
    items.setScan(scan, "");
    if (!cut.isRegular()) {
      scan.set(JAVA_LONG, scanOffset("spans"), spans(cut));
    }
    scan.set(JAVA_INT, scanOffset("num_items"), slots);
    scan.set(JAVA_INT, scanOffset("num_sequences"), cut.sequences());
    scan.set(JAVA_INT, scanOffset("key_dim"), shape.keyDim());
    scan.set(JAVA_INT, scanOffset("value_dim"), shape.valueDim());
  }

  private void fillHopper(
      MemorySegment struct, MemorySegment chunked, ForwardCall forward, ElementType element) {
    AttentionInput input = forward.input();
    MemorySegment.copy(chunked, 0, struct, HOPPER_CHUNKED, chunked.byteSize());
    setMap(struct, "query", input.q(), element);
    setMap(struct, "key", input.k(), element);
    setMap(struct, "value", input.v(), element);
    setMap(struct, "out", forward.output(), element);
  }

  private void setMap(MemorySegment struct, String member, Tensor tensor, ElementType element) {
    int bytes = element.bytes();
    long width = tensor.shape().extent(3);
    queue
        .tensorMaps()
        .extents(
            width, tensor.shape().extent(2), tensor.shape().extent(1), tensor.shape().extent(0))
        .byteStrides(
            byteStride(tensor, 2, width * bytes),
            byteStride(tensor, 1, width * bytes),
            byteStride(tensor, 0, width * bytes))
        .box(BOX_BYTES / bytes, BOX_ROWS, 1, 1)
        .write(
            struct.asSlice(
                ChunkedStructs.offset(ChunkedStructs.HOPPER, member), TensorMapWriter.BYTES),
            switch (element) {
              case F32 -> TensorMapWriter.Element.F32;
              case BF16 -> TensorMapWriter.Element.BF16;
              case F16 -> TensorMapWriter.Element.F16;
            },
            address(tensor));
  }

  /** A stride that is never taken may be anything: the copy engine wants it to be one. */
  private static long byteStride(Tensor tensor, int axis, long rowBytes) {
    return tensor.shape().extent(axis) == 1
        ? rowBytes
        : tensor.stride(axis) * tensor.dtype().bytes();
  }

  /** {@code slot} is the sequence, or with {@code bySegment} the item itself. */
  private long items(Cut cut, boolean bySegment) {
    ByteBuffer list = buffer(cut.items() * ChunkedStructs.ITEM.byteSize());
    cut.forEach(
        (index, sequence, start, length) ->
            putItem(
                list,
                start,
                length,
                bySegment ? index : sequence,
                counts[sequence] + start - cut.start(sequence)));
    return queue.constants().of(list.array());
  }

  private long outputItems(Cut cut) {
    ByteBuffer list = buffer(cut.items() * ChunkedStructs.ITEM.byteSize());
    cut.forEach(
        (index, sequence, start, length) ->
            putItem(list, start, length, sequence, cut.length(sequence)));
    return queue.constants().of(list.array());
  }

  private static void putItem(ByteBuffer list, int start, int length, int slot, long count) {
    list.putInt(start).putInt(length).putInt(slot).putInt(0).putLong(count);
  }

  private long spans(Cut cut) {
    ByteBuffer list = buffer(cut.sequences() * ChunkedStructs.SPAN.byteSize());
    int first = 0;
    for (int i = 0; i < cut.sequences(); i++) {
      list.putInt(first).putInt(cut.items(i));
      first += cut.items(i);
    }
    return queue.constants().of(list.array());
  }

  private static ByteBuffer buffer(long bytes) {
    return ByteBuffer.allocate(Math.toIntExact(bytes)).order(ByteOrder.nativeOrder());
  }

  private static byte[] bytes(float[] values) {
    ByteBuffer buffer = buffer((long) values.length * Float.BYTES);
    for (float value : values) {
      buffer.putFloat(value);
    }
    return buffer.array();
  }

  /** S, z and u of several states, one array after the other. */
  private record State(long s, long z, long u, long end) {
    static State at(long address, AttentionShape shape, int slots) {
      long states = (long) shape.batch() * shape.keyValueHeads() * slots * Float.BYTES;
      long z = address + states * shape.keyDim() * shape.valueDim();
      long u = z + states * shape.keyDim();
      return new State(address, z, u, u + states * shape.valueDim());
    }

    void set(MemorySegment struct, String suffix) {
      setState(struct, suffix, s, z, u);
    }

    void setScan(MemorySegment struct, String suffix) {
      struct.set(JAVA_LONG, scanOffset("state" + suffix), s);
      struct.set(JAVA_LONG, scanOffset("key_sum" + suffix), z);
      struct.set(JAVA_LONG, scanOffset("value_sum" + suffix), u);
    }
  }

  private static void setState(MemorySegment struct, String suffix, AttentionState state) {
    setState(struct, suffix, address(state.s()), address(state.z()), address(state.u()));
  }

  private static void setState(MemorySegment struct, String suffix, long s, long z, long u) {
    setLong(struct, "state" + suffix, s);
    setLong(struct, "key_sum" + suffix, z);
    setLong(struct, "value_sum" + suffix, u);
  }

  private void setScanState(String suffix, AttentionState state) {
    new State(address(state.s()), address(state.z()), address(state.u()), 0).setScan(scan, suffix);
  }

  private static void setView(MemorySegment struct, String member, Tensor tensor) {
    long at = offset(member);
    struct.set(JAVA_LONG, at, address(tensor));
    struct.set(JAVA_LONG, at + 8, tensor.stride(0));
    struct.set(JAVA_LONG, at + 16, tensor.stride(1));
    struct.set(JAVA_LONG, at + 24, tensor.stride(2));
  }

  private static void setLong(MemorySegment struct, String member, long value) {
    struct.set(JAVA_LONG, offset(member), value);
  }

  private static void setInt(MemorySegment struct, String member, int value) {
    struct.set(JAVA_INT, offset(member), value);
  }

  private static long offset(String member) {
    return ChunkedStructs.offset(ChunkedStructs.CHUNKED, member);
  }

  private static long scanOffset(String member) {
    return ChunkedStructs.offset(ChunkedStructs.STATE_SCAN, member);
  }

  private static long address(Tensor tensor) {
    return tensor.segment().address();
  }

  @Override
  public String toString() {
    return call == null ? "nothing" : Operation.FORWARD.id() + " of " + call.input().shape();
  }
}
