package io.github.linattn.cli;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.within;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.github.linattn.DType;
import io.github.linattn.Diagnostics;
import io.github.linattn.cli.points.Slope;
import io.github.linattn.io.Tuning;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.io.RandomAccessFile;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;
import picocli.CommandLine;

class MainTest {
  @TempDir Path folder;

  @Test
  void aloneItPrintsHelpAndIsMisused() {
    Cli cli = Cli.run();
    assertThat(cli.exitCode()).isEqualTo(2);
    assertThat(cli.err()).contains("Usage: linattn").contains("attend");
  }

  @ParameterizedTest
  @ValueSource(
      strings = {
        "demo",
        "attend",
        "verify",
        "bench",
        "info",
        "doctor",
        "kernels",
        "generate",
        "tune",
        "selftest"
      })
  void everyCommandHasHelpAndVersion(String command) {
    assertThat(Cli.run(command, "--help"))
        .returns(0, Cli::exitCode)
        .satisfies(help -> assertThat(help.out()).startsWith("Usage: linattn "));
    assertThat(Cli.run(command, "--version").out().strip()).isEqualTo("linattn 0.1.0");
  }

  @Test
  void anUnknownCommandIsMisuse() {
    Cli cli = Cli.run("atend");
    assertThat(cli.exitCode()).isEqualTo(2);
    assertThat(cli.err()).contains("there is no command 'atend'; commands: demo, attend, ");
    assertThat(Cli.run("kernels", "x"))
        .returns(2, Cli::exitCode)
        .satisfies(kernels -> assertThat(kernels.err()).contains("kernels takes no argument 'x'"));
    assertThat(Cli.run("kernels", "--matrx").err()).contains("--matrx", "--matrix");
  }

  @Test
  void theUnexpectedSaysHowToSeeItsStack() {
    var err = new ByteArrayOutputStream();
    var console = new Console(System.out, new PrintStream(err, true, UTF_8));
    assertThat(Main.failed(new IllegalStateException("odd"), console)).isEqualTo(1);
    assertThat(err.toString(UTF_8).lines())
        .containsExactly(
            "linattn: unexpected IllegalStateException: odd",
            "set LINATTN_JAVA_OPTIONS=-Dlinattn.debug=true for the stack trace");
  }

  @ParameterizedTest
  @CsvSource({
    "Java heap space, true, false",
    "GC overhead limit exceeded, true, false",
    "no memory for the 64 bytes of F32[16]: Java heap space, true, false",
    "Unable to allocate 512000000048 bytes, false, true",
    "unable to create native thread: possibly out of memory, false, true",
    "Requested array size exceeds VM limit, false, false"
  })
  void aLargerHeapIsAdvisedWhereTheHeapIsShort(String message, boolean ofHeap, boolean outside) {
    var err = new ByteArrayOutputStream();
    var console = new Console(System.out, new PrintStream(err, true, UTF_8));
    assertThat(Main.failed(new OutOfMemoryError(message), console)).isEqualTo(1);
    assertThat(err.toString(UTF_8)).contains(message, "smaller input");
    assertThat(err.toString(UTF_8).contains("-Xmx")).isEqualTo(ofHeap);
    assertThat(err.toString(UTF_8).contains("outside the Java heap is short")).isEqualTo(outside);
  }

  @Test
  void infoAndKernelsAlwaysAnswer() {
    Cli info = Cli.run("info");
    assertThat(info.exitCode()).isZero();
    assertThat(info.out())
        .contains("JDK")
        .contains("backend cpu")
        .contains("kernels", "kernel cache");
    assertThat(Cli.run("doctor").exitCode()).isZero();
    Cli kernels = Cli.run("kernels");
    assertThat(kernels.exitCode()).isZero();
    assertThat(kernels.out()).containsAnyOf("registers", "no CUDA kernels are built");
  }

  @Test
  void nvccIsToBeInstalledWhereItIsNot() throws IOException {
    assumeTrue(Diagnostics.kernels().isEmpty(), "kernels are built here");
    String nvcc = System.getProperty("linattn.nvcc");
    try {
      System.setProperty("linattn.nvcc", folder.resolve("no-nvcc").toString());
      String install =
          "install the CUDA toolkit (nvcc) and build again: mvn -B -DskipTests package";
      assertThat(Cli.run("kernels").out()).contains("are built; " + install);
      assertThat(Cli.run("info").out()).contains("cure: " + install);
      System.setProperty("linattn.nvcc", compiler().toString());
      String build = "build again: mvn -B -DskipTests package";
      assertThat(Cli.run("kernels").out()).contains("are built; " + build);
      assertThat(Cli.run("info").out()).contains("cure: " + build);
    } finally {
      restore("linattn.nvcc", nvcc);
    }
  }

  @Test
  void aFolderWithoutKernelsIsRefused() {
    String kernels = System.getProperty("linattn.kernels");
    System.setProperty("linattn.kernels", folder.toString());
    try {
      assertThat(Cli.run("kernels"))
          .returns(2, Cli::exitCode)
          .satisfies(cli -> assertThat(cli.err()).contains("wrote: there is no " + folder));
    } finally {
      restore("linattn.kernels", kernels);
    }
  }

  @Test
  void aFolderOfTextIsRefused() {
    Path out = folder.resolve("text");
    String kernels = System.getProperty("linattn.kernels");
    String nvcc = System.getProperty("linattn.nvcc");
    System.setProperty("linattn.nvcc", folder.resolve("no-nvcc").toString());
    System.setProperty("linattn.kernels", out.toString());
    try {
      assertThat(Cli.run("generate", "--head-dim", 80, "--arch", "sm_90", "--out", out))
          .returns(0, Cli::exitCode);
      assertThat(Cli.run("kernels"))
          .returns(2, Cli::exitCode)
          .satisfies(
              cli ->
                  assertThat(cli.err())
                      .contains(out + ", which holds no kernels that 'linattn generate' wrote")
                      .contains("text only; compile them with 'linattn generate' where nvcc is"));
    } finally {
      restore("linattn.kernels", kernels);
      restore("linattn.nvcc", nvcc);
    }
  }

  @Test
  void cudaNeverFallsBack() {
    assumeTrue(Diagnostics.cuda().isEmpty(), "there is a GPU here");
    Cli cli = Cli.run("verify", "--quick", "--backend", "cuda");
    assertThat(cli.exitCode()).isEqualTo(3);
    assertThat(cli.err()).startsWith("linattn: no usable GPU: ");
    assertThat(cli.out()).isEmpty();
  }

  @Test
  void verifyPasses() {
    Cli cli = Cli.run("verify", "--quick", "--backend", "cpu", "--seed", "42");
    assertThat(cli.exitCode()).as(cli.out()).isZero();
    assertThat(cli.out()).contains("seed 42").contains(" 0 failed").doesNotContain("FAILED");
  }

  @Test
  void demoChecksAndTimes() throws IOException {
    Path text = Files.writeString(folder.resolve("text"), "Nothing has to be read twice. ");
    var out = new ByteArrayOutputStream();
    var console = new Console(new PrintStream(out, true, UTF_8), System.err);
    var demo = new CommandLine(new DemoCommand(console, new ScalingRun.Effort(0, 0)));
    assertThat(demo.execute(text.toString())).isZero();
    String shown = out.toString(UTF_8);
    assertThat(shown).contains("cpu      bf16  default").contains("GB/s");
    assertThat(shown.lines().toList().getLast()).startsWith("All results are within");
  }

  @Test
  void demoNeedsAText() throws IOException {
    assertThat(Cli.run("demo", folder))
        .returns(2, Cli::exitCode)
        .satisfies(
            cli -> assertThat(cli.err()).contains(folder + " is a folder; name a text file"));
    Path empty = Files.createFile(folder.resolve("empty"));
    assertThat(Cli.run("demo", empty)).returns(2, Cli::exitCode);
    Path letter = Files.writeString(folder.resolve("letter"), "aaaa");
    assertThat(Cli.run("demo", letter))
        .returns(2, Cli::exitCode)
        .satisfies(cli -> assertThat(cli.err()).contains("letter is one letter over and over"));
    assertThat(Cli.run("demo", folder.resolve("none")).err()).contains("no such file");
  }

  @Test
  void demoReadsTheStartOfALargeFile() throws IOException {
    Path large = folder.resolve("large");
    try (var file = new RandomAccessFile(large.toFile(), "rw")) {
      file.setLength(3L << 30); // of zeros, with no blocks on the disk
    }
    assertThat(Cli.run("demo", large))
        .returns(2, Cli::exitCode)
        .satisfies(cli -> assertThat(cli.err()).contains("large is one letter over and over"));
  }

  @Test
  void generateWritesReadableText() throws IOException {
    Path out = folder.resolve("kernels");
    System.setProperty("linattn.nvcc", folder.resolve("no-nvcc").toString());
    try {
      Cli cli =
          Cli.run("generate", "--head-dim", 80, "--slices", 5, "--arch", "sm_90", "--out", out);
      assertThat(cli.exitCode()).as(cli.err()).isZero();
      assertThat(cli.out()).contains("la_paper_forward_d80_l5_f32.cu");
      assertThat(cli.err()).contains("there is no nvcc", "or set CUDA_HOME");
    } finally {
      System.clearProperty("linattn.nvcc");
    }
    assertThat(out.resolve("la_paper_forward_d80_l5_f32.cu")).content().contains("80");
  }

  @Test
  void generateKeepsKernelsWhereTheyAreFound() throws IOException {
    String nvcc = System.getProperty("linattn.nvcc");
    String cache = System.getProperty("linattn.cache");
    System.setProperty("linattn.nvcc", compiler().toString());
    System.setProperty("linattn.cache", folder.resolve("cache").toString());
    try {
      Cli cli = Cli.run("generate", "--head-dim", 80, "--slices", 5, "--arch", "sm_90");
      assertThat(cli.exitCode()).as(cli.err()).isZero();
      assertThat(cli.out())
          .contains("la_paper_forward_d80_l5_f32", "la_chunked_forward_mma_d80_bf16");
      assertThat(cli.err())
          .contains("21 compiled (sm_90; nvcc 13.0.88)", "where linattn finds them");
      assertThat(Diagnostics.support())
          .filteredOn(each -> each.headDim() == 80 && each.architecture().equals("sm_90"))
          .filteredOn(each -> each.task() == Diagnostics.Task.FORWARD && each.dtype() == DType.F32)
          .isNotEmpty()
          .allSatisfy(each -> assertThat(each.kernels()).isNotEmpty());
      assertThat(Cli.run("generate", "--head-dim", 80, "--slices", 5, "--arch", "sm_90").err())
          .contains("21 up to date, 0 compiled");
      System.setProperty("linattn.nvcc", folder.resolve("no-nvcc").toString());
      assertThat(Cli.run("generate", "--head-dim", 48))
          .returns(2, Cli::exitCode)
          .satisfies(none -> assertThat(none.err()).contains("nothing was compiled"));
    } finally {
      restore("linattn.nvcc", nvcc);
      restore("linattn.cache", cache);
    }
  }

  private static void restore(String property, @Nullable String value) {
    if (value == null) {
      System.clearProperty(property);
    } else {
      System.setProperty(property, value);
    }
  }

  /** An nvcc whose images are the texts. */
  private Path compiler() throws IOException {
    Path script = folder.resolve("nvcc");
    Files.writeString(
        script,
        """
        #!/bin/sh
        if [ "$1" = --version ]; then echo "release 13.0, V13.0.88"; exit; fi
        while [ $# -gt 1 ]; do
          if [ "$1" = -o ]; then image=$2; fi
          shift
        done
        cat "$1" > "$image"
        """);
    assertThat(script.toFile().setExecutable(true)).isTrue();
    return script;
  }

  @Test
  void generateRefusesWhatCantBe() {
    assertThat(Cli.run("generate", "--head-dim", 81, "--out", folder))
        .returns(2, Cli::exitCode)
        .satisfies(cli -> assertThat(cli.err()).contains("multiple of 16"));
    assertThat(Cli.run("generate", "--head-dim", 80, "--slices", 3, "--out", folder))
        .returns(2, Cli::exitCode);
    assertThat(Cli.run("generate", "--head-dim", 80, "--arch", "sm_90,sm_1", "--out", folder))
        .returns(2, Cli::exitCode)
        .satisfies(
            cli ->
                assertThat(cli.err())
                    .contains("Invalid value for option '--arch'")
                    .contains("it is one of sm_80, sm_86, ", ", ptx, not 'sm_1'"));
    assertThat(
            Cli.run("generate", "--head-dim=64", "--slices=2", "--arch=sm_90a", "--out=" + folder))
        .returns(2, Cli::exitCode)
        .satisfies(cli -> assertThat(cli.err()).contains("--slices is for the family paper"));
    assertThat(folder).isEmptyDirectory();
  }

  @Test
  void namesDoNotMoveTheCursor() {
    assertThat(Cli.run("attend", "\u001b[31mred", "--out", folder.resolve("o")).err())
        .contains("\\u001b[31mred")
        .doesNotContain("\u001b");
  }

  @Test
  void generateSaysWhyItCantWrite() throws IOException {
    Path below = Files.createFile(folder.resolve("file")).resolve("kernels");
    assertThat(Cli.run("generate", "--head-dim", 80, "--arch", "sm_90", "--out", below))
        .returns(2, Cli::exitCode)
        .satisfies(
            cli ->
                assertThat(cli.err())
                    .contains("--out " + below + ": can't make this folder: ")
                    .doesNotContain("Exception"));
  }

  @Test
  void tuneNeedsAGpuAndBordersAndAFolder() {
    Path out = folder.resolve("tuning.json");
    assertThat(Cli.run("tune", "--head-dim", 64, "--heads", 8, "--out", out))
        .returns(2, Cli::exitCode)
        .satisfies(cli -> assertThat(cli.err()).contains("two borders of classes"));
    assertThat(Cli.run("tune", "--head-dim", 64, "--mode", "tf32", "--out", out).exitCode())
        .isEqualTo(2);
    assertThat(Cli.run("tune", "--head-dim", 64, "--out", folder.resolve("no/folder")))
        .returns(2, Cli::exitCode)
        .satisfies(cli -> assertThat(cli.err()).contains("there is no folder"));
    assertThat(Cli.run("tune", "--head-dim", 64, "--out", folder))
        .returns(2, Cli::exitCode)
        .satisfies(cli -> assertThat(cli.err()).contains(folder + " is a folder; name a file"));
    assumeTrue(Diagnostics.cuda().isEmpty(), "there is a GPU here");
    assertThat(Cli.run("tune", "--head-dim", 64, "--out", out).exitCode()).isEqualTo(3);
    assertThat(folder).isEmptyDirectory();
  }

  @Test
  void aTuningFileIsChecked() throws IOException {
    Path other = Files.writeString(folder.resolve("other.json"), "{}");
    assertThat(Cli.run("kernels", "--tuning", other))
        .returns(2, Cli::exitCode)
        .satisfies(cli -> assertThat(cli.err()).contains("other.json is no tuning file"));
    assertThat(Cli.run("kernels", "--tuning", folder.resolve("none")))
        .returns(2, Cli::exitCode)
        .satisfies(
            cli ->
                assertThat(cli.err())
                    .contains("can't read --tuning " + folder.resolve("none") + ": no such file"));
    assertThat(System.getProperty("linattn.tuning")).isNull();
  }

  @Test
  void infoTellsTheTuningFile() throws IOException {
    assertThat(Cli.run("info").out()).doesNotContainPattern("(?m)^tuning");
    Path file = folder.resolve("tuning.json");
    Tuning.NONE.write(file);
    assertThat(Cli.run("info", "--tuning", file))
        .returns(0, Cli::exitCode)
        .satisfies(cli -> assertThat(cli.out()).contains("tuning         " + file + ", of 0"));
    System.setProperty(Tuning.PROPERTY, folder.resolve("none").toString());
    try {
      assertThat(Cli.run("info"))
          .returns(0, Cli::exitCode)
          .satisfies(cli -> assertThat(cli.out()).contains("can't read linattn.tuning "))
          .satisfies(cli -> assertThat(cli.out()).contains("none: no such file"))
          .satisfies(cli -> assertThat(cli.out()).contains("cure: name a file that"));
    } finally {
      System.clearProperty(Tuning.PROPERTY);
    }
  }

  @Test
  void infoTellsTheFamilyOfKernels() {
    assertThat(Cli.run("info").out()).doesNotContainPattern("(?m)^family");
    try {
      System.setProperty("linattn.family", "paper");
      assertThat(Cli.run("info"))
          .returns(0, Cli::exitCode)
          .satisfies(cli -> assertThat(cli.out()).contains("family         paper"));
      System.setProperty("linattn.family", "other");
      assertThat(Cli.run("info"))
          .returns(0, Cli::exitCode)
          .satisfies(cli -> assertThat(cli.out()).contains("there is none of the name 'other'"))
          .satisfies(cli -> assertThat(cli.out()).contains("cure: name chunked or paper"));
    } finally {
      System.clearProperty("linattn.family");
    }
  }

  @Test
  void selftestNeedsTheImage() {
    assertThat(Cli.run("selftest"))
        .returns(2, Cli::exitCode)
        .satisfies(cli -> assertThat(cli.err()).contains("image"));
  }

  @Test
  void aSoakTakesNoOptionsOfTheTestSuite() {
    assertThat(Cli.run("selftest", "--soak=0.001", "--backend=cpu", "--", "-c", "some.TestClass"))
        .returns(2, Cli::exitCode)
        .satisfies(
            cli ->
                assertThat(cli.err())
                    .contains("'-c' is for the test suite, which --soak does not run"));
  }

  @Test
  void selftestNeedsAGpu() throws IOException {
    assumeTrue(Diagnostics.cuda().isEmpty(), "there is a GPU here");
    Files.createFile(Files.createDirectory(folder.resolve("suite")).resolve("some.jar"));
    System.setProperty("linattn.home", folder.toString());
    try {
      assertThat(Cli.run("selftest")).returns(3, Cli::exitCode);
    } finally {
      System.clearProperty("linattn.home");
    }
  }

  @Test
  void theSlopeOfAPowerLawIsItsExponent() {
    List<Integer> sizes = List.of(1000, 2000, 4000);
    assertThat(Slope.fit(sizes, n -> n, n -> 3 * Math.pow(n, 1.25))).isCloseTo(1.25, within(1e-9));
  }
}
