package io.github.linattn;

import java.util.ArrayList;
import java.util.List;
import org.jspecify.annotations.Nullable;

/** Results under construction: all of them are closed if one can't be made. */
final class TensorGroup {
  private final List<AutoCloseable> members = new ArrayList<>();

  <T extends AutoCloseable> T add(T member) {
    members.add(member);
    return member;
  }

  /**
   * Closes all of them, also when one fails.
   *
   * @throws RuntimeException or {@link Error}: the first failure; the others are suppressed in it
   */
  static void closeAll(AutoCloseable... members) {
    @Nullable Throwable failure = null;
    for (AutoCloseable member : members) {
      try {
        member.close();
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

  /** Closes every member; what goes wrong is added to {@code failure}. */
  void closeAfter(Throwable failure) {
    for (AutoCloseable member : members.reversed()) {
      try {
        member.close();
      } catch (Throwable t) {
        failure.addSuppressed(t);
      }
    }
  }
}
