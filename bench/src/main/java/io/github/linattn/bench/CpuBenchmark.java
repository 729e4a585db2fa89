package io.github.linattn.bench;

import io.github.linattn.AttentionShape;
import io.github.linattn.Backend;
import io.github.linattn.Tensor;
import java.util.concurrent.TimeUnit;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.BenchmarkMode;
import org.openjdk.jmh.annotations.Fork;
import org.openjdk.jmh.annotations.Measurement;
import org.openjdk.jmh.annotations.Mode;
import org.openjdk.jmh.annotations.OutputTimeUnit;
import org.openjdk.jmh.annotations.Param;
import org.openjdk.jmh.annotations.Scope;
import org.openjdk.jmh.annotations.Setup;
import org.openjdk.jmh.annotations.State;
import org.openjdk.jmh.annotations.TearDown;
import org.openjdk.jmh.annotations.Warmup;

/**
 * Forward and backward, in calls and in GFLOP per second; the rate of {@link GemmBenchmark} is what
 * the machine can do. With few heads for each thread some of the threads wait for others.
 */
@State(Scope.Benchmark)
@Fork(1)
@Warmup(iterations = 3, time = 2)
@Measurement(iterations = 5, time = 2)
@BenchmarkMode(Mode.Throughput)
@OutputTimeUnit(TimeUnit.SECONDS)
@SuppressWarnings("NullAway.Init") // JMH calls setUp first
public class CpuBenchmark {
  /** H, of one sequence. */
  @Param("4")
  public int heads;

  /** D. */
  @Param({"64", "128"})
  public int headDim;

  /** N: one ragged, one a multiple of the chunk. */
  @Param({"1000", "4096"})
  public int tokens;

  /** Threads of a call; 0 for one per processor. */
  @Param("0")
  public int threads;

  private Session session;

  /** Makes operands and a first forward, which the backward reads. */
  @Setup
  public void setUp() {
    Backend backend = threads == 0 ? Backend.cpu() : Backend.cpu(threads);
    session = Session.of(backend, AttentionShape.of(1, heads, tokens, headDim));
    session.forward();
  }

  /** One forward. */
  @Benchmark
  public Tensor forward(Flops flops) {
    session.forward();
    flops.addForward(session.shape());
    return session.output();
  }

  /** One backward. */
  @Benchmark
  public Tensor backward(Flops flops) {
    session.backward();
    flops.addBackward(session.shape());
    return session.gradients().dq();
  }

  /** Frees everything. */
  @TearDown
  public void tearDown() {
    session.close();
  }

  Session session() {
    return session;
  }
}
