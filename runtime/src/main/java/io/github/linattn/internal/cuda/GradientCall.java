package io.github.linattn.internal.cuda;

import io.github.linattn.AttentionState;
import io.github.linattn.bindings.Cuda;
import io.github.linattn.bindings.LaunchOrder;
import io.github.linattn.bindings.LaunchScratch;
import io.github.linattn.bindings.PreparedLaunch;
import io.github.linattn.internal.BackwardCall;
import io.github.linattn.internal.cuda.ForwardPlan.Step;
import io.github.linattn.internal.cuda.GradientPlan.Launch;
import io.github.linattn.internal.cuda.GradientPlan.Role;
import java.lang.foreign.Arena;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.jspecify.annotations.Nullable;

/**
 * A backward of the family {@code chunked} with everything filled in: launches and their arguments.
 * Its memory serves one call after the other, because CUDA reads arguments before a launch returns.
 * The caller holds the queue's lock.
 */
final class GradientCall {
  private final CudaQueue queue;
  private final GradientStructs.OfRoles structs;
  private final LaunchScratch[] scratch = new LaunchScratch[Role.values().length];
  private final List<PreparedLaunch> launches = new ArrayList<>();
  private @Nullable BackwardCall call;
  private @Nullable GradientPlan plan;
  private long[] counts = {};

  GradientCall(CudaQueue queue, Arena owner) {
    this.queue = queue;
    this.structs = new GradientStructs.OfRoles(owner);
    for (int i = 0; i < scratch.length; i++) {
      scratch[i] = new LaunchScratch(owner);
    }
  }

  /** Forgets what it was filled with. */
  void clear() {
    call = null;
    plan = null;
    launches.clear();
  }

  /** Whether it is filled with this very call, of the same objects. */
  boolean isFor(BackwardCall asked, GradientPlan by) {
    return asked.equals(call) && by.equals(plan) && Arrays.equals(counts, counts(asked));
  }

  /** Tokens in the initial state of each sequence. */
  private static long[] counts(BackwardCall call) {
    AttentionState initial = call.input().initialState().orElse(null);
    long[] counts = new long[call.input().sequences().count()];
    for (int i = 0; i < counts.length; i++) {
      counts[i] = initial == null ? 0 : initial.count(i);
    }
    return counts;
  }

  /**
   * Fills it in for a call.
   *
   * @param workspace device address of the plan's workspace
   */
  void fill(BackwardCall backward, GradientPlan by, Kernels kernels, long workspace) {
    clear();
    counts = counts(backward);
    GradientFill fill = new GradientFill(queue, structs, backward, by, counts, workspace);
    for (Launch launch : by.launches()) {
      LoadedKernel kernel = kernels.load(launch.step().kernel());
      launches.add(prepare(launch, kernel, fill.fill(launch)));
    }
    call = backward;
    plan = by;
  }

  /** Gives the launches to the stream. */
  void run() {
    Cuda cuda = queue.device().enter();
    launches.forEach(cuda::launch);
  }

  private PreparedLaunch prepare(Launch launch, LoadedKernel kernel, Arguments arguments) {
    Step step = launch.step();
    return queue
        .device()
        .cuda()
        .prepare(
            scratch[launch.role().ordinal()],
            kernel.kernel(),
            step.blocks(),
            step.cluster(),
            step.kernel().threads(),
            step.sharedBytes(),
            step.startsEarly() ? LaunchOrder.EARLY : LaunchOrder.IN_TURN,
            queue.stream(),
            arguments.memory());
  }
}
