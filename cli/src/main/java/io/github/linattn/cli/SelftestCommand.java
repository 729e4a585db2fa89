package io.github.linattn.cli;

import io.github.linattn.Backend;
import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Option;
import picocli.CommandLine.Parameters;

/** {@code linattn selftest}: the GPU test suite that the image carries. */
@Command(
    name = "selftest",
    mixinStandardHelpOptions = true,
    versionProvider = Version.class,
    description = {
      "Run the GPU test suite of the self-contained image on GPU 0.",
      "Exit code 0 if at least one test ran and all passed.",
      "",
      "With --soak, instead, several threads compute mixed problems forward and backward for so"
          + " long, here without the suite too; exit code 1 if memory of the device, of the host or"
          + " of Java grows meanwhile."
    })
final class SelftestCommand implements Callable<Integer> {
  private static final Pattern SUCCESSFUL = Pattern.compile("(\\d+) tests successful");

  private static final int MOST_MINUTES = 60 * 24 * 7;

  private final Console console;

  @Option(names = "--soak", paramLabel = "MINUTES", description = "how long, such as 8 or 0.1")
  private @Nullable Double soakMinutes;

  @Option(
      names = "--backend",
      paramLabel = "BACKEND",
      converter = Spelling.OfBackend.class,
      description = "of --soak: cuda (if left out), cpu or auto")
  private @Nullable BackendChoice backend;

  @Parameters(
      arity = "0..*",
      paramLabel = "OPTION",
      description = "options for the JUnit console, after --, such as -- -c some.TestClass")
  private List<String> more = List.of();

  SelftestCommand(Console console) {
    this.console = console;
  }

  @Override
  public Integer call() throws IOException, InterruptedException {
    if (soakMinutes != null) {
      if (!more.isEmpty()) {
        throw CommandFailure.misuse(
            "'%s' is for the test suite, which --soak does not run", more.getFirst());
      }
      return soak(soakMinutes);
    }
    if (backend != null) {
      throw CommandFailure.misuse("--backend is for --soak; the test suite runs on GPU 0");
    }
    Path home = home();
    List<Path> suites = jars(home.resolve("suite"));
    if (suites.isEmpty()) {
      throw CommandFailure.misuse(
          "there is no test suite in %s; it is part of the image: build that with 'mvn -B -Pimage"
              + " package' and run selftest from it",
          home.resolve("suite"));
    }
    try (Backend gpu = BackendChoice.CUDA.open(console)) {
      console.note("testing on " + gpu.name() + ": " + gpu.describe());
    }
    Process tests = new ProcessBuilder(command(home, suites)).redirectErrorStream(true).start();
    tests.getOutputStream().close();
    int successful = forward(tests.getInputStream());
    int status = tests.waitFor();
    if (status == 0 && successful > 0) {
      return ExitCode.DONE;
    }
    console.note(Text.format("linattn: selftest failed: %d tests passed", successful));
    return ExitCode.FAILED;
  }

  private int soak(double minutes) {
    if (!(minutes > 0 && minutes <= MOST_MINUTES)) {
      throw CommandFailure.misuse(
          "--soak takes minutes above 0, at most %d: %s", MOST_MINUTES, minutes);
    }
    Duration duration = Duration.ofMillis(Math.round(minutes * 60_000));
    boolean well = new Soak(backend == null ? BackendChoice.CUDA : backend, console).run(duration);
    return well ? ExitCode.DONE : ExitCode.FAILED;
  }

  private static Path home() {
    String home = System.getProperty("linattn.home");
    if (home == null) {
      throw CommandFailure.misuse(
          "selftest runs from the image: start it with the image's script 'linattn'");
    }
    return Path.of(home);
  }

  private static List<Path> jars(Path folder) throws IOException {
    if (!Files.isDirectory(folder)) {
      return List.of();
    }
    try (Stream<Path> files = Files.list(folder)) {
      return files.filter(file -> file.toString().endsWith(".jar")).sorted().toList();
    }
  }

  private List<String> command(Path home, List<Path> suites) throws IOException {
    List<Path> classPath = new ArrayList<>(jars(home.resolve("lib")));
    classPath.addAll(suites);
    List<String> command = new ArrayList<>();
    command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
    command.add("--add-modules=jdk.incubator.vector");
    command.add("--enable-native-access=ALL-UNNAMED");
    command.add("-Dlinattn.home=" + home);
    command.add("-cp");
    command.add(String.join(File.pathSeparator, classPath.stream().map(Path::toString).toList()));
    command.add("org.junit.platform.console.ConsoleLauncher");
    command.add("execute");
    command.add("--disable-banner");
    command.add("--disable-ansi-colors");
    command.add("--details=summary");
    command.add("--include-tag=gpu");
    command.add("--fail-if-no-tests");
    if (more.isEmpty()) {
      suites.stream()
          .filter(jar -> jar.getFileName().toString().startsWith("linattn-"))
          .forEach(jar -> command.add("--scan-class-path=" + jar));
    } else {
      command.addAll(more);
    }
    return command;
  }

  /** Shows the suite's report, and reads off it how many tests passed. */
  private int forward(InputStream report) throws IOException {
    int successful = 0;
    var lines = new BufferedReader(new InputStreamReader(report, StandardCharsets.UTF_8));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      console.out().println(line);
      Matcher matcher = SUCCESSFUL.matcher(line);
      if (matcher.find()) {
        successful = Integer.parseInt(matcher.group(1));
      }
    }
    return successful;
  }
}
