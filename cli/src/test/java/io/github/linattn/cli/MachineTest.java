package io.github.linattn.cli;

import static org.assertj.core.api.Assertions.assertThat;

import io.github.linattn.cli.points.Run;
import java.io.IOException;
import java.util.List;
import org.junit.jupiter.api.Test;

/** Breaks when points tell a machine, its clock or a version as it is not. */
class MachineTest {

  @Test
  void theFirstProcessorGivesNameAndClock() throws IOException {
    Run run =
        Machine.cpu(
            List.of(
                "processor\t: 0",
                "model name\t: Some CPU",
                "cpu MHz\t\t: 2100.5",
                "processor\t: 1",
                "model name\t: Another",
                "cpu MHz\t\t: 800"));
    assertThat(run.machine()).startsWith("Some CPU, ").endsWith(" processors");
    assertThat(run.clocks()).isEqualTo("2100.5 MHz");
  }

  @Test
  void aProcessorWithoutAClockHasNone() throws IOException {
    Run run = Machine.cpu(List.of("processor\t: 0", "BogoMIPS\t: 2000.00"));
    assertThat(run.machine()).startsWith(System.getProperty("os.arch") + ", ");
    assertThat(run.clocks()).isEmpty();
  }

  @Test
  void aVersionIsToldOnce() throws IOException {
    assertThat(Machine.cpu().versions()).containsEntry("linattn", "0.1.0");
    assertThat(Cli.run("info").out()).containsPattern("(?m)^linattn +0\\.1\\.0$");
  }
}
