package io.github.linattn.cli;

import io.github.linattn.Diagnostics;
import io.github.linattn.cli.points.Run;
import io.github.linattn.kernels.ToolkitPrograms;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.time.temporal.ChronoUnit;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.TreeMap;

/** Where and with what a benchmark runs. */
final class Machine {
  private static final String UNKNOWN = "";
  private static final Path CPU_INFO = Path.of("/proc/cpuinfo");
  private static final String VISIBLE = "CUDA_VISIBLE_DEVICES";

  private Machine() {}

  /** A run on GPU 0 that begins now. */
  static Run gpu() throws IOException {
    Diagnostics.CudaRuntime cuda = Diagnostics.cuda().orElseThrow();
    Diagnostics.Gpu gpu = cuda.gpus().getFirst();
    Map<String, String> versions = versions();
    versions.put("cuda runtime", cuda.runtimeVersion());
    versions.put("cuda of the driver", cuda.driverVersion());
    return new Run(
        now(),
        gpu.name(),
        gpu.architecture(),
        gpu.multiprocessors(),
        ask("driver_version"),
        ask("clocks.sm,clocks.mem,clocks.max.sm,power.draw,power.limit,temperature.gpu"),
        Version.commit(),
        versions);
  }

  /** A run on this machine's processors that begins now. */
  static Run cpu() throws IOException {
    return cpu(Files.isReadable(CPU_INFO) ? Files.readAllLines(CPU_INFO) : List.of());
  }

  /**
   * A run on this machine's processors.
   *
   * @param cpuInfo what Linux says about them: on ARM neither name nor clock; nothing elsewhere
   */
  static Run cpu(List<String> cpuInfo) throws IOException {
    String name =
        ofFirstProcessor(cpuInfo, "model name").orElse(System.getProperty("os.arch", UNKNOWN));
    int processors = Runtime.getRuntime().availableProcessors();
    return new Run(
        now(),
        Text.format("%s, %d processors", name, processors),
        UNKNOWN,
        null,
        UNKNOWN,
        ofFirstProcessor(cpuInfo, "cpu MHz").map(clock -> clock + " MHz").orElse(UNKNOWN),
        Version.commit(),
        versions());
  }

  private static Map<String, String> versions() throws IOException {
    Map<String, String> versions = new TreeMap<>();
    versions.put("java", Runtime.version().toString());
    versions.put("linattn", Version.number());
    return versions;
  }

  private static String now() {
    return Instant.now().truncatedTo(ChronoUnit.SECONDS).toString();
  }

  /** What nvidia-smi says about the GPU; empty where it is not installed. */
  private static String ask(String properties) {
    String visible = System.getenv().getOrDefault(VISIBLE, "0").split(",", 2)[0];
    List<String> query =
        List.of(
            "nvidia-smi", "--id=" + visible, "--query-gpu=" + properties, "--format=csv,noheader");
    try {
      ToolkitPrograms.Output answer = ToolkitPrograms.run(query);
      return answer.status() == 0 ? answer.text().strip() : UNKNOWN;
    } catch (IOException notInstalled) {
      return UNKNOWN;
    }
  }

  private static Optional<String> ofFirstProcessor(List<String> cpuInfo, String property) {
    return cpuInfo.stream()
        .filter(line -> line.startsWith(property))
        .map(line -> line.substring(line.indexOf(':') + 1).strip())
        .findFirst();
  }
}
