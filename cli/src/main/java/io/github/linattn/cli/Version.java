package io.github.linattn.cli;

import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import picocli.CommandLine.IVersionProvider;

/** What {@code --version} prints. */
final class Version implements IVersionProvider {

  @Override
  public String[] getVersion() throws IOException {
    return new String[] {text()};
  }

  private static String text() throws IOException {
    return "linattn " + number();
  }

  static String number() throws IOException {
    return read("version.txt");
  }

  /** The commit that was built, with a mark if files had changed since; or unknown. */
  static String commit() throws IOException {
    return read("commit.txt");
  }

  private static String read(String file) throws IOException {
    try (InputStream stream = Version.class.getResourceAsStream(file)) {
      if (stream == null) {
        throw new IOException("the build left out " + file);
      }
      return new String(stream.readAllBytes(), StandardCharsets.UTF_8).strip();
    }
  }
}
