package io.github.linattn.io;

import io.github.linattn.files.WholeFile;
import java.io.IOException;
import java.lang.foreign.MemorySegment;
import java.lang.foreign.ValueLayout;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Objects;

/**
 * A file {@code .npy} with one array of numpy, mapped into memory: no element is copied or touched
 * until it is used. Versions 1.0 and 2.0; row-major, little-endian elements {@code <f4} (F32),
 * {@code <f2} (F16) and {@code <i8} (I64). numpy has no bf16.
 *
 * <p>Owns the mapping; {@link StoredTensor#data} of its tensor ends when it closes. The file must
 * not be shortened while it is open. May be read from many threads.
 *
 * @see <a href="https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html">the
 *     format</a>
 */
public final class Npy implements AutoCloseable {
  private static final byte[] MAGIC = {(byte) 0x93, 'N', 'U', 'M', 'P', 'Y'};

  /** numpy pads headers so, and mapped elements are aligned with it. */
  private static final int ALIGNMENT = 64;

  /** Of the magic number, the version and the length of version 1.0. */
  private static final int PREAMBLE_BYTES = 10;

  /** More than an array of 32 axes, numpy's most, takes. */
  private static final long MAX_HEADER_BYTES = 1 << 16;

  private static final ValueLayout.OfShort SHORT =
      ValueLayout.JAVA_SHORT_UNALIGNED.withOrder(ByteOrder.LITTLE_ENDIAN);
  private static final ValueLayout.OfInt INT =
      ValueLayout.JAVA_INT_UNALIGNED.withOrder(ByteOrder.LITTLE_ENDIAN);

  private final MappedFile mapping;
  private final StoredTensor tensor;

  private Npy(MappedFile mapping, StoredTensor tensor) {
    this.mapping = mapping;
    this.tensor = tensor;
  }

  /**
   * Maps a file and checks its header.
   *
   * @throws IOException if the file can't be read, is no well-formed file of these versions, or
   *     holds an array of another type, byte order or order of axes; the message names the file and
   *     what is wrong
   */
  public static Npy open(Path file) throws IOException {
    MappedFile mapping = MappedFile.open(file);
    try {
      return new Npy(mapping, read(file, mapping.bytes()));
    } catch (IllegalArgumentException e) {
      mapping.close();
      throw new IOException(file + ": " + e.getMessage(), e);
    } catch (RuntimeException | Error e) {
      mapping.close();
      throw e;
    }
  }

  /** Whether these bytes begin as those of such a file. */
  static boolean isNpy(MemorySegment all) {
    return all.byteSize() >= PREAMBLE_BYTES
        && Arrays.equals(all.asSlice(0, MAGIC.length).toArray(ValueLayout.JAVA_BYTE), MAGIC);
  }

  private static StoredTensor read(Path file, MemorySegment all) {
    if (!isNpy(all)) {
      throw new IllegalArgumentException("this is no .npy file");
    }
    int major = all.get(ValueLayout.JAVA_BYTE, MAGIC.length);
    int minor = all.get(ValueLayout.JAVA_BYTE, MAGIC.length + 1);
    boolean first = major == 1;
    if (major < 1 || major > 2 || minor != 0) {
      throw broken("its version is %d.%d; 1.0 and 2.0 are read", major & 0xff, minor & 0xff);
    }
    long start = MAGIC.length + 2L + (first ? Short.BYTES : Integer.BYTES);
    if (all.byteSize() < start) {
      throw broken("it ends within the length of its header");
    }
    long length =
        first
            ? Short.toUnsignedLong(all.get(SHORT, MAGIC.length + 2))
            : Integer.toUnsignedLong(all.get(INT, MAGIC.length + 2));
    if (length > Math.min(all.byteSize() - start, MAX_HEADER_BYTES)) {
      throw broken("it announces a header of %d bytes, %d follow", length, all.byteSize() - start);
    }
    byte[] header = all.asSlice(start, length).toArray(ValueLayout.JAVA_BYTE);
    NpyHeader array = NpyHeader.parse(new String(header, StandardCharsets.ISO_8859_1));
    return new StoredTensor(
        String.valueOf(file.getFileName()),
        array.dtype(),
        array.shape(),
        all.asSlice(start + length));
  }

  private static IllegalArgumentException broken(String sentence, Object... values) {
    return new IllegalArgumentException(String.format(Locale.ROOT, sentence, values));
  }

  /** The array, in place; named as the file is. */
  public StoredTensor tensor() {
    return tensor;
  }

  /**
   * Writes an array as version 1.0. {@code target} is either complete afterwards or as it was
   * before.
   *
   * @param dtype F32, F16 or I64
   * @param shape extents, outermost first; empty for a scalar
   * @param data row-major elements, little-endian, off-heap or a {@code byte[]}
   * @throws IllegalArgumentException if numpy has no such type or the size does not fit
   * @throws IOException if the file can't be written
   */
  public static void write(Path target, String dtype, List<Long> shape, MemorySegment data)
      throws IOException {
    Objects.requireNonNull(target, "target is null");
    writeAll(
        Map.of(target, new StoredTensor(String.valueOf(target.getFileName()), dtype, shape, data)));
  }

  /**
   * Writes several arrays as version 1.0, each beside its target, and moves them into place when
   * all are there: if one can't be written, no target is touched.
   *
   * @param arrays by target, of types F32, F16 or I64
   * @throws IllegalArgumentException if numpy has no such type
   * @throws IOException if a file can't be written; a {@link java.nio.file.FileSystemException}
   *     names it
   */
  public static void writeAll(Map<Path, StoredTensor> arrays) throws IOException {
    Map<Path, WholeFile.Content> files = new LinkedHashMap<>();
    for (Map.Entry<Path, StoredTensor> array : arrays.entrySet()) {
      ByteBuffer start = start(array.getValue());
      files.put(
          array.getKey(),
          channel -> {
            WholeFile.append(channel, start);
            WholeFile.append(channel, array.getValue().data());
          });
    }
    WholeFile.writeAll(files);
  }

  private static ByteBuffer start(StoredTensor array) {
    String dictionary = new NpyHeader(array.dtype(), array.shape()).dictionary();
    int unpadded = PREAMBLE_BYTES + dictionary.length() + 1;
    String header = dictionary + " ".repeat(Math.floorMod(-unpadded, ALIGNMENT)) + "\n";
    if (header.length() > 0xffff) {
      throw broken("an array of %d axes has no header of version 1.0", array.shape().size());
    }
    return ByteBuffer.allocate(PREAMBLE_BYTES + header.length())
        .order(ByteOrder.LITTLE_ENDIAN)
        .put(MAGIC)
        .put((byte) 1)
        .put((byte) 0)
        .putShort((short) header.length())
        .put(header.getBytes(StandardCharsets.ISO_8859_1))
        .flip();
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
    return tensor.name() + ": " + tensor;
  }
}
