package io.github.linattn.cli;

import static org.assertj.core.api.Assertions.assertThat;

import io.github.linattn.Diagnostics;
import java.util.List;
import org.junit.jupiter.api.Test;

/** Breaks when a long name moves the columns of its row. */
final class KernelsCommandTest {
  private static Diagnostics.Kernel kernel(String symbol) {
    return new Diagnostics.Kernel(symbol, 64, 2, "f32", "sm_90", 255, 0, "");
  }

  @Test
  void columnsStandBehindTheLongestSymbol() {
    String longest = "la_" + "x".repeat(77);
    List<String> lines = KernelsCommand.lines(List.of(kernel("la_x"), kernel(longest)));
    assertThat(lines).hasSize(3).allMatch(line -> line.length() == lines.getLast().length());
    assertThat(lines.getLast()).startsWith(longest + "   64   2 f32");
    assertThat(KernelsCommand.lines(List.of())).isEmpty();
  }
}
