package io.github.linattn.bindings;

import jdk.jfr.Category;
import jdk.jfr.Description;
import jdk.jfr.Event;
import jdk.jfr.Label;
import jdk.jfr.Name;
import jdk.jfr.StackTrace;
import org.jspecify.annotations.Nullable;

/**
 * A graph that was given to a stream. Its kernels are no events: they were when it was captured.
 */
@Name("io.github.linattn.GraphLaunch")
@Label("Graph Launch")
@Category("linattn")
@Description("A CUDA graph was given to a stream; its kernels were launches when it was captured")
@StackTrace(false)
final class GraphLaunchEvent extends Event {
  private static final GraphLaunchEvent PROBE = new GraphLaunchEvent();

  @Label("Stream")
  private long stream;

  /** Begins an event, or null if nobody listens. */
  static @Nullable GraphLaunchEvent begun() {
    if (!PROBE.isEnabled()) {
      return null;
    }
    var event = new GraphLaunchEvent();
    event.begin();
    return event;
  }

  /** Ends an event. */
  static void end(@Nullable GraphLaunchEvent event, CudaStream stream) {
    if (event != null) {
      event.stream = stream.address();
      event.commit();
    }
  }
}
