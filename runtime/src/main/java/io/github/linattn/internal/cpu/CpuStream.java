package io.github.linattn.internal.cpu;

import io.github.linattn.Event;
import io.github.linattn.Graph;
import io.github.linattn.Stream;
import io.github.linattn.Tensor;
import io.github.linattn.internal.ClosedException;
import io.github.linattn.internal.Copies;
import java.util.OptionalLong;
import org.jspecify.annotations.Nullable;

/** A queue whose work is done when it is queued; closing it ends it, and frees nothing. */
final class CpuStream implements Stream {
  private final CpuEngine owner;
  private volatile @Nullable Throwable closedAt;

  CpuStream(CpuEngine owner) {
    this.owner = owner;
  }

  boolean isOf(CpuEngine engine) {
    return owner == engine;
  }

  /**
   * Throws if it can't take work.
   *
   * @throws IllegalStateException if it is closed, with where, or its backend is
   */
  void requireOpen() {
    if (owner.isClosed()) {
      throw new IllegalStateException("the backend of this stream is closed");
    }
    Throwable where = closedAt;
    if (where != null) {
      throw new ClosedException("the stream is closed; see the cause for where", where);
    }
  }

  private record Instant(CpuEngine owner, long nanos) implements Event {
    @Override
    public void synchronize() {}

    @Override
    public double millisSince(Event earlier) {
      Copies.requirePresent("earlier", earlier);
      if (!(earlier instanceof Instant start) || start.owner != owner) {
        throw new IllegalArgumentException("the earlier event is of another backend");
      }
      return (nanos - start.nanos()) / 1e6;
    }

    @Override
    public void close() {}
  }

  @Override
  public OptionalLong nativeHandle() {
    return OptionalLong.empty();
  }

  @Override
  public void synchronize() {}

  @Override
  public Event record() {
    requireOpen();
    return new Instant(owner, System.nanoTime());
  }

  @Override
  public void waitFor(Event event) {
    Copies.requirePresent("event", event);
    requireOpen();
    event.synchronize(); // it may be a GPU's, whose work in host memory is read next
  }

  @Override
  public void copy(Tensor source, Tensor target) {
    requireOpen();
    Copies.requireAlike(source, target);
    owner.requireReachable("source", source);
    owner.requireReachable("target", target);
    target.copyFrom(source.segment());
  }

  @Override
  public Graph capture(Runnable work) {
    throw new UnsupportedOperationException(
        "the cpu backend does work when it is queued: there is nothing to capture; a stream of the"
            + " cuda backend has graphs");
  }

  @Override
  public void close() {
    if (closedAt == null) {
      closedAt = new Throwable("closed here");
    }
  }
}
