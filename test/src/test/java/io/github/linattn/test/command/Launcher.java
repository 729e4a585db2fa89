package io.github.linattn.test.command;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.github.linattn.test.harness.Native;
import java.io.IOException;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** Starts {@code linattn} or a line of shell and waits. */
final class Launcher {
  private static final long LIMIT_SECONDS = 120;

  private Launcher() {}

  /** What a process left. */
  record Ended(int status, String out, String err) {

    /** Asserts the exit status of a user's mistake: a sentence, no result and no stack trace. */
    void assertMistake(int expectedStatus, String sentence) {
      assertThat(status).as(err).isEqualTo(expectedStatus);
      assertThat(out).as("stdout").isEmpty();
      assertThat(err).containsIgnoringCase(sentence);
      assertNoStackTrace();
    }

    void assertDone() {
      assertThat(status).as(err + out).isZero();
      assertNoStackTrace();
    }

    private void assertNoStackTrace() {
      assertThat(err + out).doesNotContain("\tat ").doesNotContain("Exception in thread");
    }
  }

  /** Runs {@code linattn} in a folder. */
  static Ended linattn(Path folder, Object... arguments) throws IOException, InterruptedException {
    List<String> command = new ArrayList<>();
    command.add(Native.root().resolve("linattn").toString());
    for (Object argument : arguments) {
      command.add(argument.toString());
    }
    return run(folder, command);
  }

  static Ended run(Path folder, List<String> command) throws IOException, InterruptedException {
    requireBuilt();
    Path out = Files.createTempFile("linattn", ".out");
    Path err = Files.createTempFile("linattn", ".err");
    try {
      ProcessBuilder builder =
          new ProcessBuilder(command)
              .directory(folder.toFile())
              .redirectInput(ProcessBuilder.Redirect.from(Path.of("/dev/null").toFile()))
              .redirectOutput(out.toFile())
              .redirectError(err.toFile());
      builder.environment().put("LINATTN_CACHE", folder.resolve("kernel-cache").toString());
      Process process = builder.start();
      boolean ended = process.waitFor(LIMIT_SECONDS, TimeUnit.SECONDS);
      if (!ended) {
        process.descendants().forEach(ProcessHandle::destroyForcibly);
        process.destroyForcibly();
      }
      assertThat(ended).as("%s ends within %d s", command, LIMIT_SECONDS).isTrue();
      return new Ended(process.exitValue(), Files.readString(out), Files.readString(err));
    } finally {
      Files.delete(out);
      Files.delete(err);
    }
  }

  /** The script would start a build of its own otherwise. */
  private static void requireBuilt() throws IOException {
    Path lib = Native.root().resolve("cli/target/lib");
    boolean built = false;
    if (Files.isDirectory(lib)) {
      try (DirectoryStream<Path> jars = Files.newDirectoryStream(lib, "linattn-cli-*.jar")) {
        built = jars.iterator().hasNext();
      }
    }
    assumeTrue(built, "left out: the command line is not packaged; 'mvn verify' packages it");
  }
}
