package io.github.linattn.cli;

import static org.assertj.core.api.Assertions.assertThat;

import io.github.linattn.AttentionShape;
import io.github.linattn.DType;
import io.github.linattn.Mode;
import io.github.linattn.io.Npy;
import io.github.linattn.io.SafeTensors;
import io.github.linattn.io.StoredTensor;
import io.github.linattn.reference.ErrorBudget;
import io.github.linattn.reference.Reference;
import java.io.IOException;
import java.lang.foreign.ValueLayout;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

class AttendCommandTest {
  private static final AttentionShape TWO_ROWS = AttentionShape.of(2, 3, 21, 32);
  private static final AttentionShape ONE_ROW = AttentionShape.of(1, 2, 40, 48);
  private static final double BOUND = ErrorBudget.of(DType.F32, Mode.ACCURATE);

  @TempDir Path folder;

  /** A problem with the options that ask for it. */
  record Asked(CheckCase problem, String options) {
    static Asked of(AttentionShape shape, String options) {
      return new Asked(CheckCase.of("", shape), options);
    }

    @Override
    public String toString() {
      return options;
    }
  }

  static Stream<Asked> problems() {
    CheckCase twoRows = CheckCase.of("", TWO_ROWS);
    CheckCase oneRow = CheckCase.of("", ONE_ROW);
    return Stream.of(
        Asked.of(TWO_ROWS, "--heads 3"),
        new Asked(
            twoRows.coefficients(new float[] {1, 1, 1}, new float[] {1, 0, -.1f}),
            "--heads 3 --b 1,0,-.1"),
        new Asked(
            twoRows.coefficients(new float[] {2}, new float[] {.5f}), "--heads 3 --a 2 --b .5"),
        Asked.of(ONE_ROW, ""),
        new Asked(oneRow.normalized(), "--normalize"),
        new Asked(oneRow.nonCausal(), "--non-causal"),
        Asked.of(
            AttentionShape.of(2, 4, 9, 16).withKeyValueHeads(2).withValueDim(64),
            "--heads 4 --kv-heads 2"),
        new Asked(oneRow.packed(3, 0, 37), "--seqlens 3,0,37"));
  }

  @ParameterizedTest
  @MethodSource("problems")
  void resultsAreThoseOfTheReference(Asked asked) throws IOException {
    CheckCase problem = asked.problem();
    AttentionShape s = problem.shape();
    CheckData data = CheckData.random(problem, 7);
    Path in = InputFile.write(folder.resolve("in"), s, data, DType.F32);
    Path out = folder.resolve("out");

    Cli cli = attend(in, out, "--grad --mode accurate --state " + asked.options());

    assertThat(cli.err()).isEmpty();
    assertThat(cli.exitCode()).isZero();
    assertThat(cli.out()).contains("on cpu: forward").contains("wrote o g");
    Reference.Result expected = solve(problem, data);
    long queryRows = (long) s.batch() * s.heads();
    long keyRows = (long) s.batch() * s.keyValueHeads();
    try (SafeTensors got = SafeTensors.open(out)) {
      requireClose(got, "o", expected.o(), queryRows, s.tokens(), s.valueDim());
      requireClose(got, "g", expected.g(), queryRows, s.tokens());
      requireClose(got, "dq", expected.dq(), queryRows, s.tokens(), s.keyDim());
      requireClose(got, "dk", expected.dk(), keyRows, s.tokens(), s.keyDim());
      requireClose(got, "dv", expected.dv(), keyRows, s.tokens(), s.valueDim());
      requireClose(got, "da", expected.da(), queryRows);
      requireClose(got, "db", expected.db(), queryRows);
      long n = problem.sequences().count();
      Reference.State state = expected.state();
      requireClose(got, "S", state.s(), keyRows, n, s.keyDim(), s.valueDim());
      requireClose(got, "z", state.z(), keyRows, n, s.keyDim());
      requireClose(got, "u", state.u(), keyRows, n, s.valueDim());
      assertThat(counts(got)).containsExactly(state.counts());
    }
  }

  @Test
  void sixteenBitInputAndStorage() throws IOException {
    CheckCase problem = CheckCase.of("", ONE_ROW);
    CheckData data = CheckData.random(problem, 3).rounded(DType.BF16);
    Path in = InputFile.write(folder.resolve("in"), ONE_ROW, data, DType.BF16);
    Reference.Result expected = solve(problem, data);
    for (DType dtype : DType.values()) {
      Path out = folder.resolve(dtype.name());
      Cli cli = attend(in, out, "--grad --dtype " + Text.id(dtype));
      assertThat(cli.exitCode()).as(cli.err()).isZero();
      try (SafeTensors got = SafeTensors.open(out)) {
        assertThat(got.tensor("o").dtype()).isEqualTo(dtype.name());
        assertThat(got.tensor("dk").dtype()).isEqualTo(dtype.name());
        assertThat(got.tensor("g").dtype()).isEqualTo("F32");
        assertThat(got.tensor("da").dtype()).isEqualTo("F32");
        double bound = ErrorBudget.of(dtype, Mode.DEFAULT);
        assertThat(Reference.error(expected.o(), floats(got, "o"))).isLessThan(bound);
        assertThat(Reference.error(expected.dk(), floats(got, "dk"))).isLessThan(bound);
      }
    }
  }

  @Test
  void arraysOfNumpyGiveWhatASafetensorsFileGives() throws IOException {
    CheckData data = CheckData.random(CheckCase.of("", ONE_ROW), 11);
    Path in = InputFile.write(folder.resolve("in"), ONE_ROW, data, DType.F32);
    Path together = folder.resolve("together");
    String options = "--grad --state --mode accurate";
    assertThat(attend(in, together, options)).returns(0, Cli::exitCode);
    String arrays = "";
    try (SafeTensors tensors = SafeTensors.open(in)) {
      for (String name : tensors.names()) {
        StoredTensor x = tensors.tensor(name);
        Path file = folder.resolve(name + ".npy");
        Npy.write(file, x.dtype(), x.shape(), x.data());
        arrays += " --" + name + " " + file;
      }
    }
    Path o = folder.resolve("o.npy");
    Path g = Files.createDirectory(folder.resolve("o.g.npy"));
    Cli refused = Cli.run(("attend --backend cpu " + options + arrays + " --out " + o).split(" "));
    assertThat(refused.exitCode()).isEqualTo(2);
    assertThat(refused.err()).contains("--out " + g + " is a folder; name a file");
    assertThat(o).doesNotExist();
    Files.delete(g);
    Cli cli = Cli.run(("attend --backend cpu " + options + arrays + " --out " + o).split(" "));
    assertThat(cli.err()).isEmpty();
    assertThat(cli.exitCode()).isZero();
    assertThat(cli.out()).contains("wrote o to " + o + ", g to " + folder.resolve("o.g.npy"));
    try (SafeTensors expected = SafeTensors.open(together)) {
      for (String name : expected.names()) {
        Path file = name.equals("o") ? o : folder.resolve("o." + name + ".npy");
        try (Npy got = Npy.open(file)) {
          StoredTensor x = expected.tensor(name);
          assertThat(got.tensor()).as(name).hasToString(x.toString());
          assertThat(got.tensor().data().mismatch(x.data())).as(name).isEqualTo(-1);
        }
      }
    }
  }

  @Test
  void elementsThatAreNotFiniteAreCounted() throws IOException {
    CheckData data = CheckData.random(CheckCase.of("", ONE_ROW), 3);
    data.v()[ONE_ROW.valueDim() + 7] = Float.POSITIVE_INFINITY; // column 7 from token 1 on
    Path in = InputFile.write(folder.resolve("in"), ONE_ROW, data, DType.F32);
    Path out = folder.resolve("out");

    Cli cli = attend(in, out, "");

    assertThat(cli.exitCode()).isZero();
    float[] o;
    try (SafeTensors got = SafeTensors.open(out)) {
      o = floats(got, "o");
    }
    long count = IntStream.range(0, o.length).filter(i -> !Float.isFinite(o[i])).count();
    assertThat(count).isPositive();
    assertThat(cli.err())
        .isEqualToIgnoringNewLines(
            "warning: %d of %d elements of o are not finite".formatted(count, o.length));

    Cli gradients = attend(in, out, "--grad");
    assertThat(gradients.err())
        .containsPattern("warning: \\d+ of \\d+ elements of dq are not finite");
  }

  @Test
  void aRunThatIsSplitEqualsTheWhole() throws IOException {
    CheckCase problem = CheckCase.of("", ONE_ROW);
    CheckData data = CheckData.random(problem, 5);
    Path first = writeTokens("first", data, 0, 19);
    Path second = writeTokens("second", data, 19, 21);
    Path middle = folder.resolve("middle");
    Path end = folder.resolve("end");

    assertThat(attend(first, middle, "--state")).returns(0, Cli::exitCode);
    Cli cli = attend(second, end, "--state --grad --mode accurate --state-in " + middle);

    assertThat(cli.exitCode()).as(cli.err()).isZero();
    Reference.State expected = solve(problem, data).state();
    try (SafeTensors got = SafeTensors.open(end)) {
      requireClose(got, "S", expected.s(), 2, 1, 48, 48);
      assertThat(counts(got)).containsExactly(40);
      assertThat(got.tensor("dS").shape()).containsExactly(2L, 1L, 48L, 48L);
      assertThat(got.names()).contains("dz", "du");
    }
  }

  /** A float holds no odd number above 2^24. */
  @Test
  void countsStayExact() throws IOException {
    CheckData data = CheckData.random(CheckCase.of("", ONE_ROW), 5);
    Path in = InputFile.write(folder.resolve("in"), ONE_ROW, data, DType.F32);
    Path before = folder.resolve("before");
    Path after = folder.resolve("after");
    try (var file = new InputFile()) {
      file.zeros("S", "F32", 4, 2, 1, 48, 48).zeros("z", "F32", 4, 2, 1, 48);
      file.zeros("u", "F32", 4, 2, 1, 48).counts((1L << 24) + 1).write(before);
    }
    Cli cli = attend(in, after, "--state --state-in " + before);
    assertThat(cli.exitCode()).as(cli.err()).isZero();
    try (SafeTensors got = SafeTensors.open(after)) {
      assertThat(counts(got)).containsExactly((1L << 24) + 1 + ONE_ROW.tokens());
    }
  }

  private static long[] counts(SafeTensors file) {
    StoredTensor counts = file.tensor("count");
    assertThat(counts.dtype()).isEqualTo("I64");
    assertThat(counts.shape()).hasSize(1);
    return counts.data().toArray(ValueLayout.JAVA_LONG_UNALIGNED);
  }

  private Path writeTokens(String name, CheckData data, int from, int count) throws IOException {
    try (var file = new InputFile()) {
      float[][] tensors = {data.q(), data.k(), data.v(), data.dO()};
      String[] names = {"q", "k", "v", "do"};
      int dim = ONE_ROW.keyDim();
      for (int t = 0; t < tensors.length; t++) {
        float[] part = new float[2 * count * dim];
        for (int row = 0; row < 2; row++) {
          int start = (row * ONE_ROW.tokens() + from) * dim;
          System.arraycopy(tensors[t], start, part, row * count * dim, count * dim);
        }
        file.add(names[t], DType.F32, part, 2, count, dim);
      }
      return file.write(folder.resolve(name));
    }
  }

  private static Cli attend(Path in, Path out, String options) {
    var args = Stream.of("attend", in, "--out", out, "--backend", "cpu");
    var more = Arrays.stream(options.split(" ")).filter(word -> !word.isEmpty());
    return Cli.run(Stream.concat(args, more).toArray());
  }

  private static Reference.Result solve(CheckCase problem, CheckData data) {
    return Reference.of(
        new Reference.Problem(
            problem.shape(),
            problem.sequences(),
            problem.a(),
            problem.b(),
            problem.causal(),
            problem.normalize(),
            data.q(),
            data.k(),
            data.v(),
            data.dO(),
            null));
  }

  private static void requireClose(SafeTensors got, String name, double[] expected, long... shape) {
    List<Long> extents = Arrays.stream(shape).boxed().toList();
    assertThat(got.tensor(name).shape()).as(name).isEqualTo(extents);
    double bound =
        name.startsWith("d") && extents.size() == 1
            ? ErrorBudget.ofCoefficients(DType.F32, Mode.ACCURATE)
            : BOUND;
    assertThat(Reference.error(expected, floats(got, name))).as(name).isLessThanOrEqualTo(bound);
  }

  private static float[] floats(SafeTensors file, String name) {
    StoredTensor tensor = file.tensor(name);
    float[] values = new float[Math.toIntExact(tensor.elements())];
    DType.valueOf(tensor.dtype()).decode(tensor.data(), 0, values, 0, values.length);
    return values;
  }
}
