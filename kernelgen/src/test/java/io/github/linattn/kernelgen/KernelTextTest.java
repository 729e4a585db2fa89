package io.github.linattn.kernelgen;

import static org.assertj.core.api.Assertions.assertThat;
import static org.junit.jupiter.api.Assertions.assertEquals;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.EnumSet;
import java.util.Locale;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

class KernelTextTest {

  static Stream<KernelSpec> goldenSpecs() {
    return Stream.of(
        spec(Operation.FORWARD, 128, 4),
        spec(Operation.VALUE_CENTER, 48, 3),
        spec(Operation.NORMALIZE, 96, 3),
        spec(Operation.COEFFICIENT_GRADIENT, 80, 5),
        hopper(96, ElementType.BF16, Precision.NATIVE),
        hopper(64, ElementType.F32, Precision.TF32),
        hopper(128, ElementType.F32, Precision.ACCURATE),
        KernelSpec.chunked(
            Operation.NORMALIZED_STATE_SUMS,
            Technique.WGMMA,
            192,
            ElementType.BF16,
            Precision.NATIVE,
            EnumSet.of(Architecture.SM_90A)),
        hopper(Operation.STATE_OUTPUTS, 0, ElementType.F32, Precision.ACCURATE),
        hopper(Operation.GRADIENT_OUTPUTS, 0, ElementType.F16, Precision.NATIVE),
        hopper(Operation.NORMALIZED_GRADIENT_OUTPUTS, 0, ElementType.BF16, Precision.NATIVE),
        hopper(Operation.KEY_VALUE_GRADIENT, 128, ElementType.BF16, Precision.NATIVE),
        hopper(Operation.NORMALIZED_QUERY_GRADIENT, 64, ElementType.BF16, Precision.NATIVE),
        hopper(Operation.ONE_SWEEP, 128, ElementType.BF16, Precision.NATIVE),
        hopper(Operation.STATE_SUMS, 96, ElementType.F16, Precision.NATIVE),
        hopper(Operation.STATE_SUMS, 64, ElementType.F32, Precision.DEFAULT),
        hopper(Operation.NORMALIZED_STATE_SUMS, 96, ElementType.BF16, Precision.NATIVE),
        hopper(Operation.GRADIENT_SUMS, 64, ElementType.F16, Precision.NATIVE),
        hopper(Operation.QUERY_GRADIENT, 128, ElementType.F32, Precision.DEFAULT),
        hopper(Operation.KEY_VALUE_GRADIENT, 96, ElementType.F32, Precision.ACCURATE),
        hopper(Operation.QUERY_GRADIENT, 144, ElementType.F32, Precision.DEFAULT),
        mma(Operation.FORWARD, 96, ElementType.F16, Precision.NATIVE),
        mma(Operation.QUERY_GRADIENT, 128, ElementType.F32, Precision.ACCURATE),
        mma(Operation.KEY_VALUE_GRADIENT, 64, ElementType.BF16, Precision.NATIVE),
        tiles(Operation.GRADIENT_SUMS, Technique.MMA, ElementType.F16, Precision.NATIVE),
        tiles(Operation.GRADIENT_OUTPUTS, Technique.MMA, ElementType.BF16, Precision.NATIVE),
        tiles(Operation.GRADIENT_ROWS, Technique.SIMT, ElementType.BF16, Precision.NATIVE),
        tiles(Operation.STATE_SUMS, Technique.MMA, ElementType.BF16, Precision.NATIVE),
        tiles(Operation.STATE_OUTPUTS, Technique.MMA, ElementType.F32, Precision.ACCURATE),
        tiles(Operation.STATE_SCAN, Technique.SIMT, ElementType.F32, Precision.ACCURATE),
        tiles(Operation.DECODE, Technique.SIMT, ElementType.F16, Precision.NATIVE),
        tiles(Operation.RECURRENCE, Technique.SIMT, ElementType.F32, Precision.ACCURATE),
        tiles(Operation.GRADIENT_RECURRENCE, Technique.SIMT, ElementType.F16, Precision.NATIVE));
  }

  @ParameterizedTest
  @MethodSource("goldenSpecs")
  void emittedTextIsGolden(KernelSpec spec) throws IOException {
    Path golden = Path.of("src/test/resources/golden", spec.symbol() + ".cu");
    if (Boolean.getBoolean("golden.update")) {
      Files.writeString(golden, KernelText.emit(spec));
    }
    assertEquals(
        Files.readString(golden),
        KernelText.emit(spec),
        "intended? rerun with -Dgolden.update=true, review the diff");
  }

  @Test
  void textDoesNotDependOnTheLocale() {
    Locale before = Locale.getDefault();
    String expected = KernelText.emit(spec(Operation.KEY_GRADIENT, 64, 2));
    Locale.setDefault(Locale.forLanguageTag("ar-EG"));
    try {
      assertThat(KernelText.emit(spec(Operation.KEY_GRADIENT, 64, 2))).isEqualTo(expected);
      assertThat(spec(Operation.KEY_GRADIENT, 64, 2).symbol())
          .isEqualTo("la_paper_key_gradient_d64_l2_f32");
    } finally {
      Locale.setDefault(before);
    }
  }

  @Test
  void linesEndInLineFeedsAlone() {
    for (KernelSpec spec : Catalogue.defaults()) {
      assertThat(KernelText.emit(spec)).doesNotContain("\r", "\t").endsWith("}\n");
    }
  }

  @Test
  void writesOnlyWhatChanged(@TempDir Path folder) throws IOException {
    Path file = folder.resolve("below").resolve("a.cu");
    assertThat(KernelText.writeIfChanged(file, "a\n")).isTrue();
    assertThat(KernelText.writeIfChanged(file, "a\n")).isFalse();
    assertThat(KernelText.writeIfChanged(file, "b\n")).isTrue();
    assertThat(file).hasContent("b\n");
  }

  private static KernelSpec hopper(int headDim, ElementType element, Precision precision) {
    return hopper(Operation.FORWARD, headDim, element, precision);
  }

  private static KernelSpec hopper(
      Operation operation, int headDim, ElementType element, Precision precision) {
    return KernelSpec.chunked(
        operation, Technique.WGMMA, headDim, element, precision, EnumSet.of(Architecture.SM_90A));
  }

  private static KernelSpec mma(
      Operation operation, int headDim, ElementType element, Precision precision) {
    return KernelSpec.chunked(
        operation, Technique.MMA, headDim, element, precision, EnumSet.of(Architecture.SM_90));
  }

  private static KernelSpec tiles(
      Operation operation, Technique technique, ElementType element, Precision precision) {
    return KernelSpec.chunked(
        operation, technique, 0, element, precision, EnumSet.of(Architecture.SM_90));
  }

  private static KernelSpec spec(Operation operation, int headDim, int slices) {
    return KernelSpec.paper(operation, headDim, slices, EnumSet.of(Architecture.SM_90));
  }
}
