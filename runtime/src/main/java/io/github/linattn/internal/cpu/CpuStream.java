package io.github.linattn.internal.cpu;

import io.github.linattn.Event;
import io.github.linattn.Graph;
import io.github.linattn.Stream;
import io.github.linattn.Tensor;
import io.github.linattn.internal.Copies;

/** A queue whose work is done when it is queued. */
final class CpuStream implements Stream {
  private final CpuEngine owner;

  CpuStream(CpuEngine owner) {
    this.owner = owner;
  }

  boolean isOf(CpuEngine engine) {
    return owner == engine;
  }

  private record Instant(long nanos) implements Event {
    @Override
    public void synchronize() {}

    @Override
    public double millisSince(Event earlier) {
      if (!(earlier instanceof Instant start)) {
        throw new IllegalArgumentException("the earlier event is of another backend");
      }
      return (nanos - start.nanos()) / 1e6;
    }

    @Override
    public void close() {}
  }

  @Override
  public void synchronize() {}

  @Override
  public Event record() {
    return new Instant(System.nanoTime());
  }

  @Override
  public void waitFor(Event event) {
    event.synchronize(); // it may be a GPU's, whose work in host memory is read next
  }

  @Override
  public void copy(Tensor source, Tensor target) {
    Copies.requireAlike(source, target);
    target.copyFrom(source.segment());
  }

  @Override
  public Graph capture(Runnable work) {
    throw new UnsupportedOperationException(
        "the cpu backend does work when it is queued: there is nothing to capture; a stream of the"
            + " cuda backend has graphs");
  }

  @Override
  public void close() {}
}
