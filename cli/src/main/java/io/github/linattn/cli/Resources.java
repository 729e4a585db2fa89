package io.github.linattn.cli;

import java.util.ArrayDeque;
import java.util.Deque;
import org.jspecify.annotations.Nullable;

/** Closes what was added to it, last first. */
final class Resources implements AutoCloseable {
  private final Deque<AutoCloseable> members = new ArrayDeque<>();

  <T extends AutoCloseable> T add(T member) {
    members.push(member);
    return member;
  }

  /**
   * Closes all of them, also when one fails.
   *
   * @throws RuntimeException the first failure; the others are suppressed in it
   */
  @Override
  public void close() {
    @Nullable RuntimeException failure = null;
    while (!members.isEmpty()) {
      try {
        members.pop().close();
      } catch (Exception e) {
        if (failure == null) {
          failure = e instanceof RuntimeException known ? known : new IllegalStateException(e);
        } else {
          failure.addSuppressed(e);
        }
      }
    }
    if (failure != null) {
      throw failure;
    }
  }
}
