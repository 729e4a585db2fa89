package io.github.linattn.test.command;

import static java.nio.file.StandardCopyOption.COPY_ATTRIBUTES;
import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assumptions.assumeFalse;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.github.linattn.AttentionShape;
import io.github.linattn.DType;
import io.github.linattn.Diagnostics;
import io.github.linattn.io.SafeTensors;
import io.github.linattn.io.StoredTensor;
import io.github.linattn.test.command.Launcher.Ended;
import io.github.linattn.test.harness.Case;
import io.github.linattn.test.harness.Native;
import io.github.linattn.test.harness.OracleFile;
import io.github.linattn.test.harness.Results;
import io.github.linattn.test.harness.StateValues;
import io.github.linattn.test.harness.Tolerance;
import java.io.IOException;
import java.lang.foreign.ValueLayout;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.Arguments;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.MethodSource;
import org.junit.jupiter.params.provider.ValueSource;

/**
 * Breaks when the script, the module path or the command line answers wrongly, mixes results with
 * messages, or shows a stack trace for a mistake of its user.
 */
final class LauncherTest {
  private static final Path ORACLE = Path.of("src/test/resources/oracle").toAbsolutePath();

  @TempDir Path folder;

  static List<Arguments> files() {
    List<Arguments> rows = new ArrayList<>();
    for (String name : List.of("tiny", "one-token", "noncausal", "grouped", "value-dim")) {
      rows.add(Arguments.of(name, DType.F32));
    }
    rows.add(Arguments.of("packed", DType.BF16));
    rows.add(Arguments.of("text-normalized", DType.F16));
    return rows;
  }

  @ParameterizedTest
  @MethodSource("files")
  void attendAnswersWhatAnIndependentProgramDoes(String name, DType dtype) throws Exception {
    OracleFile file = OracleFile.read(name);
    Case problem = file.problem().dtype(dtype).build();
    AttentionShape shape = problem.shape;
    Path target = folder.resolve("out.safetensors");
    List<Object> arguments =
        new ArrayList<>(
            List.of(
                "attend",
                ORACLE.resolve("oracle-" + name + ".safetensors"),
                "--out",
                target,
                "--heads",
                shape.heads(),
                "--kv-heads",
                shape.keyValueHeads(),
                "--a",
                problem.a[0],
                "--b",
                problem.b[0],
                "--grad",
                "--backend",
                "cpu",
                "--dtype",
                dtype.name().toLowerCase(Locale.ROOT)));
    if (dtype == DType.F32) {
      arguments.addAll(List.of("--mode", "accurate"));
    }
    if (problem.normalize) {
      arguments.add("--normalize");
    }
    arguments.add("--state");
    if (!problem.causal) {
      arguments.add("--non-causal");
    }
    if (problem.packing != null) {
      String lengths = Arrays.toString(file.lengths()).replaceAll("[\\[\\] ]", "");
      arguments.addAll(List.of("--seqlens", lengths));
    }
    Launcher.linattn(folder, arguments.toArray()).assertDone();
    try (SafeTensors answer = SafeTensors.open(target)) {
      for (String rounded : List.of("o", "dq", "dk", "dv")) {
        assertThat(answer.tensor(rounded).dtype()).as(rounded).isEqualTo(dtype.name());
      }
      results(answer, problem).assertRight(problem, file.answer(), Tolerance.unrounded(problem));
      long heads = (long) shape.batch() * shape.heads();
      long tokens = shape.tokens();
      assertThat(answer.tensor("o").shape())
          .containsExactly(heads, tokens, (long) shape.valueDim());
      assertThat(answer.tensor("g").shape()).containsExactly(heads, tokens);
      assertThat(answer.tensor("da").shape()).containsExactly(heads);
    }
  }

  private static Results results(SafeTensors answer, Case problem) {
    StateValues state = null;
    if (problem.causal) { // the files have no state of others
      int sequences = problem.sequences().count();
      float[] counts = numbers(answer, "count");
      assertThat(counts).hasSize(sequences);
      long[] tokens = new long[sequences];
      for (int i = 0; i < sequences; i++) {
        tokens[i] = (long) counts[i];
      }
      state =
          new StateValues(numbers(answer, "S"), numbers(answer, "z"), numbers(answer, "u"), tokens);
    }
    return new Results(
        numbers(answer, "o"),
        numbers(answer, "g"),
        numbers(answer, "dq"),
        numbers(answer, "dk"),
        numbers(answer, "dv"),
        numbers(answer, "da"),
        numbers(answer, "db"),
        state,
        null,
        false);
  }

  private static float[] numbers(SafeTensors file, String name) {
    StoredTensor tensor = file.tensor(name);
    float[] values = new float[Math.toIntExact(tensor.elements())];
    if (tensor.dtype().equals("I64")) {
      for (int i = 0; i < values.length; i++) {
        values[i] = tensor.data().get(ValueLayout.JAVA_LONG_UNALIGNED, 8L * i);
      }
    } else {
      DType.valueOf(tensor.dtype()).decode(tensor.data(), 0, values, 0, values.length);
    }
    return values;
  }

  @Test
  void resultsGoToStdoutAndTheRestToStderr() throws Exception {
    Ended ended = Launcher.linattn(folder, "info");
    ended.assertDone();
    assertThat(ended.out()).contains("JDK").contains("backend cpu").doesNotContain("WARNING");
  }

  @Test
  void aFolderThatIsGoneIsNoPlaceToStart() throws Exception {
    String gone = "mkdir gone && cd gone && rmdir ../gone && exec '%s' --version";
    Launcher.run(folder, List.of("bash", "-c", gone.formatted(Native.root().resolve("linattn"))))
        .assertMistake(2, "the current folder is gone");
  }

  @Test
  void startsThroughALinkFromAnywhere() throws Exception {
    Path link = folder.resolve("la");
    Files.createSymbolicLink(link, Native.root().resolve("linattn"));
    Ended ended = Launcher.run(folder, List.of(link.toString(), "--version"));
    ended.assertDone();
    assertThat(ended.out()).startsWith("linattn ");
  }

  @ParameterizedTest
  @ValueSource(booleans = {false, true})
  void theFirstStartBuildsKernelsWhereAGpuIs(boolean gpu) throws Exception {
    assumeFalse(
        Files.exists(Path.of("/dev/nvidia0")) || Files.exists(Path.of("/dev/dxg")), "a GPU");
    Files.copy(Native.root().resolve("linattn"), folder.resolve("linattn"), COPY_ATTRIBUTES);
    Files.createDirectories(folder.resolve("jdk"));
    Files.writeString(folder.resolve("jdk/release"), "JAVA_VERSION=\"25\"\n");
    program("jdk/bin/java", "echo started");
    program(
        "bin/mvn",
        "mkdir -p cli/target/lib; touch cli/target/lib/linattn-cli-0.jar; echo \"CUDA $*\"");
    program("bin/nvidia-smi", gpu ? "exit 0" : "exit 9");
    String start = "PATH=%1$s/bin:$PATH LINATTN_JAVA_HOME=%1$s/jdk %1$s/linattn demo";
    Ended ended = Launcher.run(folder, List.of("bash", "-c", start.formatted(folder)));
    ended.assertDone();
    assertThat(ended.out()).isEqualTo("started\n");
    assertThat(ended.err())
        .contains(gpu ? "-Dlinattn.architectures=default " : "-Dlinattn.architectures=none ");
  }

  @ParameterizedTest
  @ValueSource(strings = {"none", "old"})
  void aJdkThatIsNamedIsNotPassedOver(String name) throws Exception {
    program("old/bin/java", "echo 'openjdk version \"21.0.5\"' >&2");
    Path named = folder.resolve(name);
    String linattn = Native.root().resolve("linattn").toString();
    Launcher.run(folder, List.of("env", "LINATTN_JAVA_HOME=" + named, linattn, "--version"))
        .assertMistake(2, "LINATTN_JAVA_HOME=" + named + " is no JDK 22 or newer");
  }

  private void program(String name, String line) throws IOException {
    Path file = folder.resolve(name);
    Files.createDirectories(file.getParent());
    Files.writeString(file, "#!/bin/sh\n" + line + "\n");
    assertThat(file.toFile().setExecutable(true)).isTrue();
  }

  @ParameterizedTest
  @CsvSource(
      delimiter = '|',
      value = {
        "attend none.safetensors --out o.safetensors | none.safetensors",
        "attend garbage --out o.safetensors | garbage",
        "attend TINY | --out",
        "attend TINY --out o --heads 4 | heads",
        "attend TINY --out o --heads 3 --kv-heads 2 | heads",
        "attend TINY --out o --heads 3 --a 1,2 | 3",
        "attend TINY --out o --a NaN | finite",
        "attend TINY --out o --a one | one",
        "attend TINY --out o --dtype f64 | f64",
        "attend TINY --out o --dtype bf16 --mode accurate | mode",
        "attend TINY --out o --seqlens 2,2 | 5",
        "attend TINY --out o --heads 3 --seqlens 5 | batch",
        "attend TINY --out none/o | none",
        "attend TINY --out o --state-in TINY --backend cpu --heads 2 | S",
        "attend TINY --out o --bogus | --bogus",
        "bogus | bogus",
        "demo none | none",
        "generate --head-dim 81 --out g | 81",
        "verify --backend tpu | tpu",
        "selftest | image"
      })
  void aMistakeIsASentenceAndStatusTwo(String line, String sentence) throws Exception {
    Files.writeString(folder.resolve("garbage"), "this is no safetensors file, by far");
    Path tiny = ORACLE.resolve("oracle-tiny.safetensors");
    String[] arguments = line.strip().replace("TINY", tiny.toString()).split(" ");
    Launcher.linattn(folder, (Object[]) arguments).assertMistake(2, sentence.strip());
    assertThat(folder.resolve("o")).doesNotExist();
  }

  @Test
  void aGpuThatIsRequiredAndMissingIsStatusThree() throws Exception {
    assumeTrue(Diagnostics.cudaProblem().isPresent(), "there is a GPU here");
    Path tiny = ORACLE.resolve("oracle-tiny.safetensors");
    Launcher.linattn(folder, "attend", tiny, "--out", "o", "--backend", "cuda")
        .assertMistake(3, "no usable GPU");
    Launcher.linattn(folder, "verify", "--backend", "cuda").assertMistake(3, "no usable GPU");
  }
}
