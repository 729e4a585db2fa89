package io.github.linattn.io;

import static org.assertj.core.api.Assertions.assertThat;
import static org.assertj.core.api.Assertions.assertThatThrownBy;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.RandomAccessFile;
import java.lang.foreign.Arena;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

class SafeTensorsTest {
  private static final String X = "\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}";

  @TempDir Path folder;

  @Test
  void whatIsWrittenIsReadBack() throws IOException {
    Path file = folder.resolve("a.safetensors");
    try (Arena arena = Arena.ofConfined()) {
      MemorySegment values = arena.allocateFrom(ValueLayout.JAVA_FLOAT, 1.5f, -2, 3, 4, 5, 6);
      new SafeTensorsWriter()
          .metadata("by \"me\"", "line\nbreak")
          .add("matrix", "F32", List.of(2L, 3L), values)
          .add("scalar", "I64", List.of(), arena.allocateFrom(ValueLayout.JAVA_LONG, 7))
          .add("empty", "BF16", List.of(0L, 4L), MemorySegment.NULL)
          .write(file);
    }
    try (SafeTensors tensors = SafeTensors.open(file)) {
      assertThat(tensors.names()).containsExactly("matrix", "scalar", "empty");
      assertThat(tensors.metadata()).containsEntry("by \"me\"", "line\nbreak");
      StoredTensor matrix = tensors.tensor("matrix");
      assertThat(matrix).hasToString("F32[2, 3]");
      assertThat(matrix.data().toArray(ValueLayout.JAVA_FLOAT_UNALIGNED))
          .containsExactly(1.5f, -2, 3, 4, 5, 6);
      assertThat(tensors.tensor("scalar").shape()).isEmpty();
      assertThat(tensors.tensor("scalar").elements()).isEqualTo(1);
      assertThat(tensors.tensor("empty").elements()).isZero();
    }
    assertThat(folder).isDirectoryContaining(path -> path.endsWith("a.safetensors"));
    assertThat(Files.list(folder)).hasSize(1);
  }

  @Test
  void dataStartsAtAMultipleOfEight() throws IOException {
    for (int length = 0; length < 9; length++) {
      Path file = folder.resolve("padded");
      new SafeTensorsWriter().metadata("k", "x".repeat(length)).write(file);
      long header =
          ByteBuffer.wrap(Files.readAllBytes(file)).order(ByteOrder.LITTLE_ENDIAN).getLong();
      assertThat(header % 8).isZero();
    }
  }

  @Test
  void memoryEndsWithTheFile() throws IOException {
    Path file = write("{" + X + "}", 8);
    SafeTensors tensors = SafeTensors.open(file);
    MemorySegment data = tensors.tensor("x").data();
    tensors.close();
    tensors.close();
    assertThatThrownBy(() -> data.get(ValueLayout.JAVA_BYTE, 0))
        .isInstanceOf(IllegalStateException.class);
  }

  @Test
  void anUnknownTypeMattersOnlyToWhoUsesIt() throws IOException {
    String odd = "\"odd\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[8,10]}";
    Path file = write("{" + X + "," + odd + "}", 10);
    try (SafeTensors tensors = SafeTensors.open(file)) {
      assertThat(tensors.tensor("x").elements()).isEqualTo(2);
      assertThatThrownBy(() -> tensors.tensor("odd"))
          .hasMessage(file + ": tensor odd has the unknown element type F4");
      assertThatThrownBy(() -> tensors.tensor("q"))
          .hasMessageEndingWith("has no tensor q; it has x, odd");
    }
  }

  @ParameterizedTest
  @CsvSource(
      delimiter = '|',
      quoteCharacter = '`',
      value = {
        "{                     | 0 | the header is not valid JSON: no '\"' at character 1",
        "{} x                  | 0 | the header is not valid JSON: text after the end of the value",
        "[]                    | 0 | the header is no JSON object",
        "{\"x\":1}             | 0 | the entry of x is no JSON object",
        "{\"x\":01}            | 0 | no '}'",
        "{\"x\":{}}            | 0 | tensor x has no dtype",
        "{\"__metadata__\":{\"a\":1}} | 0 | the metadata value of a is no string",
        "{\"x\":{\"dtype\":\"F32\"}} | 0 | tensor x has no shape",
        "{\"x\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,0]}} | 0 | sizes of 0 or more",
        "{\"x\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,0]}} | 0 | sizes of 0 or more",
        "{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}} | 4 | not [begin, end]",
        "{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}} | 4 | needs 8 bytes",
        "{\"x\":{\"dtype\":\"U8\",\"shape\":[9223372036854775807,3],\"data_offsets\":[0,4]}} | 4 | more than 2^63 bytes",
        "{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}} | 7 | truncated: its tensors need 8 bytes, 7 are there",
        "{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}} | 9 | 1 bytes after the last tensor",
        "{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}} | 12 | a gap of 4 bytes before tensor x",
        "{\"x\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},\"y\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]}} | 3 | tensor y overlaps",
      })
  void aBrokenHeaderIsNamed(String header, int dataBytes, String message) throws IOException {
    Path file = write(header, dataBytes);
    assertThatThrownBy(() -> SafeTensors.open(file))
        .isInstanceOf(IOException.class)
        .hasMessageStartingWith(file.toString())
        .hasMessageContaining(message);
  }

  @Test
  void aNameThatStandsTwiceIsRefused() throws IOException {
    Path file = write("{" + X + "," + X + "}", 8);
    assertThatThrownBy(() -> SafeTensors.open(file)).hasMessageContaining("\"x\" stands twice");
  }

  @Test
  void filesThatAreNoneAreRefused() throws IOException {
    Path tiny = Files.write(folder.resolve("tiny"), new byte[5]);
    assertThatThrownBy(() -> SafeTensors.open(tiny)).hasMessageContaining("has 5 bytes");
    Path long_ = Files.write(folder.resolve("long"), new byte[] {9, 0, 0, 0, 0, 0, 0, 0, '{', '}'});
    assertThatThrownBy(() -> SafeTensors.open(long_))
        .hasMessageContaining("announces a header of 9 bytes, 2 follow");
    assertThatThrownBy(() -> SafeTensors.open(folder.resolve("none")))
        .hasMessageContaining("no such file");
    assertThatThrownBy(() -> SafeTensors.open(folder)).hasMessageContaining("not a regular file");
  }

  @Test
  void headersAreReadUpToALimit() throws IOException {
    Path file = folder.resolve("sparse");
    long announced = SafeTensors.MAX_HEADER_BYTES + 1;
    try (var sparse = new RandomAccessFile(file.toFile(), "rw")) {
      sparse.writeLong(Long.reverseBytes(announced));
      sparse.setLength(Long.BYTES + announced); // takes no room on the disk
    }
    assertThatThrownBy(() -> SafeTensors.open(file))
        .hasMessageContaining(
            "announces a header of 100000001 bytes, 100000001 follow, and at most 100000000 are");
  }

  @Test
  void aWriteThatFailsLeavesTheTargetAsItWas() throws IOException {
    Path target = Files.writeString(folder.resolve("kept"), "before");
    var writer = new SafeTensorsWriter();
    try (Arena arena = Arena.ofConfined()) {
      writer.add("x", "U8", List.of(3L), arena.allocate(3));
    }
    assertThatThrownBy(() -> writer.write(target)).isInstanceOf(IllegalStateException.class);
    assertThat(target).hasContent("before");
    assertThat(Files.list(folder)).hasSize(1);
  }

  @Test
  void aWriterRefusesWrongTensors() {
    var writer = new SafeTensorsWriter().add("x", "U8", List.of(0L), MemorySegment.NULL);
    assertThatThrownBy(() -> writer.add("x", "U8", List.of(0L), MemorySegment.NULL))
        .hasMessage("the name x is taken");
    assertThatThrownBy(() -> writer.add("y", "U8", List.of(2L), MemorySegment.NULL))
        .hasMessage("tensor y is U8[2] and needs 2 bytes, but has 0");
  }

  @Test
  void aWriterRefusesWhatItCouldNotRead() {
    var writer = new SafeTensorsWriter();
    assertThatThrownBy(() -> writer.add("\ud800", "U8", List.of(0L), MemorySegment.NULL))
        .isInstanceOf(IllegalArgumentException.class)
        .hasMessageContaining("has half a character and no form in UTF-8");
    assertThatThrownBy(() -> writer.metadata("k", "\udc00"))
        .isInstanceOf(IllegalArgumentException.class);
    MemorySegment floats = MemorySegment.ofArray(new float[2]);
    for (MemorySegment each : List.of(floats, floats.asReadOnly())) {
      assertThatThrownBy(() -> writer.add("x", "F32", List.of(2L), each))
          .isInstanceOf(IllegalArgumentException.class)
          .hasMessage(
              "the data of tensor x is an array of the heap other than a byte[]; copy it off the"
                  + " heap");
    }
    writer.add("y", "F32", List.of(2L), MemorySegment.ofArray(new byte[8]).asReadOnly());
    assertThatThrownBy(() -> writer.metadata("k", null)).hasMessage("a text is null");
  }

  @Test
  void tensorsAreAlignedInWhateverOrderTheyAreAdded() throws IOException {
    Path file = folder.resolve("mixed.safetensors");
    try (Arena arena = Arena.ofConfined()) {
      new SafeTensorsWriter()
          .add("bytes", "U8", List.of(3L), arena.allocate(3))
          .add("halves", "BF16", List.of(1L), arena.allocate(2))
          .add("floats", "F32", List.of(1L), arena.allocate(4))
          .add("doubles", "F64", List.of(1L), arena.allocate(8))
          .write(file);
    }
    try (SafeTensors opened = SafeTensors.open(file)) {
      assertThat(opened.names()).containsExactly("bytes", "halves", "floats", "doubles");
      assertThat(opened.names())
          .map(opened::tensor)
          .allSatisfy(
              tensor ->
                  assertThat(tensor.data().address() % ElementSizes.of(tensor.dtype())).isZero());
    }
  }

  @Test
  void aTensorWithoutElementsHasNoBytesHoweverLongItsOtherAxes() {
    assertThat(ElementSizes.bytes("x", "F32", List.of(1L << 32, 1L << 32, 0L))).isZero();
  }

  private Path write(String header, int dataBytes) throws IOException {
    byte[] json = header.getBytes(StandardCharsets.UTF_8);
    var bytes = new ByteArrayOutputStream();
    bytes.write(ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN).putLong(json.length).array());
    bytes.write(json);
    bytes.write(new byte[dataBytes]);
    return Files.write(folder.resolve("made.safetensors"), bytes.toByteArray());
  }
}
