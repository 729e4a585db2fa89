package io.github.linattn.internal.cpu;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.PriorityQueue;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.LinkedTransferQueue;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.jspecify.annotations.Nullable;

/**
 * Shares work between the caller and daemon threads, a fixed number of threads in all. May be used
 * from many threads: a caller waits for helpers that have begun its tasks, not for those that are
 * still with another's.
 */
final class Parallel implements AutoCloseable {
  /** One of a call's numbered tasks. */
  interface Task {
    /**
     * @param scratch for the matrices of this task alone
     */
    void run(int index, Scratch scratch);
  }

  /** Work in steps, one after the other, of which each may find itself on another thread. */
  interface Course {
    /** What is left to do, in a measure that all courses of a call share; 0 if nothing is. */
    long left();

    /**
     * @param scratch for the matrices of this step alone
     */
    void step(Scratch scratch);
  }

  /** A thread that waits sleeps after so long, as waking it takes tens of microseconds. */
  private static final long SPIN_NANOS = 100_000;

  private final int threads;
  private final ThreadPoolExecutor helpers;

  /** Of threads that run no task now. */
  private final Queue<Scratch> scratches = new ConcurrentLinkedQueue<>();

  Parallel(int threads) {
    this(threads, newHelpers(threads));
  }

  /**
   * @param helpers {@code threads - 1} threads
   */
  Parallel(int threads, ThreadPoolExecutor helpers) {
    this.threads = threads;
    this.helpers = helpers;
  }

  private static ThreadPoolExecutor newHelpers(int threads) {
    if (threads < 1) {
      throw new IllegalArgumentException("the CPU needs at least 1 thread, got " + threads);
    }
    ThreadFactory factory = Thread.ofPlatform().name("linattn-cpu-", 0).daemon().factory();
    int count = Math.max(1, threads - 1);
    return new ThreadPoolExecutor(count, count, 0, TimeUnit.SECONDS, new WatchedQueue(), factory);
  }

  int threads() {
    return threads;
  }

  /** Runs {@code task} for 0 to {@code count - 1} and returns when all are done. */
  void forEach(int count, Task task) {
    run(new Tasks(count, task), count);
  }

  /**
   * Runs all courses to their ends, the longest first and whole, but so that the last ones end
   * together: these take turns, up to two for each thread, and whichever has most left goes on.
   */
  void finish(List<? extends Course> courses) {
    run(new Courses(courses), courses.size());
  }

  /** The most of {@code count} courses that are begun and not at their ends at any time. */
  long mostUnderWay(long count) {
    return threads == 1 ? Math.min(count, 1) : Math.min(count, 3L * threads);
  }

  private void run(Job job, int count) {
    job.run(Math.min(threads, count) - 1);
  }

  /**
   * Whether there is a thread for it: those that there are do without one that can't be started.
   */
  private boolean call(Runnable helper) {
    try {
      helpers.execute(helper);
      return true;
    } catch (RejectedExecutionException e) {
      throw new IllegalStateException("the backend cpu was closed while a call began", e);
    } catch (OutOfMemoryError noThread) {
      return false;
    }
  }

  /** Takes back those that no thread has begun, with all that the call holds. */
  private void callOff(Runnable helper) {
    boolean waited = true;
    while (waited) {
      waited = helpers.remove(helper);
    }
  }

  @Override
  public void close() {
    helpers.shutdown();
  }

  /** Helpers watch it for a while before they sleep, so that calls in a row find them awake. */
  private static final class WatchedQueue extends LinkedTransferQueue<Runnable> {
    private static final long serialVersionUID = 1;

    @Override
    public Runnable take() throws InterruptedException {
      long end = System.nanoTime() + SPIN_NANOS;
      while (System.nanoTime() < end) {
        @Nullable Runnable next = poll();
        if (next != null) {
          return next;
        }
        Thread.onSpinWait();
      }
      return super.take();
    }
  }

  private final class Tasks extends Job {
    private final int count;
    private final Task task;
    private final AtomicInteger next = new AtomicInteger();

    Tasks(int count, Task task) {
      this.count = count;
      this.task = task;
    }

    @Override
    void work(Scratch scratch) {
      for (int i = next.getAndIncrement(); i < count; i = next.getAndIncrement()) {
        scratch.clear();
        task.run(i, scratch);
      }
    }
  }

  private final class Courses extends Job {
    private static final Comparator<Course> MOST_LEFT =
        Comparator.comparingLong(Course::left).reversed();

    private final Queue<Course> whole;

    /** Those that take turns and are with no thread now. */
    private final Queue<Course> waiting = new PriorityQueue<>(MOST_LEFT);

    Courses(List<? extends Course> courses) {
      List<Course> longestFirst = new ArrayList<>(courses);
      longestFirst.sort(MOST_LEFT);
      int all = courses.size();
      boolean alone = threads == 1 || all <= threads; // nothing to even out
      int inTurns = alone ? 0 : threads + 1 + (all - 1) % threads;
      whole = new ArrayDeque<>(longestFirst.subList(0, all - inTurns));
      waiting.addAll(longestFirst.subList(all - inTurns, all));
    }

    @Override
    void work(Scratch scratch) {
      @Nullable Course mine = next(null);
      while (mine != null) {
        scratch.clear();
        mine.step(scratch);
        mine = next(mine);
      }
    }

    /** What a thread goes on with that has just done a step of {@code mine}. */
    private synchronized @Nullable Course next(@Nullable Course mine) {
      if (mine != null && mine.left() > 0) {
        @Nullable Course behind = whole.isEmpty() ? waiting.peek() : null;
        if (behind == null || behind.left() <= mine.left()) {
          return mine;
        }
        waiting.add(mine);
      }
      return whole.isEmpty() ? waiting.poll() : whole.poll();
    }
  }

  /** The work of one call. */
  private abstract class Job {
    private final AtomicInteger helping = new AtomicInteger();
    private boolean over;
    private @Nullable Throwable failure;

    /** Until nothing is left that a thread could begin; on several threads at once. */
    abstract void work(Scratch scratch);

    private void drain() {
      @Nullable Scratch free = scratches.poll();
      Scratch scratch = free == null ? new Scratch() : free;
      work(scratch);
      scratches.add(scratch);
    }

    /** On another thread than the caller's; nothing once that has all it waits for. */
    void help() {
      synchronized (this) {
        if (over) {
          return;
        }
        helping.incrementAndGet();
      }
      Throwable thrown = null;
      try {
        drain();
      } catch (Throwable t) {
        thrown = t;
      }
      synchronized (this) {
        failure = failure == null ? thrown : failure;
        helping.decrementAndGet();
        notifyAll();
      }
    }

    /**
     * Calls helpers and does the caller's part; it waits even when one of these fails, because
     * helpers still write results.
     */
    void run(int helpers) {
      Runnable helper = this::help;
      try {
        boolean calls = true;
        for (int i = 0; calls && i < helpers; i++) {
          calls = call(helper);
        }
        drain();
      } finally {
        awaitHelpers();
        callOff(helper);
      }
      if (failure instanceof Error error) {
        throw error;
      }
      if (failure != null) {
        throw new IllegalStateException(
            "a thread of the cpu backend failed: " + failure.getMessage(), failure);
      }
    }

    private void awaitHelpers() {
      synchronized (this) {
        over = true;
      }
      long end = System.nanoTime() + SPIN_NANOS;
      while (helping.get() > 0 && System.nanoTime() < end) {
        Thread.onSpinWait();
      }
      sleepUntilDone();
    }

    private synchronized void sleepUntilDone() {
      boolean interrupted = false;
      while (helping.get() > 0) {
        try {
          wait();
        } catch (InterruptedException e) {
          interrupted = true;
        }
      }
      if (interrupted) {
        Thread.currentThread().interrupt();
      }
    }
  }
}
