package io.github.linattn.cli;

import java.io.PrintStream;
import java.time.Duration;
import java.util.Locale;
import me.tongfei.progressbar.ConsoleProgressBarConsumer;
import me.tongfei.progressbar.ProgressBar;
import me.tongfei.progressbar.ProgressBarBuilder;
import me.tongfei.progressbar.ProgressBarStyle;
import org.jspecify.annotations.Nullable;

/** Shows how far the work is: a bar on a terminal, else a line every few seconds. */
final class Progress implements AutoCloseable {
  /** Set by the launcher, which can ask whether stderr is a terminal. */
  private static final String TERMINAL = "linattn.terminal";

  private static final int WIDTH = 78;
  private static final long LINE_NANOS = Duration.ofSeconds(3).toNanos();

  private final PrintStream err;
  private final String task;
  private final @Nullable ProgressBar bar;
  private int total;
  private int done;
  private final long start = System.nanoTime();
  private long lastLine = start;

  Progress(PrintStream err, String task) {
    this.err = err;
    this.task = task;
    this.bar = Boolean.getBoolean(TERMINAL) ? bar(err, task) : null;
  }

  private static ProgressBar bar(PrintStream err, String task) {
    boolean plain = System.getenv("NO_COLOR") != null;
    return new ProgressBarBuilder()
        .setTaskName(task)
        .setStyle(plain ? ProgressBarStyle.ASCII : ProgressBarStyle.COLORFUL_UNICODE_BLOCK)
        .setConsumer(new ConsoleProgressBarConsumer(err, WIDTH))
        .clearDisplayOnFinish()
        .setUpdateIntervalMillis(200)
        .build();
  }

  /** How many parts the work has, as far as is known now. */
  void expect(int parts) {
    total = parts;
    if (bar != null) {
      bar.maxHint(parts);
    }
  }

  /** One part of the work is done, {@code what}. */
  void step(String what) {
    done++;
    if (bar != null) {
      bar.setExtraMessage(" after " + what);
      bar.step();
    } else if (System.nanoTime() - lastLine > LINE_NANOS) {
      err.printf(Locale.ROOT, "%s: %d of %d, %s left, after %s%n", task, done, total, left(), what);
      lastLine = System.nanoTime();
    }
  }

  /** The time left if the rest goes as it went so far. */
  private String left() {
    long seconds = (System.nanoTime() - start) / 1_000_000_000 * (total - done) / done;
    return String.format(Locale.ROOT, "%d:%02d", seconds / 60, seconds % 60);
  }

  @Override
  public void close() {
    if (bar != null) {
      bar.close();
    }
  }
}
