package io.github.linattn.cli;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import io.github.linattn.AttentionShape;
import io.github.linattn.Backend;
import io.github.linattn.DType;
import io.github.linattn.Tensor;
import java.io.IOException;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Breaks when results of two runs can lie beside one another. */
final class AttendResultTest {
  @TempDir private Path folder;

  @Test
  void arraysAreWrittenAllOrNone() throws IOException {
    AttentionShape shape = AttentionShape.of(1, 1, 3, 16);
    Path o = Files.writeString(folder.resolve("x.npy"), "old");
    Path g = Files.createDirectory(folder.resolve("x.g.npy"));
    try (Backend backend = Backend.cpu();
        Tensor output = backend.allocate(DType.F32, shape.output());
        Tensor normalizer = backend.allocate(DType.F32, shape.normalizer());
        AttendResult result = new AttendResult(shape)) {
      result.addForward(output, normalizer);
      assertThatThrownBy(() -> result.write(o))
          .isInstanceOf(FileSystemException.class)
          .hasMessageStartingWith(g + ": ");
    }
    assertThat(o).hasContent("old");
    assertThat(folder.toFile().list()).containsExactlyInAnyOrder("x.npy", "x.g.npy");
  }
}
