package io.github.linattn.cli.points;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Breaks when a point is lost, doubled or changed on its way through the file. */
class PointFileTest {
  private static final Run RUN =
      new Run(
          "2026-11-22T00:00:00Z",
          "GPU \"A\"",
          "sm_90",
          132,
          "580",
          "",
          "abc",
          Map.of("java", "25"));

  private static final Run LATER =
      new Run("2026-11-23T00:00:00Z", "GPU", "sm_90", 132, "580", "", "abd", Map.of());

  @TempDir Path folder;

  private static Problem problem(String method) {
    return new Problem(
        "tokens", method, "", "forward", 4, 16, 16, 1000, 128, 128, 0, "f32", "tf32", true, false,
        "normal");
  }

  private static Samples samples(Double... millis) {
    return Samples.of(Samples.Clock.DEVICE, 3, true, 2, true, 12.5, null, List.of(millis));
  }

  private static Point full() {
    Map<String, @Nullable Double> errors = new HashMap<>();
    errors.put("o", 1e-3);
    errors.put("g", null);
    return new Point(
        problem("linattn"),
        0,
        Status.OK,
        "",
        samples(3.0, 1.0, 2.0),
        1L << 40,
        77L,
        errors,
        5e-3,
        new Point.Choice("one pass", "why: µs", 170),
        new Point.Movement(1L << 41, 0.5));
  }

  @Test
  void whatIsPutIsReadAgain() throws IOException {
    Path path = folder.resolve("new/points.json");
    PointFile file = PointFile.open(path);
    Point missing = Point.without(problem("softmax"), Status.MISSING, "torch is not importable");
    file.put(RUN, full());
    file.put(RUN, missing);

    PointFile again = PointFile.open(path);
    assertThat(again.points()).containsExactly(full(), missing);
    assertThat(again.runs()).containsExactly(RUN);
    assertThat(again.stands(missing.problem())).isFalse();
    assertThat(path.getParent())
        .isDirectoryNotContaining(each -> !each.getFileName().toString().contains("points.json"));
    assertThat(Files.readAllLines(path)).hasSize(6);
  }

  @Test
  void aPointReplacesTheOneOfTheSameProblem() throws IOException {
    Path path = folder.resolve("points.json");
    PointFile first = PointFile.open(path);
    first.put(RUN, full());
    first.put(RUN, Point.ok(problem("paper"), samples(7.0), 8));
    PointFile second = PointFile.open(path);
    Point better = Point.ok(full().problem(), samples(0.5), 8);
    second.put(LATER, better);

    PointFile again = PointFile.open(path);
    assertThat(again.points()).hasSize(2);
    assertThat(again.points().getFirst().millis()).isEqualTo(0.5);
    assertThat(again.measured()).extracting(Measured::run).containsExactly(LATER, RUN);
    assertThat(again.points()).extracting(Point::run).containsExactly(0, 1);
    assertThat(again.runs()).containsExactly(LATER, RUN);
    assertThat(again.stands(better.problem())).isTrue();
    assertThat(again.stands(problem("copy"))).isFalse();
  }

  @Test
  void aRunWhoseLastPointIsReplacedGoes() throws IOException {
    Path path = folder.resolve("points.json");
    PointFile file = PointFile.open(path);
    file.put(RUN, full());
    file.put(LATER, Point.ok(full().problem(), samples(0.5), 8));
    assertThat(PointFile.open(path).runs()).containsExactly(LATER);
    assertThat(Files.readString(path)).doesNotContain(RUN.started());
  }

  @Test
  void whatOthersPutMeanwhileStays() throws IOException {
    Path path = folder.resolve("points.json");
    PointFile one = PointFile.open(path);
    PointFile other = PointFile.open(path);
    one.put(RUN, full());
    other.put(LATER, Point.ok(problem("copy"), samples(3.0), 8));
    one.put(RUN, Point.ok(problem("paper"), samples(7.0), 8));
    assertThat(one.points()).isEqualTo(PointFile.open(path).points());
    assertThat(one.points())
        .extracting(point -> point.problem().method())
        .containsExactly("linattn", "copy", "paper");

    Files.delete(path);
    Files.createSymbolicLink(path, folder.resolve("elsewhere.json"));
    other.put(LATER, Point.ok(problem("softmax"), samples(1.0), 8));
    assertThat(PointFile.open(path).points()).hasSize(3); // what this one knew, and the new one
    assertThat(path).isSymbolicLink();

    Files.writeString(path, "{}");
    assertThatThrownBy(() -> other.put(LATER, Point.ok(problem("flash"), samples(1.0), 8)))
        .isInstanceOf(IOException.class)
        .hasMessageStartingWith(path + " holds no points: ");
    assertThat(other.points()).hasSize(4);
  }

  @Test
  void processesTakeTurns() throws Exception {
    Path path = folder.resolve("points.json");
    List<Process> writers = new ArrayList<>();
    for (String name : List.of("a", "b", "c")) {
      writers.add(
          new ProcessBuilder(
                  Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                  "-cp",
                  System.getProperty("java.class.path"),
                  Writer.class.getName(),
                  path.toString(),
                  name)
              .inheritIO()
              .start());
    }
    try {
      for (Process writer : writers) {
        assertThat(writer.waitFor(1, TimeUnit.MINUTES)).isTrue();
        assertThat(writer.exitValue()).isZero();
      }
    } finally {
      writers.forEach(Process::destroyForcibly);
    }
    assertThat(PointFile.open(path).points().size()).isEqualTo(3 * Writer.POINTS);
  }

  /** Puts points into a file. */
  static final class Writer {
    static final int POINTS = 20;

    private Writer() {}

    public static void main(String[] args) throws IOException {
      PointFile file = PointFile.open(Path.of(args[0]));
      for (int i = 0; i < POINTS; i++) {
        file.put(RUN, Point.ok(problem(args[1] + i), samples(1.0), 8));
      }
    }
  }

  @Test
  void aRefusalSaysWhatIsWrongWithoutClasses() throws IOException {
    Map<String, String> reasons =
        Map.of(
            "[]",
            "it has not the form in which linattn writes them",
            "{\"schema\": 1, \"runs\": [null], \"points\": []}",
            "it has no runs",
            "{\"schema\": 1, \"runs\": [], \"points\": [null]}",
            "it has no points",
            "{\"schema\": 1, \"runs\": [{\"started\": null}], \"points\": []}",
            "it lacks started",
            "{\"schema\": 1, \"runs\": [], \"points\": [" + PointFile.line(full()) + "]}",
            "linattn f32 tf32 forward N=1000 D=128 is of no run",
            "{\"schema\": 1, \"runs\": [], \"points\": ["
                + PointFile.line(full()).replace("\"tokens\":1000", "\"tokens\":0")
                + "]}",
            "linattn forward has a size of 0",
            "{\"schema\": 1, \"runs\": [], \"points\": ["
                + PointFile.line(full()).replace("\"median\":2.0", "\"median\":-5")
                + "]}",
            "-5.0 is no median of times from 1.0 to 3.0 ms");
    for (Map.Entry<String, String> each : reasons.entrySet()) {
      Path path = Files.writeString(folder.resolve("damaged.json"), each.getKey());
      assertThatThrownBy(() -> PointFile.open(path))
          .as(each.getKey())
          .hasMessage(path + " holds no points: " + each.getValue());
    }
  }

  @ParameterizedTest
  @CsvSource(
      delimiter = '|',
      quoteCharacter = '`',
      value = {
        "run | 0 | \"x\" | /points/0/run is no whole number",
        "run | 0 | null | /points/0/run is no whole number",
        "run | 0 | 0.5 | /points/0/run is no whole number",
        "multiprocessors | 132 | \"x\" | /runs/0/multiprocessors is no whole number",
        "context | 0 | \"x\" | /points/0/problem/context is no whole number",
        "bytes | 1099511627776 | true | /points/0/bytes is no whole number",
        "memoryBytes | 77 | \"77\" | /points/0/memoryBytes is no whole number",
        "bound | 0.005 | \"x\" | /points/0/bound is no number",
        "o | 0.001 | \"x\" | /points/0/errors/o is no number",
        "estimatedMicros | 170.0 | null | /points/0/choice/estimatedMicros is no number",
        "share | 0.5 | \"x\" | /points/0/movement/share is no number",
        "firstMillis | 12.5 | \"x\" | /points/0/samples/firstMillis is no number",
        "millis | [3.0 | [true | /points/0/samples/millis/0 is no number",
        "causal | true | \"x\" | /points/0/problem/causal is neither true nor false",
      })
  void whatIsNoNumberIsNotReadAsOne(String field, String right, String wrong, String why)
      throws IOException {
    requireDamage(field, right, wrong, why);
  }

  /** Writes another value into a file, which is then refused. */
  private void requireDamage(String field, String right, String wrong, String why)
      throws IOException {
    Path path = folder.resolve("points.json");
    PointFile.open(path).put(RUN, full());
    String text = Files.readString(path);
    String name = "\"" + field + "\":";
    assertThat(text).contains(name + right);
    Files.writeString(path, text.replace(name + right, name + wrong));
    assertThatThrownBy(() -> PointFile.open(path)).hasMessage(path + " holds no points: " + why);
  }

  @ParameterizedTest
  @CsvSource(
      delimiter = '|',
      quoteCharacter = '`',
      value = {
        "dtype | \"f32\" | \"x\" | dtype is 'x'; it is one of bf16, f16, f32",
        "mode | \"tf32\" | \"x\" | mode is 'x'; it is one of default, tf32, accurate",
        "pass | \"forward\" | \"x\" | pass is 'x'; it is one of forward, backward, both",
        "data | \"normal\" | \"x\" | data is 'x'; it is one of normal, positive",
        "bytes | 1099511627776 | -1 | linattn f32 tf32 forward N=1000 D=128: it has a size of -1",
        "memoryBytes | 77 | -7 | linattn f32 tf32 forward N=1000 D=128: it has a size of -7",
        "firstMillis | 12.5 | -1.0 | samples of -1.0 ms for the first call, null bytes of the heap",
        "heapBytes | null | -2.0 | samples of 12.5 ms for the first call, -2.0 bytes of the heap",
      })
  void whatNothingHasIsRefused(String field, String right, String wrong, String why)
      throws IOException {
    requireDamage(field, right, wrong, why);
  }

  @Test
  void otherFilesAreRefused() throws IOException {
    for (String text :
        new String[] {
          "",
          "[]",
          "{\"schema\": 2, \"runs\": [], \"points\": []}",
          "{\"schema\": 1}",
          "{\"schema\": 1, \"runs\": []}",
          "{\"schema\": 1, \"cases\": []}",
          "{\"schema\": 1, \"runs\": [], \"points\": [" + PointFile.line(full()) + "]}",
          "{\"schema\": 1, \"runs\": [], \"points\": [{\"problem\": {}}]}"
        }) {
      Path path = Files.writeString(folder.resolve("other.json"), text);
      assertThatThrownBy(() -> PointFile.open(path))
          .as(text)
          .isInstanceOf(IllegalArgumentException.class)
          .hasMessageContaining("other.json holds no points");
    }
  }

  @Test
  void aFileThatWasCutOffIsToldWithoutWhatTheParserSaysOfItsSource() throws IOException {
    Path path = Files.writeString(folder.resolve("cut.json"), "{\"schema\": 1, \"runs\": [");
    assertThatThrownBy(() -> PointFile.open(path))
        .hasMessageStartingWith(path + " holds no points: Unexpected end-of-input")
        .message()
        .doesNotContain("Source", "start marker");
  }

  @Test
  void aLineIsAPoint() {
    assertThat(PointFile.point(PointFile.line(full()))).isEqualTo(full());
    assertThatThrownBy(() -> PointFile.point("Warning: no GPU"))
        .hasMessage("no point: Warning: no GPU");
  }

  @Test
  void aPointOfAnOlderFileHasNoMovement() {
    String line = PointFile.line(full());
    String older = line.replaceAll("\"movement\":\\{[^}]*},", "");
    assertThat(older).isNotEqualTo(line);
    assertThat(PointFile.point(older).movement()).isNull();
  }

  @Test
  void aRunOfAnOlderFileHasNoMultiprocessors() throws IOException {
    Path path = folder.resolve("points.json");
    PointFile.open(path).put(RUN, full());
    String text = Files.readString(path);
    String older = text.replace("\"multiprocessors\":132,", "");
    assertThat(older).isNotEqualTo(text);
    Files.writeString(path, older);
    assertThat(PointFile.open(path).runs().getFirst().multiprocessors()).isNull();
  }

  @Test
  void theHighestClockIsTheThird() {
    Run read =
        new Run("t", "G", "sm_90", 132, "", "345 MHz, 3201 MHz, 1980 MHz, 84 W", "", Map.of());
    assertThat(read.highestClock()).hasValue(1980);
    assertThat(RUN.highestClock()).isEmpty();
  }

  @Test
  void samplesHaveMedianAndSpread() {
    Samples samples = samples(3.0, 1.0, 2.0, 9.0);
    assertThat(samples.median()).isEqualTo(3);
    assertThat(samples.least()).isEqualTo(1);
    assertThat(samples.most()).isEqualTo(9);
  }

  @Test
  void aPointWithoutTimesSaysWhy() {
    assertThatThrownBy(() -> Point.without(problem("x"), Status.FAILED, ""))
        .hasMessageContaining("without a sentence");
    assertThatThrownBy(() -> Point.without(problem("x"), Status.OK, "why"))
        .hasMessageContaining("without samples");
    assertThat(Point.without(problem("x"), Status.MISSING, "why").millis()).isNaN();
    assertThat(Status.OUT_OF_MEMORY.stands()).isTrue();
    assertThat(Status.MISSING.stands()).isFalse();
  }
}
