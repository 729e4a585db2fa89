package io.github.linattn.internal.cuda;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.junit.jupiter.api.Assumptions.assumeTrue;

import io.github.linattn.kernels.BuiltKernels;
import io.github.linattn.kernels.KernelCache;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** A kernel cache that can't be read is refused where somebody named it, and done without else. */
final class KernelSourcesTest {
  private static final String HOME = "user.home";

  private final String home = System.getProperty(HOME);
  private final String cache = System.getProperty(KernelCache.PROPERTY, "");

  @TempDir private Path folder;
  private Path file;

  @BeforeEach
  void placeAFileWhereTheCacheWouldBe() throws IOException {
    file =
        Files.writeString(Files.createDirectory(folder.resolve(".cache")).resolve("linattn"), "");
  }

  @AfterEach
  void restore() {
    System.setProperty(HOME, home);
    System.setProperty(KernelCache.PROPERTY, cache);
  }

  @Test
  void theUsualCacheIsDoneWithout() {
    assumeTrue(System.getenv("XDG_CACHE_HOME") == null && System.getenv("LINATTN_CACHE") == null);
    System.setProperty(KernelCache.PROPERTY, "");
    System.setProperty(HOME, folder.toString());
    assertThat(CudaEngine.kernelSources())
        .extracting(BuiltKernels::origin)
        .containsExactly("the kernels module");
  }

  @Test
  void aNamedCacheIsRefused() {
    System.setProperty(KernelCache.PROPERTY, file.toString());
    assertThatThrownBy(CudaEngine::kernelSources)
        .isInstanceOf(IllegalArgumentException.class)
        .hasMessageContaining("can't read the kernel cache " + file)
        .hasMessageContaining(KernelCache.VARIABLE);
  }
}
