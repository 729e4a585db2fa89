package io.github.linattn.io;

import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.ByteOrder;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Collections;
import java.util.Locale;
import java.util.Map;
import java.util.Set;

/**
 * A safetensors file, mapped into memory: no element is copied or touched until it is used.
 *
 * <p>Owns the mapping; {@link StoredTensor#data} of its tensors ends when it closes. The file must
 * not be shortened while it is open.
 *
 * @see <a href="https://github.com/huggingface/safetensors#format">the format</a>
 * @see SafeTensorsWriter
 */
public final class SafeTensors implements AutoCloseable {
  static final ValueLayout.OfLong HEADER_LENGTH =
      ValueLayout.JAVA_LONG_UNALIGNED.withOrder(ByteOrder.LITTLE_ENDIAN);

  /** The same limit as the format's own reader. */
  static final long MAX_HEADER_BYTES = 100_000_000;

  private final Path file;
  private final MappedFile mapping;
  private final MemorySegment data;
  private final SafeTensorsHeader header;

  private SafeTensors(Path file, MappedFile mapping, MemorySegment data, SafeTensorsHeader header) {
    this.file = file;
    this.mapping = mapping;
    this.data = data;
    this.header = header;
  }

  /**
   * Maps a file and checks its header.
   *
   * @throws IOException if the file can't be read or is not a well-formed safetensors file; the
   *     message names the file and what is wrong
   */
  public static SafeTensors open(Path file) throws IOException {
    MappedFile mapping = MappedFile.open(file);
    try {
      return read(file, mapping);
    } catch (IOException | RuntimeException | Error e) {
      mapping.close();
      throw e;
    }
  }

  private static SafeTensors read(Path file, MappedFile mapping) throws IOException {
    MemorySegment all = mapping.bytes();
    if (all.byteSize() < Long.BYTES) {
      throw new IOException(
          String.format(
              Locale.ROOT, "%s has %d bytes and is no safetensors file", file, all.byteSize()));
    }
    if (Npy.isNpy(all)) {
      throw new IOException(file + " is an .npy file and no safetensors file");
    }
    long headerBytes = all.get(HEADER_LENGTH, 0);
    long rest = all.byteSize() - Long.BYTES;
    if (headerBytes < 0 || headerBytes > Math.min(rest, MAX_HEADER_BYTES)) {
      throw new IOException(
          String.format(
              Locale.ROOT,
              "%s is truncated or no safetensors file: it announces a header of %s bytes, %d follow,"
                  + " and at most %d are a header",
              file,
              Long.toUnsignedString(headerBytes),
              rest,
              MAX_HEADER_BYTES));
    }
    String json = utf8(file, all.asSlice(Long.BYTES, headerBytes));
    MemorySegment data = all.asSlice(Long.BYTES + headerBytes);
    return new SafeTensors(
        file, mapping, data, SafeTensorsHeader.parse(file, json, data.byteSize()));
  }

  private static String utf8(Path file, MemorySegment bytes) throws IOException {
    try {
      return StandardCharsets.UTF_8.newDecoder().decode(bytes.asByteBuffer()).toString();
    } catch (CharacterCodingException e) {
      throw new IOException(file + ": the header is not UTF-8", e);
    }
  }

  /** The file as it was named at {@link #open}. */
  public Path file() {
    return file;
  }

  /** Names of the tensors, in the order of the header. */
  public Set<String> names() {
    return Collections.unmodifiableSet(header.slots().keySet());
  }

  /** What the file says about itself; empty if nothing. */
  public Map<String, String> metadata() {
    return Collections.unmodifiableMap(header.metadata());
  }

  /** Whether the file holds a tensor of this name. */
  public boolean contains(String name) {
    return header.slots().containsKey(name);
  }

  /**
   * One tensor, in place.
   *
   * @throws IllegalArgumentException if there is none of this name, or its type is unknown
   */
  public StoredTensor tensor(String name) {
    SafeTensorsHeader.Slot slot = header.slots().get(name);
    if (slot == null) {
      throw new IllegalArgumentException(
          String.format(
              Locale.ROOT,
              "%s has no tensor %s; it has %s",
              file,
              name,
              String.join(", ", names())));
    }
    MemorySegment elements = data.asSlice(slot.begin(), slot.end() - slot.begin());
    try {
      return new StoredTensor(name, slot.dtype(), slot.shape(), elements);
    } catch (IllegalArgumentException unknownType) {
      throw new IllegalArgumentException(file + ": " + unknownType.getMessage(), unknownType);
    }
  }

  /**
   * Ends the mapping. A second call does nothing.
   *
   * @throws IllegalStateException if a call of another thread uses the memory just then, such as
   *     one that writes it to a file; the mapping stays
   */
  @Override
  public void close() {
    mapping.close();
  }

  @Override
  public String toString() {
    return file.toString();
  }
}
