package io.github.linattn.kernels;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.List;

/** Programs that a test builds for the host and runs. */
final class HostPrograms {
  private HostPrograms() {}

  record Output(int status, String text) {}

  /** Whether there is a compiler, for the processor that the fibers are written for. */
  static boolean canEmulate() throws InterruptedException {
    if (!System.getProperty("os.arch").equals("amd64")) {
      return false;
    }
    try {
      return run(List.of("g++", "--version")).status() == 0;
    } catch (IOException absent) {
      return false;
    }
  }

  static void expectSuccess(List<String> command) throws IOException, InterruptedException {
    Output output = run(command);
    assertEquals(0, output.status(), output.text());
  }

  static Output run(List<String> command) throws IOException, InterruptedException {
    Process process = new ProcessBuilder(command).redirectErrorStream(true).start();
    String text = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
    return new Output(process.waitFor(), text);
  }
}
