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
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.stream.Stream;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** A kernel would touch memory that is not its own, read what nobody wrote, or race. */
@GpuTest
final class GpuSanitizerTest {
  private static final String EXECUTABLE = "compute-sanitizer";

  /** An exit code that linattn itself does not use. */
  private static final int FOUND_SOMETHING = 86;

  private static final List<String> TOOLS =
      List.of("memcheck", "racecheck", "initcheck", "synccheck");

  /** Arguments of the JVM, from the main class on. */
  private static final Map<String, List<String>> PROGRAMS =
      Map.of(
          "verify",
          List.of("io.github.linattn.cli.Main", "verify", "--quick", "--backend", "cuda"),
          "segments",
          List.of(SegmentedRuns.class.getName()));

  private static final Map<String, CompletableFuture<Report>> REPORTS = new LinkedHashMap<>();

  private record Report(int exitCode, String text) {}

  /** Side by side, because each keeps one core busy and leaves the GPU mostly idle. */
  @BeforeAll
  static void start() {
    Optional<Path> sanitizer = sanitizer();
    assumeTrue(sanitizer.isPresent(), EXECUTABLE + " is not here; it comes with the CUDA toolkit");
    for (String tool : TOOLS) {
      PROGRAMS.forEach(
          (program, arguments) -> {
            var report = new CompletableFuture<Report>();
            REPORTS.put(tool + " of " + program, report);
            Thread.ofVirtual()
                .start(
                    () -> {
                      try {
                        report.complete(run(command(sanitizer.orElseThrow(), tool, arguments)));
                      } catch (IOException | InterruptedException e) {
                        report.completeExceptionally(e);
                      }
                    });
          });
    }
  }

  static List<String> runs() {
    return TOOLS.stream()
        .flatMap(tool -> PROGRAMS.keySet().stream().map(program -> tool + " of " + program))
        .toList();
  }

  @ParameterizedTest
  @MethodSource("runs")
  void findsNothing(String run) throws ExecutionException, InterruptedException {
    Report report = REPORTS.get(run).get();
    assertThat(report.exitCode()).as(report.text()).isZero();
    assertThat(report.text()).contains("SUMMARY: 0 ").contains(" passed, 0 failed");
  }

  private static Report run(List<String> command) throws IOException, InterruptedException {
    Process process = new ProcessBuilder(command).redirectErrorStream(true).start();
    String text = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
    return new Report(process.waitFor(), text);
  }

  private static List<String> command(Path sanitizer, String tool, List<String> program) {
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
    command.addAll(program);
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
