package io.github.linattn.cli;

import static org.assertj.core.api.Assertions.assertThat;

import io.github.linattn.DType;
import io.github.linattn.Diagnostics.Support;
import io.github.linattn.Diagnostics.Task;
import io.github.linattn.Mode;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;

/** Breaks when the table joins rows that differ, or leaves apart rows that do not. */
class KernelMatrixTest {
  private final List<Support> support = new ArrayList<>();

  private void add(String gpu, boolean normalize, DType dtype, String narrow, String wide) {
    support.add(new Support(gpu, Task.FORWARD, normalize, dtype, Mode.DEFAULT, 32, narrow));
    support.add(new Support(gpu, Task.FORWARD, normalize, dtype, Mode.DEFAULT, 256, wide));
  }

  @Test
  void rowsWithTheSameCellsAreOne() {
    add("sm_80", false, DType.BF16, "mma", "mma");
    add("sm_80", true, DType.BF16, "mma", "mma");
    add("sm_80", false, DType.F32, "mma", "mma");
    add("sm_80", true, DType.F32, "mma", "");
    add("sm_90", false, DType.BF16, "wgmma", "mma");
    add("sm_90", true, DType.BF16, "wgmma", "mma");
    add("sm_90", false, DType.F32, "wgmma", "mma");
    add("sm_90", true, DType.F32, "wgmma", "mma");
    assertThat(KernelMatrix.lines(support))
        .containsExactly(
            "| task    | q and k    | tensors     | GPU: sm_ | D = 32 | D = 256 |",
            "|---------|------------|-------------|----------|--------|---------|",
            "| forward | as given   | all         | 80       | mma    | mma     |",
            "| forward | normalised | bf16        | 80       | mma    | mma     |",
            "| forward | normalised | f32 default | 80       | mma    | -       |",
            "| forward | all        | all         | 90       | wgmma  | mma     |");
  }

  @Test
  void withoutKernelsThereIsNoTable() {
    assertThat(KernelMatrix.lines(List.of())).isEmpty();
  }
}
