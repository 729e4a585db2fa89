package io.github.linattn.bindings;

import jdk.jfr.Category;
import jdk.jfr.DataAmount;
import jdk.jfr.Description;
import jdk.jfr.Event;
import jdk.jfr.Label;
import jdk.jfr.Name;
import jdk.jfr.StackTrace;
import org.jspecify.annotations.Nullable;

/** A kernel that was given to a stream; lasts as long as the call, not as the kernel. */
@Name("io.github.linattn.KernelLaunch")
@Label("Kernel Launch")
@Category("linattn")
@Description("A kernel was given to a stream; the duration is that of the call on the host")
@StackTrace(false)
final class KernelLaunchEvent extends Event {
  /** Asked whether anybody listens: as cheap as a field, and nothing is made for the answer. */
  private static final KernelLaunchEvent PROBE = new KernelLaunchEvent();

  @Label("Kernel")
  private @Nullable String kernel;

  @Label("Grid X")
  private int gridX;

  @Label("Grid Y")
  private int gridY;

  @Label("Threads of a Block")
  private int blockThreads;

  @Label("Dynamic Shared Memory")
  @DataAmount
  private long sharedBytes;

  @Label("Stream")
  private long stream;

  /** Begins an event, or null if nobody listens. */
  static @Nullable KernelLaunchEvent begun() {
    if (!PROBE.isEnabled()) {
      return null;
    }
    var event = new KernelLaunchEvent();
    event.begin();
    return event;
  }

  /** Ends an event with what was launched. */
  static void end(@Nullable KernelLaunchEvent event, CudaKernel kernel, LaunchScratch launch) {
    if (event == null) {
      return;
    }
    event.end();
    if (event.shouldCommit()) {
      event.kernel = kernel.symbol();
      event.gridX = launch.gridX();
      event.gridY = launch.gridY();
      event.blockThreads = launch.blockThreads();
      event.sharedBytes = launch.dynamicSharedBytes();
      event.stream = launch.stream();
      event.commit();
    }
  }
}
