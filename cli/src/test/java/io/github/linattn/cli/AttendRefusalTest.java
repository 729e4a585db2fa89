package io.github.linattn.cli;

import static org.assertj.core.api.Assertions.assertThat;

import io.github.linattn.AttentionShape;
import io.github.linattn.DType;
import io.github.linattn.io.Npy;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.channels.Pipe;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class AttendRefusalTest {
  private static final AttentionShape SHAPE = AttentionShape.of(2, 3, 21, 32);

  @TempDir Path folder;

  @ParameterizedTest
  @CsvSource(
      delimiter = '|',
      quoteCharacter = '`',
      value = {
        "--heads 4                     | --heads 4 does not divide the 6 rows of q evenly",
        "--heads 0                     | --heads must be at least 1, got 0",
        "--kv-heads -2                 | --kv-heads must be at least 1, got -2",
        "--heads 3 --kv-heads 2        | --kv-heads 2 does not divide the 3 query heads evenly",
        "--heads 3 --kv-heads 1        | k must have the shape [2, 21, 32]",
        "--a 1,2                       | --a has 2 values; give one, or one for each of the 6",
        "--heads 3 --b 1,2             | --b has 2 values; give one, or one for each of the 3",
        "--a 0 --b -0                  | --a and --b are both 0: every g would be 0",
        "--heads 3 --a 1,0,2 --b 0     | --a and --b are both 0 for head 1, counted from 0: every g",
        "--b nan                       | 'nan' is not a float",
        "--b Infinity                  | --b must be finite",
        "--seqlens 20,2                | --seqlens sum to 22, but q has 21 tokens",
        "--seqlens 22,-1               | sequence length 1 is negative: -1",
        "--seqlens 20,x                | 'x' is not an int",
        "--heads 3 --seqlens 21        | --heads 3 makes 2 of them",
        "--dtype f64                   | it is one of f32, bf16, f16, not 'f64'",
        "--mode fast                   | it is one of accurate, default, tf32, not 'fast'",
        "--dtype bf16 --mode accurate  | --dtype bf16 has the mode default only",
        "--dtype f16 --mode tf32       | --dtype f16 has the mode default only",
        "--backend gpu                 | it is one of auto, cpu, cuda, not 'gpu'",
        "--state-in nowhere            | nowhere: no such file",
        "--frobnicate                  | Unknown option: '--frobnicate'",
      })
  void aWrongOptionIsRefused(String options, String sentence) throws IOException {
    CheckData data = CheckData.random(CheckCase.of("", SHAPE), 1);
    requireRefused(
        InputFile.write(folder.resolve("in"), SHAPE, data, DType.F32), options, sentence);
  }

  @Test
  void aFileThatIsNoneIsRefused() throws IOException {
    requireRefused(folder.resolve("none"), "", "none: no such file");
    requireRefused(folder, "", "can't read " + folder + ": it is not a regular file");
    Path tiny = Files.writeString(folder.resolve("tiny"), "abc");
    requireRefused(tiny, "", "can't read " + tiny + ": it has 3 bytes and is no safetensors file");
    Path broken = Files.write(folder.resolve("broken"), new byte[] {1, 0, 0, 0, 0, 0, 0, 0, '{'});
    requireRefused(broken, "", "can't read " + broken + ": the header is not valid JSON");
    Path text = Files.writeString(folder.resolve("text"), "only some text");
    requireRefused(text, "", "truncated or no safetensors file");
    byte[] start = "?NUMPY\u0001?v?{'descr'".getBytes(StandardCharsets.ISO_8859_1);
    start[0] = (byte) 0x93;
    Path npy = Files.write(folder.resolve("npy"), start);
    requireRefused(npy, "", "npy: it is an .npy file and no safetensors file");
    requireRefused(
        Files.copy(npy, folder.resolve("q.npy")),
        "",
        "it is an .npy file and no safetensors file; .npy files are named with --q, --k and --v");
  }

  @Test
  void aFileThatLacksATensorIsRefused() throws IOException {
    try (var file = new InputFile()) {
      file.zeros("q", "F32", 4, 2, 5, 32).zeros("k", "F32", 4, 2, 5, 32);
      requireRefused(file.write(folder.resolve("two")), "", "has no tensor v; it has q, k");
      file.zeros("v", "F32", 4, 2, 5, 32);
      requireRefused(file.write(folder.resolve("three")), "--grad", "has no tensor do");
      file.zeros("do", "F32", 4, 2, 4, 32);
      requireRefused(
          file.write(folder.resolve("four")), "--grad", "do must have the shape [2, 5, 32]");
    }
  }

  @ParameterizedTest
  @CsvSource(
      delimiter = '|',
      value = {
        "F64 | 8 | 2 5 32  | q must be F32, BF16 or F16, got F64[2, 5, 32]",
        "I32 | 4 | 2 5 32  | q must be F32, BF16 or F16, got I32[2, 5, 32]",
        "F32 | 4 | 10 32   | q must have the three axes [rows, tokens, dim], got F32[10, 32]",
        "F32 | 4 | 2 0 32  | q is empty: F32[2, 0, 32]",
        "F32 | 4 | 2 4 32  | k must have the shape [2, 4, 32] to fit",
        "F32 | 4 | 2 5 48  | k must have the shape [2, 5, 48] to fit",
        "F32 | 4 | 3 5 32  | k must have the shape [3, 5, 32] to fit",
      })
  void aQThatDoesNotFitIsRefused(String dtype, int bytes, String shape, String sentence)
      throws IOException {
    long[] extents = Arrays.stream(shape.split(" ")).mapToLong(Long::parseLong).toArray();
    try (var file = new InputFile()) {
      file.zeros("q", dtype, bytes, extents);
      file.zeros("k", "F32", 4, 2, 5, 32).zeros("v", "F32", 4, 2, 5, 32);
      requireRefused(file.write(folder.resolve("in")), "", sentence);
    }
  }

  @Test
  void aWidthThatIsNoMultipleOf16IsRefused() throws IOException {
    try (var file = new InputFile()) {
      file.zeros("q", "F32", 4, 1, 5, 30).zeros("k", "F32", 4, 1, 5, 30);
      file.zeros("v", "F32", 4, 1, 5, 32);
      requireRefused(file.write(folder.resolve("in")), "", "keyDim must be a multiple of 16");
    }
  }

  @Test
  void aStateThatDoesNotFitIsRefused() throws IOException {
    AttentionShape shape = AttentionShape.of(1, 2, 40, 48);
    CheckData data = CheckData.random(CheckCase.of("", shape), 1);
    Path in = InputFile.write(folder.resolve("in"), shape, data, DType.F32);
    Path good = state("good", "F32", 4, 0);
    assertThat(run(in, folder.resolve("fine"), "--state-in " + good)).returns(0, Cli::exitCode);
    requireRefused(
        in, "--seqlens 20,20 --state-in " + good, "S must be F32[2, 2, 48, 48] to fit the input");
    requireRefused(in, "--state-in " + state("f16", "F16", 2, 0), "S must be F32[2, 1, 48, 48]");
    requireRefused(in, "--state-in " + state("minus", "F32", 4, -1), "no number of tokens: -1.0");
    requireRefused(in, "--state-in " + state("half", "F32", 4, .5f), "no number of tokens: 0.5");
    requireRefused(in, "--state-in " + longState("below", -1), "no number of tokens: -1");
    requireRefused(
        in,
        "--state-in " + longState("above", Long.MAX_VALUE),
        "no number of tokens: 9223372036854775807");
    requireRefused(in, "--state-in " + longState("two", 1, 1), "count must be I64[1] to fit");
    requireRefused(in, "--state-in " + in, "has no tensor S");
    assertRefused(run(in, good, "--state-in " + good), "is the state to continue from");
  }

  @Test
  void aStateOfOtherKeysIsRefused() throws IOException {
    AttentionShape shape = AttentionShape.of(1, 2, 40, 48);
    CheckData data = CheckData.random(CheckCase.of("", shape), 1);
    Path in = InputFile.write(folder.resolve("in"), shape, data, DType.F32);
    Path divided = folder.resolve("divided");
    Path plain = folder.resolve("plain");
    assertThat(run(in, divided, "--state --normalize")).returns(0, Cli::exitCode);
    assertThat(run(in, plain, "--state")).returns(0, Cli::exitCode);

    requireRefused(
        in,
        "--state-in " + divided,
        "the state is of keys that were divided by their length: continue with --normalize");
    requireRefused(
        in,
        "--normalize --state-in " + plain,
        "the state is of keys as they are: continue without --normalize");
    requireRefused(
        in,
        "--state-in " + noted("other", "yes"),
        "the state's normalized_keys must be true or false, got 'yes'");
    Path out = folder.resolve("out");
    assertThat(run(in, out, "--normalize --state-in " + divided)).returns(0, Cli::exitCode);
    assertThat(run(in, out, "--state-in " + plain)).returns(0, Cli::exitCode);
    assertThat(run(in, out, "--normalize --state-in " + noted("python", "True")))
        .returns(0, Cli::exitCode);
    assertThat(run(in, out, "--normalize --state-in " + state("silent", "F32", 4, 0)))
        .returns(0, Cli::exitCode);
  }

  private Path state(String name, String dtype, int bytes, float count) throws IOException {
    try (var file = new InputFile()) {
      return sums(file, dtype, bytes)
          .add("count", DType.F32, new float[] {count}, 1)
          .write(folder.resolve(name));
    }
  }

  private Path noted(String name, String normalized) throws IOException {
    try (var file = new InputFile()) {
      return sums(file, "F32", 4)
          .counts(0)
          .metadata(StateFile.NORMALIZED, normalized)
          .write(folder.resolve(name));
    }
  }

  private Path longState(String name, long... counts) throws IOException {
    try (var file = new InputFile()) {
      return sums(file, "F32", 4).counts(counts).write(folder.resolve(name));
    }
  }

  private static InputFile sums(InputFile file, String dtype, int bytes) {
    return file.zeros("S", dtype, bytes, 2, 1, 48, 48)
        .zeros("z", "F32", 4, 2, 1, 48)
        .zeros("u", "F32", 4, 2, 1, 48);
  }

  @Test
  void aNameWithANewlineStaysInTheLine() throws IOException {
    try (var file = new InputFile()) {
      Path in =
          file.zeros("q", "F32", 4, 1, 5, 16)
              .zeros("x\ny", "F32", 4, 1)
              .write(folder.resolve("in"));
      Cli cli = run(in, folder.resolve("out"), "");
      assertRefused(cli, "has no tensor k; it has q, x\\u000ay");
      assertThat(cli.err().lines()).hasSize(1);
    }
  }

  @Test
  void anOutputThatCantBeIsRefused() throws IOException {
    CheckData data = CheckData.random(CheckCase.of("", SHAPE), 1);
    Path in = InputFile.write(folder.resolve("in"), SHAPE, data, DType.F32);
    byte[] before = Files.readAllBytes(in);
    assertRefused(run(in, in, ""), "is the input; name another file");
    assertRefused(run(in, folder, ""), "is a folder; name a file");
    assertRefused(run(in, folder.resolve("no/where"), ""), "there is no folder");
    Path link = Files.createSymbolicLink(folder.resolve("link"), folder.resolve("no/where"));
    assertRefused(run(in, link, ""), "there is no folder");
    Pipe one = Pipe.open();
    try (var sink = one.sink();
        var source = one.source()) {
      assertThat(sink.isOpen() && source.isOpen()).isTrue();
      assertRefused(run(in, pipe(), ""), " is not a regular file; name another");
    }
    assertRefused(Cli.run("attend", in), "Missing required option: '--out=OUT'");
    assertThat(in).hasBinaryContent(before);
  }

  /** What /dev/stdout leads to in a pipe: a link whose target is no path. */
  private static Path pipe() throws IOException {
    try (Stream<Path> open = Files.list(Path.of("/proc/self/fd"))) {
      return open.filter(AttendRefusalTest::isPipe).findFirst().orElseThrow();
    }
  }

  private static boolean isPipe(Path descriptor) {
    try {
      return Files.readSymbolicLink(descriptor).toString().startsWith("pipe:");
    } catch (IOException closed) {
      return false;
    }
  }

  @ParameterizedTest
  @CsvSource(
      delimiter = '|',
      value = {
        "--q x.npy IN --out o                    | name either a file IN.safetensors, or the files",
        "--out o                                 | name either a file IN.safetensors, or the files",
        "--q x.npy --out o                       | --k is missing: give q, k and v as --q, --k and --v",
        "--q x.npy --k x.npy --v x.npy --grad --out o | --do is missing: --grad needs it",
        "--q x.npy --k x.npy --v x.npy --do x.npy --out o | --do is for gradients; give --grad, too",
        "--q none.npy --k x.npy --v x.npy --out o | none.npy: no such file",
        "--q wrong.npy --k x.npy --v x.npy --out o | wrong.npy: this is no .npy file",
        "--q x.npy --k x.npy --v x.npy --out x.npy | x.npy is the input; name another file",
        "--q x.g.npy --k x.npy --v x.npy --out x.npy | x.g.npy is the input; name another file",
        "--q x.npy --k x.npy --v x.npy --dtype bf16 --out o.npy | numpy has no bf16",
      })
  void arraysThatDoNotServeAreRefused(String options, String sentence) throws IOException {
    try (Arena arena = Arena.ofConfined()) {
      MemorySegment zeros = arena.allocate(4 * 5 * 16);
      for (String name : new String[] {"x.npy", "x.g.npy"}) {
        Npy.write(folder.resolve(name), "F32", List.of(1L, 5L, 16L), zeros);
      }
    }
    Files.writeString(folder.resolve("wrong.npy"), "something else");
    String[] words =
        Arrays.stream(options.split(" "))
            .map(word -> word.startsWith("--") ? word : folder.resolve(word).toString())
            .map(word -> word.endsWith("/bf16") ? "bf16" : word)
            .toArray(String[]::new);
    var all = Stream.concat(Stream.of("attend", "--backend", "cpu"), Arrays.stream(words));
    assertRefused(Cli.run(all.toArray()), sentence);
    assertThat(folder.resolve("o")).doesNotExist();
  }

  private void requireRefused(Path in, String options, String sentence) {
    Path out = folder.resolve("refused");
    assertRefused(run(in, out, options), sentence);
    assertThat(out).doesNotExist();
  }

  private static Cli run(Path in, Path out, String options) {
    var args = Stream.of("attend", in, "--out", out);
    String backend = options.contains("--backend") ? "" : "--backend cpu ";
    var more = Arrays.stream((backend + options).split(" ")).filter(word -> !word.isEmpty());
    return Cli.run(Stream.concat(args, more).toArray());
  }

  private static void assertRefused(Cli cli, String sentence) {
    assertThat(cli.err()).startsWith("linattn: ").contains(sentence).doesNotContain("\tat ");
    assertThat(cli.exitCode()).isEqualTo(2);
    assertThat(cli.out()).isEmpty();
  }
}
