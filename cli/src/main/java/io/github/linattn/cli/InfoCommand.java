package io.github.linattn.cli;

import io.github.linattn.Backend;
import io.github.linattn.Diagnostics;
import io.github.linattn.cuda.CudaException;
import io.github.linattn.io.Tuning;
import io.github.linattn.kernelgen.Family;
import io.github.linattn.kernels.KernelCache;
import io.github.linattn.kernels.Nvcc;
import java.io.IOException;
import java.util.List;
import java.util.Objects;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import picocli.CommandLine.Command;

/** {@code linattn info}: what is here, what is missing, and the cure. */
@Command(
    name = "info",
    aliases = "doctor",
    mixinStandardHelpOptions = true,
    versionProvider = Version.class,
    description = "Show what linattn finds on this machine, and the cure for what is missing.")
final class InfoCommand implements Callable<Integer> {
  private final Console console;

  InfoCommand(Console console) {
    this.console = console;
  }

  @Override
  public Integer call() throws IOException {
    line("linattn", Version.number());
    line(
        "JDK",
        Text.format(
            "%s, %s, %s",
            System.getProperty("java.version"),
            System.getProperty("java.vendor"),
            System.getProperty("java.home")));
    flags();
    cpu();
    cuda();
    kernels();
    nvcc();
    tuning();
    family();
    return ExitCode.DONE;
  }

  private void flags() {
    if (ModuleLayer.boot().findModule("jdk.incubator.vector").isPresent()) {
      line("Vector API", "on");
    } else {
      line("Vector API", "off");
      cure("the CPU backend computes without it, more slowly: --add-modules jdk.incubator.vector");
    }
    Module bindings = CudaException.class.getModule();
    if (bindings.isNativeAccessEnabled()) {
      line("native access", "on");
    } else {
      line("native access", "not granted");
      cure("--enable-native-access=io.github.linattn.bindings");
    }
  }

  private void cpu() {
    try (Backend cpu = Backend.cpu()) {
      line("backend cpu", cpu.describe());
    }
  }

  private void cuda() {
    Diagnostics.cudaProblem().ifPresent(this::noCuda);
    Diagnostics.cuda().ifPresent(this::cuda);
  }

  private void noCuda(String problem) {
    line("backend cuda", "not usable: " + problem);
    List<String> places = Diagnostics.searchedPlaces();
    for (String place : places) {
      line("  searched", place);
    }
    cure(
        "install the NVIDIA driver and libcudart 12.8 or newer, or name the library with"
            + " LINATTN_CUDART");
  }

  private void cuda(Diagnostics.CudaRuntime cuda) {
    line("backend cuda", "CUDA Runtime " + cuda.runtimeVersion());
    line("  library", cuda.library());
    line("  driver", "supports CUDA up to " + cuda.driverVersion());
    for (Diagnostics.Gpu gpu : cuda.gpus()) {
      line(
          "  GPU " + gpu.ordinal(),
          Text.format(
              "%s %s, %.1f of %.1f GB free",
              gpu.name(), gpu.architecture(), gpu.freeBytes() / 1e9, gpu.totalBytes() / 1e9));
    }
  }

  private void kernels() {
    List<Diagnostics.Kernel> kernels;
    try {
      kernels = Diagnostics.kernels();
    } catch (IllegalArgumentException wrongFolder) {
      line("kernels", Text.message(wrongFolder));
      cure(
          "name a folder that 'linattn generate' wrote, or unset the variable that names this one");
      return;
    }
    if (kernels.isEmpty()) {
      line("kernels", "none built");
      cure(KernelsCommand.cureOfNone());
    } else {
      var dims = new TreeSet<Integer>();
      var symbols = new TreeSet<String>();
      kernels.forEach(
          kernel -> {
            if (kernel.headDim() != 0) { // 0: any
              dims.add(kernel.headDim());
            }
            symbols.add(kernel.symbol());
          });
      line("kernels", Text.format("%d built, for D %s", symbols.size(), dims));
    }
    line("kernel cache", KernelCache.ofUser().folder().toString());
  }

  private void nvcc() {
    Nvcc.Search search = Nvcc.find();
    if (search.nvcc().isPresent()) {
      Nvcc nvcc = search.nvcc().get();
      line("nvcc", nvcc.version() + ", " + nvcc.executable());
    } else {
      line("nvcc", "none: " + search.reason());
      cure("only 'linattn generate' needs it; install the CUDA toolkit or set CUDA_HOME");
    }
  }

  /** Where a file is named. */
  private void tuning() {
    String file = named(Tuning.PROPERTY, Tuning.VARIABLE);
    if (file.isBlank()) {
      return;
    }
    try {
      int classes = Tuning.ofProcess().entries().size();
      line("tuning", Text.format("%s, of %d classes", file, classes));
    } catch (IllegalArgumentException unusable) {
      line("tuning", Text.message(unusable));
      cure("name a file that 'linattn tune' wrote, or unset " + Tuning.VARIABLE);
    }
  }

  /** Where one is named. */
  private void family() {
    String family = named(KernelFamily.PROPERTY, KernelFamily.VARIABLE);
    if (family.isBlank()) {
      return;
    }
    try {
      line("family", Family.parse(family).id());
    } catch (IllegalArgumentException unknown) {
      line("family", Text.format("there is none of the name '%s'", family));
      cure("name chunked or paper, or unset " + KernelFamily.VARIABLE);
    }
  }

  private static String named(String property, String variable) {
    return System.getProperty(property, Objects.requireNonNullElse(System.getenv(variable), ""));
  }

  private void line(String what, String state) {
    console.result("%-14s %s", what, state);
  }

  private void cure(String cure) {
    console.result("%-14s cure: %s", "", cure);
  }
}
