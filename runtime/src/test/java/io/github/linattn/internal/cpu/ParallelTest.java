package io.github.linattn.internal.cpu;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicIntegerArray;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

@Timeout(60)
final class ParallelTest {
  private static final int TASKS = 100;

  @ParameterizedTest
  @ValueSource(ints = {1, 2, 5})
  void runsEveryTaskOnceWhetherHelpersWatchOrSleep(int threads) throws InterruptedException {
    try (Parallel parallel = new Parallel(threads)) {
      for (int call = 0; call < 50; call++) {
        if (call % 10 == 9) {
          Thread.sleep(5); // far longer than they watch
        }
        AtomicIntegerArray runs = new AtomicIntegerArray(TASKS);
        parallel.forEach(TASKS, (i, scratch) -> runs.incrementAndGet(i));
        for (int i = 0; i < TASKS; i++) {
          assertThat(runs.get(i)).as("call %d, task %d", call, i).isEqualTo(1);
        }
      }
    }
  }

  @Test
  void runsTasksSideBySide() {
    try (Parallel parallel = new Parallel(3)) {
      for (int call = 0; call < 20; call++) {
        assertThat(threadsOf(parallel)).hasSize(3).contains(Thread.currentThread());
      }
    }
  }

  @Test
  void aTaskMayHaveTasks() {
    AtomicInteger runs = new AtomicInteger();
    try (Parallel parallel = new Parallel(4)) {
      parallel.forEach(7, (i, outer) -> parallel.forEach(5, (j, inner) -> runs.incrementAndGet()));
    }
    assertThat(runs).hasValue(35);
  }

  @Test
  void aFailureIsToldWhenAllThreadsAreDone() {
    AtomicInteger under = new AtomicInteger();
    try (Parallel parallel = new Parallel(2)) {
      CountDownLatch both = new CountDownLatch(2);
      Thread caller = Thread.currentThread();
      assertThatThrownBy(
              () ->
                  parallel.forEach(
                      2,
                      (i, scratch) -> {
                        under.incrementAndGet();
                        both.countDown();
                        await(both);
                        under.decrementAndGet();
                        if (Thread.currentThread() != caller) {
                          throw new IllegalArgumentException("on purpose");
                        }
                      }))
          .isInstanceOf(IllegalStateException.class)
          .hasRootCauseMessage("on purpose");
      assertThat(under).hasValue(0);
    }
  }

  @Test
  void closeEndsTheHelpers() throws InterruptedException {
    Set<Thread> threads;
    try (Parallel parallel = new Parallel(3)) {
      threads = threadsOf(parallel);
    }
    threads.remove(Thread.currentThread());
    assertThat(threads).hasSize(2);
    for (Thread thread : threads) {
      assertThat(thread.isDaemon()).isTrue();
      thread.join();
    }
  }

  /** Those of its tasks, each of which waits for all others: for ever, were there fewer threads. */
  private static Set<Thread> threadsOf(Parallel parallel) {
    CountDownLatch all = new CountDownLatch(parallel.threads());
    Set<Thread> threads = ConcurrentHashMap.newKeySet();
    parallel.forEach(
        parallel.threads(),
        (i, scratch) -> {
          threads.add(Thread.currentThread());
          all.countDown();
          await(all);
        });
    return threads;
  }

  private static void await(CountDownLatch latch) {
    try {
      latch.await();
    } catch (InterruptedException e) {
      throw new AssertionError(e);
    }
  }
}
