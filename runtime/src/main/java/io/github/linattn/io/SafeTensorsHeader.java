package io.github.linattn.io;

import java.io.IOException;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import org.jspecify.annotations.Nullable;

/** The JSON header of a safetensors file, checked against the size of the data behind it. */
final class SafeTensorsHeader {
  private static final String METADATA = "__metadata__";

  /** Where a tensor lies, in bytes from the start of the data. */
  record Slot(String name, String dtype, List<Long> shape, long begin, long end) {}

  private final Path file;
  private final Map<String, Slot> slots = new LinkedHashMap<>();
  private final Map<String, String> metadata = new LinkedHashMap<>();

  private SafeTensorsHeader(Path file) {
    this.file = file;
  }

  static SafeTensorsHeader parse(Path file, String json, long dataBytes) throws IOException {
    var header = new SafeTensorsHeader(file);
    header.read(json);
    header.checkPlaces(dataBytes);
    return header;
  }

  Map<String, Slot> slots() {
    return slots;
  }

  Map<String, String> metadata() {
    return metadata;
  }

  private void read(String json) throws IOException {
    Object root;
    try {
      root = Json.parse(json);
    } catch (IllegalArgumentException e) {
      throw new IOException(file + ": the header is not valid JSON: " + e.getMessage(), e);
    }
    if (!(root instanceof Map<?, ?> members)) {
      throw broken("the header is no JSON object");
    }
    for (var member : members.entrySet()) {
      String name = (String) member.getKey();
      if (!(member.getValue() instanceof Map<?, ?> fields)) {
        throw broken("the entry of %s is no JSON object", name);
      }
      if (name.equals(METADATA)) {
        readMetadata(fields);
      } else {
        slots.put(name, slot(name, fields));
      }
    }
  }

  private void readMetadata(Map<?, ?> fields) throws IOException {
    for (var field : fields.entrySet()) {
      if (!(field.getValue() instanceof String text)) {
        throw broken("the metadata value of %s is no string", field.getKey());
      }
      metadata.put((String) field.getKey(), text);
    }
  }

  private Slot slot(String name, Map<?, ?> fields) throws IOException {
    if (!(fields.get("dtype") instanceof String dtype)) {
      throw broken("tensor %s has no dtype", name);
    }
    List<Long> shape = sizes(name, "shape", fields.get("shape"));
    List<Long> offsets = sizes(name, "data_offsets", fields.get("data_offsets"));
    if (offsets.size() != 2 || offsets.get(0) > offsets.get(1)) {
      throw broken("tensor %s has the data_offsets %s, not [begin, end]", name, offsets);
    }
    var slot = new Slot(name, dtype, shape, offsets.get(0), offsets.get(1));
    if (ElementSizes.knows(dtype)) {
      checkSize(slot);
    }
    return slot;
  }

  private List<Long> sizes(String name, String what, @Nullable Object value) throws IOException {
    if (!(value instanceof List<?> items)) {
      throw broken("tensor %s has no %s", name, what);
    }
    List<Long> sizes = new ArrayList<>();
    for (Object item : items) {
      if (!(item instanceof Long size) || size < 0) {
        throw broken("tensor %s: %s holds something else than sizes of 0 or more", name, what);
      }
      sizes.add(size);
    }
    return sizes;
  }

  private void checkSize(Slot slot) throws IOException {
    long expected;
    try {
      expected = ElementSizes.bytes(slot.name, slot.dtype, slot.shape);
    } catch (IllegalArgumentException e) {
      throw new IOException(file + ": " + e.getMessage(), e);
    }
    if (slot.end - slot.begin != expected) {
      throw broken(
          "tensor %s is %s%s and needs %d bytes, but the header gives it %d",
          slot.name, slot.dtype, slot.shape, expected, slot.end - slot.begin);
    }
  }

  /** The format wants tensors one after the other, with neither overlap nor gap. */
  private void checkPlaces(long dataBytes) throws IOException {
    List<Slot> ordered =
        slots.values().stream()
            .sorted(Comparator.comparingLong(Slot::begin).thenComparingLong(Slot::end))
            .toList();
    long reached = 0;
    for (Slot slot : ordered) {
      if (slot.begin < reached) {
        throw broken("tensor %s overlaps the one before it", slot.name);
      }
      if (slot.begin > reached) {
        throw broken("a gap of %d bytes before tensor %s", slot.begin - reached, slot.name);
      }
      reached = slot.end;
    }
    if (reached > dataBytes) {
      throw broken(
          "the file is truncated: its tensors need %d bytes, %d are there", reached, dataBytes);
    }
    if (reached < dataBytes) {
      throw broken("%d bytes after the last tensor", dataBytes - reached);
    }
  }

  private IOException broken(String sentence, Object... values) {
    return new IOException(file + ": " + String.format(Locale.ROOT, sentence, values));
  }
}
