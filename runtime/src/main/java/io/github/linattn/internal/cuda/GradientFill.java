package io.github.linattn.internal.cuda;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.AttentionState;
import io.github.linattn.Gradients;
import io.github.linattn.StateGradient;
import io.github.linattn.Tensor;
import io.github.linattn.bindings.Prepared;
import io.github.linattn.internal.BackwardCall;
import io.github.linattn.internal.Checkpoints;
import io.github.linattn.internal.Operator;
import io.github.linattn.internal.cuda.GradientPlan.Kind;
import io.github.linattn.internal.cuda.GradientPlan.Launch;
import io.github.linattn.internal.cuda.GradientPlan.Role;
import io.github.linattn.kernelgen.ElementType;
import io.github.linattn.kernelgen.KernelEntry;
import java.lang.foreign.MemorySegment;
import java.util.List;
import java.util.Objects;
import org.jspecify.annotations.Nullable;

/** The arguments of the launches of one backward, filled in one after the other. */
final class GradientFill {
  /** {@code linattn::GradientTask}. */
  private static final int QUERY_TASK = 0;

  private static final int KEY_TASK = 1;
  private static final int VALUE_TASK = 2;

  private final CudaQueue queue;
  private final GradientStructs.OfRoles structs;
  private final BackwardCall call;
  private final GradientPlan plan;
  private final AttentionInput input;
  private final AttentionShape shape;
  private final Operator operator;
  private final Ends ends;
  private final long[] counts;
  private final BackwardCall summed; // the tokens whose dS, dz and du are summed
  private final StateArrays items;
  private final StateArrays before; // S, z and u of items, where these are summed
  private final StateArrays totals; // S, z and u of whole sequences, without causality
  private final StateArrays gradientTotals;
  private final long workspace;
  private final long tickets;
  private final long delta;
  private final boolean lengthsAreKept;
  private final long queryScale;
  private final long keyScale;
  private final long partials;

  /**
   * What is at hand before the first token and after the last, and the gradients there.
   *
   * @param first the initial state, or null for zeros
   * @param last the state after the last token, where the plan needs it
   * @param lastGradient its gradient, or null for zeros
   * @param firstGradient takes that of the initial state where it is wanted
   * @param isLast whether no tokens follow, whose da and db are there already
   */
  record Ends(
      @Nullable StateArrays first,
      @Nullable StateArrays last,
      @Nullable StateArrays lastGradient,
      @Nullable StateArrays firstGradient,
      boolean isLast) {
    /** Those of a whole call. */
    static Ends of(BackwardCall call) {
      AttentionState last = call.lastState();
      StateGradient gradient = call.finalStateGradient();
      return new Ends(
          call.input().initialState().map(StateArrays::of).orElse(null),
          last == null ? null : StateArrays.of(last),
          gradient == null ? null : StateArrays.of(gradient),
          call.gradients().initialState().map(StateArrays::of).orElse(null),
          true);
    }
  }

  /**
   * For one call, or a part of one.
   *
   * @param counts tokens in the initial state of each sequence
   * @param workspace device address of the plan's workspace
   * @param tickets device address of the plan's zeros, which it leaves as zeros; 0 for none
   */
  GradientFill(
      CudaQueue queue,
      GradientStructs.OfRoles structs,
      BackwardCall call,
      GradientPlan plan,
      Ends ends,
      long[] counts,
      long workspace,
      long tickets) {
    this.queue = queue;
    this.structs = structs;
    this.call = call;
    this.plan = plan;
    this.input = call.input();
    this.shape = input.shape();
    this.operator = call.operator();
    this.ends = ends;
    this.counts = counts;
    this.workspace = workspace;
    this.tickets = tickets;
    GradientPlan.Memory memory = plan.memory();
    this.summed = summed();
    StateArrays ofSequences =
        StateArrays.at(workspace + memory.totalsAt(), shape, plan.cut().sequences());
    StateArrays last = ends.last;
    StateArrays firstGradient = ends.firstGradient;
    this.totals = last == null || plan.has(Role.STATE_SUMS) ? ofSequences : last;
    this.gradientTotals = firstGradient == null ? ofSequences : firstGradient;
    long behind =
        plan.kind() == Kind.SWEPT_SEGMENTS ? StateArrays.bytes(shape, plan.cut().items()) : 0;
    this.items =
        sumsAreTotals(Role.GRADIENT_SCAN)
            ? gradientTotals
            : StateArrays.at(workspace, shape, plan.cut().items());
    this.before =
        sumsAreTotals(Role.STATE_SCAN)
            ? totals
            : StateArrays.at(workspace + behind, shape, plan.stateItems().items());
    this.delta = workspace + memory.deltaAt();
    Checkpoints kept = call.checkpoints();
    this.lengthsAreKept = kept != null && kept.form().lengths();
    if (!operator.normalize()) {
      this.queryScale = 0;
      this.keyScale = 0;
    } else if (kept != null && lengthsAreKept) {
      this.queryScale = kept.lengthsAddress(shape);
      this.keyScale = kept.keyLengthsAddress(shape);
    } else {
      this.queryScale = workspace + memory.queryScaleAt();
      this.keyScale = workspace + memory.keyScaleAt();
    }
    this.partials = workspace + memory.partialsAt();
  }

  /** Whether no scan makes totals of them. */
  private boolean sumsAreTotals(Role scan) {
    return plan.kind() == Kind.NON_CAUSAL && !plan.has(scan);
  }

  private BackwardCall summed() {
    if (plan.kind() != Kind.SWEPT_SEGMENTS || plan.unsummed() == 0) {
      return call;
    }
    int start = plan.unsummed() * plan.cut().itemTokens();
    return call.window(start, shape.tokens() - start);
  }

  /** Fills in the arguments of a launch. */
  Arguments fill(Launch launch) {
    Role role = launch.role();
    switch (role) {
      case ROWS -> fillRows();
      case STATE_SUMS -> fillStateSums();
      case STATE_SUMS_REPAIR -> structs.of(role).copyOf(structs.of(Role.STATE_SUMS));
      case STATE_SCAN -> fillStateScan();
      case QUERY -> fillQuery();
      case GRADIENT_SUMS -> fillGradientSums();
      case GRADIENT_SUMS_REPAIR -> structs.of(role).copyOf(structs.of(Role.GRADIENT_SUMS));
      case GRADIENT_SCAN -> fillGradientScan();
      case KEY -> fillKey();
      case VALUE -> fillValue();
      case KEY_AND_VALUE -> {
        fillKey();
        fillValue();
      }
      case ONE_SWEEP -> {
        fillQuery(); // for the repair
        fillKey();
        fillValue();
      }
      case NORMALIZED_QUERY -> fillNormalized(role, input.q(), call.gradients().dq(), queryScale);
      case NORMALIZED_KEY -> fillNormalized(role, input.k(), call.gradients().dk(), keyScale);
      case QUERY_REPAIR -> fillRepair(role, 0, Role.QUERY);
      case COEFFICIENTS -> {
        switch (plan.kind()) {
          case SWEEPS, RELAY, ONE_SWEEP, SWEPT_SEGMENTS ->
              fillRepair(role, 0, Role.QUERY, Role.KEY, Role.VALUE);
          case SEGMENTED -> fillRepair(role, 1, Role.QUERY, Role.KEY, Role.VALUE);
          case NON_CAUSAL -> fillRepair(role, 1, Role.QUERY);
          case CHAIN -> throw ofParts();
        }
        fillCoefficients();
      }
    }
    KernelEntry kernel = launch.step().kernel();
    return kernel.takesTensorMaps() ? addMaps(role, kernel.elementType()) : structs.of(role);
  }

  private void fillRows() {
    structs
        .of(Role.ROWS)
        .clear()
        .set("query", summed.input().q())
        .set("key", summed.input().k())
        .set("out", summed.output())
        .set("out_gradient", summed.outputGradient())
        .set("delta", isFormedBySweep() ? 0 : delta)
        .set("query_scale", queryScale)
        .set("key_scale", keyScale)
        .set("scales_are_kept", lengthsAreKept ? 1 : 0)
        .set("tokens", summed.input().shape().tokens())
        .set("heads", shape.heads())
        .set("group", shape.headsPerKeyValueHead())
        .set("batches", shape.batch())
        .set("key_dim", shape.keyDim())
        .set("value_dim", shape.valueDim());
  }

  /** Whether the first that wants d forms it. */
  private boolean isFormedBySweep() {
    return plan.has(Role.QUERY) && plan.step(Role.QUERY).kernel().formsDelta();
  }

  /** As {@link ChunkedCall} asks for them. */
  private void fillStateSums() {
    Arguments sums = structs.of(Role.STATE_SUMS);
    sums.clear()
        .setRows(input.q(), input.k(), input.v(), call.output(), call.normalizer())
        .setProblem(operator, shape, counts[0], queue.lists())
        .setSegments(plan.stateItems(), plan.stateItems().items(), counts, queue.lists())
        .setKeyValueHeads(shape)
        .setDivisor("num_items", plan.summed())
        .setState("_out", before);
    setSumMarks(sums, Role.STATE_SUMS_REPAIR);
  }

  /** Of sums that are repaired both launches have marks, which the second reads. */
  private void setSumMarks(Arguments chunked, Role repair) {
    if (plan.has(repair)) {
      chunked.set("marks", workspace + plan.memory().sumMarksAt());
    }
  }

  private void fillStateScan() {
    Arguments scan = scan(Role.STATE_SCAN, before, plan.stateItems());
    if (ends.first != null) {
      scan.setState("_in", ends.first);
    }
    if (plan.kind() == Kind.NON_CAUSAL) {
      scan.setTotals(totals);
    }
  }

  private void fillGradientScan() {
    Arguments scan = scan(Role.GRADIENT_SCAN, items, plan.cut()).set("backwards", 1);
    if (ends.lastGradient != null) {
      scan.setState("_in", ends.lastGradient);
    }
    if (plan.kind() == Kind.NON_CAUSAL) {
      scan.setTotals(gradientTotals);
    } else if (ends.firstGradient != null) {
      scan.setState("_out", ends.firstGradient);
    }
  }

  private Arguments scan(Role role, StateArrays states, Cut cut) {
    return structs.of(role).clear().setScan(states, cut, cut.items(), shape, queue.lists());
  }

  private void fillQuery() {
    Arguments chunked = fillTask(Role.QUERY, QUERY_TASK);
    setSweepItems(chunked, Role.QUERY, plan.stateItems());
    setMarks(chunked, Role.QUERY, plan.memory().queryMarksAt());
    if (plan.keptStep() > 0) {
      chunked.set("slots", keptSegments()).set("slot_step", plan.keptStep());
    }
    StateArrays before = before();
    if (before != null) {
      chunked
          .set("state_in", before.s())
          .set("key_sum_in", before.u())
          .set("value_sum_in", before.z());
    }
    if (partialsHaveSlope()) {
      structs.of(Role.QUERY).set("slope_query", input.q());
    }
  }

  /** Whether the partial sums have db too: a kernel that finishes dq meets its terms anyway. */
  private boolean partialsHaveSlope() {
    return operator.sumsSlope()
        || (plan.has(Role.QUERY) && plan.step(Role.QUERY).kernel().finishesGradients());
  }

  /** The states that dq starts from. */
  private @Nullable StateArrays before() {
    return switch (plan.kind()) {
      case SWEEPS, RELAY, ONE_SWEEP ->
          plan.handsOn(Role.QUERY) ? relay(Role.QUERY).before(0) : ends.first;
      case SEGMENTED, SWEPT_SEGMENTS -> ofSegments();
      case NON_CAUSAL -> totals;
      case CHAIN -> throw ofParts();
    };
  }

  private @Nullable StateArrays ofSegments() {
    if (plan.keptStep() > 0) {
      return kept();
    }
    return plan.has(Role.STATE_SCAN) ? before : ends.first;
  }

  private int keptSegments() {
    return checkpoints().form().segments(shape);
  }

  private StateArrays kept() {
    return StateArrays.at(checkpoints().memory().segment().address(), shape, keptSegments());
  }

  private Checkpoints checkpoints() {
    return Objects.requireNonNull(call.checkpoints(), "a plan from kept states");
  }

  /** The gradients that dk and dv start from. */
  private @Nullable StateArrays after(Role role) {
    return switch (plan.kind()) {
      case SWEEPS, RELAY, ONE_SWEEP -> plan.handsOn(role) ? relay(role).in() : ends.lastGradient;
      case SEGMENTED, SWEPT_SEGMENTS -> items;
      case NON_CAUSAL -> gradientTotals;
      case CHAIN -> throw ofParts();
    };
  }

  /** Where the sweeps leave the gradients before the first token. */
  private @Nullable StateArrays first() {
    return switch (plan.kind()) {
      case SWEEPS, RELAY, ONE_SWEEP -> ends.firstGradient;
      case SEGMENTED, SWEPT_SEGMENTS, NON_CAUSAL -> null;
      case CHAIN -> throw ofParts();
    };
  }

  private void fillKey() {
    Arguments chunked = fillTask(Role.KEY, KEY_TASK);
    setSweepItems(chunked, Role.KEY, plan.cut());
    setMarks(chunked, Role.KEY, plan.memory().keyMarksAt());
    StateArrays after = after(Role.KEY);
    if (after != null) {
      chunked.set("state_in", after.s()).set("value_sum_in", after.z());
    }
    StateArrays first = first();
    if (first != null) {
      chunked.set("value_sum_out", first.z());
    }
  }

  private void fillValue() {
    Arguments chunked = fillTask(Role.VALUE, VALUE_TASK);
    setSweepItems(chunked, Role.VALUE, plan.cut());
    setMarks(chunked, Role.VALUE, plan.memory().valueMarksAt());
    StateArrays after = after(Role.VALUE);
    if (after != null) {
      chunked.set("state_in", after.s()).set("value_sum_in", after.u());
    }
    StateArrays first = first();
    if (first != null) {
      chunked.set("state_out", first.s()).set("value_sum_out", first.u());
    }
  }

  /** The tasks as their sweeps got them, of which those from {@code first} on are repaired. */
  private void fillRepair(Role role, int first, Role... tasks) {
    Arguments repair = structs.of(role).clear().set("first", first).set("count", tasks.length);
    for (int i = 0; i < tasks.length; i++) {
      MemorySegment task = structs.of(tasks[i]).memory();
      MemorySegment.copy(task, 0, repair.memory(), i * task.byteSize(), task.byteSize());
    }
  }

  /**
   * The tensors of the values' gradient, whose y z^T is what is summed. Where d has been formed of
   * all tokens, which its rows are told apart by, items that nobody sums are left out of a list.
   */
  private void fillGradientSums() {
    Arguments chunked = fillTask(Role.GRADIENT_SUMS, VALUE_TASK);
    structs.of(Role.GRADIENT_SUMS).set("tasks", 1);
    Cut cut = plan.cut();
    int first = plan.unsummed();
    chunked.setSegments(cut, cut.items(), counts, queue.lists());
    if (summed != call) {
      chunked.setState("_out", items.further(StateArrays.sizesOfHead(shape), first));
    } else {
      chunked.setState("_out", items);
      if (first > 0) {
        long[] none = new long[counts.length]; // nobody asks, and states move on under the list
        chunked.set("items", queue.lists().itemsOfSegments(cut, none, first));
      }
    }
    chunked.setDivisor("num_items", plan.gradientSummed());
    setSumMarks(chunked, Role.GRADIENT_SUMS_REPAIR);
  }

  /** x, y, z and out of a gradient. */
  private record Rows(Tensor x, Tensor y, Tensor z, Tensor out) {}

  private Rows rows(Role role) {
    BackwardCall tokens = tokens(role);
    AttentionInput from = tokens.input();
    Tensor dO = tokens.outputGradient();
    Gradients into = tokens.gradients();
    return switch (role) {
      case QUERY -> new Rows(dO, from.v(), from.k(), into.dq());
      case KEY -> new Rows(from.v(), dO, from.q(), into.dk());
      default -> new Rows(from.k(), from.q(), dO, into.dv());
    };
  }

  /** Those that a launch for gradients walks. */
  private BackwardCall tokens(Role role) {
    return role == Role.GRADIENT_SUMS ? summed : call;
  }

  private Arguments fillTask(Role role, int task) {
    Rows rows = rows(role);
    BackwardCall tokens = tokens(role);
    Arguments struct = structs.of(role);
    struct
        .clear()
        .set("delta", delta)
        .set("query_scale", queryScale)
        .set("key_scale", keyScale)
        .set("partials", partials) // written with dq alone
        .set("task", task)
        .set("tasks", task != QUERY_TASK && hasBothTasks() ? 2 : 1);
    Arguments chunked = struct.inner("chunked", ChunkedStructs.CHUNKED);
    return chunked
        .setRows(rows.x, rows.y, rows.z, rows.out, tokens.normalizer())
        .setProblem(operator, tokens.input().shape(), counts[0], queue.lists())
        .set("key_dim", Math.toIntExact(rows.x.shape().extent(3)))
        .set("value_dim", Math.toIntExact(rows.z.shape().extent(3)));
  }

  /** Whether one launch forms dk and dv. */
  private boolean hasBothTasks() {
    return plan.has(Role.KEY_AND_VALUE) || plan.has(Role.ONE_SWEEP);
  }

  /** Items of a sweep, or of outputs without causality. */
  private void setSweepItems(Arguments chunked, Role role, Cut cut) {
    switch (plan.kind()) {
      case SWEEPS, RELAY, ONE_SWEEP -> chunked.setSequences(cut, counts, queue.lists());
      case SEGMENTED, SWEPT_SEGMENTS -> {
        if (cut.hasSegments()) {
          chunked.setSegments(cut, cut.items(), counts, queue.lists());
        } else {
          chunked.setSequences(cut, counts, queue.lists());
        }
      }
      case NON_CAUSAL -> {
        chunked.setOutputs(plan.outputs(role), counts, queue.lists());
        setOutputRows(chunked, role);
      }
      case CHAIN -> throw ofParts();
    }
  }

  /**
   * In the places of rows y and z, which sums alone read then: o, where the kernel forms d, and the
   * rows whose gradients it finishes, or nothing.
   */
  private void setOutputRows(Arguments chunked, Role role) {
    chunked.inner("key", ChunkedStructs.TENSOR_VIEW).clear();
    chunked.inner("value", ChunkedStructs.TENSOR_VIEW).clear();
    if (role == Role.QUERY && isFormedBySweep()) {
      chunked.set("key", call.output());
    }
    if (plan.step(role).kernel().finishesGradients()) {
      chunked.set("value", role == Role.QUERY ? input.q() : input.k());
    }
  }

  private static IllegalStateException ofParts() {
    return new IllegalStateException("each part of a chain has a fill of its own");
  }

  /** Of a relay the marks of items stand in the places of turns. */
  private void setMarks(Arguments chunked, Role role, long at) {
    int turns = role == Role.QUERY ? plan.turns() : 1;
    chunked.set("turns", plan.handsOn(role) ? plan.outputs(role).items() : turns);
    if (plan.kind() != Kind.NON_CAUSAL) {
      chunked.set("marks", workspace + at);
    }
  }

  private void fillNormalized(Role role, Tensor row, Tensor gradient, long scale) {
    structs
        .of(role)
        .clear()
        .set("row", row)
        .set("gradient", gradient)
        .set("scale", scale)
        .set("tokens", shape.tokens())
        .set("heads", Math.toIntExact(row.shape().extent(1)))
        .set("batches", shape.batch())
        .set("dim", shape.keyDim());
  }

  private void fillCoefficients() {
    Arguments sums =
        structs
            .of(Role.COEFFICIENTS)
            .set("adds", ends.isLast ? 0 : 1)
            .inner("coefficients", GradientStructs.COEFFICIENT_SUMS)
            .set("partials", partials)
            .setCoefficients(operator, queue.lists())
            .set("a_gradient", call.gradients().da().segment().address())
            .set("b_gradient", call.gradients().db().segment().address())
            .set("count", plan.partials())
            .set("heads", shape.heads())
            .set("batches", shape.batch())
            .set("parts", 1)
            .set("out", call.output())
            .set("slope_is_summed", partialsHaveSlope() ? 1 : 0)
            .set("sees_all", plan.kind() == Kind.NON_CAUSAL ? 1 : 0);
    if (!partialsHaveSlope()) {
      sums.set("query", input.q())
          .set("parts", plan.coefficientParts())
          .set("products", workspace + plan.memory().productsAt())
          .set("tickets", tickets);
    }
  }

  /** The struct of a role with tensor maps before it. */
  private Arguments addMaps(Role role, ElementType element) {
    Arguments struct = structs.withMaps(role);
    if (role == Role.STATE_SUMS) {
      Arguments sums = structs.of(role);
      struct.inner("chunked", ChunkedStructs.CHUNKED).copyOf(sums);
      write(struct, struct.offset("query"), input.q(), element);
      write(struct, struct.offset("key"), input.k(), element);
      write(struct, struct.offset("value"), input.v(), element);
      write(struct, struct.offset("out"), call.output(), element);
      return struct;
    }
    if (role == Role.ONE_SWEEP) {
      return addOneSweep(struct, element);
    }
    boolean both = role == Role.KEY_AND_VALUE;
    setTask(struct, 0, both ? Role.KEY : role, element);
    if (both) {
      setTask(struct, 1, Role.VALUE, element);
    }
    return struct;
  }

  /** The tasks of dk and dv, which take what dq needs with them. */
  private Arguments addOneSweep(Arguments struct, ElementType element) {
    struct.clear();
    setTask(struct, 0, Role.KEY, element);
    setTask(struct, 1, Role.VALUE, element);
    setMap(struct, "output_rows", 0, call.output(), element);
    write(struct, struct.offset("query_gradient"), call.gradients().dq(), element);
    StateArrays last = plan.handsOn() ? relay(Role.QUERY).in() : ends.last;
    StateArrays first = plan.handsOn() ? relay(Role.QUERY).out() : before();
    if (plan.kind() == Kind.SWEPT_SEGMENTS) { // after an item is before the next one
      StateArrays end = Objects.requireNonNull(last, "S after the last token");
      struct.set("end_state", end.s()).set("end_key_sum", end.z());
      last = Objects.requireNonNull(first).further(StateArrays.sizesOfHead(shape), 1);
    }
    if (last != null) {
      struct.set("last_state", last.s()).set("last_key_sum", last.z());
    }
    if (first != null) {
      struct
          .set("first_state", first.s())
          .set("first_key_sum", first.z())
          .set("first_value_sum", first.u());
    }
    return struct.set("query_marks", workspace + plan.memory().queryMarksAt());
  }

  private void setTask(Arguments struct, int index, Role role, ElementType element) {
    Rows rows = rows(role);
    setMap(struct, "query", index, rows.x, element);
    setMap(struct, "key", index, rows.y, element);
    setMap(struct, "value", index, rows.z, element);
    setMap(struct, "out", index, rows.out, element);
    if (role == Role.QUERY) {
      setMap(struct, "output_rows", index, call.output(), element);
    }
    MemorySegment task = structs.of(role).memory();
    long at = GradientStructs.hopperOffset(index, "gradient");
    MemorySegment.copy(task, 0, struct.memory(), at, task.byteSize());
    if (plan.handsOn(role)) {
      Arguments gradient = struct.slice(at, GradientStructs.GRADIENT);
      handOn(gradient.inner("chunked", ChunkedStructs.CHUNKED), role);
    }
  }

  /**
   * Blocks of each item go on where others have stopped; the repair has whole sequences, and marks
   * of items in the places of turns.
   */
  private void handOn(Arguments chunked, Role role) {
    Relay relay = relay(role);
    relay.handOn(chunked, counts[0], queue.lists());
    StateArrays in = relay.in();
    StateArrays out = relay.out();
    chunked.set("state_out", out.s());
    switch (role) {
      case QUERY -> chunked.set("key_sum_out", out.u()).set("value_sum_out", out.z());
      case KEY -> chunked.set("value_sum_out", out.z());
      default -> {
        chunked.set("value_sum_out", out.u());
        if (plan.has(Role.ONE_SWEEP)) { // sums of rows of w
          chunked.set("key_sum_in", in.z()).set("key_sum_out", out.z());
        }
      }
    }
  }

  /** What the blocks of dq, of dk or of dv hand on. */
  private Relay relay(Role role) {
    long address = workspace;
    if (role != Role.QUERY && plan.handsOn(Role.QUERY)) {
      address += Relay.bytes(shape, plan.outputs());
    }
    if (role == Role.VALUE) {
      address += Relay.bytes(shape, plan.keyOutputs());
    }
    boolean backwards = role != Role.QUERY || plan.has(Role.ONE_SWEEP);
    return new Relay(shape, plan.outputs(role), backwards, address);
  }

  /** What has to be cleared or copied before the launches. */
  void start(List<Prepared> work) {
    if (plan.handsOn(Role.QUERY)) {
      Relay ofQuery = relay(Role.QUERY);
      StateArrays first = orNone(ends.first);
      if (plan.has(Role.ONE_SWEEP)) {
        StateArrays last = orNone(ends.last);
        ofQuery.start(new StateArrays(last.s(), last.z(), 0), queue, work);
        ofQuery.end(first, queue, work);
      } else {
        ofQuery.start(first, queue, work);
      }
    }
    if (plan.handsOn(Role.KEY)) {
      StateArrays last = orNone(ends.lastGradient);
      relay(Role.KEY).start(last, queue, work);
      // of one sweep sums of rows of w stand in the place of dz
      relay(Role.VALUE).start(new StateArrays(last.s(), 0, last.u()), queue, work);
    }
  }

  private static StateArrays orNone(@Nullable StateArrays states) {
    return states == null ? StateArrays.NONE : states;
  }

  /** What the sweeps have left that is to be copied before the repair. */
  List<Prepared> finish() {
    if (!plan.handsOn(Role.KEY) || ends.firstGradient == null) {
      return List.of();
    }
    StateArrays ofKey = relay(Role.KEY).before(0);
    StateArrays ofValue = relay(Role.VALUE).before(0);
    return queue.copiesOf(
        new StateArrays(ofValue.s(), ofKey.z(), ofValue.u()),
        ends.firstGradient,
        StateArrays.sizes(shape));
  }

  private void setMap(
      Arguments struct, String member, int task, Tensor tensor, ElementType element) {
    write(struct, GradientStructs.hopperOffset(task, member), tensor, element);
  }

  private void write(Arguments struct, long at, Tensor tensor, ElementType element) {
    TensorMaps.write(queue.tensorMaps(), struct.memory().asSlice(at), tensor, element);
  }
}
