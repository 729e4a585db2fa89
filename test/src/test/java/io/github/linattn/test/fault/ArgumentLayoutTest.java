package io.github.linattn.test.fault;

import static org.assertj.core.api.Assertions.assertThat;

import io.github.linattn.internal.cuda.ChunkedStructs;
import io.github.linattn.internal.cuda.GradientStructs;
import io.github.linattn.internal.cuda.PaperStructs;
import io.github.linattn.test.harness.Native;
import java.io.IOException;
import java.lang.foreign.MemoryLayout;
import java.lang.foreign.MemoryLayout.PathElement;
import java.lang.foreign.StructLayout;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Breaks when Java packs a kernel's arguments other than the kernel's own header lays them out. */
final class ArgumentLayoutTest {
  private static final Map<String, StructLayout> STRUCTS =
      Map.ofEntries(
          Map.entry("ScanArguments", PaperStructs.SCAN),
          Map.entry("ValueCenterArguments", PaperStructs.VALUE_CENTER),
          Map.entry("RowDotArguments", PaperStructs.ROW_DOT),
          Map.entry("NormalizeArguments", PaperStructs.NORMALIZE),
          Map.entry("NormalizeGradientArguments", PaperStructs.NORMALIZE_GRADIENT),
          Map.entry("CoefficientGradientArguments", PaperStructs.COEFFICIENT_GRADIENT),
          Map.entry("Divisor", ChunkedStructs.DIVISOR),
          Map.entry("TensorView", ChunkedStructs.TENSOR_VIEW),
          Map.entry("Item", ChunkedStructs.ITEM),
          Map.entry("Span", ChunkedStructs.SPAN),
          Map.entry("ChunkedArguments", ChunkedStructs.CHUNKED),
          Map.entry("StateScanArguments", ChunkedStructs.STATE_SCAN),
          Map.entry("GradientArguments", GradientStructs.GRADIENT),
          Map.entry("GradientRecurrenceArguments", GradientStructs.GRADIENT_RECURRENCE),
          Map.entry("GradientRowsArguments", GradientStructs.GRADIENT_ROWS),
          Map.entry("NormalizeRowsGradientArguments", GradientStructs.NORMALIZE_ROWS_GRADIENT),
          Map.entry("CoefficientSumsArguments", GradientStructs.COEFFICIENT_SUMS));

  @Test
  void tensorMapsLieBeforeTheArgumentsOfAForwardOnHopper() {
    StructLayout hopper = ChunkedStructs.HOPPER;
    assertThat(hopper.byteOffset(PathElement.groupElement("chunked"))).isEqualTo(4 * 128);
    assertThat(hopper.byteAlignment()).isEqualTo(64);
    assertThat(hopper.byteSize() % 64).isZero();
  }

  @Test
  void tensorMapsLieBeforeEachTaskOfAGradientOnHopper() {
    StructLayout hopper = GradientStructs.HOPPER_GRADIENT;
    assertThat(hopper.byteOffset(PathElement.groupElement("output_rows"))).isEqualTo(4 * 128);
    assertThat(hopper.byteOffset(PathElement.groupElement("gradient"))).isEqualTo(5 * 128);
    assertThat(hopper.byteAlignment()).isEqualTo(64);
    assertThat(hopper.byteSize()).isEqualTo(5 * 128 + 448);
    StructLayout both = GradientStructs.HOPPER_GRADIENTS;
    PathElement second = PathElement.sequenceElement(1);
    assertThat(both.byteOffset(PathElement.groupElement("tasks"), second))
        .isEqualTo(hopper.byteSize());
    assertThat(both.byteAlignment()).isEqualTo(64);
    assertThat(both.byteSize()).isEqualTo(2 * hopper.byteSize());
  }

  @Test
  void oneSweepHasTheTasksThenWhatDqNeeds() {
    StructLayout layout = GradientStructs.HOPPER_ONE_SWEEP;
    List<String> members =
        List.of(
            "gradients",
            "query_gradient",
            "last_state",
            "last_key_sum",
            "first_state",
            "first_key_sum",
            "query_marks",
            "first_value_sum",
            "end_state",
            "end_key_sum");
    assertThat(members.stream().map(name -> layout.byteOffset(PathElement.groupElement(name))))
        .containsExactly(0L, 2176L, 2304L, 2312L, 2320L, 2328L, 2336L, 2344L, 2352L, 2360L);
    assertThat(layout.byteSize()).isEqualTo(2368);
    assertThat(layout.byteAlignment()).isEqualTo(64);
  }

  @Test
  void offsetsAndSizesAreThoseOfTheHeader(@TempDir Path folder) throws Exception {
    Map<String, Long> expected = new LinkedHashMap<>();
    StringBuilder source =
        new StringBuilder(
            """
            #include "linattn/arguments.h"
            #include "linattn/chunked_arguments.h"
            #include "linattn/coefficient_arguments.h"
            #include "linattn/gradient_arguments.h"
            #include <cstddef>
            #include <cstdio>
            using namespace linattn;
            int main() {
            """);
    STRUCTS.forEach(
        (struct, layout) -> {
          expected.put(struct, layout.byteSize());
          source.append("std::printf(\"%s %%zu\\n\", sizeof(%s));\n".formatted(struct, struct));
          for (MemoryLayout member : layout.memberLayouts()) {
            String name = member.name().orElseThrow();
            expected.put(struct + "." + name, layout.byteOffset(PathElement.groupElement(name)));
            source.append(
                "std::printf(\"%s.%s %%zu\\n\", offsetof(%s, %s));\n"
                    .formatted(struct, name, struct, name));
          }
        });
    Path program = folder.resolve("layout");
    Path text = folder.resolve("layout.cpp");
    Files.writeString(text, source.append("}\n"));
    Path include = Native.root().resolve("cuda-src/src/main/cuda/include");
    Native.compile("g++", List.of("-std=c++17", "-I" + include, text.toString()), program);
    Map<String, Long> offsets = new LinkedHashMap<>();
    output(program).lines().forEach(line -> offsets.put(name(line), number(line)));
    assertThat(offsets).containsExactlyInAnyOrderEntriesOf(expected);
  }

  private static String name(String line) {
    return line.substring(0, line.indexOf(' '));
  }

  private static Long number(String line) {
    return Long.valueOf(line.substring(line.indexOf(' ') + 1));
  }

  private static String output(Path program) throws IOException, InterruptedException {
    Process process = new ProcessBuilder(program.toString()).start();
    String text = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
    assertThat(process.waitFor()).isZero();
    return text;
  }
}
