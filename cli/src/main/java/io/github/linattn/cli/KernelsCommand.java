package io.github.linattn.cli;

import io.github.linattn.Diagnostics;
import io.github.linattn.kernels.Nvcc;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.function.Supplier;
import picocli.CommandLine.Command;
import picocli.CommandLine.Option;

/** {@code linattn kernels}: the kernels that were built. */
@Command(
    name = "kernels",
    mixinStandardHelpOptions = true,
    versionProvider = Version.class,
    description = "List the CUDA kernels that were built.")
final class KernelsCommand implements Callable<Integer> {
  private final Console console;

  @Option(
      names = "--matrix",
      description =
          "show instead which kernels serve which GPU, task, type and head dimension, as Markdown")
  private boolean matrix;

  KernelsCommand(Console console) {
    this.console = console;
  }

  @Override
  public Integer call() {
    List<String> lines =
        matrix
            ? KernelMatrix.lines(known(Diagnostics::support))
            : lines(known(Diagnostics::kernels));
    if (lines.isEmpty()) {
      console.result("no CUDA kernels are built; %s", cureOfNone());
    }
    lines.forEach(console::result);
    return ExitCode.DONE;
  }

  /** What to do where no kernels are built. */
  static String cureOfNone() {
    boolean canBuild = Nvcc.find().nvcc().isPresent();
    String before = canBuild ? "" : "install the CUDA toolkit (nvcc) and ";
    return before + "build again: mvn -B -DskipTests package";
  }

  static List<String> lines(List<Diagnostics.Kernel> kernels) {
    int longest = kernels.stream().mapToInt(kernel -> kernel.symbol().length()).max().orElse(0);
    String row = "%-" + Math.max(longest, "symbol".length()) + "s %4s %3s %-5s %-7s %9s %13s";
    List<String> lines = new ArrayList<>();
    for (Diagnostics.Kernel kernel : kernels) {
      lines.add(
          Text.format(
              row,
              kernel.symbol(),
              kernel.headDim() == 0 ? "any" : kernel.headDim(),
              kernel.headDim() == 0 ? "" : kernel.slices(),
              kernel.dtype(),
              kernel.architecture(),
              kernel.registers(),
              kernel.sharedBytes()));
    }
    if (!lines.isEmpty()) {
      lines.addFirst(
          Text.format(row, "symbol", "D", "L", "dtype", "arch", "registers", "shared bytes"));
    }
    return lines;
  }

  private static <T> List<T> known(Supplier<List<T>> question) {
    try {
      return question.get();
    } catch (IllegalArgumentException wrongFolder) {
      throw CommandFailure.misuse(wrongFolder);
    }
  }
}
