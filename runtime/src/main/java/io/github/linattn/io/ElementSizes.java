package io.github.linattn.io;

import java.util.List;
import java.util.Map;
import java.util.Objects;

/** Bytes per element of the types that safetensors files name. */
final class ElementSizes {
  private static final Map<String, Integer> BYTES =
      Map.ofEntries(
          Map.entry("BOOL", 1),
          Map.entry("U8", 1),
          Map.entry("I8", 1),
          Map.entry("F8_E5M2", 1),
          Map.entry("F8_E4M3", 1),
          Map.entry("F8_E8M0", 1),
          Map.entry("U16", 2),
          Map.entry("I16", 2),
          Map.entry("F16", 2),
          Map.entry("BF16", 2),
          Map.entry("U32", 4),
          Map.entry("I32", 4),
          Map.entry("F32", 4),
          Map.entry("U64", 8),
          Map.entry("I64", 8),
          Map.entry("F64", 8),
          Map.entry("C64", 8));

  private ElementSizes() {}

  static boolean knows(String dtype) {
    return BYTES.containsKey(dtype);
  }

  /** Of one element of a known type. */
  static int of(String dtype) {
    return Objects.requireNonNull(BYTES.get(dtype));
  }

  static long bytes(String name, String dtype, List<Long> shape) {
    Integer size = BYTES.get(dtype);
    if (size == null) {
      throw new IllegalArgumentException(
          "tensor %s has the unknown element type %s".formatted(name, dtype));
    }
    if (shape.stream().anyMatch(extent -> extent < 0)) {
      throw new IllegalArgumentException(
          "tensor %s has a negative extent: %s".formatted(name, shape));
    }
    long bytes = shape.contains(0L) ? 0 : size;
    for (int i = 0; bytes > 0 && i < shape.size(); i++) {
      bytes = multiply(name, bytes, shape.get(i), shape);
    }
    return bytes;
  }

  private static long multiply(String name, long bytes, long extent, List<Long> shape) {
    try {
      return Math.multiplyExact(bytes, extent);
    } catch (ArithmeticException overflow) {
      throw new IllegalArgumentException(
          "tensor %s%s has more than 2^63 bytes".formatted(name, shape), overflow);
    }
  }
}
