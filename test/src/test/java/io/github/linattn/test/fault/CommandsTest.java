package io.github.linattn.test.fault;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.assertj.core.api.Assertions.assertThat;

import io.github.linattn.DType;
import io.github.linattn.Diagnostics;
import io.github.linattn.Mode;
import io.github.linattn.cli.Main;
import io.github.linattn.io.Tuning;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/**
 * Breaks when a command fails on the way over CUDA, or believes outputs that no kernel has written.
 * Kernels do not compute here.
 */
final class CommandsTest {
  private static final int ILLEGAL_ADDRESS = 700;

  @TempDir private static Path folder;

  @BeforeAll
  static void load() {
    CudartDouble.load().reset();
    FakeKernels.installForQuickRuns(folder.resolve("kernels"));
  }

  @AfterAll
  static void remove() {
    FakeKernels.remove();
  }

  private static String failed(String... args) {
    var out = new ByteArrayOutputStream();
    var err = new ByteArrayOutputStream();
    int status =
        Main.run(args, new PrintStream(out, true, UTF_8), new PrintStream(err, true, UTF_8));
    assertThat(status).as(err.toString(UTF_8)).isEqualTo(1);
    assertThat(err.toString(UTF_8)).doesNotContain("unexpected");
    return out.toString(UTF_8);
  }

  private static String benchFailed(String... options) {
    List<String> args = new ArrayList<>(List.of("bench", "forward"));
    args.addAll(List.of(options));
    return failed(args.toArray(String[]::new));
  }

  @Test
  void outputsThatNoKernelWroteAreWrong() throws IOException {
    CudartDouble.assumeBuiltKernels();
    Path json = folder.resolve("bench.json");
    String table =
        benchFailed("--batch=1", "--heads=2", "--tokens=1100", "--all-plans", "--json=" + json);
    assertThat(table)
        .contains("NaN     NaN 5.0e-03  FAILED")
        .contains("wgmma WRONG", "wgmma:576 WRONG", "mma WRONG", "mma:576 WRONG")
        .contains("host, bf16, ")
        .contains("in 1 of 1 cases");
    assertThat(json)
        .content()
        .contains("\"graph\":true", "\"o\":null", "\"status\":\"FAILED\"", "\"plan\":\"mma:576\"");
  }

  @Test
  void thePapersEvaluationTellsWhatIsWrongAndWhatIsMissing() {
    CudartDouble.assumeBuiltKernels();
    Path out = folder.resolve("paper");
    failed(
        "bench",
        "paper",
        "--quick",
        "--backend=cuda",
        "--sweep=head-dims",
        "--no-peers",
        "--out=" + out);
    assertThat(out.resolve("points.json"))
        .content()
        .contains("no CUDA kernel for a forward of BF16 with head dimension 16")
        .contains("\"method\":\"paper\"", "\"status\":\"FAILED\"", "\"status\":\"MISSING\"");
  }

  @Test
  void aFailureOfCudaIsAPointAndEndsTheRunsOnTheGpu() throws IOException {
    CudartDouble.assumeBuiltKernels();
    CudartDouble cudart = CudartDouble.load();
    String[] command = {
      "bench", "paper", "--quick", "--sweep=decode", "--no-peers", "--backend=cuda"
    };
    cudart.reset();
    failed(with(command, "--out=" + folder.resolve("whole")));
    long calls = cudart.calls();
    for (int part = 1; part < 8; part++) {
      cudart.reset();
      cudart.failAt(calls * part / 8, ILLEGAL_ADDRESS);
      failed(with(command, "--out=" + folder.resolve("part" + part)));
    }
    for (int launch : new int[] {1, 2, 9}) {
      Path out = folder.resolve("launch" + launch);
      cudart.reset();
      cudart.failAt("cudaLaunchKernelExC", launch, ILLEGAL_ADDRESS);
      failed(with(command, "--out=" + out));
      assertThat(out.resolve("points.json"))
          .content()
          .contains("cudaLaunchKernelExC failed: cudaErrorIllegalAddress");
    }
    cudart.reset();
  }

  @Test
  void movementIsWhatNcuPrintsOrNothing() throws IOException {
    CudartDouble.assumeBuiltKernels();
    Path home = Files.createDirectories(folder.resolve("home"));
    Files.writeString(home.resolve("linattn"), "");
    Path out = folder.resolve("movement");
    Path ncu = home.resolve("ncu");
    Path calls = home.resolve("calls");
    String before = System.setProperty("linattn.home", home.toString());
    System.setProperty("linattn.ncu", ncu.toString());
    try {
      assertThat(movement(out)).contains("movement is left out: there is no ncu; tried " + ncu);
      script(ncu, "echo '==ERROR== ERR_NVGPUCTRPERM - no permission'; echo x >> '" + calls + "'");
      assertThat(movement(out))
          .containsOnlyOnce("movement ends here: ERR_NVGPUCTRPERM - no permission");
      assertThat(calls).hasContent("x");
      assertThat(out.resolve("points.json")).doesNotExist();

      script(ncu, PRINT_EACH_KERNEL + "echo x >> '" + calls + "'");
      assertThat(movement(out)).doesNotContain("movement is left out", "movement ends");
      long counted = Files.lines(calls).count() - 1;
      assertThat(counted).isGreaterThan(10);
      List<String> points =
          Files.readAllLines(out.resolve("points.json")).stream()
              .filter(line -> line.contains("\"sweep\":\"movement\""))
              .toList();
      assertThat(points)
          .hasSize((int) counted)
          .allMatch(line -> line.contains("\"share\":0.5") && line.contains("\"status\":\"OK\""));
      assertThat(out.resolve("points.json")).content().contains("\"ncu\":\"2025.3.1.0\"");
      movement(out);
      assertThat(calls).as("counted again").content().hasLineCount((int) counted + 1);
    } finally {
      System.clearProperty("linattn.ncu");
      if (before == null) {
        System.clearProperty("linattn.home");
      } else {
        System.setProperty("linattn.home", before);
      }
    }
  }

  /**
   * In the shell: a line of CSV for each metric of each kernel that is asked for, in this order.
   */
  private static final String PRINT_EACH_KERNEL =
      """
      for argument; do case "$argument" in regex:*) names=${argument#regex:^(} ;; esac; done
      echo '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
      id=0
      row() { printf '"%s","%s","%s","%s","%s"\\n' "$id" "$name" "$@"; }
      for name in $(echo "${names%)$}" | tr '|' ' '); do
        row dram__bytes.sum byte 1,000
        row gpu__time_duration.sum ns 2,000
        row dram__throughput.avg.pct_of_peak_sustained_elapsed % 50
        id=$((id + 1))
      done
      """;

  private static void script(Path file, String body) throws IOException {
    String version = "if [ \"$1\" = --version ]; then echo Version 2025.3.1.0; exit; fi\n";
    Files.writeString(file, "#!/bin/sh\n" + version + body + "\n");
    assertThat(file.toFile().setExecutable(true)).isTrue();
  }

  /** What it says beside its results; it never fails for what ncu does not do. */
  private static String movement(Path out) {
    CudartDouble.load().reset();
    var err = new ByteArrayOutputStream();
    String[] args = {
      "bench",
      "paper",
      "--quick",
      "--sweep=movement",
      "--no-peers",
      "--backend=cuda",
      "--out=" + out
    };
    int status =
        Main.run(
            args,
            new PrintStream(new ByteArrayOutputStream(), true, UTF_8),
            new PrintStream(err, true, UTF_8));
    assertThat(status).as(err.toString(UTF_8)).isZero();
    return err.toString(UTF_8);
  }

  private static String[] with(String[] command, String option) {
    return Stream.concat(Arrays.stream(command), Stream.of(option)).toArray(String[]::new);
  }

  @Test
  void queriesOfAllTokensGoTheSameWay() {
    assertThat(benchFailed("--batch=1", "--heads=2", "--tokens=300", "--non-causal", "--all-plans"))
        .contains("not causal, wgmma", "FAILED", "wgmma WRONG", "mma WRONG", "in 1 of 1 cases");
  }

  @Test
  void whatIsNotBuiltIsLeftOut() {
    assertThat(benchFailed("--batch=1", "--heads=1", "--tokens=64", "--head-dim=48"))
        .contains("left out: no CUDA kernel for a forward of BF16 with head dimension 48");
    assertThat(benchFailed("--batch=1", "--heads=1", "--tokens=64", "--family=paper"))
        .contains("left out: not built for the GPU");
  }

  @Test
  void aBackwardThatIsNotBuiltIsLeftOut() {
    CudartDouble.assumeBuiltKernels();
    String missing =
        " +bf16 +default +left out: no CUDA kernel for a backward of BF16 with head dimension 80";
    String headDim = "--head-dim=" + FakeKernels.FORWARD_HEAD_DIM;
    FakeKernels.installForward(folder.resolve("forward"));
    try {
      assertThat(
              failed("bench", "backward", "--batch=1", "--tokens=100", headDim, "--with-forward"))
          .contains("Device time of a backward")
          .containsPattern("D=80" + missing)
          .containsPattern("D=80 and forward" + missing);
    } finally {
      FakeKernels.installForQuickRuns(folder.resolve("kernels"));
    }
  }

  @Test
  void gradientsThatNoKernelWroteAreWrong() {
    String wrong = "two sweeps, wgmma .*NaN +NaN +NaN +NaN +NaN 5.0e-03  FAILED";
    assertThat(failed("bench", "backward", "--batch=1", "--tokens=100", "--with-forward"))
        .containsPattern("D=128 +bf16 +default +" + wrong)
        .containsPattern("D=128 and forward +bf16 +default +" + wrong);
  }

  @Test
  void nothingIsTunedByWrongResultsOrWithoutKernels() {
    Path file = folder.resolve("wrong.json");
    assertThat(failed("tune", "--head-dim=128", "--heads=1,2", "--tokens=100,200", "--out=" + file))
        .isEmpty();
    String nvcc = System.setProperty("linattn.nvcc", folder.resolve("no-nvcc").toString());
    try {
      failed("tune", "--head-dim=80", "--out=" + file);
    } finally {
      if (nvcc == null) {
        System.clearProperty("linattn.nvcc");
      } else {
        System.setProperty("linattn.nvcc", nvcc);
      }
    }
    assertThat(file).doesNotExist();
  }

  @Test
  void aTuningFileIsAsked() throws IOException {
    Path file = folder.resolve("tuning.json");
    String gpu = Diagnostics.gpu(0).orElseThrow().name();
    var problem =
        new Tuning.Problem(gpu, Tuning.Pass.FORWARD, 128, DType.BF16, Mode.DEFAULT, false);
    var entry =
        new Tuning.Entry(
            problem,
            new Tuning.Range(2, 3),
            new Tuning.Range(1024, 2047),
            new Tuning.Choice("mma", 2, 1),
            0.5);
    Tuning.NONE.with(List.of(entry)).write(file);
    assertThat(benchFailed("--batch=1", "--heads=2", "--tokens=1100", "--tuning=" + file))
        .contains("segments 576, mma");
    assertThat(benchFailed("--batch=1", "--heads=2", "--tokens=1100"))
        .doesNotContain("segments 576, mma");
  }

  @Test
  void verifyTellsOnceWhatIsNotBuilt() {
    CudartDouble.assumeBuiltKernels();
    assertThat(failed("verify", "--backend=cuda"))
        .contains("FAILED", " not done by the backend")
        .contains("5 rows not on cuda:0: no CUDA kernel for a forward with head dimension 16;")
        .containsOnlyOnce("'linattn generate --head-dim 16'");
  }
}
