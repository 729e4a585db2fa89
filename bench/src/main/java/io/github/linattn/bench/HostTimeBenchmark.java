package io.github.linattn.bench;

import io.github.linattn.AttentionShape;
import io.github.linattn.Backend;
import java.util.concurrent.TimeUnit;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.BenchmarkMode;
import org.openjdk.jmh.annotations.Fork;
import org.openjdk.jmh.annotations.Level;
import org.openjdk.jmh.annotations.Measurement;
import org.openjdk.jmh.annotations.Mode;
import org.openjdk.jmh.annotations.OperationsPerInvocation;
import org.openjdk.jmh.annotations.OutputTimeUnit;
import org.openjdk.jmh.annotations.Scope;
import org.openjdk.jmh.annotations.Setup;
import org.openjdk.jmh.annotations.State;
import org.openjdk.jmh.annotations.TearDown;
import org.openjdk.jmh.annotations.Warmup;

/**
 * Host time of one GPU forward through {@code forwardInto}: checks, arguments, workspace, launches.
 * A batch of calls is short enough for the launch queue, and each batch starts with an empty one;
 * otherwise the queue would be measured. Needs a GPU.
 */
@State(Scope.Benchmark)
@Fork(1)
@Warmup(iterations = 5, time = 1)
@Measurement(iterations = 5, time = 1)
@BenchmarkMode(Mode.AverageTime)
@OutputTimeUnit(TimeUnit.MICROSECONDS)
@SuppressWarnings("NullAway.Init") // JMH calls setUp first
public class HostTimeBenchmark {
  private static final int CALLS = 100;

  private Session session;

  /** Opens GPU 0; the exception of a machine without one says why there is no figure. */
  @Setup
  public void setUp() {
    session = new Session(Backend.cuda(0), AttentionShape.of(1, 4, 64, 64));
  }

  /** Empties the launch queue. */
  @Setup(Level.Invocation)
  public void drain() {
    session.synchronize();
  }

  /** Queues forwards without waiting for them. */
  @Benchmark
  @OperationsPerInvocation(CALLS)
  public void forward() {
    for (int i = 0; i < CALLS; i++) {
      session.forward();
    }
  }

  /** Frees everything. */
  @TearDown
  public void tearDown() {
    session.close();
  }
}
