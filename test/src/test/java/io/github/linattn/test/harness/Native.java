package io.github.linattn.test.harness;

import static org.junit.jupiter.api.Assumptions.abort;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** Compilers and files of the repository, for tests that compile C or start the command line. */
public final class Native {
  private Native() {}

  /** Root of the repository; tests run in the folder of their module. */
  public static Path root() {
    return Path.of("..").toAbsolutePath().normalize();
  }

  /** Compiles to {@code output}; without the compiler the test is left out, with one line. */
  public static void compile(String compiler, List<String> arguments, Path output) {
    List<String> command = new ArrayList<>(List.of(compiler, "-o", output.toString()));
    command.addAll(arguments);
    try {
      Files.createDirectories(output.toAbsolutePath().getParent());
      Process process = new ProcessBuilder(command).redirectErrorStream(true).start();
      String said = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
      if (process.waitFor() != 0) {
        throw new AssertionError(command + " failed: " + said);
      }
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      throw new AssertionError(e);
    } catch (IOException e) {
      if (!e.getMessage().contains("Cannot run program")) {
        throw new UncheckedIOException(e);
      }
      System.out.println("left out: tests that compile C, because there is no " + compiler);
      abort("no " + compiler);
    }
  }
}
