package io.github.linattn.io;

import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.stream.Collectors;

/**
 * Collects tensors and writes them as one safetensors file. Not thread-safe; reads the tensors'
 * memory in {@link #write} only.
 */
public final class SafeTensorsWriter {
  private static final int ALIGNMENT = 8;

  private final Map<String, StoredTensor> tensors = new LinkedHashMap<>();
  private final Map<String, String> metadata = new LinkedHashMap<>();

  /** Adds a line about the file. */
  public SafeTensorsWriter metadata(String key, String value) {
    metadata.put(key, value);
    return this;
  }

  /**
   * Adds a tensor.
   *
   * @param data row-major elements, off-heap or a {@code byte[]}; open until {@link #write}
   * @throws IllegalArgumentException if the name is taken or the size does not fit
   */
  public SafeTensorsWriter add(String name, String dtype, List<Long> shape, MemorySegment data) {
    var tensor = new StoredTensor(name, dtype, shape, data);
    if (name.equals("__metadata__") || tensors.putIfAbsent(name, tensor) != null) {
      throw new IllegalArgumentException("the name " + name + " is taken");
    }
    return this;
  }

  /**
   * Writes a temporary file beside {@code target} and moves it into place, so that {@code target}
   * is either complete or as it was before.
   *
   * @throws IOException if the file can't be written
   */
  public void write(Path target) throws IOException {
    WholeFile.write(
        target,
        channel -> {
          byte[] header = header().getBytes(StandardCharsets.UTF_8);
          ByteBuffer length = ByteBuffer.allocate(Long.BYTES).order(ByteOrder.LITTLE_ENDIAN);
          WholeFile.append(channel, length.putLong(0, header.length));
          WholeFile.append(channel, ByteBuffer.wrap(header));
          for (StoredTensor tensor : tensors.values()) {
            WholeFile.append(channel, tensor.data());
          }
        });
  }

  private String header() {
    var json = new StringBuilder("{");
    if (!metadata.isEmpty()) {
      json.append("\"__metadata__\":").append(metadataJson()).append(',');
    }
    long at = 0;
    for (StoredTensor tensor : tensors.values()) {
      json.append(entryJson(tensor, at)).append(',');
      at += tensor.data().byteSize();
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
