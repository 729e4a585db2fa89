package io.github.linattn.test.contract;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.github.linattn.test.harness.GpuTest;
import java.io.File;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;
import java.util.stream.Stream;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** A kernel would touch memory that is not its own, read what nobody wrote, or race. */
@GpuTest
final class GpuSanitizerTest {
  private static final String EXECUTABLE = "compute-sanitizer";

  /** An exit code that linattn itself does not use. */
  private static final int FOUND_SOMETHING = 86;

  @ParameterizedTest
  @ValueSource(strings = {"memcheck", "racecheck", "initcheck", "synccheck"})
  void findsNothing(String tool) throws IOException, InterruptedException {
    Optional<Path> sanitizer = sanitizer();
    assumeTrue(sanitizer.isPresent(), EXECUTABLE + " is not here; it comes with the CUDA toolkit");
    Process process =
        new ProcessBuilder(command(sanitizer.orElseThrow(), tool))
            .redirectErrorStream(true)
            .start();
    String report = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
    assertThat(process.waitFor()).as(report).isZero();
    assertThat(report).contains("SUMMARY: 0 ").contains(" passed, 0 failed");
  }

  private static List<String> command(Path sanitizer, String tool) {
    List<String> command = new ArrayList<>();
    command.add(sanitizer.toString());
    command.add("--tool=" + tool);
    command.add("--target-processes=all");
    command.add("--error-exitcode=" + FOUND_SOMETHING);
    command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
    command.add("--add-modules=jdk.incubator.vector");
    command.add("--enable-native-access=ALL-UNNAMED");
    command.add("-Dlinattn.home=" + System.getProperty("linattn.home", ""));
    command.add("-cp");
    command.add(System.getProperty("java.class.path"));
    command.addAll(List.of("io.github.linattn.cli.Main", "verify", "--quick", "--backend", "cuda"));
    return command;
  }

  private static Optional<Path> sanitizer() {
    Stream<String> onPath =
        Stream.of(System.getenv().getOrDefault("PATH", "").split(File.pathSeparator, -1));
    Stream<String> ofToolkit =
        Stream.of(System.getenv().getOrDefault("CUDA_HOME", "") + "/bin", "/usr/local/cuda/bin");
    return Stream.concat(onPath, ofToolkit)
        .map(folder -> Path.of(folder, EXECUTABLE))
        .filter(Files::isExecutable)
        .findFirst();
  }
}
