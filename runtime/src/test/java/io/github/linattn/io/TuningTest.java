package io.github.linattn.io;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.github.linattn.DType;
import io.github.linattn.Mode;
import io.github.linattn.io.Tuning.Choice;
import io.github.linattn.io.Tuning.Entry;
import io.github.linattn.io.Tuning.Pass;
import io.github.linattn.io.Tuning.Problem;
import io.github.linattn.io.Tuning.Range;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Breaks when a tuning file is read otherwise than it was written, or gives a wrong plan. */
class TuningTest {
  private static final Problem FORWARD =
      new Problem("GPU \"A\"", Pass.FORWARD, 128, DType.BF16, Mode.DEFAULT, false);
  private static final Problem BACKWARD =
      new Problem("GPU \"A\"", Pass.BACKWARD, 64, DType.F32, Mode.TF32, true);

  private static final Entry FEW =
      new Entry(FORWARD, new Range(8, 15), new Range(1024, 4095), new Choice("wgmma", 4, 2), 0.875);
  private static final Entry MANY =
      new Entry(FORWARD, new Range(16, 31), new Range(1024, 4095), new Choice("mma", 1, 1), 0.5);
  private static final Entry GRADIENT =
      new Entry(BACKWARD, new Range(1, 1), new Range(1024, 2047), new Choice("mma", 2, 1), 0.25);
  private static final Entry RELAY =
      new Entry(
          BACKWARD,
          new Range(64, 127),
          new Range(1024, 2047),
          new Choice("wgmma", 4, 1, true),
          0.9);
  private static final Entry PLANNERS =
      new Entry(BACKWARD, new Range(2, 3), new Range(1024, 2047), Choice.PLANNERS, 1.125);

  @TempDir Path folder;

  @AfterEach
  void unpin() {
    System.clearProperty(Tuning.PROPERTY);
  }

  @Test
  void readsWhatItWrote() throws IOException {
    Path file = folder.resolve("tuning.json");
    Tuning.NONE.with(List.of(FEW, MANY, GRADIENT, RELAY, PLANNERS)).write(file);
    assertThat(Tuning.read(file).entries()).containsExactly(FEW, MANY, GRADIENT, RELAY, PLANNERS);
    Tuning.NONE.write(file);
    assertThat(Tuning.read(file).entries()).isEmpty();
    assertThat(Files.list(folder)).containsExactly(file);
  }

  @Test
  void whatCantBeWrittenLeavesNothing() throws IOException {
    Path taken = Files.createDirectory(folder.resolve("taken"));
    assertThatThrownBy(() -> Tuning.NONE.write(taken)).hasMessageContaining("not a regular file");
    assertThat(Files.list(folder)).containsExactly(taken);
  }

  @Test
  void whatALinkLeadsToIsWritten() throws IOException {
    Path file = folder.resolve("tuning.json");
    Tuning.NONE.write(file);
    Path link = Files.createSymbolicLink(folder.resolve("link.json"), file);
    Tuning.NONE.with(List.of(FEW)).write(link);
    assertThat(link).isSymbolicLink();
    assertThat(Tuning.read(file).entries()).containsExactly(FEW);
    Files.delete(file);
    Tuning.NONE.with(List.of(MANY)).write(link);
    assertThat(link).isSymbolicLink();
    assertThat(Tuning.read(file).entries()).containsExactly(MANY);
  }

  @ParameterizedTest
  @CsvSource({
    "planner, 4, 1, left to the planner",
    "planner, 1, 2, left to the planner",
    "simt, 1, 1, no plans of simt",
    "wgmma, 0, 1, at least 1 segment",
    "nothing, 1, 1, no Technique"
  })
  void aChoiceThatIsNoPlanIsRefused(String technique, int segments, int turns, String why) {
    assertThatThrownBy(() -> new Choice(technique, segments, turns))
        .isInstanceOf(IllegalArgumentException.class)
        .hasMessageContaining(why);
  }

  @Test
  void readsTheFileThatShips() throws IOException {
    Tuning shipped = Tuning.read(Path.of("../tuning/nvidia-h200.json"));
    assertThat(shipped.entries())
        .hasSizeGreaterThan(30)
        .allMatch(entry -> entry.problem().gpu().equals("NVIDIA H200"))
        .extracting(Entry::problem)
        .contains(
            new Problem("NVIDIA H200", Pass.FORWARD, 128, DType.BF16, Mode.DEFAULT, false),
            new Problem("NVIDIA H200", Pass.BACKWARD, 64, DType.BF16, Mode.DEFAULT, false));
  }

  @Test
  void findsThePlanOfAClass() {
    Tuning tuning = Tuning.NONE.with(List.of(FEW, MANY, GRADIENT, PLANNERS));
    assertThat(tuning.find(BACKWARD, 2, 1024)).isEmpty();
    assertThat(tuning.find(FORWARD, 8, 1024)).contains(FEW.choice());
    assertThat(tuning.find(FORWARD, 15, 4095)).contains(FEW.choice());
    assertThat(tuning.find(FORWARD, 16, 4095)).contains(MANY.choice());
    assertThat(tuning.find(FORWARD, 7, 2000)).isEmpty();
    assertThat(tuning.find(FORWARD, 8, 4096)).isEmpty();
    assertThat(tuning.find(BACKWARD, 8, 1024)).isEmpty();
    var sameMode = new Problem("GPU \"A\"", Pass.FORWARD, 128, DType.BF16, Mode.TF32, false);
    assertThat(tuning.find(sameMode, 8, 1024)).contains(FEW.choice());
  }

  @Test
  void measuredPlansReplaceThoseOfTheirClass() {
    var again = new Entry(FORWARD, FEW.heads(), FEW.tokens(), new Choice("wgmma", 1, 1), 0.75);
    Tuning tuning = Tuning.NONE.with(List.of(FEW, MANY)).with(List.of(again));
    assertThat(tuning.entries()).containsExactly(MANY, again);
    assertThat(tuning.with(List.of(GRADIENT)).without(FORWARD).entries()).containsExactly(GRADIENT);
  }

  @Test
  void aPlanHasANameForAnyNumberOfTokens() {
    assertThat(new Choice("mma", 1, 1).name(10_000)).isEqualTo("mma");
    assertThat(new Choice("wgmma", 1, 2).name(10_000)).isEqualTo("wgmma*2");
    assertThat(new Choice("wgmma", 4, 2).name(10_000)).isEqualTo("wgmma:2560*2");
    assertThat(new Choice("wgmma", 4, 1, true).name(10_000)).isEqualTo("wgmma:2560+");
  }

  @ParameterizedTest
  @CsvSource(
      delimiter = '|',
      quoteCharacter = '`',
      value = {
        "1.5 | is no tuning file: it is not {\"version\": 2",
        "{\"version\": 1, \"entries\": []} | is no tuning file: it is not {\"version\": 2",
        "{\"version\": 2, \"entries\": [{}]} | an entry has the members",
        "{\"version\": 2, \"entries\": [ | the text ends early",
      })
  void refusesWhatIsNoTuning(String text, String why) throws IOException {
    Path file = Files.writeString(folder.resolve("other.json"), text);
    assertThatThrownBy(() -> Tuning.read(file))
        .isInstanceOf(IllegalArgumentException.class)
        .hasMessageStartingWith(file + " is no tuning file: ")
        .hasMessageContaining(why);
  }

  @ParameterizedTest
  @CsvSource(
      delimiter = '|',
      quoteCharacter = '`',
      value = {
        "\"forward\" | \"sideways\" | sideways is no pass",
        "\"headDim\": 128 | \"headDim\": 0 | headDim is at least 1, not 0",
        "[8, 15] | [8, 7] | a class is [least, most]",
        "[8, 15] | [8] | heads is a class [least, most]",
        "\"wgmma\" | \"magic\" | magic",
        "\"turns\": 2 | \"turns\": 3 | a power of two of turns",
        "\"relay\": false | \"relay\": true | a relay has 2 segments or more and 1 turn, not 4 and 2",
        "\"normalize\": false | \"normalize\": 0 | normalize is a boolean",
      })
  void refusesAWrongEntry(String right, String wrong, String why) throws IOException {
    Path file = folder.resolve("tuning.json");
    Tuning.NONE.with(List.of(FEW)).write(file);
    String text = Files.readString(file);
    assertThat(text).contains(right);
    Files.writeString(file, text.replace(right, wrong));
    assertThatThrownBy(() -> Tuning.read(file)).hasMessageContaining(why);
  }

  @Test
  void whatCouldNotBeReadAgainIsNoEntry() {
    var turns = new Choice("mma", 2, 2);
    assertThatThrownBy(() -> new Entry(BACKWARD, GRADIENT.heads(), GRADIENT.tokens(), turns, 1))
        .hasMessage("blocks of a backward take no turns; turns is 1, not 2");
    for (double ratio : new double[] {Double.NaN, Double.POSITIVE_INFINITY, -1}) {
      assertThatThrownBy(
              () ->
                  new Entry(
                      BACKWARD, GRADIENT.heads(), GRADIENT.tokens(), GRADIENT.choice(), ratio))
          .hasMessageStartingWith("a ratio of times is finite and not below 0");
    }
    assertThatThrownBy(() -> new Choice("mma", 1, Integer.MIN_VALUE))
        .hasMessageContaining("a power of two of turns");
    assertThatThrownBy(() -> new Problem("GPU", Pass.FORWARD, 0, DType.BF16, Mode.DEFAULT, false))
        .hasMessage("headDim is at least 1, not 0");
  }

  @Test
  void theProcessNamesItsFile() throws IOException {
    Path file = folder.resolve("tuning.json");
    Tuning.NONE.with(List.of(FEW)).write(file);
    System.setProperty(Tuning.PROPERTY, file.toString());
    assertThat(Tuning.ofProcess().entries()).containsExactly(FEW);
    System.setProperty(Tuning.PROPERTY, folder.resolve("none").toString());
    assertThatThrownBy(Tuning::ofProcess)
        .isInstanceOf(IllegalArgumentException.class)
        .hasMessage("can't read linattn.tuning %s: no such file", folder.resolve("none"));
  }
}
