package io.github.linattn.bindings.host;

import static org.assertj.core.api.Assertions.assertThat;

import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.nio.charset.StandardCharsets;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.condition.EnabledOnOs;
import org.junit.jupiter.api.condition.OS;

/** Needs native access, which the tests have. */
final class PrefetchTest {
  @Test
  @EnabledOnOs(value = OS.LINUX, architectures = "amd64")
  void isThereOnLinux() {
    assertThat(Prefetch.isAvailable()).isTrue();
  }

  /** In a JVM of its own, as it is found once. */
  @Test
  void isNotThereWhereItIsNotWanted() throws Exception {
    Process process =
        new ProcessBuilder(
                System.getProperty("java.home") + "/bin/java",
                "--enable-native-access=ALL-UNNAMED",
                "-Dlinattn.prefetch=false",
                "-cp",
                System.getProperty("java.class.path"),
                Availability.class.getName())
            .redirectError(ProcessBuilder.Redirect.INHERIT)
            .start();
    String printed = new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
    assertThat(printed.strip()).isEqualTo("available: false");
    assertThat(process.waitFor()).isZero();
  }

  /** Prints whether there is one. */
  static final class Availability {
    private Availability() {}

    public static void main(String[] args) {
      Prefetch.rows(0, 1, 64, 64);
      System.out.println("available: " + Prefetch.isAvailable());
    }
  }

  /** Neither rows that no process may read nor rows beyond the end of the address space. */
  @Test
  void memoryThatIsNotThereDoesNoHarm() {
    Prefetch.rows(0, 1000, 4096, 256);
    Prefetch.rows(-4096, 1000, 4096, 256);
    Prefetch.rows(64, 0, 4096, 256);
    Prefetch.rows(64, 3, -4096, 1);
  }

  @Test
  void changesNothing() {
    try (Arena arena = Arena.ofConfined()) {
      MemorySegment memory = arena.allocate(1 << 16);
      memory.fill((byte) 7);
      Prefetch.rows(memory.address() + 5, 100, 300, 290);
      MemorySegment expected = arena.allocate(1 << 16).fill((byte) 7);
      assertThat(memory.mismatch(expected)).isEqualTo(-1);
    }
  }
}
