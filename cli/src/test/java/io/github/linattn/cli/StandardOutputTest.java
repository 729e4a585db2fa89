package io.github.linattn.cli;

import static java.nio.charset.StandardCharsets.UTF_8;
import static org.assertj.core.api.Assertions.assertThat;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.io.PrintStream;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

final class StandardOutputTest {
  /** A stream that takes nothing, for this reason. */
  private record Refusing(String reason) {
    OutputStream stream() {
      return new OutputStream() {
        @Override
        public void write(int single) throws IOException {
          throw new IOException(reason);
        }
      };
    }
  }

  @ParameterizedTest
  @CsvSource({
    "No space left on device, 0, 1, linattn: can't write the results: No space left on device",
    "No space left on device, 3, 3, linattn: can't write the results: No space left on device",
    "Broken pipe, 0, 0, ''"
  })
  void resultsThatAreLostAreTold(String reason, int status, int told, String sentence) {
    var stdout = new StandardOutput(new Refusing(reason).stream());
    new PrintStream(stdout, true, UTF_8).println("a result");
    var err = new ByteArrayOutputStream();
    assertThat(stdout.ended(status, new PrintStream(err, true, UTF_8))).isEqualTo(told);
    assertThat(err.toString(UTF_8).strip()).isEqualTo(sentence);
  }

  @ParameterizedTest
  @CsvSource({"0", "1"})
  void whatIsWrittenChangesNothing(int status) {
    var written = new ByteArrayOutputStream();
    var stdout = new StandardOutput(written);
    var out = new PrintStream(stdout, true, UTF_8);
    out.println("a result");
    out.write('x');
    out.flush();
    assertThat(stdout.ended(status, System.err)).isEqualTo(status);
    assertThat(written.toString(UTF_8)).isEqualTo("a result" + System.lineSeparator() + "x");
  }
}
