package io.github.linattn.internal.cuda;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.AttentionState;
import io.github.linattn.Gradients;
import io.github.linattn.StateGradient;
import io.github.linattn.Tensor;
import io.github.linattn.bindings.Cuda;
import io.github.linattn.bindings.LaunchScratch;
import io.github.linattn.bindings.Prepared;
import io.github.linattn.internal.BackwardCall;
import io.github.linattn.internal.Checkpoints;
import io.github.linattn.internal.Operator;
import io.github.linattn.internal.cuda.GradientPlan.Launch;
import io.github.linattn.internal.cuda.GradientPlan.Role;
import java.lang.foreign.Arena;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import org.jspecify.annotations.Nullable;

/**
 * A backward of the family {@code chunked} with everything filled in: launches and their arguments.
 * Running it again takes no memory and looks nothing up. Its memory serves one call after the
 * other, because CUDA reads arguments before a launch returns. The caller holds the queue's lock.
 */
final class GradientCall {
  private final CudaQueue queue;
  private final Arena owner;
  private final List<Part> parts = new ArrayList<>();
  private int partCount;
  private final List<Prepared> work = new ArrayList<>();
  private boolean listed; // counts, in memory of the device
  private @Nullable BackwardCall call;
  private @Nullable AttentionState initial;
  private List<Tensor> tensors = List.of();
  private long[] counts = {};

  /** The memory of the launches of a plan, or of a part of a chain. */
  private static final class Part {
    private final GradientStructs.OfRoles structs;
    private final LaunchScratch[] scratch = new LaunchScratch[Role.values().length];
    private long start;

    Part(Arena owner) {
      structs = new GradientStructs.OfRoles(owner);
      for (int i = 0; i < scratch.length; i++) {
        scratch[i] = new LaunchScratch(owner);
      }
    }
  }

  GradientCall(CudaQueue queue, Arena owner) {
    this.queue = queue;
    this.owner = owner;
  }

  /** Forgets what it was filled with. */
  void clear() {
    call = null;
    initial = null;
    tensors = List.of();
    work.clear();
    partCount = 0;
  }

  /** Whether it is filled with nothing. */
  boolean isEmpty() {
    return call == null;
  }

  /** What it reads and writes. */
  List<Tensor> tensors() {
    return tensors;
  }

  /** Whether it is this very call, with tensors that are still open and lists that still fit. */
  boolean isFor(
      Operator operator,
      AttentionInput input,
      Tensor output,
      Tensor normalizer,
      Tensor outputGradient,
      @Nullable AttentionState lastState,
      @Nullable Checkpoints checkpoints,
      @Nullable StateGradient finalStateGradient,
      Gradients gradients) {
    BackwardCall filled = call;
    return filled != null
        && filled.operator() == operator
        && filled.output() == output
        && filled.normalizer() == normalizer
        && filled.outputGradient() == outputGradient
        && filled.lastState() == lastState
        && filled.checkpoints() == checkpoints
        && filled.finalStateGradient() == finalStateGradient
        && filled.gradients() == gradients
        && filled.input().equals(input)
        && ChunkedCall.areOpen(tensors)
        && (!listed || hasCounts());
  }

  private boolean hasCounts() {
    for (int i = 0; i < counts.length; i++) {
      if (counts[i] != count(i)) {
        return false;
      }
    }
    return true;
  }

  /** Tokens in the initial state of a sequence. */
  private long count(int sequence) {
    return initial == null ? 0 : initial.count(sequence);
  }

  /**
   * Fills it in for a call.
   *
   * @param workspace device address of the plan's workspace
   * @param tickets as a {@link GradientFill} takes them
   */
  void fill(BackwardCall backward, GradientPlan by, Kernels kernels, long workspace, long tickets) {
    clear();
    initial = backward.input().initialState().orElse(null);
    counts = new long[backward.input().sequences().count()];
    Arrays.setAll(counts, this::count);
    GradientFill.Ends ends = GradientFill.Ends.of(backward);
    if (by.kind() == GradientPlan.Kind.CHAIN) {
      fillChain(backward, by, ends, kernels, workspace, tickets);
    } else {
      add(0, 0, backward, by, ends, kernels, workspace, tickets);
    }
    boolean nonCausal = by.kind() == GradientPlan.Kind.NON_CAUSAL;
    listed = nonCausal || backward.input().isPacked() || by.handsOn();
    tensors = backward.tensors();
    call = backward;
  }

  /**
   * From the last segment to the first: each starts from the gradient of the state after it, and
   * leaves that of the state before it, in one of two places in turn.
   */
  private void fillChain(
      BackwardCall backward,
      GradientPlan by,
      GradientFill.Ends ends,
      Kernels kernels,
      long workspace,
      long tickets) {
    AttentionShape shape = backward.input().shape();
    Checkpoints kept = Objects.requireNonNull(backward.checkpoints(), "what a chain starts from");
    long bytes = StateArrays.bytes(shape, 1);
    int last = by.parts().size() - 1;
    int segment = by.cut().itemTokens();
    for (int i = last; i >= 0; i--) {
      StateArrays later = StateArrays.at(workspace + (i + 1) % 2 * bytes, shape, 1);
      StateArrays earlier = StateArrays.at(workspace + i % 2 * bytes, shape, 1);
      var states =
          new GradientFill.Ends(
              i == 0 ? ends.first() : StateArrays.ofChain(kept, shape, i),
              i == last ? ends.last() : StateArrays.ofChain(kept, shape, i + 1),
              i == last ? ends.lastGradient() : later,
              i == 0 ? ends.firstGradient() : earlier,
              i == last);
      int start = i * segment;
      BackwardCall window = backward.window(start, Math.min(segment, shape.tokens() - start));
      add(
          i,
          start,
          window,
          by.parts().get(i),
          states,
          kernels,
          workspace + by.memory().totalsAt(),
          tickets);
    }
  }

  private void add(
      int index,
      int start,
      BackwardCall backward,
      GradientPlan by,
      GradientFill.Ends ends,
      Kernels kernels,
      long workspace,
      long tickets) {
    while (index >= parts.size()) {
      parts.add(new Part(owner));
    }
    partCount = Math.max(partCount, index + 1);
    Part part = parts.get(index);
    part.start = start;
    long[] before = Arrays.stream(counts).map(count -> count + start).toArray();
    var fill =
        new GradientFill(queue, part.structs, backward, by, ends, before, workspace, tickets);
    fill.start(work);
    for (Launch launch : by.launches()) {
      if (launch.role() == Role.COEFFICIENTS) {
        work.addAll(fill.finish());
      }
      LoadedKernel kernel = kernels.load(launch.step().kernel());
      LaunchScratch mine = part.scratch[launch.role().ordinal()];
      work.add(queue.prepare(mine, launch.step(), kernel, fill.fill(launch)));
    }
  }

  /** Gives its work to the stream. */
  void run() {
    Cuda cuda = queue.device().enter();
    if (initial != null) {
      for (int i = 0; i < partCount; i++) {
        Part part = parts.get(i);
        part.structs.setInitialCount(initial.count(0) + part.start);
      }
    }
    for (int i = 0; i < work.size(); i++) {
      cuda.run(work.get(i));
    }
  }
}
