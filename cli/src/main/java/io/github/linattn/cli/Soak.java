package io.github.linattn.cli;

import io.github.linattn.Backend;
import io.github.linattn.MemoryKind;
import io.github.linattn.cli.Footprint.Kind;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.locks.ReentrantReadWriteLock;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;

/**
 * Mixed work by several threads for a long time, in rounds. Between rounds all is closed, and what
 * the process holds then must not grow.
 */
final class Soak {
  private static final int ROUNDS = 12;
  private static final int THREADS = 3;
  private static final double MIB = 1 << 20;

  private final BackendChoice choice;
  private final Console console;
  private final List<Footprint> course = new ArrayList<>();
  private long calls;
  private long refused;

  Soak(BackendChoice choice, Console console) {
    this.choice = choice;
    this.console = console;
  }

  /** Whether work was done and nothing grew. */
  boolean run(Duration duration) {
    console.result(
        "%5s  %9s  %12s  %12s  %12s", "round", "calls", "device MiB", "host MiB", "heap MiB");
    long nanos = duration.toNanos() / ROUNDS;
    for (int round = 0; round < ROUNDS; round++) {
      boolean device = runRound(round, nanos);
      Footprint now = Footprint.now(device);
      course.add(now);
      console.result(
          "%5d  %9d  %12.1f  %12.1f  %12.1f",
          round + 1, calls, now.device() / MIB, now.host() / MIB, now.heap() / MIB);
    }
    return verdict();
  }

  private boolean verdict() {
    String growth =
        Stream.of(Kind.values())
            .map(kind -> Text.format("%s %+.1f MiB", Text.id(kind), kind.growth(course) / MIB))
            .collect(Collectors.joining(", "));
    List<String> grown =
        Stream.of(Kind.values()).filter(kind -> kind.hasGrown(course)).map(Text::id).toList();
    console.result(
        "%d calls, %d refused by the backend; from the first half to the last quarter: %s",
        calls, refused, growth);
    if (!grown.isEmpty()) {
      console.note(
          "linattn: memory grows: "
              + String.join(", ", grown)
              + "; with LINATTN_JAVA_OPTIONS=-Dlinattn.leaks=report whoever stays open is named");
    }
    return grown.isEmpty() && calls > 0;
  }

  /** Returns whether the backend computes on a GPU. */
  private boolean runRound(int round, long nanos) {
    try (Backend backend = choice.open(console)) {
      long end = System.nanoTime() + nanos;
      var failures = new ConcurrentLinkedQueue<Throwable>();
      var capturing = new ReentrantReadWriteLock(true);
      List<SoakWork> works = new ArrayList<>();
      List<Thread> threads = new ArrayList<>();
      for (int i = 0; i < THREADS; i++) {
        var work = new SoakWork(backend, capturing, (long) THREADS * round + i);
        works.add(work);
        threads.add(
            Thread.ofPlatform()
                .name("soak-" + i)
                .uncaughtExceptionHandler((thread, thrown) -> failures.add(thrown))
                .start(() -> work.run(() -> failures.isEmpty() && System.nanoTime() < end)));
      }
      threads.forEach(Soak::join);
      rethrow(failures.peek());
      calls += works.stream().mapToLong(SoakWork::calls).sum();
      refused += works.stream().mapToLong(SoakWork::refused).sum();
      return backend.memoryKind() == MemoryKind.DEVICE;
    }
  }

  private static void join(Thread thread) {
    boolean interrupted = false;
    while (true) {
      try {
        thread.join(); // it uses the backend until then
        break;
      } catch (InterruptedException e) {
        interrupted = true;
      }
    }
    if (interrupted) {
      Thread.currentThread().interrupt();
    }
  }

  private static void rethrow(@Nullable Throwable failure) {
    switch (failure) {
      case null -> {}
      case RuntimeException unchecked -> throw unchecked;
      case Error error -> throw error;
      default -> throw new IllegalStateException(failure);
    }
  }
}
