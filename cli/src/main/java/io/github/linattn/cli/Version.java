package io.github.linattn.cli;

import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import picocli.CommandLine.IVersionProvider;

/** What {@code --version} prints. */
final class Version implements IVersionProvider {
  private static final String FILE = "version.txt";

  @Override
  public String[] getVersion() throws IOException {
    return new String[] {text()};
  }

  static String text() throws IOException {
    try (InputStream stream = Version.class.getResourceAsStream(FILE)) {
      if (stream == null) {
        throw new IOException("the build left out " + FILE);
      }
      return new String(stream.readAllBytes(), StandardCharsets.UTF_8).strip();
    }
  }
}
