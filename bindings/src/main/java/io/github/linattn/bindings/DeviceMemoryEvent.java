package io.github.linattn.bindings;

import java.util.concurrent.atomic.AtomicLong;
import jdk.jfr.Category;
import jdk.jfr.DataAmount;
import jdk.jfr.Description;
import jdk.jfr.Event;
import jdk.jfr.Label;
import jdk.jfr.Name;
import org.jspecify.annotations.Nullable;

/** Device memory that was taken or given back, and how much is held since. */
@Name("io.github.linattn.DeviceMemory")
@Label("Device Memory")
@Category("linattn")
@Description("Device memory was allocated or freed")
final class DeviceMemoryEvent extends Event {
  private static final DeviceMemoryEvent PROBE = new DeviceMemoryEvent();

  /** Of this process on all devices; counted always, so that a recording may begin at any time. */
  private static final AtomicLong IN_USE = new AtomicLong();

  @Label("Operation")
  private @Nullable String operation;

  @Label("Address")
  private long address;

  @Label("Bytes")
  @DataAmount
  private long bytes;

  @Label("Bytes in Use")
  @Description("What this process holds through linattn on all devices, after the operation")
  @DataAmount
  private long bytesInUse;

  /** Begins an event, or null if nobody listens. */
  static @Nullable DeviceMemoryEvent begun() {
    if (!PROBE.isEnabled()) {
      return null;
    }
    var event = new DeviceMemoryEvent();
    event.begin();
    return event;
  }

  /** Counts memory that was allocated, and ends an event with it. */
  static void allocated(@Nullable DeviceMemoryEvent event, long address, long bytes) {
    end(event, "allocate", address, bytes, IN_USE.addAndGet(bytes));
  }

  /** Counts memory that was freed, and ends an event with it. */
  static void freed(@Nullable DeviceMemoryEvent event, long address, long bytes) {
    end(event, "free", address, bytes, IN_USE.addAndGet(-bytes));
  }

  private static void end(
      @Nullable DeviceMemoryEvent event,
      String operation,
      long address,
      long bytes,
      long bytesInUse) {
    if (event != null) {
      event.operation = operation;
      event.address = address;
      event.bytes = bytes;
      event.bytesInUse = bytesInUse;
      event.commit();
    }
  }
}
