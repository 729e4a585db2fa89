package io.github.linattn.cli;

import io.github.linattn.files.FileReason;
import io.github.linattn.kernelgen.Architecture;
import io.github.linattn.kernelgen.Catalogue;
import io.github.linattn.kernelgen.KernelEntry;
import io.github.linattn.kernelgen.KernelSpec;
import io.github.linattn.kernels.KernelBuild;
import io.github.linattn.kernels.KernelBuildException;
import io.github.linattn.kernels.KernelCache;
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
      "Compile CUDA kernels for one head dimension with nvcc, and keep them in the kernel cache,"
          + " where linattn finds them.",
      "With --out, write them as text to a folder and compile them there; to use these, name the"
          + " folder in the environment variable LINATTN_KERNELS."
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
      converter = Spelling.OfArchitecture.class,
      description =
          "such as sm_90, sm_90a (its own kernels) or ptx; those of the shipped kernels if left out")
  private List<Architecture> architectures = List.of();

  @Option(
      names = "--out",
      paramLabel = "DIR",
      description = "folder for the kernels and their text; created if it does not exist")
  private @Nullable Path out;

  GenerateCommand(Console console) {
    this.console = console;
  }

  @Override
  public Integer call() {
    Path folder = out == null ? KernelCache.ofUser().folder() : out;
    try {
      if (out == null) {
        compile(KernelCache.ofUser());
      } else {
        write(out);
      }
    } catch (IllegalArgumentException refused) {
      throw CommandFailure.misuse(refused);
    } catch (KernelBuildException refused) {
      throw CommandFailure.failed(Text.message(refused), refused);
    } catch (IOException e) {
      throw CommandFailure.failed(
          Text.format("can't write the kernels to %s: %s", folder, FileReason.of(e)), e);
    }
    return ExitCode.DONE;
  }

  private void compile(KernelCache cache) throws IOException {
    KernelBuild.Summary summary = KernelBuild.generate(specs(), cache, console.err());
    List<KernelEntry> entries = summary.manifest().entries();
    if (entries.isEmpty()) {
      throw CommandFailure.misuse("nothing was compiled; --out DIR writes the text without nvcc");
    }
    entries.forEach(entry -> console.result(entry.symbol()));
    console.note("the kernels are in " + cache.folder() + ", where linattn finds them");
  }

  private void write(Path folder) throws IOException {
    List<KernelSpec> specs = specs();
    OutFolder.make(folder);
    KernelBuild.Summary summary = KernelBuild.generate(specs, folder, console.err());
    listSources(folder);
    if (summary.compiled() + summary.upToDate() == 0) {
      console.note("the text was written, and nothing compiled");
    } else {
      console.note("to use the kernels: export LINATTN_KERNELS=" + folder.toAbsolutePath());
    }
  }

  private List<KernelSpec> specs() {
    OptionalInt chosen = slices == null ? OptionalInt.empty() : OptionalInt.of(slices);
    Set<Architecture> targets = targets();
    if (slices != null && targets.equals(EnumSet.of(Architecture.SM_90A))) {
      throw CommandFailure.misuse(
          "--slices is for the family paper, which has no kernels for sm_90a alone");
    }
    return Catalogue.forHeadDim(headDim, chosen, targets);
  }

  private Set<Architecture> targets() {
    return architectures.isEmpty()
        ? Catalogue.defaultArchitectures()
        : EnumSet.copyOf(architectures);
  }

  private void listSources(Path folder) throws IOException {
    try (Stream<Path> files = Files.list(folder)) {
      files
          .filter(file -> file.toString().contains("_d" + headDim + "_"))
          .sorted()
          .forEach(file -> console.result(file.toString()));
    }
  }
}
