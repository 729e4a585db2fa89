package io.github.linattn.internal.cuda;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionState;
import io.github.linattn.Gradients;
import io.github.linattn.Sequences;
import io.github.linattn.StateGradient;
import io.github.linattn.Tensor;
import io.github.linattn.bindings.DeviceMemory;
import io.github.linattn.cuda.CudaOutOfMemoryException;
import io.github.linattn.internal.BackwardCall;
import io.github.linattn.internal.Checkpoints;
import io.github.linattn.internal.ForwardCall;
import io.github.linattn.internal.Operator;
import java.lang.foreign.Arena;
import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * The last forwards and backwards of a queue, ready to be repeated, and the workspace that they use
 * in turn. The caller holds the queue's lock.
 */
final class ChunkedCalls {
  /** Of each pass: a model of so many layers repeats every one of its calls. */
  private static final int MOST = 512;

  private final CudaQueue queue;
  private final Arena owner;
  private final List<ChunkedCall> forwards = new ArrayList<>();
  private final List<GradientCall> backwards = new ArrayList<>();

  /** Where the next call is looked for first: those of a model come in the same order each time. */
  private int nextForward;

  private int nextBackward;

  /** Of memory that has become too small and that open graphs may use. */
  private final List<Arena> retired = new ArrayList<>();

  private Arena workspaceOwner = Arena.ofShared();
  private @Nullable DeviceMemory workspace;
  private Arena ticketsOwner = Arena.ofShared();
  private @Nullable DeviceMemory tickets;

  ChunkedCalls(CudaQueue queue, Arena owner) {
    this.queue = queue;
    this.owner = owner;
  }

  /** Runs this very call again if it is one of the last; takes no memory. */
  boolean repeat(
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
    for (int i = 0; i < forwards.size(); i++) {
      int index = (nextForward + i) % forwards.size();
      ChunkedCall known = forwards.get(index);
      if (known.isFor(operator, q, k, v, packing, initial, o, g, finalState, checkpoints)) {
        nextForward = index + 1;
        queue.keepForGraph(known.tensors());
        known.run();
        return true;
      }
    }
    return false;
  }

  /** Fills in a call in place of the oldest and runs it. */
  void run(ForwardCall forward, ForwardPlan plan, Kernels kernels) {
    makeRoomForConstants();
    long address = workspace(plan.workspaceBytes() + 2 * ChunkedCall.alignedBytes(1));
    boolean isFirstFree = !forwards.isEmpty() && forwards.getFirst().isEmpty();
    ChunkedCall call =
        isFirstFree || forwards.size() == MOST
            ? forwards.removeFirst()
            : new ChunkedCall(queue, owner);
    forwards.addLast(call);
    nextForward = 0; // after the last comes the first
    try {
      call.fill(forward, plan, kernels, address, tickets(plan.ticketBytes()));
      queue.keepForGraph(call.tensors());
      call.run();
    } catch (RuntimeException | Error e) {
      call.clear();
      throw e;
    }
  }

  /** Runs this very backward again if it is one of the last; takes no memory. */
  boolean repeatBackward(
      Operator operator,
      AttentionInput input,
      Tensor output,
      Tensor normalizer,
      Tensor outputGradient,
      @Nullable AttentionState lastState,
      @Nullable Checkpoints checkpoints,
      @Nullable StateGradient finalStateGradient,
      Gradients gradients) {
    for (int i = 0; i < backwards.size(); i++) {
      int index = (nextBackward + i) % backwards.size();
      GradientCall known = backwards.get(index);
      if (known.isFor(
          operator,
          input,
          output,
          normalizer,
          outputGradient,
          lastState,
          checkpoints,
          finalStateGradient,
          gradients)) {
        nextBackward = index + 1;
        queue.keepForGraph(known.tensors());
        known.run();
        return true;
      }
    }
    return false;
  }

  /** Fills in a backward in place of the oldest and runs it. */
  void run(BackwardCall backward, GradientPlan plan, Kernels kernels) {
    makeRoomForConstants();
    long address = workspace(plan.workspaceBytes());
    boolean isFirstFree = !backwards.isEmpty() && backwards.getFirst().isEmpty();
    GradientCall call =
        isFirstFree || backwards.size() == MOST
            ? backwards.removeFirst()
            : new GradientCall(queue, owner);
    backwards.addLast(call);
    nextBackward = 0;
    try {
      call.fill(backward, plan, kernels, address, tickets(plan.ticketBytes()));
      queue.keepForGraph(call.tensors());
      call.run();
    } catch (RuntimeException | Error e) {
      call.clear();
      throw e;
    }
  }

  /**
   * Gives up constants where they have become many: no graph needs those brought since one ended.
   */
  void makeRoomForConstants() {
    if (!queue.constants().isFull()) {
      return;
    }
    if (queue.isCapturing()) {
      setConstantsApart();
    } else {
      clear();
      queue.synchronize();
      queue.constants().release().close();
    }
  }

  /** Keeps constants for as long as there are graphs, and brings anew what later calls need. */
  void setConstantsApart() {
    clear();
    retire(queue.constants().release());
  }

  private long workspace(long bytes) {
    if (workspace != null && workspace.byteSize() >= bytes) {
      return workspace.address();
    }
    clear();
    DeviceMemory small = workspace;
    if (small == null) {
      return grow(bytes);
    }
    Arena owner = workspaceOwner;
    workspace = null;
    workspaceOwner = Arena.ofShared();
    retire(owner);
    long ahead = Math.max(bytes, Math.min(2 * small.byteSize(), 2 * bytes));
    try {
      return grow(ahead);
    } catch (CudaOutOfMemoryException e) {
      if (ahead == bytes) {
        throw e;
      }
      return grow(bytes);
    }
  }

  /** Frees memory that no later call uses: now, or when the last graph ends. */
  private void retire(Arena owner) {
    retired.add(owner);
    freeRetired();
  }

  /** Frees what only graphs might use, once the stream is done with it, if there are none. */
  void freeRetired() {
    if (!retired.isEmpty() && !queue.hasGraphs()) {
      queue.synchronize();
      closeRetired();
    }
  }

  private void closeRetired() {
    while (!retired.isEmpty()) {
      retired.removeLast().close();
    }
  }

  /** The address of so many bytes of zeros, which kernels leave as zeros; 0 for none. */
  private long tickets(long bytes) {
    if (bytes == 0) {
      return 0;
    }
    if (tickets == null || tickets.byteSize() < bytes) {
      if (tickets != null) {
        Arena owner = ticketsOwner;
        clear();
        tickets = null;
        ticketsOwner = Arena.ofShared();
        retire(owner);
      }
      DeviceMemory fresh = queue.device().enter().allocate(ticketsOwner, bytes);
      try {
        queue.constants().clear(fresh); // now, also where this call is only captured
      } catch (RuntimeException | Error e) {
        ticketsOwner.close();
        ticketsOwner = Arena.ofShared();
        throw e;
      }
      tickets = fresh;
    }
    return tickets.address();
  }

  private long grow(long bytes) {
    DeviceMemory fresh = queue.device().enter().allocate(workspaceOwner, bytes);
    workspace = fresh;
    return fresh.address();
  }

  private void clear() {
    forwards.forEach(ChunkedCall::clear);
    backwards.forEach(GradientCall::clear);
  }

  /** Frees the workspace; the stream has done its work. */
  void close() {
    clear();
    closeRetired();
    workspaceOwner.close();
    ticketsOwner.close();
  }
}
