package io.github.linattn.test.contract;

import static org.assertj.core.api.Assertions.assertThat;

import io.github.linattn.AttentionShape;
import io.github.linattn.Backend;
import io.github.linattn.DType;
import io.github.linattn.LinearAttention;
import io.github.linattn.Tensor;
import java.lang.foreign.ValueLayout;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.atomic.AtomicBoolean;
import org.junit.jupiter.api.RepeatedTest;
import org.junit.jupiter.api.Timeout;

/** Breaks when a tensor that is closed under a call ends it with a sentence that names none. */
@Timeout(60)
final class CpuClosingTest {
  private static final AttentionShape SHAPE = AttentionShape.of(1, 4, 50_000, 64);

  @RepeatedTest(12) // the JVM does not interrupt every thread that it tells of a closed arena
  void aCallWhoseTensorIsClosedUnderItNamesIt() {
    try (Backend cpu = Backend.cpu(2)) {
      Throwable failure = failureOfAttempt(cpu);
      while (failure instanceof IllegalArgumentException) { // closed between two calls
        failure = failureOfAttempt(cpu);
      }
      assertThat(failure)
          .isInstanceOf(IllegalStateException.class)
          .hasMessage("F32[1, 4, 50000, 64] was closed while the cpu backend computed with it")
          .hasCauseInstanceOf(IllegalStateException.class);
    }
  }

  /** Of calls in a row with a key that is closed once the first has begun to write. */
  private static Throwable failureOfAttempt(Backend cpu) {
    LinearAttention attention = LinearAttention.builder().on(cpu);
    AtomicBoolean interrupted = new AtomicBoolean(true);
    try (Tensor q = cpu.allocate(DType.F32, SHAPE.q());
        Tensor k = cpu.allocate(DType.F32, SHAPE.k());
        Tensor v = cpu.allocate(DType.F32, SHAPE.v());
        Tensor o = cpu.allocate(DType.F32, SHAPE.output());
        Tensor g = cpu.allocate(DType.F32, SHAPE.normalizer())) {
      CompletableFuture<Void> calls =
          CompletableFuture.runAsync(
              () -> {
                try {
                  while (true) {
                    attention.forwardInto(q, k, v, o, g);
                  }
                } finally {
                  interrupted.set(Thread.currentThread().isInterrupted());
                }
              });
      while (g.segment().get(ValueLayout.JAVA_FLOAT, 0) == 0 && !calls.isDone()) {
        Thread.onSpinWait();
      }
      k.close();
      Throwable failure = failureOf(calls);
      assertThat(interrupted).as("the caller is interrupted").isFalse();
      return failure;
    }
  }

  private static Throwable failureOf(CompletableFuture<Void> calls) {
    try {
      calls.join();
    } catch (CompletionException e) {
      return e.getCause();
    }
    throw new AssertionError("calls go on without their key");
  }
}
