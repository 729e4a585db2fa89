package io.github.linattn.bench;

import io.github.linattn.AttentionShape;
import io.github.linattn.Backend;
import io.github.linattn.Event;
import java.util.concurrent.TimeUnit;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.BenchmarkMode;
import org.openjdk.jmh.annotations.Fork;
import org.openjdk.jmh.annotations.Level;
import org.openjdk.jmh.annotations.Measurement;
import org.openjdk.jmh.annotations.Mode;
import org.openjdk.jmh.annotations.OperationsPerInvocation;
import org.openjdk.jmh.annotations.OutputTimeUnit;
import org.openjdk.jmh.annotations.Param;
import org.openjdk.jmh.annotations.Scope;
import org.openjdk.jmh.annotations.Setup;
import org.openjdk.jmh.annotations.State;
import org.openjdk.jmh.annotations.TearDown;
import org.openjdk.jmh.annotations.Warmup;

/**
 * Host time of one repeated GPU call: looking it up, launches. A batch of calls is short enough for
 * the launch queue, and each batch starts with an empty one; otherwise the queue would be measured.
 * {@link DeviceTime} adds the time on the device, where short calls wait for the host. Needs a GPU.
 */
@State(Scope.Benchmark)
@Fork(1)
@Warmup(iterations = 5, time = 1)
@Measurement(iterations = 5, time = 1)
@BenchmarkMode(Mode.AverageTime)
@OutputTimeUnit(TimeUnit.MICROSECONDS)
@SuppressWarnings("NullAway.Init") // JMH calls setUp first
public class HostTimeBenchmark {
  private static final int CALLS = 50;

  /** N; 4 heads of D = 64. */
  @Param({"64", "4096"})
  public int tokens;

  private Session session;
  private Event start;

  /** Opens GPU 0; the exception of a machine without one says why there is no figure. */
  @Setup
  public void setUp() {
    session = Session.of(Backend.cuda(0), AttentionShape.of(1, 4, tokens, 64));
    session.forward();
  }

  /** Empties the launch queue and marks where the batch begins. */
  @Setup(Level.Invocation)
  public void begin() {
    session.synchronize();
    start = session.record();
  }

  /** Waits for the batch and notes its time on the device. */
  @TearDown(Level.Invocation)
  public void end() {
    try (Event first = start;
        Event last = session.record()) {
      last.synchronize();
      DeviceTime.add(last.millisSince(first), CALLS);
    }
  }

  /** Queues forwards without waiting for them. */
  @Benchmark
  @OperationsPerInvocation(CALLS)
  public void forward() {
    for (int i = 0; i < CALLS; i++) {
      session.forward();
    }
  }

  /** Queues backwards of one forward without waiting for them. */
  @Benchmark
  @OperationsPerInvocation(CALLS)
  public void backward() {
    for (int i = 0; i < CALLS; i++) {
      session.backward();
    }
  }

  /** Frees everything. */
  @TearDown
  public void tearDown() {
    session.close();
  }
}
