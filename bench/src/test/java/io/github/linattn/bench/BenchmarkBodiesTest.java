package io.github.linattn.bench;

import static org.assertj.core.api.Assertions.assertThat;

import io.github.linattn.AttentionShape;
import io.github.linattn.DType;
import io.github.linattn.Mode;
import io.github.linattn.Sequences;
import io.github.linattn.reference.ErrorBudget;
import io.github.linattn.reference.Reference;
import org.junit.jupiter.api.Test;

/** A benchmark that computes something wrong would still give a figure. */
class BenchmarkBodiesTest {

  @Test
  void cpuBodiesComputeTheOperator() {
    CpuBenchmark benchmark = new CpuBenchmark();
    benchmark.headDim = 64;
    benchmark.tokens = 1000;
    benchmark.setUp();
    try {
      float[] o = benchmark.forward().toFloats();
      float[] dq = benchmark.backward().toFloats();
      Reference.Result expected = expected(benchmark.session());
      double bound = ErrorBudget.of(DType.F32, Mode.DEFAULT);
      assertThat(Reference.error(expected.o(), o)).isLessThan(bound);
      assertThat(Reference.error(expected.dq(), dq)).isLessThan(bound);
    } finally {
      benchmark.tearDown();
    }
  }

  @Test
  void emptyCallReachesTheFunction() throws Throwable {
    assertThat(new DowncallBenchmark().emptyCall()).isEqualTo(1);
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
