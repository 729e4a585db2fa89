package io.github.linattn.kernels;

import io.github.linattn.kernelgen.Architecture;
import io.github.linattn.kernels.ToolkitPrograms.Output;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * NVIDIA's compiler.
 *
 * @param executable absolute path
 * @param version as it prints it, such as 13.0.88
 */
public record Nvcc(Path executable, String version) {

  /** The system property that names the executable; nothing else is tried where it is set. */
  public static final String PROPERTY = "linattn.nvcc";

  /** ptxas takes memory in large pages then, where the system has them: a fifth of its time. */
  private static final Map<String, String> ENVIRONMENT =
      Map.of("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");

  private static final Pattern VERSION = Pattern.compile("V(\\d+\\.\\d+\\.\\d+)");

  /**
   * What a search found.
   *
   * @param nvcc empty where there is none
   * @param reason where it was found, or each place that was tried
   */
  public record Search(Optional<Nvcc> nvcc, String reason) {}

  /**
   * Looks for nvcc: the property {@value #PROPERTY}, else CUDA_HOME/bin, the PATH and
   * /usr/local/cuda/bin, in this order.
   */
  public static Search find() {
    String property = System.getProperty(PROPERTY, "");
    return property.isBlank()
        ? firstOf(ToolkitPrograms.places("nvcc"))
        : firstOf(List.of(Path.of(property)));
  }

  /** The first candidate that runs and tells its version. */
  static Search firstOf(List<Path> candidates) {
    List<String> tried = new ArrayList<>();
    for (Path candidate : candidates) {
      Path executable = candidate.toAbsolutePath();
      if (!Files.isExecutable(executable)) {
        tried.add(executable + " (not there)");
        continue;
      }
      try {
        Output output = ToolkitPrograms.run(List.of(executable.toString(), "--version"));
        Matcher version = VERSION.matcher(output.text());
        if (output.status() == 0 && version.find()) {
          return new Search(
              Optional.of(new Nvcc(executable, version.group(1))), executable.toString());
        }
        tried.add(executable + " (does not tell a version)");
      } catch (IOException unusable) {
        tried.add(executable + " (" + unusable.getMessage() + ")");
      }
    }
    return new Search(Optional.empty(), "tried " + String.join(", ", tried));
  }

  /** What is passed to nvcc besides the architectures, the include folder and the files. */
  static List<String> flags() {
    return List.of("-std=c++17", "-fatbin", "-Xptxas", "-v");
  }

  /**
   * Compiles one file to a fatbin and returns what the compiler and ptxas said.
   *
   * @throws KernelBuildException if it is refused; the message is the compiler's
   */
  String compile(Path source, Path include, Collection<Architecture> architectures, Path image)
      throws IOException {
    List<String> command = new ArrayList<>();
    command.add(executable.toString());
    command.addAll(flags());
    architectures.forEach(architecture -> command.addAll(architecture.nvccArguments()));
    command.addAll(List.of("-I", include.toString(), "-o", image.toString(), source.toString()));
    Output output = ToolkitPrograms.run(command, ENVIRONMENT);
    if (output.status() != 0) {
      throw new KernelBuildException(
          "nvcc refuses " + source.getFileName() + ":\n" + output.text());
    }
    return output.text();
  }
}
