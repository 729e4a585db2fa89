package io.github.linattn.io;

import static java.util.Comparator.comparingInt;

import io.github.linattn.files.WholeFile;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Comparator;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;
import java.util.stream.Collectors;

/**
 * Collects tensors and writes them as one safetensors file, in the order in which they were added;
 * the elements lie with the larger ones first, so that all are aligned. Not thread-safe; reads the
 * tensors' memory in {@link #write} only.
 */
public final class SafeTensorsWriter {
  private static final int ALIGNMENT = 8;

  private final Map<String, StoredTensor> tensors = new LinkedHashMap<>();
  private final Map<String, String> metadata = new LinkedHashMap<>();

  /**
   * Adds a line about the file.
   *
   * @throws IllegalArgumentException if it has no form in UTF-8
   */
  public SafeTensorsWriter metadata(String key, String value) {
    metadata.put(requireText(key), requireText(value));
    return this;
  }

  /**
   * Adds a tensor.
   *
   * @param data row-major elements, off-heap or a {@code byte[]}; open until {@link #write}
   * @throws IllegalArgumentException if the name is taken or has no form in UTF-8, or the size does
   *     not fit
   */
  public SafeTensorsWriter add(String name, String dtype, List<Long> shape, MemorySegment data) {
    var tensor = new StoredTensor(name, dtype, shape, data);
    requireText(name);
    if (name.equals("__metadata__") || tensors.putIfAbsent(name, tensor) != null) {
      throw new IllegalArgumentException("the name " + name + " is taken");
    }
    return this;
  }

  private static String requireText(String text) {
    Objects.requireNonNull(text, "a text is null");
    if (!StandardCharsets.UTF_8.newEncoder().canEncode(text)) {
      throw new IllegalArgumentException(
          "%s has half a character and no form in UTF-8".formatted(Json.quoted(text)));
    }
    return text;
  }

  /**
   * Writes a temporary file beside {@code target} and moves it into place, so that {@code target}
   * is either complete or as it was before.
   *
   * @throws IllegalArgumentException if names and metadata are longer than a header may be
   * @throws IOException if the file can't be written
   */
  public void write(Path target) throws IOException {
    List<StoredTensor> ordered = largestElementsFirst();
    byte[] header = header(offsets(ordered)).getBytes(StandardCharsets.UTF_8);
    if (header.length > SafeTensors.MAX_HEADER_BYTES) {
      throw new IllegalArgumentException(
          "a header has at most %d bytes; names and metadata of %s make %d"
              .formatted(SafeTensors.MAX_HEADER_BYTES, target, header.length));
    }
    WholeFile.write(
        target,
        channel -> {
          ByteBuffer length = ByteBuffer.allocate(Long.BYTES).order(ByteOrder.LITTLE_ENDIAN);
          WholeFile.append(channel, length.putLong(0, header.length));
          WholeFile.append(channel, ByteBuffer.wrap(header));
          for (StoredTensor tensor : ordered) {
            WholeFile.append(channel, tensor.data());
          }
        });
  }

  private List<StoredTensor> largestElementsFirst() {
    Comparator<StoredTensor> size = comparingInt(tensor -> ElementSizes.of(tensor.dtype()));
    return tensors.values().stream().sorted(size.reversed()).toList();
  }

  private static Map<String, Long> offsets(List<StoredTensor> ordered) {
    Map<String, Long> offsets = new HashMap<>();
    long at = 0;
    for (StoredTensor tensor : ordered) {
      offsets.put(tensor.name(), at);
      at += tensor.data().byteSize();
    }
    return offsets;
  }

  private String header(Map<String, Long> offsets) {
    var json = new StringBuilder("{");
    if (!metadata.isEmpty()) {
      json.append("\"__metadata__\":").append(metadataJson()).append(',');
    }
    for (StoredTensor tensor : tensors.values()) {
      long begin = Objects.requireNonNull(offsets.get(tensor.name()));
      json.append(entryJson(tensor, begin)).append(',');
    }
    if (json.charAt(json.length() - 1) == ',') {
      json.setLength(json.length() - 1);
    }
    json.append('}');
    int bytes = json.toString().getBytes(StandardCharsets.UTF_8).length;
    return json + " ".repeat(Math.floorMod(-bytes, ALIGNMENT));
  }

  private String metadataJson() {
    return metadata.entrySet().stream()
        .map(entry -> Json.quoted(entry.getKey()) + ":" + Json.quoted(entry.getValue()))
        .collect(Collectors.joining(",", "{", "}"));
  }

  private static String entryJson(StoredTensor tensor, long begin) {
    String shape =
        tensor.shape().stream().map(String::valueOf).collect(Collectors.joining(",", "[", "]"));
    return String.format(
        Locale.ROOT,
        "%s:{\"dtype\":%s,\"shape\":%s,\"data_offsets\":[%d,%d]}",
        Json.quoted(tensor.name()),
        Json.quoted(tensor.dtype()),
        shape,
        begin,
        begin + tensor.data().byteSize());
  }
}
