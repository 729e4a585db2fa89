package io.github.linattn.internal.cuda;

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
import java.util.List;

/**
 * A backward of the family {@code chunked}: fills in the arguments of all launches, then gives them
 * to the stream. Its memory serves one call after the other, because CUDA reads arguments before a
 * launch returns. The caller holds the queue's lock.
 */
final class GradientCall {
  private final CudaQueue queue;
  private final GradientStructs.OfRoles structs;
  private final LaunchScratch[] scratch = new LaunchScratch[Role.values().length];

  GradientCall(CudaQueue queue, Arena owner) {
    this.queue = queue;
    this.structs = new GradientStructs.OfRoles(owner);
    for (int i = 0; i < scratch.length; i++) {
      scratch[i] = new LaunchScratch(owner);
    }
  }

  /**
   * Computes the gradients.
   *
   * @param workspace device address of the plan's workspace
   */
  void run(BackwardCall call, GradientPlan plan, Kernels kernels, long workspace) {
    GradientFill fill = new GradientFill(queue, structs, call, plan, workspace);
    List<PreparedLaunch> launches = new ArrayList<>();
    for (Launch launch : plan.launches()) {
      LoadedKernel kernel = kernels.load(launch.step().kernel());
      launches.add(prepare(launch, kernel, fill.fill(launch)));
    }
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
