package io.github.linattn.bench;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.abort;

import java.io.IOException;
import org.junit.jupiter.api.Test;

/** Runs the tests of the Python program that times peers, where there is a Python. */
class PeersProgramTest {
  @Test
  void itsOwnTestsPass() throws IOException, InterruptedException {
    Process process;
    try {
      process =
          new ProcessBuilder("python3", "-B", "-m", "unittest", "discover", "-s", "peers")
              .redirectErrorStream(true)
              .start();
    } catch (IOException noPython) {
      abort("no python3 here");
      return;
    }
    String report = new String(process.getInputStream().readAllBytes(), UTF_8);
    assertThat(process.waitFor()).as(report).isZero();
    assertThat(report).contains("OK").doesNotContain("Ran 0 tests");
  }
}
