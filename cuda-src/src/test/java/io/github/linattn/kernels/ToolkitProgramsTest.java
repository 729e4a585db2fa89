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
    int before = children().size();
    var failure =
        new FutureTask<>(
            () -> {
              Throwable thrown =
                  catchThrowable(
                      () -> ToolkitPrograms.run(List.of("sh", "-c", "sleep 3600; echo")));
              assertThat(Thread.currentThread().isInterrupted()).isTrue();
              return thrown;
            });
    Thread caller = Thread.ofPlatform().start(failure);
    while (children().size() == before) {
      assertThat(failure.isDone()).isFalse();
      Thread.sleep(10);
    }
    caller.interrupt();
    assertThat(failure.get())
        .isInstanceOf(IOException.class)
        .hasMessage("interrupted while sh ran");
    while (children().size() > before) {
      Thread.sleep(10);
    }
  }

  /** And theirs: of the shell and of what it runs. */
  private static List<ProcessHandle> children() {
    return ProcessHandle.current().descendants().toList();
  }
}
