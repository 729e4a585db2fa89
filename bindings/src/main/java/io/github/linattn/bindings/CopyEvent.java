package io.github.linattn.bindings;

import io.github.linattn.bindings.generated.cudart;
import jdk.jfr.Category;
import jdk.jfr.DataAmount;
import jdk.jfr.Description;
import jdk.jfr.Event;
import jdk.jfr.Label;
import jdk.jfr.Name;
import jdk.jfr.StackTrace;
import org.jspecify.annotations.Nullable;

/** A copy that CUDA was asked for; lasts as long as the call. */
@Name("io.github.linattn.Copy")
@Label("Copy")
@Category("linattn")
@Description("CUDA was asked for a copy; the duration is that of the call on the host")
@StackTrace(false)
final class CopyEvent extends Event {
  private static final CopyEvent PROBE = new CopyEvent();

  /** Between which memories. */
  enum Direction {
    TO_DEVICE(cudart.cudaMemcpyHostToDevice(), "to device"),
    TO_HOST(cudart.cudaMemcpyDeviceToHost(), "to host"),
    ON_DEVICE(cudart.cudaMemcpyDeviceToDevice(), "on device");

    private final int kind;
    private final String words;

    Direction(int kind, String words) {
      this.kind = kind;
      this.words = words;
    }

    /** The {@code cudaMemcpyKind}. */
    int kind() {
      return kind;
    }
  }

  @Label("Direction")
  private @Nullable String direction;

  @Label("Bytes")
  @DataAmount
  private long bytes;

  @Label("Asynchronous")
  @Description("Whether the call may return before the bytes have arrived")
  private boolean asynchronous;

  /** Begins an event, or null if nobody listens. */
  static @Nullable CopyEvent begun() {
    if (!PROBE.isEnabled()) {
      return null;
    }
    var event = new CopyEvent();
    event.begin();
    return event;
  }

  /** Ends an event with what was copied. */
  static void end(
      @Nullable CopyEvent event, Direction direction, long bytes, boolean asynchronous) {
    if (event != null) {
      event.direction = direction.words;
      event.bytes = bytes;
      event.asynchronous = asynchronous;
      event.commit();
    }
  }
}
