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
   * @throws RuntimeException or {@link Error}: the first failure; the others are suppressed in it
   */
  @Override
  public void close() {
    @Nullable Throwable failure = null;
    while (!members.isEmpty()) {
      try {
        members.pop().close();
      } catch (Throwable t) {
        if (failure == null) {
          failure = t;
        } else {
          failure.addSuppressed(t);
        }
      }
    }
    switch (failure) {
      case null -> {}
      case RuntimeException e -> throw e;
      case Error e -> throw e;
      default -> throw new IllegalStateException(failure);
    }
  }
}
