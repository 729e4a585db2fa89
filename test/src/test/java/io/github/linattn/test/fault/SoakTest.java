package io.github.linattn.test.fault;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.assertj.core.api.Assertions.assertThat;

import io.github.linattn.cli.Main;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import org.junit.jupiter.api.Test;

/** Breaks when threads, streams and graphs on a GPU leave something behind. */
final class SoakTest extends OnFakeKernels {

  @Test
  void mixedWorkLeavesNothingBehind() {
    var out = new ByteArrayOutputStream();
    var err = new ByteArrayOutputStream();
    String[] command = {"selftest", "--soak=0.05"};
    int status =
        Main.run(command, new PrintStream(out, true, UTF_8), new PrintStream(err, true, UTF_8));
    assertThat(status).as(out.toString(UTF_8) + err.toString(UTF_8)).isZero();
    assertThat(out.toString(UTF_8)).contains("device +0.0 MiB");
    assertThat(cudart.launches()).isPositive();
    assertThat(cudart.live()).isZero();
  }
}
