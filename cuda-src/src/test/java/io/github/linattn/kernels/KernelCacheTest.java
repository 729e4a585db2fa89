package io.github.linattn.kernels;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.github.linattn.kernelgen.Architecture;
import io.github.linattn.kernelgen.KernelEntry;
import io.github.linattn.kernelgen.KernelSpec;
import io.github.linattn.kernelgen.Operation;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.EnumSet;
import java.util.List;
import java.util.stream.Stream;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

/** Breaks when a kernel is compiled twice, or a damaged or foreign file is taken for a kernel. */
class KernelCacheTest {
  private static final KernelSpec ROWS = spec(Operation.NORMALIZE, 80);
  private static final KernelSpec DOTS = spec(Operation.ROW_DOT, 80);

  private final ByteArrayOutputStream said = new ByteArrayOutputStream();
  private final PrintStream log = new PrintStream(said, true, UTF_8);
  @TempDir Path folder;
  private Path count;
  private KernelCache cache;

  private static KernelSpec spec(Operation operation, int headDim) {
    return KernelSpec.paper(
        operation, headDim, KernelSpec.defaultSlices(headDim), EnumSet.of(Architecture.SM_90));
  }

  @BeforeEach
  void setUp() {
    count = folder.resolve("count");
    cache = KernelCache.in(folder.resolve("cache"));
  }

  /** An nvcc whose images are the texts; it counts what it compiles. */
  private Nvcc.Search compiler(String beforeItCompiles) throws IOException {
    Path script = folder.resolve("nvcc");
    Files.writeString(
        script,
        """
        #!/bin/sh
        if [ "$1" = --version ]; then echo "release 13.0, V13.0.88"; exit; fi
        echo one >> '%s'
        %s
        while [ $# -gt 1 ]; do
          if [ "$1" = -o ]; then image=$2; fi
          shift
        done
        cat "$1" > "$image"
        """
            .formatted(count, beforeItCompiles));
    Files.setPosixFilePermissions(script, PosixFilePermissions.fromString("rwx------"));
    return Nvcc.firstOf(List.of(script));
  }

  private KernelBuild.Summary build(KernelSpec... specs) throws IOException {
    return new KernelBuild(Headers.shipped(), compiler(""), log, false).run(List.of(specs), cache);
  }

  private List<String> symbols() throws IOException {
    return cache.kernels().stream()
        .flatMap(kernels -> kernels.manifest().entries().stream())
        .map(KernelEntry::symbol)
        .sorted()
        .toList();
  }

  private Path fileOf(KernelSpec spec) throws IOException {
    try (Stream<Path> files = Files.list(cache.folder())) {
      return files
          .filter(file -> file.getFileName().toString().startsWith(spec.symbol() + "-"))
          .findFirst()
          .orElseThrow();
    }
  }

  @Test
  void keepsWhatItCompiled() throws IOException {
    assertThat(cache.kernels()).isEmpty();
    assertThat(build(ROWS).compiled()).isEqualTo(1);
    KernelBuild.Summary more = build(ROWS, DOTS);
    assertThat(more.compiled()).isEqualTo(1);
    assertThat(more.upToDate()).isEqualTo(1);
    assertThat(more.manifest().entries()).hasSize(2);
    assertThat(count).content().hasLineCount(2);
    assertThat(symbols()).containsExactly(ROWS.symbol(), DOTS.symbol());
    for (BuiltKernels kernels : cache.kernels()) {
      KernelEntry entry = kernels.manifest().entries().getFirst();
      assertThat(kernels.source(entry)).contains(entry.symbol());
      assertThat(kernels.image(entry)).asString(UTF_8).isEqualTo(kernels.source(entry));
    }
    assertThat(cache.folder().resolve("compiling")).isEmptyDirectory();
  }

  @Test
  void aDamagedFileIsCompiledAgainWithOneWarning() throws IOException {
    build(ROWS, DOTS);
    byte[] whole = Files.readAllBytes(fileOf(ROWS));
    for (int damage = 0; damage < 3; damage++) {
      byte[] bytes = whole.clone();
      bytes[bytes.length / 2] ^= 1;
      switch (damage) {
        case 0 -> Files.write(fileOf(ROWS), bytes);
        case 1 -> Files.write(fileOf(ROWS), new byte[0]);
        default -> Files.writeString(fileOf(ROWS), "no archive");
      }
      said.reset();
      assertThat(symbols()).as("damage %d", damage).containsExactly(DOTS.symbol());
      assertThat(build(ROWS, DOTS).compiled()).as("damage %d", damage).isEqualTo(1);
      assertThat(said.toString(UTF_8))
          .containsOnlyOnce("is damaged (")
          .contains(fileOf(ROWS) + " is damaged");
      assertThat(symbols()).containsExactly(ROWS.symbol(), DOTS.symbol());
    }
  }

  @Test
  void aFileThatIsListedAndNotThereIsPassedOver() throws IOException {
    build(ROWS);
    Files.createSymbolicLink(cache.folder().resolve("x.zip"), folder.resolve("nowhere"));
    assertThat(symbols()).containsExactly(ROWS.symbol());
  }

  @Test
  void filesOfOtherVersionsAreLeftAlone() throws IOException {
    build(ROWS);
    Path file = fileOf(ROWS);
    Files.move(file, cache.folder().resolve(ROWS.symbol() + "-" + "0".repeat(64) + ".zip"));
    assertThat(cache.kernels()).isEmpty();
    assertThat(build(ROWS).compiled()).isEqualTo(1);
    assertThat(symbols()).containsExactly(ROWS.symbol());
  }

  @Test
  void whatWasCompiledBeforeAFailureIsKept() throws IOException {
    Nvcc.Search refuses = compiler("case \"$*\" in *row_dot*) echo out of order; exit 1;; esac");
    assertThatThrownBy(
            () ->
                new KernelBuild(Headers.shipped(), refuses, log, false)
                    .run(List.of(ROWS, DOTS), cache))
        .isInstanceOf(KernelBuildException.class)
        .hasMessageContaining("out of order");
    build(ROWS, DOTS);
    assertThat(symbols()).containsExactly(ROWS.symbol(), DOTS.symbol());
  }

  @Test
  void aFlawOfAKernelIsToldOrEndsTheBuild() throws IOException {
    Nvcc.Search spills =
        compiler(
            """
            case "$*" in *row_dot*)
              echo "Compiling entry function 'la' for 'sm_90'"
              echo "8 bytes spill stores, 8 bytes spill loads";;
            esac""");
    KernelBuild.Summary summary =
        new KernelBuild(Headers.shipped(), spills, log, false).run(List.of(ROWS, DOTS), cache);
    assertThat(summary.manifest().entries()).hasSize(2);
    assertThat(said.toString(UTF_8))
        .contains("slower than it might be: " + DOTS.symbol() + " spills 16 bytes of registers")
        .contains("0 up to date, 2 comp");
    assertThat(symbols()).containsExactly(ROWS.symbol(), DOTS.symbol());
    KernelCache other = KernelCache.in(folder.resolve("other"));
    assertThatThrownBy(
            () -> new KernelBuild(Headers.shipped(), spills, log, true).run(List.of(DOTS), other))
        .isInstanceOf(KernelBuildException.class)
        .hasMessage("kernel " + DOTS.symbol() + " spills 16 bytes of registers on sm_90");
    assertThat(other.kernels()).isEmpty();
  }

  @Test
  void withoutNvccNothingIsWritten() throws IOException {
    KernelBuild build = new KernelBuild(Headers.shipped(), Nvcc.firstOf(List.of()), log, false);
    assertThat(build.run(List.of(ROWS), cache).manifest().entries()).isEmpty();
    assertThat(cache.folder()).doesNotExist();
    assertThat(said.toString(UTF_8)).contains("there is no nvcc");
  }

  @Test
  void compilesWithNvcc() throws IOException {
    Nvcc.Search search = Nvcc.find();
    assumeTrue(search.nvcc().isPresent(), () -> "no nvcc: " + search.reason());
    assertThat(KernelBuild.generate(List.of(ROWS), cache, log).compiled()).isEqualTo(1);
    BuiltKernels kernels = cache.kernels().getFirst();
    KernelEntry entry = kernels.manifest().entries().getFirst();
    assertThat(entry.usage().get(Architecture.SM_90).registers()).isPositive();
    assertThat(kernels.image(entry)).isNotEmpty();
  }

  /** The first process is held in its compiler until the second one says that it waits. */
  @Test
  @Timeout(value = 120, threadMode = Timeout.ThreadMode.SEPARATE_THREAD)
  void ofTwoProcessesOneCompiles() throws Exception {
    Path started = pipe("started");
    Path released = pipe("released");
    compiler("echo now > '%s'; read word < '%s'".formatted(started, released));
    Process first = compile();
    assertThat(Files.readString(started)).isEqualTo("now\n");
    Process second = compile();
    try (BufferedReader lines = second.inputReader()) {
      assertThat(lines.readLine()).startsWith("kernels: waiting for another process");
      Files.writeString(released, "go\n");
      assertThat(lines.readLine()).startsWith("kernels: 1 up to date, 0 compiled");
    }
    assertThat(first.waitFor()).isZero();
    assertThat(second.waitFor()).isZero();
    assertThat(count).content().hasLineCount(1);
    assertThat(symbols()).containsExactly(ROWS.symbol());
  }

  private Path pipe(String name) throws Exception {
    Path pipe = folder.resolve(name);
    Process made = new ProcessBuilder("mkfifo", pipe.toString()).start();
    assumeTrue(made.waitFor() == 0, "no mkfifo here");
    return pipe;
  }

  private Process compile() throws IOException {
    return new ProcessBuilder(
            Path.of(System.getProperty("java.home"), "bin", "java").toString(),
            "-D" + Nvcc.PROPERTY + "=" + folder.resolve("nvcc"),
            "-cp",
            System.getProperty("java.class.path"),
            Compiling.class.getName(),
            cache.folder().toString())
        .redirectErrorStream(true)
        .start();
  }

  /** One of the processes. */
  static final class Compiling {
    private Compiling() {}

    public static void main(String[] args) throws IOException {
      KernelBuild.generate(List.of(ROWS), KernelCache.in(Path.of(args[0])), System.out);
    }
  }
}
