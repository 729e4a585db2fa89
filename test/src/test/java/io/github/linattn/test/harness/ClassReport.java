package io.github.linattn.test.harness;

import java.io.PrintStream;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.Optional;
import org.junit.platform.engine.TestExecutionResult;
import org.junit.platform.engine.UniqueId;
import org.junit.platform.engine.support.descriptor.ClassSource;
import org.junit.platform.launcher.TestExecutionListener;
import org.junit.platform.launcher.TestIdentifier;

/**
 * Says how each class of the suite went as soon as it has ended, and each failure at once: the
 * console's own report comes after the last test, and never of a run that is stopped. It speaks in
 * an image alone, where the property {@code linattn.home} is set; Surefire reports by itself.
 */
public final class ClassReport implements TestExecutionListener {
  private final PrintStream out;
  private final boolean speaks;
  private final Map<UniqueId, Tally> tallies = new HashMap<>();

  /** For the launcher, which finds it as a service. */
  public ClassReport() {
    this(System.out, System.getProperty("linattn.home") != null);
  }

  /** One that writes to {@code out}, or nothing at all. */
  ClassReport(PrintStream out, boolean speaks) {
    this.out = out;
    this.speaks = speaks;
  }

  @Override
  public void executionStarted(TestIdentifier id) {
    if (isClass(id)) {
      tallies.put(id.getUniqueIdObject(), new Tally(System.nanoTime()));
    }
  }

  @Override
  public void executionSkipped(TestIdentifier id, String reason) {
    if (id.isTest()) {
      tallyOf(id).ifPresent(tally -> tally.leftOut++);
    } else if (isClass(id)) {
      say("%s: left out, %s", id.getDisplayName(), reason);
    }
  }

  @Override
  public void executionFinished(TestIdentifier id, TestExecutionResult result) {
    switch (result.getStatus()) {
      case SUCCESSFUL -> {
        if (id.isTest()) {
          tallyOf(id).ifPresent(tally -> tally.passed++);
        }
      }
      case ABORTED -> tallyOf(id).ifPresent(tally -> tally.leftOut++);
      case FAILED -> {
        tallyOf(id).ifPresent(tally -> tally.failed++);
        say(
            "failed: %s: %s",
            id.getDisplayName(), result.getThrowable().map(String::valueOf).orElse(""));
      }
    }
    Tally tally = tallies.remove(id.getUniqueIdObject());
    if (tally != null) {
      say(
          "%s: %d passed, %d failed, %d left out, %.1f s",
          id.getDisplayName(),
          tally.passed,
          tally.failed,
          tally.leftOut,
          (System.nanoTime() - tally.started) * 1e-9);
    }
  }

  private static boolean isClass(TestIdentifier id) {
    return id.getSource().filter(ClassSource.class::isInstance).isPresent();
  }

  /** Of the class that a test, a method or the class itself belongs to. */
  private Optional<Tally> tallyOf(TestIdentifier id) {
    UniqueId at = id.getUniqueIdObject();
    for (; at.getSegments().size() > 1; at = at.removeLastSegment()) {
      Tally tally = tallies.get(at);
      if (tally != null) {
        return Optional.of(tally);
      }
    }
    return Optional.empty();
  }

  private void say(String format, Object... arguments) {
    if (speaks) {
      out.println(String.format(Locale.ROOT, format, arguments));
    }
  }

  private static final class Tally {
    final long started;
    int passed;
    int failed;
    int leftOut;

    Tally(long started) {
      this.started = started;
    }
  }
}
