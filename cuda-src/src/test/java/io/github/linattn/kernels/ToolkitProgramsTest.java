package io.github.linattn.kernels;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.catchThrowable;

import java.io.IOException;
import java.util.List;
import java.util.concurrent.FutureTask;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

/** Breaks when a program can't be run, or goes on when nobody waits for it any more. */
class ToolkitProgramsTest {
  @Test
  void whatItSaysAndHowItEnds() throws IOException {
    ToolkitPrograms.Output output =
        ToolkitPrograms.run(List.of("sh", "-c", "echo out; echo err >&2; exit 3"));
    assertThat(output.status()).isEqualTo(3);
    assertThat(output.text()).isEqualTo("out\nerr\n");
  }

  @Test
  @Timeout(60)
  void anInterruptEndsIt() throws Exception {
    var failure =
        new FutureTask<>(
            () -> {
              Throwable thrown =
                  catchThrowable(() -> ToolkitPrograms.run(List.of("sleep", "3600")));
              assertThat(Thread.currentThread().isInterrupted()).isTrue();
              return thrown;
            });
    Thread caller = Thread.ofPlatform().start(failure);
    while (sleepers() == 0) {
      Thread.onSpinWait();
    }
    caller.interrupt();
    assertThat(failure.get())
        .isInstanceOf(IOException.class)
        .hasMessage("interrupted while sleep ran");
    while (sleepers() > 0) {
      Thread.onSpinWait();
    }
  }

  private static long sleepers() {
    return ProcessHandle.current()
        .children()
        .filter(each -> each.info().command().orElse("").endsWith("sleep"))
        .count();
  }
}
