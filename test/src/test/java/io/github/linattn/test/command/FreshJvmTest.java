package io.github.linattn.test.command;

import static org.assertj.core.api.Assertions.assertThat;

import io.github.linattn.Backend;
import io.github.linattn.Diagnostics;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Breaks when the backends need more of a JVM than it was started with. */
final class FreshJvmTest {
  @TempDir private Path folder;

  private Launcher.Ended run(Class<?> program, String... flags) throws Exception {
    List<String> command = new ArrayList<>();
    command.add(Path.of(System.getProperty("java.home"), "bin", "java").toString());
    command.addAll(List.of("--add-modules", "jdk.incubator.vector"));
    command.addAll(List.of(flags));
    command.addAll(List.of("-cp", System.getProperty("java.class.path"), program.getName()));
    Launcher.Ended ended = Launcher.run(folder, command);
    ended.assertDone();
    return ended;
  }

  @Test
  void whereNativeAccessIsDeniedTheCpuComputes() throws Exception {
    Launcher.Ended ended = run(OpensAuto.class, "--illegal-native-access=deny");
    String problem =
        "this JVM denies native access; start java with --enable-native-access=ALL-UNNAMED";
    assertThat(ended.out().lines()).containsExactly("cpu: " + problem, "cpu: " + problem, problem);
  }

  /** Asks twice, since a class that fails at first is gone afterwards. */
  static final class OpensAuto {
    private OpensAuto() {}

    public static void main(String[] args) {
      for (int i = 0; i < 2; i++) {
        try (Backend backend = Backend.auto()) {
          System.out.println(backend.name() + ": " + backend.fallbackReason().orElse(""));
        }
      }
      System.out.println(Diagnostics.cudaProblem().orElse(""));
    }
  }

  /** A tensor that is closed under a call has the JVM throw at any place where it is read. */
  @Test
  void memoryIsReadBeforeTheFirstCallReadsIt() throws Exception {
    String out = run(OpensCpu.class, "-Xlog:class+init=info").out();
    assertThat(out).contains(OpensCpu.OPEN);
    assertThat(out.substring(0, out.indexOf(OpensCpu.OPEN)))
        .contains("'jdk/internal/foreign/LayoutPath'")
        .contains("'java/lang/invoke/VarHandleSegmentAsFloats'")
        .contains("'java/lang/invoke/VarHandleSegmentAsShorts'");
  }

  /** Opens the backend of the CPU and says so. */
  static final class OpensCpu {
    static final String OPEN = "the backend is open";

    private OpensCpu() {}

    public static void main(String[] args) {
      try (Backend cpu = Backend.cpu(1)) {
        System.out.println(OPEN + ": " + cpu.name());
      }
    }
  }
}
