package io.github.linattn.bench;

import static java.lang.foreign.ValueLayout.JAVA_FLOAT;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.assertj.core.api.Assertions.catchThrowableOfType;
import static org.assertj.core.api.Assertions.within;
import static org.assertj.core.api.Assumptions.assumeThat;

import io.github.linattn.AttentionShape;
import io.github.linattn.DType;
import io.github.linattn.Diagnostics;
import io.github.linattn.Mode;
import io.github.linattn.NoGpuException;
import io.github.linattn.Sequences;
import io.github.linattn.bench.InputBenchmark.Source;
import io.github.linattn.reference.ErrorBudget;
import io.github.linattn.reference.Reference;
import java.lang.foreign.MemorySegment;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import org.assertj.core.api.ThrowableAssert.ThrowingCallable;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.openjdk.jmh.results.Result;

/** A benchmark that computes something wrong would still give a figure. */
class BenchmarkBodiesTest {
  private final Flops flops = new Flops();

  @AfterEach
  void clear() {
    System.clearProperty("linattn.blas");
  }

  @Test
  void cpuBodiesComputeTheOperator() {
    CpuBenchmark benchmark = new CpuBenchmark();
    benchmark.heads = 4;
    benchmark.headDim = 64;
    benchmark.tokens = 1000;
    benchmark.setUp();
    try {
      float[] o = benchmark.forward(flops).toFloats();
      assertThat(flops.gflop).as("4 heads, 4 D² a token").isEqualTo(4e-9 * 4 * 1000 * 64 * 64);
      float[] dq = benchmark.backward(flops).toFloats();
      assertThat(flops.gflop).isCloseTo(14e-9 * 4 * 1000 * 64 * 64, within(1e-12));
      Reference.Result expected = expected(benchmark.session());
      double bound = ErrorBudget.of(DType.F32, Mode.DEFAULT);
      assertThat(Reference.error(expected.o(), o)).isLessThan(bound);
      assertThat(Reference.error(expected.dq(), dq)).isLessThan(bound);
    } finally {
      benchmark.tearDown();
    }
  }

  @Test
  void gemmComputesTheProduct() {
    assumeFound(Blas::load);
    GemmBenchmark benchmark = new GemmBenchmark();
    benchmark.extent = 33;
    benchmark.setUp();
    try {
      MemorySegment c = benchmark.sgemm(flops);
      assertThat(flops.gflop).isEqualTo(2e-9 * 33 * 33 * 33);
      double sum = 0;
      for (int p = 0; p < 33; p++) {
        sum += (double) at(benchmark.left(), 5, p) * at(benchmark.right(), p, 7);
      }
      assertThat((double) at(c, 5, 7)).isCloseTo(sum, within(1e-4));
    } finally {
      benchmark.tearDown();
    }
  }

  /** Leaves the rest of a test out where the machine lacks what it needs, with the reason. */
  private static void assumeFound(ThrowingCallable finder) {
    assumeThat(catchThrowableOfType(IllegalStateException.class, finder)).isNull();
  }

  private static float at(MemorySegment matrix, int row, int column) {
    return matrix.getAtIndex(JAVA_FLOAT, row * 33 + column);
  }

  @Test
  void aMachineWithoutBlasIsToldWhatWasTried() {
    System.setProperty("linattn.blas", "/nowhere/libblas.so");
    assertThatThrownBy(() -> new GemmBenchmark().setUp())
        .isInstanceOf(IllegalStateException.class)
        .hasMessageContaining("/nowhere/libblas.so")
        .hasMessageContaining("linattn.blas");
  }

  @Test
  void emptyCallsReachTheFunction() throws Throwable {
    assertThat(new DowncallBenchmark().emptyCall()).isEqualTo(1);
    DowncallBenchmark.Jni jni = new DowncallBenchmark.Jni();
    assumeFound(jni::setUp);
    assertThat(new DowncallBenchmark().emptyCallByJni(jni)).isEqualTo(1);
  }

  @Test
  void everySourceOfTheCpuGivesTheSameOutput() throws Exception {
    List<float[]> outputs = new ArrayList<>();
    for (Source source : Source.values()) {
      if (source.name().startsWith("CPU")) {
        InputBenchmark benchmark = benchmark(source);
        benchmark.setUp();
        try {
          outputs.add(benchmark.forward().toFloats());
        } finally {
          benchmark.tearDown();
        }
      }
    }
    assertThat(outputs).hasSize(3).allSatisfy(o -> assertThat(o).isEqualTo(outputs.getFirst()));
    assertThat(outputs.getFirst()).hasSize(4 * 100 * 64).doesNotContain(0, Float.NaN);
  }

  @Test
  void withoutAGpuItsSourcesAreRefusedWithTheReason() {
    assumeThat(Diagnostics.cuda()).as("the CUDA Runtime").isEmpty();
    assertThatThrownBy(benchmark(Source.GPU_PINNED_IN_PLACE)::setUp)
        .isInstanceOf(NoGpuException.class)
        .message()
        .isNotBlank();
  }

  private static InputBenchmark benchmark(Source source) {
    InputBenchmark benchmark = new InputBenchmark();
    benchmark.source = source;
    benchmark.tokens = 100;
    return benchmark;
  }

  @Test
  void callersOfOneBackendComputeTheOperator() {
    ThroughputBenchmark benchmark = new ThroughputBenchmark();
    benchmark.backend = "cpu";
    benchmark.setUp();
    ThroughputBenchmark.Caller first = new ThroughputBenchmark.Caller();
    ThroughputBenchmark.Caller second = new ThroughputBenchmark.Caller();
    first.setUp(benchmark);
    second.setUp(benchmark);
    benchmark.one(first);
    first.tearDown();
    benchmark.eight(second);
    double[] expected = expected(second.session()).o();
    float[] o = second.session().output().toFloats();
    assertThat(Reference.error(expected, o)).isLessThan(ErrorBudget.of(DType.F32, Mode.DEFAULT));
    second.tearDown();
    benchmark.tearDown();
  }

  @Test
  @SuppressWarnings("NullAway") // the profiler asks JMH for nothing
  void deviceTimeIsTheMeanOfTheCallsOfAnIteration() {
    DeviceTime profiler = new DeviceTime();
    DeviceTime.add(1000, 1);
    profiler.beforeIteration(null, null);
    DeviceTime.add(1.5, 100);
    DeviceTime.add(0.5, 100);
    Collection<? extends Result> results = profiler.afterIteration(null, null, null);
    assertThat(results)
        .singleElement()
        .satisfies(
            device -> {
              assertThat(device.getScore()).isEqualTo(10);
              assertThat(device.getScoreUnit()).isEqualTo("us/op");
            });
    profiler.beforeIteration(null, null);
    assertThat(profiler.afterIteration(null, null, null)).as("without events").isEmpty();
  }

  private static Reference.Result expected(Session session) {
    AttentionShape shape = session.shape();
    return Reference.of(
        new Reference.Problem(
            shape,
            Sequences.ofLengths(shape.tokens()),
            new float[] {1},
            new float[] {1},
            true,
            true,
            session.input().q().toFloats(),
            session.input().k().toFloats(),
            session.input().v().toFloats(),
            session.outputGradient().toFloats(),
            null));
  }
}
