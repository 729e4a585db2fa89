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
   * @throws RuntimeException the first failure; the others are suppressed in it
   */
  static void closeAll(AutoCloseable... members) {
    @Nullable RuntimeException failure = null;
    for (AutoCloseable member : members) {
      try {
        member.close();
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

  /** Closes every member; what goes wrong is added to {@code failure}. */
  void closeAfter(Throwable failure) {
    for (AutoCloseable member : members.reversed()) {
      try {
        member.close();
      } catch (Exception e) {
        failure.addSuppressed(e);
      }
    }
  }
}
