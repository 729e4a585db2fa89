package io.github.linattn.bench;

import io.github.linattn.AttentionShape;
import io.github.linattn.Backend;
import java.util.concurrent.TimeUnit;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.BenchmarkMode;
import org.openjdk.jmh.annotations.Fork;
import org.openjdk.jmh.annotations.Measurement;
import org.openjdk.jmh.annotations.Mode;
import org.openjdk.jmh.annotations.OperationsPerInvocation;
import org.openjdk.jmh.annotations.OutputTimeUnit;
import org.openjdk.jmh.annotations.Param;
import org.openjdk.jmh.annotations.Scope;
import org.openjdk.jmh.annotations.Setup;
import org.openjdk.jmh.annotations.State;
import org.openjdk.jmh.annotations.TearDown;
import org.openjdk.jmh.annotations.Threads;
import org.openjdk.jmh.annotations.Warmup;

/**
 * Forwards of one backend per second, by callers that have a thread and a stream each. On the CPU a
 * call runs on its caller's thread alone.
 */
@State(Scope.Benchmark)
@Fork(1)
@Warmup(iterations = 3, time = 1)
@Measurement(iterations = 5, time = 1)
@BenchmarkMode(Mode.Throughput)
@OutputTimeUnit(TimeUnit.SECONDS)
@SuppressWarnings("NullAway.Init") // JMH calls setUp first
public class ThroughputBenchmark {
  private static final int CALLS = 16;

  /** {@code cuda} needs a GPU: the exception of a machine without says why there is no figure. */
  @Param({"cpu", "cuda"})
  public String backend;

  private Backend shared;

  /** Opens the backend. */
  @Setup
  public void setUp() {
    shared = backend.equals("cuda") ? Backend.cuda(0) : Backend.cpu(1);
  }

  /** One thread with a stream and tensors of its own. */
  @State(Scope.Thread)
  @SuppressWarnings("NullAway.Init") // JMH calls setUp first
  public static class Caller {
    private Session session;

    /** Makes the stream and the tensors. */
    @Setup
    public void setUp(ThroughputBenchmark benchmark) {
      session = Session.onStreamOf(benchmark.shared, AttentionShape.of(1, 4, 256, 64));
    }

    /** Frees everything but the backend. */
    @TearDown
    public void tearDown() {
      session.close();
    }

    Session session() {
      return session;
    }
  }

  /** One caller. */
  @Benchmark
  @Threads(1)
  @OperationsPerInvocation(CALLS)
  public void one(Caller caller) {
    run(caller);
  }

  /** Two callers at once. */
  @Benchmark
  @Threads(2)
  @OperationsPerInvocation(CALLS)
  public void two(Caller caller) {
    run(caller);
  }

  /** Four callers at once. */
  @Benchmark
  @Threads(4)
  @OperationsPerInvocation(CALLS)
  public void four(Caller caller) {
    run(caller);
  }

  /** Eight callers at once. */
  @Benchmark
  @Threads(8)
  @OperationsPerInvocation(CALLS)
  public void eight(Caller caller) {
    run(caller);
  }

  private static void run(Caller caller) {
    for (int i = 0; i < CALLS; i++) {
      caller.session.forward();
    }
    caller.session.synchronize();
  }

  /** Closes the backend. */
  @TearDown
  public void tearDown() {
    shared.close();
  }
}
