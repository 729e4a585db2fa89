package io.github.linattn.internal.cuda;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.AttentionState;
import io.github.linattn.Sequences;
import io.github.linattn.Tensor;
import io.github.linattn.bindings.Cuda;
import io.github.linattn.internal.Checkpoints;
import io.github.linattn.internal.ForwardCall;
import io.github.linattn.internal.Operator;
import io.github.linattn.internal.cuda.ForwardLaunches.Boundary;
import io.github.linattn.kernelgen.Operation;
import java.lang.foreign.Arena;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.function.IntFunction;
import org.jspecify.annotations.Nullable;

/**
 * A forward of the family {@code chunked} with everything filled in: copies, launches and their
 * arguments, of one plan or of each part of a chain. Running it again takes no memory and looks
 * nothing up. Its memory serves one call after the other, because CUDA reads arguments before a
 * launch returns. The caller holds the queue's lock.
 */
final class ChunkedCall {
  private final CudaQueue queue;
  private final Arena owner;
  private final List<ForwardLaunches> parts = new ArrayList<>();

  /** Parts that are filled in, and the tokens before each. */
  private long[] starts = {};

  private @Nullable ForwardCall call;
  private @Nullable Sequences packing;
  private @Nullable AttentionState initial;
  private List<Tensor> tensors = List.of();
  private boolean listed;
  private long[] counts = {};

  ChunkedCall(CudaQueue queue, Arena owner) {
    this.queue = queue;
    this.owner = owner;
  }

  /** Forgets what it was filled with. */
  void clear() {
    call = null;
    packing = null;
    initial = null;
    tensors = List.of();
    starts = new long[0];
  }

  /** Whether it is filled with nothing. */
  boolean isEmpty() {
    return call == null;
  }

  /** What it reads and writes. */
  List<Tensor> tensors() {
    return tensors;
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
        && areOpen(tensors)
        && (!listed || hasCounts(initial));
  }

  /** By index, since an iterator would be memory of each call. */
  static boolean areOpen(List<Tensor> tensors) {
    for (int i = 0; i < tensors.size(); i++) {
      if (!tensors.get(i).isOpen()) {
        return false;
      }
    }
    return true;
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
    for (int i = 0; i < starts.length; i++) {
      if (!listed && initial != null) {
        parts.get(i).setCount(initial.count(0) + starts[i]);
      }
      parts.get(i).run(cuda);
    }
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
    AttentionState last = forward.finalState();
    var ends =
        new Boundary(
            initial == null ? null : StateArrays.of(initial),
            last == null ? null : StateArrays.of(last));
    switch (plan.kind()) {
      case CHAIN -> {
        Checkpoints kept = Objects.requireNonNull(forward.checkpoints(), "what a chain keeps");
        AttentionShape shape = input.shape();
        IntFunction<StateArrays> between = i -> StateArrays.ofChain(kept, shape, i);
        fillParts(forward, plan, ends, between, kernels, workspace, tickets);
      }
      case STAGES -> fillStages(forward, plan, ends, kernels, workspace, tickets);
      default -> {
        part(0).fill(forward, plan, ends, counts, kernels, workspace, tickets);
        starts = new long[1];
      }
    }
    listed =
        plan.handsOn() || plan.kind() == ForwardPlan.Kind.NON_CAUSAL || !plan.cut().isRegular();
    tensors = forward.tensors();
    call = forward;
  }

  /**
   * States between parts stand in one of two places in turn, from where they are brought to the
   * checkpoints, if there are any.
   */
  private void fillStages(
      ForwardCall forward,
      ForwardPlan plan,
      Boundary ends,
      Kernels kernels,
      long workspace,
      long tickets) {
    AttentionShape shape = forward.input().shape();
    Cut cut = plan.cut();
    long bytes = alignedBytes(StateArrays.bytes(shape, 1));
    IntFunction<@Nullable StateArrays> between =
        i -> i == 0 ? ends.before() : StateArrays.at(workspace + i % 2 * bytes, shape, 1);
    fillParts(forward, plan, ends, between, kernels, workspace + 2 * bytes, tickets);
    Checkpoints checkpoints = forward.checkpoints();
    if (checkpoints == null || !checkpoints.hasStates()) {
      return;
    }
    long address = checkpoints.memory().segment().address();
    StateArrays kept = StateArrays.at(address, shape, cut.items());
    part(0).clear(address, StateArrays.bytes(shape, cut.items()));
    for (int i = 0; i < cut.items(); i++) {
      StateArrays before = between.apply(i);
      if (before != null) {
        part(i).keep(plan.keeping(), before, kept, cut, i, shape, kernels);
      }
    }
  }

  /**
   * Each part starts from the state that the one before has left.
   *
   * @param between where that before a part stands, of each but the first
   */
  private void fillParts(
      ForwardCall forward,
      ForwardPlan plan,
      Boundary ends,
      IntFunction<? extends @Nullable StateArrays> between,
      Kernels kernels,
      long workspace,
      long tickets) {
    Cut cut = plan.cut();
    long[] tokensBefore = new long[cut.items()];
    cut.forEach(
        (i, sequence, start, length) -> {
          var states =
              new Boundary(
                  i == 0 ? ends.before() : between.apply(i),
                  i + 1 == cut.items() ? ends.after() : between.apply(i + 1));
          long[] before = {counts[0] + start};
          ForwardCall window = forward.window(start, length);
          part(i).fill(window, plan.parts().get(i), states, before, kernels, workspace, tickets);
          tokensBefore[i] = start;
        });
    starts = tokensBefore;
  }

  private ForwardLaunches part(int index) {
    if (index == parts.size()) {
      parts.add(new ForwardLaunches(queue, owner));
    }
    return parts.get(index);
  }

  /** Workspace is cut at multiples of this. */
  static long alignedBytes(long bytes) {
    return Math.ceilDiv(bytes, 256L) * 256;
  }

  @Override
  public String toString() {
    return call == null ? "nothing" : Operation.FORWARD.id() + " of " + call.input().shape();
  }
}
