package io.github.linattn.bench;

import static java.lang.foreign.ValueLayout.JAVA_FLOAT;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.util.Random;
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

/** Single-precision products by the machine's BLAS, beside which {@link CpuBenchmark} is read. */
@State(Scope.Benchmark)
@Fork(1)
@Warmup(iterations = 3, time = 2)
@Measurement(iterations = 5, time = 2)
@BenchmarkMode(Mode.Throughput)
@OutputTimeUnit(TimeUnit.SECONDS)
@SuppressWarnings("NullAway.Init") // JMH calls setUp first
public class GemmBenchmark {
  /** Rows and columns of each matrix. */
  @Param("2048")
  public int extent;

  private Blas blas;
  private Arena arena;
  private MemorySegment a;
  private MemorySegment b;
  private MemorySegment c;

  /** Makes the matrices; the exception of a machine without BLAS says what was tried. */
  @Setup
  public void setUp() {
    blas = Blas.load();
    arena = Arena.ofShared();
    Random random = new Random(20251);
    a = matrix(random);
    b = matrix(random);
    c = matrix(random);
  }

  private MemorySegment matrix(Random random) {
    MemorySegment matrix = arena.allocate(JAVA_FLOAT, (long) extent * extent);
    for (long i = 0; i < (long) extent * extent; i++) {
      matrix.setAtIndex(JAVA_FLOAT, i, (float) random.nextGaussian());
    }
    return matrix;
  }

  /** One product. */
  @Benchmark
  public MemorySegment sgemm(Flops flops) {
    blas.multiply(extent, a, b, c);
    flops.addProduct(extent);
    return c;
  }

  MemorySegment left() {
    return a;
  }

  MemorySegment right() {
    return b;
  }

  /** Frees everything. */
  @TearDown
  public void tearDown() {
    arena.close();
  }
}
