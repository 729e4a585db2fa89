package io.github.linattn.cli;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.assertj.core.api.Assertions.within;

import io.github.linattn.AttentionShape;
import io.github.linattn.DType;
import io.github.linattn.Mode;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Breaks when ncu is asked for something else, or what it prints is misread or believed. */
class NcuTest {
  private static final String HEADER =
      "\"ID\",\"Process ID\",\"Process Name\",\"Host Name\",\"Kernel Name\",\"Context\",\"Stream\","
          + "\"Block Size\",\"Grid Size\",\"Device\",\"CC\",\"Section Name\",\"Metric Name\","
          + "\"Metric Unit\",\"Metric Value\"\n";
  private static final String TIME = "gpu__time_duration.sum";
  private static final String BYTES = "dram__bytes.sum";
  private static final String PERCENT = "dram__throughput.avg.pct_of_peak_sustained_elapsed";

  @TempDir Path folder;

  private static String line(int id, String kernel, String metric, String unit, String value) {
    return """
        "%d","537","java","127.0.0.1","%s","1","17","(512, 1, 1)","(128, 1, 1)","0","9.0",\
        "Command line profiler metrics","%s","%s","%s"
        """
        .formatted(id, kernel, metric, unit, value);
  }

  private static String launch(int id, String kernel, String bytes, String nanos, String percent) {
    return line(id, kernel, BYTES, "byte", bytes)
        + line(id, kernel, PERCENT, "%", percent)
        + line(id, kernel, TIME, "ns", nanos);
  }

  /** A script that tells a version, else keeps its arguments and prints this. */
  private Ncu ncu(String prints, int status) throws IOException {
    Files.writeString(folder.resolve("prints"), prints);
    Path script =
        Files.writeString(
            folder.resolve("ncu"),
            """
            #!/bin/sh
            if [ "$1" = --version ]; then echo 'Version 2025.3.1.0 (build 1)'; exit; fi
            printf '%%s\\n' "$@" > '%1$s/arguments'
            cat '%1$s/prints'
            exit %2$d
            """
                .formatted(folder, status));
    assertThat(script.toFile().setExecutable(true)).isTrue();
    String before = System.setProperty(Ncu.PROPERTY, script.toString());
    try {
      return Ncu.find().ncu().orElseThrow();
    } finally {
      restore(before);
    }
  }

  private static void restore(String before) {
    if (before == null) {
      System.clearProperty(Ncu.PROPERTY);
    } else {
      System.setProperty(Ncu.PROPERTY, before);
    }
  }

  private List<String> arguments() throws IOException {
    return Files.readAllLines(folder.resolve("arguments"));
  }

  @Test
  void theLastWholeCallIsCounted() throws Exception {
    Ncu ncu =
        ncu(
            "==PROF== Connected to process 537 (/usr/bin/java)\n| a table | of the command |\n"
                + HEADER
                + launch(0, "la_sums", "7", "7", "7")
                + launch(1, "la_sums", "1,000,000", "1,000.0", "50.00")
                + launch(2, "la_out", "2,000,000", "3,000", "90")
                + launch(3, "la_sums", "9", "9", "9"),
            9); // it ended the command
    assertThat(ncu.version()).isEqualTo("2025.3.1.0");
    Ncu.Call call = ncu.count(List.of("linattn", "bench"), List.of("la_sums", "la_out"), 6);
    assertThat(call.bytes()).isEqualTo(3_000_000);
    assertThat(call.millis()).isCloseTo(4e-3, within(1e-12));
    assertThat(call.share()).isCloseTo(0.8, within(1e-12));
    assertThat(arguments())
        .containsSubsequence("--csv", "--print-units", "base", "--clock-control", "none")
        .containsSubsequence("--metrics", TIME + "," + BYTES + "," + PERCENT)
        .containsSubsequence("--kernel-name", "regex:^(la_sums|la_out)$", "--launch-count", "6")
        .containsSubsequence("--kill", "yes")
        .endsWith("linattn", "bench");
  }

  @Test
  void theCommandIsABenchmarkOfTheCase() throws Exception {
    Ncu ncu = ncu(HEADER + launch(0, "la_x", "1", "1", "1"), 0);
    BenchCase each =
        BenchCase.of(AttentionShape.of(4, 16, 1000, 128), new Precision(DType.F32, Mode.ACCURATE))
            .with(BenchPass.BACKWARD)
            .keepingState();
    new DataMovement(ncu, Path.of("/linattn")).count(each, Method.PAPER, List.of("la_x"));
    assertThat(arguments())
        .containsSubsequence("--launch-count", "4")
        .containsSubsequence(
            "/linattn",
            "bench",
            "backward",
            "--batch=4",
            "--heads=16",
            "--tokens=1000",
            "--head-dim=128",
            "--dtype=f32",
            "--mode=accurate",
            "--keep-state",
            "--family=paper");
  }

  private void assertRefused(String prints, int status, String sentence) throws IOException {
    Ncu ncu = ncu(prints, status);
    assertThatThrownBy(() -> ncu.count(List.of("linattn"), List.of("la_x"), 2))
        .isInstanceOf(Ncu.RefusedException.class)
        .hasMessage(sentence);
  }

  @Test
  void whatNcuRefusesIsItsSentence() throws IOException {
    String denied =
        "ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance"
            + " Counters on the target device 0.";
    assertRefused("==PROF== Connected\n==ERROR== " + denied + "\n| row |\n", 0, denied);
    assertRefused("==WARNING== No kernels were profiled.\n", 0, "No kernels were profiled.");
    assertRefused("| o wrong |\n\n", 1, "ncu ended with status 1: | o wrong |");
    assertRefused(HEADER, 0, "ncu saw no whole call of la_x");
  }

  @Test
  void numbersThatAreNotWhatWasAskedForAreRefused() throws IOException {
    assertRefused(
        HEADER + line(0, "la_x", BYTES, "Mbyte", "656.21"),
        0,
        "ncu gives dram__bytes.sum as '656.21 Mbyte', not in byte");
    assertRefused(
        HEADER + line(0, "la_x", BYTES, "byte", "n/a"),
        0,
        "ncu gives dram__bytes.sum as 'n/a byte', not in byte");
    assertRefused(
        HEADER + line(0, "la_x", BYTES, "byte", "1"),
        0,
        "ncu counts no gpu__time_duration.sum of la_x");
  }

  @Test
  void withoutNcuTheReasonIsThePlace() {
    String before = System.setProperty(Ncu.PROPERTY, folder.resolve("none").toString());
    try {
      Ncu.Search search = Ncu.find();
      assertThat(search.ncu()).isEmpty();
      assertThat(search.reason()).isEqualTo("tried " + folder.resolve("none") + " (not there)");
    } finally {
      restore(before);
    }
  }
}
