package io.github.linattn;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.catchThrowable;

import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;

/** Breaks when what fails to close keeps others open, or hides why. */
final class TensorGroupTest {
  private final List<Throwable> thrown = new ArrayList<>();

  private AutoCloseable failingWith(Exception exception) {
    return () -> {
      thrown.add(exception);
      throw exception;
    };
  }

  private AutoCloseable failingWith(Error error) {
    return () -> {
      thrown.add(error);
      throw error;
    };
  }

  @Test
  void anErrorKeepsNothingOpenAndIsThrownAsItIs() {
    Error error = new AssertionError("first");
    Exception exception = new IllegalStateException("second");
    assertThat(
            catchThrowable(() -> TensorGroup.closeAll(failingWith(error), failingWith(exception))))
        .isSameAs(error)
        .hasSuppressedException(exception);
    assertThat(thrown).containsExactly(error, exception);
  }

  @Test
  void anErrorIsAddedToWhyMembersAreClosed() {
    Exception exception = new IllegalStateException("first");
    Error error = new AssertionError("last");
    var group = new TensorGroup();
    group.add(failingWith(exception));
    group.add(failingWith(error));
    var why = new IllegalArgumentException("why");
    group.closeAfter(why);
    assertThat(why.getSuppressed()).containsExactly(error, exception);
  }
}
