package io.github.linattn.files;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.FileSystemException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermission;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/**
 * Breaks when a file that is replaced changes more than what it holds, or leaves something behind.
 */
final class WholeFileTest {
  @TempDir private Path folder;

  @Test
  void whoMayReadItStays() throws IOException {
    Path file = Files.writeString(folder.resolve("x"), "old");
    Set<PosixFilePermission> owner = PosixFilePermissions.fromString("rw-------");
    Files.setPosixFilePermissions(file, owner);
    WholeFile.write(file, "new");
    assertThat(file).hasContent("new");
    assertThat(Files.getPosixFilePermissions(file)).isEqualTo(owner);
  }

  @Test
  void aNameMayBeAsLongAsFilesHaveThem() throws IOException {
    Path file = folder.resolve("x".repeat(255));
    WholeFile.write(file, "new");
    assertThat(file).hasContent("new");
  }

  @Test
  void linksThatLeadNowhereAreFollowed() throws IOException {
    Path last = folder.resolve("last");
    Path middle = Files.createSymbolicLink(folder.resolve("middle"), Path.of("last"));
    Path first = Files.createSymbolicLink(folder.resolve("first"), Path.of("middle"));
    WholeFile.write(first, "new");
    assertThat(last).hasContent("new").isRegularFile();
    assertThat(middle).isSymbolicLink();
  }

  @Test
  void aFolderThatIsMissingIsTold() {
    Path file = folder.resolve("nowhere/x");
    assertThatThrownBy(() -> WholeFile.write(file, "new"))
        .isInstanceOf(NoSuchFileException.class)
        .hasMessageStartingWith(file + ": there is no folder");
  }

  @Test
  void ofSeveralFilesNoneIsMovedBeforeAllAreWritten() throws IOException {
    Path first = Files.writeString(folder.resolve("first"), "old");
    Path second = folder.resolve("second");
    Map<Path, WholeFile.Content> files = new LinkedHashMap<>();
    files.put(first, channel -> WholeFile.append(channel, ByteBuffer.wrap(new byte[] {'n'})));
    files.put(
        second,
        channel -> {
          throw new IOException("No space left on device");
        });
    assertThatThrownBy(() -> WholeFile.writeAll(files))
        .isInstanceOf(FileSystemException.class)
        .hasMessage(second + ": No space left on device");
    assertThat(first).hasContent("old");
    assertThat(folder.toFile().list()).containsExactly("first");
  }

  @Test
  void aSignalLeavesTheOldFileAndNothingBesideIt() throws Exception {
    Path file = Files.writeString(folder.resolve("x"), "old");
    Process writer =
        new ProcessBuilder(
                Path.of(System.getProperty("java.home"), "bin", "java").toString(),
                "-cp",
                System.getProperty("java.class.path"),
                NeverDone.class.getName(),
                file.toString())
            .redirectError(ProcessBuilder.Redirect.INHERIT)
            .start();
    try (var out = writer.inputReader()) {
      assertThat(out.readLine()).isEqualTo(NeverDone.WRITING);
      assertThat(folder.toFile().list()).hasSize(2);
      writer.destroy();
      assertThat(writer.waitFor()).isNotZero();
    } finally {
      writer.destroyForcibly();
    }
    assertThat(folder.toFile().list()).containsExactly("x");
    assertThat(file).hasContent("old");
  }

  /** Begins to write a file. */
  static final class NeverDone {
    static final String WRITING = "writing";

    private NeverDone() {}

    public static void main(String[] args) throws IOException {
      Runtime.getRuntime().addShutdownHook(new Thread(WholeFile::deleteUnfinished));
      WholeFile.write(
          Path.of(args[0]),
          channel -> {
            System.out.println(WRITING);
            try {
              Thread.sleep(Long.MAX_VALUE);
            } catch (InterruptedException ended) {
              throw new IOException(ended);
            }
          });
    }
  }
}
