package io.github.linattn.bindings;

import static org.junit.jupiter.api.Assumptions.assumeTrue;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;

/** The C compiler that builds test doubles; tests without one are left out. */
final class Gcc {
  static final Path DOUBLE_SOURCE = Path.of("src/test/c/cudart_double.c").toAbsolutePath();

  private Gcc() {}

  /** Builds a double of libcudart, with {@code -D} definitions that change what it says. */
  static Path buildDouble(Path output, String... definitions) {
    List<String> arguments = new ArrayList<>();
    for (String definition : definitions) {
      arguments.add("-D" + definition);
    }
    arguments.add("-Wl,-soname,libcudart.so.13");
    arguments.add(DOUBLE_SOURCE.toString());
    return build(output, arguments);
  }

  /** Builds a shared library. */
  static Path build(Path output, List<String> arguments) {
    List<String> command = new ArrayList<>(List.of("gcc", "-O1", "-shared", "-fPIC", "-o"));
    command.add(output.toString());
    command.addAll(arguments);
    try {
      Files.createDirectories(output.toAbsolutePath().getParent());
      Process gcc = new ProcessBuilder(command).inheritIO().start();
      int exit = gcc.waitFor();
      if (exit != 0) {
        throw new AssertionError("gcc ended with " + exit + ": " + command);
      }
    } catch (IOException e) {
      assumeTrue(
          false, "left out: no gcc to compile the double of libcudart (" + e.getMessage() + ")");
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
      throw new UncheckedIOException(new IOException(e));
    }
    return output;
  }
}
