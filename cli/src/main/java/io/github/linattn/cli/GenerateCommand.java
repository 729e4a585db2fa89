package io.github.linattn.cli;

import io.github.linattn.kernelgen.Architecture;
import io.github.linattn.kernelgen.Catalogue;
import io.github.linattn.kernels.KernelBuild;
import io.github.linattn.kernels.KernelBuildException;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.EnumSet;
import java.util.List;
import java.util.OptionalInt;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.stream.Stream;
import org.jspecify.annotations.Nullable;
import picocli.CommandLine.Command;
import picocli.CommandLine.Option;

/** {@code linattn generate}: kernels for a head dimension that is not shipped. */
@Command(
    name = "generate",
    mixinStandardHelpOptions = true,
    versionProvider = Version.class,
    sortOptions = false,
    description = {
      "Write CUDA kernels for one head dimension, and compile them where nvcc is found.",
      "To use them, name the folder in the environment variable LINATTN_KERNELS."
    })
final class GenerateCommand implements Callable<Integer> {
  private final Console console;

  @Option(
      names = "--head-dim",
      required = true,
      paramLabel = "D",
      description = "columns of q, k and v: a multiple of 16 from 16 to 512")
  private int headDim;

  @Option(
      names = "--slices",
      paramLabel = "L",
      description =
          "parts of the key dimension in the kernels of the family paper; D/32 if left out, or D/16"
              + " where 32 is no divisor")
  private @Nullable Integer slices;

  @Option(
      names = "--arch",
      paramLabel = "ARCH",
      split = ",",
      description =
          "such as sm_90, sm_90a (its own kernels) or ptx; those of the shipped kernels if left out")
  private List<String> architectures = List.of();

  @Option(
      names = "--out",
      required = true,
      paramLabel = "DIR",
      description = "folder for the kernels; created if it does not exist")
  private Path out;

  @SuppressWarnings("NullAway.Init") // picocli fills in the path
  GenerateCommand(Console console) {
    this.console = console;
  }

  @Override
  public Integer call() {
    if (Files.exists(out) && !Files.isDirectory(out)) {
      throw CommandFailure.misuse("--out %s is not a folder", out);
    }
    KernelBuild.Summary summary = generate();
    listSources();
    if (summary.compiled() + summary.upToDate() == 0) {
      console.note("the text was written, and nothing compiled");
    } else {
      console.note("to use the kernels: export LINATTN_KERNELS=" + out.toAbsolutePath());
    }
    return ExitCode.DONE;
  }

  private KernelBuild.Summary generate() {
    OptionalInt chosen = slices == null ? OptionalInt.empty() : OptionalInt.of(slices);
    try {
      return KernelBuild.generate(headDim, chosen, targets(), out, console.err());
    } catch (IllegalArgumentException refused) {
      throw CommandFailure.misuse(refused);
    } catch (KernelBuildException refused) {
      throw CommandFailure.failed(Text.message(refused), refused);
    } catch (IOException e) {
      throw CommandFailure.failed("can't write to " + out + ": " + Text.message(e), e);
    }
  }

  private Set<Architecture> targets() {
    if (architectures.isEmpty()) {
      return Catalogue.defaultArchitectures();
    }
    Set<Architecture> targets = EnumSet.noneOf(Architecture.class);
    architectures.forEach(id -> targets.add(Architecture.parse(id)));
    return targets;
  }

  private void listSources() {
    try (Stream<Path> files = Files.list(out)) {
      files
          .filter(file -> file.toString().contains("_d" + headDim + "_"))
          .sorted()
          .forEach(file -> console.result(file.toString()));
    } catch (IOException e) {
      throw CommandFailure.failed("can't list " + out + ": " + Text.message(e), e);
    }
  }
}
