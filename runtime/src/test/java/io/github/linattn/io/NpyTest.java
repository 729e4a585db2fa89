package io.github.linattn.io;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;
import static org.assertj.core.api.Assertions.catchThrowable;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Breaks when an array of numpy is read or written wrongly, or a broken file is more than one. */
final class NpyTest {
  private static final String TWO_BY_THREE =
      "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";

  @TempDir private Path folder;

  private Path file(int version, String header, int dataBytes) throws IOException {
    var bytes = new ByteArrayOutputStream();
    bytes.write(new byte[] {(byte) 0x93, 'N', 'U', 'M', 'P', 'Y', (byte) version, 0});
    ByteBuffer length = ByteBuffer.allocate(4).order(ByteOrder.LITTLE_ENDIAN);
    length.putInt(0, header.length());
    bytes.write(length.array(), 0, version == 1 ? 2 : 4);
    bytes.write(header.getBytes(StandardCharsets.ISO_8859_1));
    bytes.write(new byte[dataBytes]);
    return Files.write(folder.resolve("made.npy"), bytes.toByteArray());
  }

  @Test
  void writesTheVeryBytesOfNumpy() throws IOException {
    Path target = folder.resolve("x.npy");
    float[] values = {1.5f, -2, 3, 4, 5, 6};
    try (Arena arena = Arena.ofConfined()) {
      MemorySegment data = arena.allocateFrom(ValueLayout.JAVA_FLOAT, values);
      Npy.write(target, "F32", List.of(2L, 3L), data);
    }
    byte[] written = Files.readAllBytes(target);
    assertThat(written).hasSize(128 + 24).startsWith(0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, 118, 0);
    assertThat(new String(written, 10, 118, StandardCharsets.ISO_8859_1))
        .isEqualTo(TWO_BY_THREE + " ".repeat(117 - TWO_BY_THREE.length()) + "\n");
    try (Npy read = Npy.open(target)) {
      assertThat(read.tensor()).hasToString("F32[2, 3]");
      assertThat(read.tensor().data().toArray(ValueLayout.JAVA_FLOAT)).containsExactly(values);
    }
    assertThat(Files.list(folder)).hasSize(1);
  }

  @ParameterizedTest
  @CsvSource(
      delimiter = '|',
      value = {
        "<f4 | (4,)      | 16 | F32[4]",
        "<f4 | ()        |  4 | F32[]",
        "<i8 | (2,)      | 16 | I64[2]",
        "<f2 | (2, 0, 5) |  0 | F16[2, 0, 5]",
        "<f2 | (1,1,3)   |  6 | F16[1, 1, 3]",
      })
  void readsEachTypeAndShapeInBothVersions(String type, String shape, int bytes, String tensor)
      throws IOException {
    String header = "{'descr': '%s', 'fortran_order': False, 'shape': %s, }".formatted(type, shape);
    for (int version = 1; version <= 2; version++) {
      try (Npy read = Npy.open(file(version, header + "   \n", bytes))) {
        assertThat(read.tensor()).hasToString(tensor);
        assertThat(read.tensor().data().byteSize()).isEqualTo(bytes);
      }
      Path again = folder.resolve("again.npy");
      try (Npy read = Npy.open(folder.resolve("made.npy"))) {
        StoredTensor x = read.tensor();
        Npy.write(again, x.dtype(), x.shape(), x.data());
      }
      try (Npy read = Npy.open(again)) {
        assertThat(read.tensor()).hasToString(tensor);
        assertThat(read.tensor().data().address() % 64).isZero();
      }
    }
  }

  @ParameterizedTest
  @ValueSource(
      strings = {
        "{'shape':(2,3),'fortran_order':False,'descr':'<f4'}",
        "{\"descr\": \"<f4\", \"fortran_order\": False, \"shape\": (2, 3)}\n",
      })
  void theOrderOfKeysAndTheQuotesAreFree(String header) throws IOException {
    try (Npy read = Npy.open(file(1, header, 24))) {
      assertThat(read.tensor()).hasToString("F32[2, 3]");
    }
  }

  @ParameterizedTest
  @CsvSource(
      delimiter = '|',
      quoteCharacter = '`',
      value = {
        "'>f4' | False | (2,)  | 8  | are big-endian; write it again with x.astype('<f4')",
        "'<f8' | False | (2,)  | 16 | are '<f8'; only <f4, <f2 and <i8 are read",
        "'<V2' | False | (2,)  | 4  | perhaps bf16, for which numpy has no type",
        "[('x', '<f4')] | False | (2,) | 8 | its elements have fields",
        "12    | False | (2,)  | 8  | are '12'; only",
        "'<f4' | True  | (2,)  | 8  | lie in Fortran order; write it again with np.ascont",
        "'<f4' | 1     | (2,)  | 8  | fortran_order is neither True nor False",
        "'<f4' | False | (2)   | 8  | its shape is (2)",
        "'<f4' | False | (,)   | 4  | its shape is (,)",
        "'<f4' | False | (-2,) | 8  | its shape is (-2,)",
        "'<f4' | False | (2,,) | 8  | its shape is (2,,)",
        "'<f4' | False | 2     | 8  | its shape is no tuple",
        "'<f4' | False | (2,)  | 7  | needs 8 bytes, but has 7",
        "'<f4' | False | (2,)  | 9  | needs 8 bytes, but has 9",
        "'<f4' | False | (9223372036854775807,) | 8 | more than 2^63 bytes",
        "'<f4' | False | (9999999999999999999,) | 8 | more than 2^63 elements",
        "'<f4' | False | (99999999999999999999,) | 8 | its shape is (9",
      })
  void whatIsNotReadIsNamed(
      String descr, String fortran, String shape, int dataBytes, String sentence)
      throws IOException {
    String header = "{'descr': %s, 'fortran_order': %s, 'shape': %s, }";
    Path made = file(1, header.formatted(descr, fortran, shape), dataBytes);
    assertThatThrownBy(() -> Npy.open(made))
        .isInstanceOf(IOException.class)
        .hasMessageStartingWith(made + ": ")
        .hasMessageContaining(sentence);
  }

  @ParameterizedTest
  @CsvSource(
      delimiter = '|',
      quoteCharacter = '`',
      value = {
        "[]                                  | its header is no dictionary",
        "{                                   | can't be read from character 1",
        "{'descr': '<f4'                     | can't be read from character 1",
        "{'descr': '<f4'} x                  | can't be read from character",
        "{'descr\": '<f4'}                   | can't be read from character 1",
        "{'descr': '<f4\"}                   | can't be read from character 1",
        "{'descr': '<f4', 'shape': (03,), 'fortran_order': False} | its shape is (03,)",
        "{'descr': '<f4', 'descr': '<f4'}    | its header has 'descr' twice",
        "{'descr': '<f4', 'shape': ()}       | its header has no 'fortran_order'",
        "{'descr': '<f4', 'shape': (), 'fortran_order': False, 'x': 1} | has other keys than descr",
      })
  void aBrokenHeaderIsNamed(String header, String sentence) throws IOException {
    Path made = file(2, header, 8);
    assertThatThrownBy(() -> Npy.open(made))
        .isInstanceOf(IOException.class)
        .hasMessageContaining(sentence);
  }

  @Test
  void filesThatAreNoneAreRefused() throws IOException {
    Path tiny = Files.write(folder.resolve("tiny"), new byte[5]);
    assertThatThrownBy(() -> Npy.open(tiny)).hasMessageContaining("this is no .npy file");
    Path cut =
        Files.write(
            folder.resolve("cut"), new byte[] {(byte) 0x93, 'N', 'U', 'M', 'P', 'Y', 2, 0, 1, 0});
    assertThatThrownBy(() -> Npy.open(cut)).hasMessageContaining("within the length");
    assertThatThrownBy(() -> Npy.open(file(3, TWO_BY_THREE, 24)))
        .hasMessageContaining("its version is 3.0; 1.0 and 2.0 are read");
    byte[] longer = Files.readAllBytes(file(1, TWO_BY_THREE, 0));
    longer[9] = 1;
    Path announced = Files.write(folder.resolve("longer"), longer);
    assertThatThrownBy(() -> Npy.open(announced)).hasMessageContaining("header of 3");
    assertThatThrownBy(() -> Npy.open(folder.resolve("none"))).hasMessageContaining("no such file");
    assertThatThrownBy(() -> Npy.open(folder)).hasMessageContaining("not a regular file");
  }

  @Test
  void aFuzzedFileIsReadOrNamed() throws IOException {
    var random = new Random(7);
    byte[] good = Files.readAllBytes(file(1, TWO_BY_THREE + " ".repeat(50) + "\n", 24));
    Path made = folder.resolve("fuzzed.npy");
    int read = 0;
    for (int i = 0; i < 5000; i++) {
      byte[] fuzzed = good.clone();
      for (int change = random.nextInt(4); change >= 0; change--) {
        fuzzed[random.nextInt(80)] =
            (byte) (random.nextBoolean() ? random.nextInt() : "(){},'".charAt(random.nextInt(6)));
      }
      if (random.nextInt(4) == 0) {
        fuzzed = Arrays.copyOf(fuzzed, random.nextInt(fuzzed.length));
      }
      Files.write(made, fuzzed);
      Throwable thrown =
          catchThrowable(
              () -> {
                try (Npy npy = Npy.open(made)) {
                  assertThat(npy.tensor().data().byteSize()).isEqualTo(24);
                }
              });
      if (thrown == null) {
        read++;
      } else {
        assertThat(thrown)
            .isInstanceOf(IOException.class)
            .hasMessageStartingWith(made.toString() + ": ");
      }
    }
    assertThat(read).isPositive();
  }

  @Test
  void longHeadersOfOneKindEndSoon() throws IOException {
    for (String piece : List.of("(", "{", " ", "'", "[", "1", ",", "\\", "'a':1,")) {
      String text = "{'descr': " + piece.repeat(60_000 / piece.length());
      assertThatThrownBy(() -> Npy.open(file(2, text, 0))).isInstanceOf(IOException.class);
    }
  }

  @Test
  void whatNumpyHasNotIsNotWritten() {
    Path target = folder.resolve("x.npy");
    MemorySegment data = MemorySegment.ofArray(new byte[4]);
    assertThatThrownBy(() -> Npy.write(target, "BF16", List.of(2L), data))
        .isInstanceOf(IllegalArgumentException.class)
        .hasMessage("numpy has no type for BF16; an .npy holds F32, F16 or I64");
    assertThatThrownBy(() -> Npy.write(target, "F32", List.of(2L), data))
        .hasMessageContaining("needs 8 bytes, but has 4");
    assertThat(target).doesNotExist();
  }

  @Test
  void memoryEndsWithTheFile() throws IOException {
    Npy npy = Npy.open(file(1, TWO_BY_THREE, 24));
    MemorySegment data = npy.tensor().data();
    assertThat(data.isReadOnly()).isTrue();
    npy.close();
    npy.close();
    assertThatThrownBy(() -> data.get(ValueLayout.JAVA_BYTE, 0))
        .isInstanceOf(IllegalStateException.class);
  }
}
