package io.github.linattn.cli;

import io.github.linattn.Diagnostics;
import java.util.List;
import java.util.concurrent.Callable;
import picocli.CommandLine.Command;

/** {@code linattn kernels}: the kernels that were built. */
@Command(
    name = "kernels",
    mixinStandardHelpOptions = true,
    versionProvider = Version.class,
    description = "List the CUDA kernels that were built.")
final class KernelsCommand implements Callable<Integer> {
  private final Console console;

  KernelsCommand(Console console) {
    this.console = console;
  }

  @Override
  public Integer call() {
    List<Diagnostics.Kernel> kernels = kernels();
    if (kernels.isEmpty()) {
      console.result(
          "no CUDA kernels are built; install the CUDA toolkit (nvcc) and build again: mvn -B"
              + " verify");
      return ExitCode.DONE;
    }
    String row = "%-54s %4s %3s %-5s %-7s %9s %13s";
    console.result(row, "symbol", "D", "L", "dtype", "arch", "registers", "shared bytes");
    for (Diagnostics.Kernel kernel : kernels) {
      console.result(
          row,
          kernel.symbol(),
          kernel.headDim() == 0 ? "any" : kernel.headDim(),
          kernel.headDim() == 0 ? "" : kernel.slices(),
          kernel.dtype(),
          kernel.architecture(),
          kernel.registers(),
          kernel.sharedBytes());
    }
    return ExitCode.DONE;
  }

  private static List<Diagnostics.Kernel> kernels() {
    try {
      return Diagnostics.kernels();
    } catch (IllegalArgumentException wrongFolder) {
      throw CommandFailure.misuse(wrongFolder);
    }
  }
}
