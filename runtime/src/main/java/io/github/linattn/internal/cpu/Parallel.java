package io.github.linattn.internal.cpu;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ThreadFactory;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.IntConsumer;

/** A fixed number of daemon threads that share numbered tasks. May be used from many threads. */
final class Parallel implements AutoCloseable {
  private final int threads;
  private final ExecutorService workers;

  Parallel(int threads) {
    if (threads < 1) {
      throw new IllegalArgumentException("the CPU needs at least 1 thread, got " + threads);
    }
    this.threads = threads;
    ThreadFactory factory = Thread.ofPlatform().name("linattn-cpu-", 0).daemon().factory();
    this.workers = Executors.newFixedThreadPool(threads, factory);
  }

  int threads() {
    return threads;
  }

  /** Runs {@code task} for 0 to {@code count - 1} and returns when all are done. */
  void forEach(int count, IntConsumer task) {
    if (count == 1) {
      task.accept(0);
      return;
    }
    var next = new AtomicInteger();
    Runnable drain =
        () -> {
          for (int i = next.getAndIncrement(); i < count; i = next.getAndIncrement()) {
            task.accept(i);
          }
        };
    List<Future<?>> running = new ArrayList<>();
    for (int i = 0; i < Math.min(threads, count); i++) {
      running.add(workers.submit(drain));
    }
    awaitAll(running);
  }

  /** Waits for every worker even when one failed, because the others still write results. */
  private static void awaitAll(List<Future<?>> running) {
    RuntimeException failure = null;
    boolean interrupted = false;
    for (Future<?> future : running) {
      while (true) {
        try {
          future.get();
          break;
        } catch (InterruptedException e) {
          interrupted = true;
        } catch (ExecutionException e) {
          if (failure == null) {
            failure = new IllegalStateException("a CPU worker failed", e.getCause());
          }
          break;
        }
      }
    }
    if (interrupted) {
      Thread.currentThread().interrupt();
    }
    if (failure != null) {
      throw failure;
    }
  }

  @Override
  public void close() {
    workers.shutdown();
  }
}
