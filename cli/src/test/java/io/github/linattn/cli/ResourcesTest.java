package io.github.linattn.cli;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.catchThrowable;

import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;

/** Breaks when what was added is closed in another order, or not at all. */
final class ResourcesTest {
  private final List<String> closed = new ArrayList<>();
  private final Resources resources = new Resources();

  private void add(String name, boolean fails) {
    resources.add(
        () -> {
          closed.add(name);
          if (fails) {
            throw new IllegalStateException(name);
          }
        });
  }

  @Test
  void aFailureKeepsNothingOpen() {
    add("first", true);
    add("second", false);
    add("third", true);
    Throwable thrown = catchThrowable(resources::close);
    assertThat(closed).containsExactly("third", "second", "first");
    assertThat(thrown).isInstanceOf(IllegalStateException.class).hasMessage("third");
    assertThat(thrown.getSuppressed()).extracting(Throwable::getMessage).containsExactly("first");
    resources.close();
    assertThat(closed).as("once").hasSize(3);
  }

  @Test
  void anErrorKeepsNothingOpenAndIsThrownAsItIs() {
    Error error = new AssertionError("last");
    add("first", true);
    resources.add(
        () -> {
          throw error;
        });
    assertThat(catchThrowable(resources::close)).isSameAs(error);
    assertThat(closed).containsExactly("first");
    assertThat(error.getSuppressed()).extracting(Throwable::getMessage).containsExactly("first");
  }
}
