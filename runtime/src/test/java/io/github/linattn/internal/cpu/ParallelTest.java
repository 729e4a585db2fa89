package io.github.linattn.internal.cpu;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.BrokenBarrierException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
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
  void aClosedBackendIsToldWhenHelpersThatBeganAreDone() {
    AtomicInteger under = new AtomicInteger();
    CountDownLatch begun = new CountDownLatch(1);
    try (Parallel parallel = new Parallel(3, closedAtTheSecondCall(begun))) {
      assertThatThrownBy(
              () ->
                  parallel.forEach(
                      3,
                      (i, scratch) -> {
                        under.incrementAndGet();
                        begun.countDown();
                        sleep(50);
                        under.decrementAndGet();
                      }))
          .isInstanceOf(IllegalStateException.class)
          .hasMessageContaining("closed");
      assertThat(under).hasValue(0);
    }
  }

  /** Takes one helper, and is closed once that has begun a task. */
  private static ThreadPoolExecutor closedAtTheSecondCall(CountDownLatch begun) {
    return new ThreadPoolExecutor(2, 2, 0, TimeUnit.SECONDS, new LinkedBlockingQueue<>()) {
      private boolean called;

      @Override
      public void execute(Runnable helper) {
        if (called) {
          await(begun);
          shutdown();
        }
        called = true;
        super.execute(helper);
      }
    };
  }

  @Test
  void nothingOfACallThatIsOverWaitsForAHelper() throws InterruptedException {
    CountDownLatch begun = new CountDownLatch(2);
    CountDownLatch end = new CountDownLatch(1);
    var helpers = new ThreadPoolExecutor(1, 1, 0, TimeUnit.SECONDS, new LinkedBlockingQueue<>());
    try (Parallel parallel = new Parallel(2, helpers)) {
      Thread other =
          Thread.ofPlatform()
              .start(
                  () ->
                      parallel.forEach(
                          2,
                          (i, scratch) -> {
                            begun.countDown();
                            await(end);
                          }));
      await(begun);
      AtomicInteger runs = new AtomicInteger();
      for (int call = 0; call < 10; call++) {
        parallel.forEach(TASKS, (i, scratch) -> runs.incrementAndGet());
        assertThat(helpers.getQueue()).isEmpty();
      }
      assertThat(runs).hasValue(10 * TASKS);
      end.countDown();
      other.join();
    }
  }

  @Test
  void aCallDoesWithoutAThreadThatCannotBeStarted() {
    var helpers =
        new ThreadPoolExecutor(2, 2, 0, TimeUnit.SECONDS, new LinkedBlockingQueue<>()) {
          @Override
          public void execute(Runnable helper) {
            throw new OutOfMemoryError("unable to create native thread");
          }
        };
    AtomicInteger runs = new AtomicInteger();
    try (Parallel parallel = new Parallel(3, helpers)) {
      parallel.forEach(TASKS, (i, scratch) -> runs.incrementAndGet());
    }
    assertThat(runs).hasValue(TASKS);
  }

  @Test
  void anErrorOfAHelperStaysAnError() {
    Thread caller = Thread.currentThread();
    OutOfMemoryError error = new OutOfMemoryError("on purpose");
    CountDownLatch both = new CountDownLatch(2);
    try (Parallel parallel = new Parallel(2)) {
      assertThatThrownBy(
              () ->
                  parallel.forEach(
                      2,
                      (i, scratch) -> {
                        both.countDown();
                        await(both);
                        if (Thread.currentThread() != caller) {
                          throw error;
                        }
                      }))
          .isSameAs(error);
    }
  }

  /** Both threads always find work: each step waits for another one's. */
  @ParameterizedTest
  @ValueSource(ints = {2, 3, 4, 5, 6, 7})
  void coursesEndTogether(int count) {
    int steps = 4;
    CyclicBarrier pair = new CyclicBarrier(2);
    List<Steps> courses = courses(count, steps, () -> await(pair));
    try (Parallel parallel = new Parallel(2)) {
      parallel.finish(courses);
    }
    assertThat(courses).allMatch(course -> course.left() == 0);
  }

  @ParameterizedTest
  @CsvSource({"1, 5", "3, 0", "3, 1", "3, 2", "3, 3", "3, 4", "3, 6", "3, 7", "3, 100"})
  void aCourseIsOneThreadsAtATimeAndFewAreUnderWay(int threads, int count) {
    AtomicInteger underWay = new AtomicInteger();
    AtomicInteger most = new AtomicInteger();
    List<Steps> courses = courses(count, 10, () -> {});
    for (Steps course : courses) {
      course.onBegin = () -> most.accumulateAndGet(underWay.incrementAndGet(), Math::max);
      course.onEnd = underWay::decrementAndGet;
    }
    try (Parallel parallel = new Parallel(threads)) {
      parallel.finish(courses);
      assertThat(most.get()).isLessThanOrEqualTo((int) parallel.mostUnderWay(count));
    }
    assertThat(courses).allMatch(course -> course.left() == 0);
  }

  /** The longest is half of all there is to do, so it must not wait. */
  @Test
  void theCourseWithMostLeftGoesOn() {
    CyclicBarrier pair = new CyclicBarrier(2);
    List<Steps> courses = new ArrayList<>(courses(4, 2, () -> await(pair)));
    courses.add(new Steps(8, () -> await(pair)));
    try (Parallel parallel = new Parallel(2)) {
      parallel.finish(courses);
    }
    assertThat(courses).allMatch(course -> course.left() == 0);
  }

  @Test
  void aCourseThatFailsIsTold() {
    try (Parallel parallel = new Parallel(2)) {
      List<Steps> courses =
          courses(
              3,
              2,
              () -> {
                throw new IllegalArgumentException("on purpose");
              });
      assertThatThrownBy(() -> parallel.finish(courses))
          .satisfiesAnyOf(
              thrown -> assertThat(thrown).hasMessage("on purpose"),
              thrown -> assertThat(thrown).hasRootCauseMessage("on purpose"));
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

  private static List<Steps> courses(int count, int steps, Runnable step) {
    return Stream.generate(() -> new Steps(steps, step)).limit(count).toList();
  }

  /** So many steps, each of which does the same. */
  private static final class Steps implements Parallel.Course {
    private final Runnable step;
    private final int all;
    private final AtomicBoolean running = new AtomicBoolean();
    private int left;
    private Runnable onBegin = () -> {};
    private Runnable onEnd = () -> {};

    Steps(int steps, Runnable step) {
      this.step = step;
      this.all = steps;
      this.left = steps;
    }

    @Override
    public long left() {
      return left;
    }

    @Override
    public void step(Scratch scratch) {
      assertThat(running.getAndSet(true)).isFalse();
      if (left == all) {
        onBegin.run();
      }
      step.run();
      if (left == 1) {
        onEnd.run();
      }
      left--;
      assertThat(running.getAndSet(false)).isTrue();
    }
  }

  private static void await(CyclicBarrier barrier) {
    try {
      barrier.await(20, TimeUnit.SECONDS);
    } catch (InterruptedException | BrokenBarrierException | TimeoutException e) {
      throw new AssertionError(e);
    }
  }

  private static void sleep(long millis) {
    try {
      Thread.sleep(millis);
    } catch (InterruptedException e) {
      throw new AssertionError(e);
    }
  }

  private static void await(CountDownLatch latch) {
    try {
      latch.await();
    } catch (InterruptedException e) {
      throw new AssertionError(e);
    }
  }
}
