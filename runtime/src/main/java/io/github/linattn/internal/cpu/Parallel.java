package io.github.linattn.internal.cpu;

import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.LinkedTransferQueue;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.jspecify.annotations.Nullable;

/**
 * Shares numbered tasks between the caller and daemon threads, a fixed number of threads in all.
 * May be used from many threads: a caller waits for helpers that have begun its tasks, not for
 * those that are still with another's.
 */
final class Parallel implements AutoCloseable {
  /** One of a call's numbered tasks. */
  interface Task {
    /**
     * @param scratch for the matrices of this task alone
     */
    void run(int index, Scratch scratch);
  }

  /** A thread that waits sleeps after so long, as waking it takes tens of microseconds. */
  private static final long SPIN_NANOS = 100_000;

  private final int threads;
  private final ExecutorService helpers;

  /** Of threads that run no task now. */
  private final Queue<Scratch> scratches = new ConcurrentLinkedQueue<>();

  Parallel(int threads) {
    if (threads < 1) {
      throw new IllegalArgumentException("the CPU needs at least 1 thread, got " + threads);
    }
    this.threads = threads;
    ThreadFactory factory = Thread.ofPlatform().name("linattn-cpu-", 0).daemon().factory();
    int count = Math.max(1, threads - 1);
    this.helpers =
        new ThreadPoolExecutor(count, count, 0, TimeUnit.SECONDS, new WatchedQueue(), factory);
  }

  int threads() {
    return threads;
  }

  /** Runs {@code task} for 0 to {@code count - 1} and returns when all are done. */
  void forEach(int count, Task task) {
    Job job = new Job(count, task);
    for (int i = 1; i < Math.min(threads, count); i++) {
      helpers.execute(job::help);
    }
    job.finish();
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

  /** The tasks of one call. */
  private final class Job {
    private final int count;
    private final Task task;
    private final AtomicInteger next = new AtomicInteger();
    private final AtomicInteger helping = new AtomicInteger();
    private boolean over;
    private @Nullable Throwable failure;

    Job(int count, Task task) {
      this.count = count;
      this.task = task;
    }

    private void drain() {
      @Nullable Scratch free = scratches.poll();
      Scratch scratch = free == null ? new Scratch() : free;
      for (int i = next.getAndIncrement(); i < count; i = next.getAndIncrement()) {
        scratch.clear();
        task.run(i, scratch);
      }
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

    /** The caller's part; it waits even when that fails, because helpers still write results. */
    void finish() {
      try {
        drain();
      } finally {
        awaitHelpers();
      }
      if (failure != null) {
        throw new IllegalStateException("a CPU worker failed", failure);
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
