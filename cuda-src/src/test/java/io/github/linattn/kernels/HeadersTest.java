package io.github.linattn.kernels;

import static org.assertj.core.api.Assertions.assertThat;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.Stream;
import org.junit.jupiter.api.Test;

class HeadersTest {
  @Test
  void everyHeaderIsShipped() throws IOException {
    Path folder = Path.of("src/main/cuda/include");
    try (Stream<Path> files = Files.walk(folder)) {
      List<String> names =
          files
              .filter(Files::isRegularFile)
              .map(file -> folder.relativize(file).toString())
              .toList();
      assertThat(Headers.shipped().keySet()).containsExactlyInAnyOrderElementsOf(names);
    }
  }
}
