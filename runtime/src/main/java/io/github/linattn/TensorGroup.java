package io.github.linattn;

import java.util.ArrayList;
import java.util.List;

/** Results under construction: all of them are closed if one can't be made. */
final class TensorGroup {
  private final List<AutoCloseable> members = new ArrayList<>();

  <T extends AutoCloseable> T add(T member) {
    members.add(member);
    return member;
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
