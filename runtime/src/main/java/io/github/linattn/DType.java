package io.github.linattn;

import static java.lang.foreign.ValueLayout.JAVA_FLOAT_UNALIGNED;
import static java.lang.foreign.ValueLayout.JAVA_SHORT_UNALIGNED;

import java.lang.foreign.MemorySegment;
import java.util.Objects;

/**
 * Storage type of tensor elements. Arithmetic and state are fp32 or better for each of them.
 *
 * <p>Conversions round to nearest, ties to even, and keep infinities and NaN; one to fewer bits
 * makes every NaN quiet. They are exact wherever the value is representable.
 */
public enum DType {
  /** IEEE 754 binary32. */
  F32(4),
  /** The upper half of a binary32: 8 exponent bits, 7 fraction bits. */
  BF16(2),
  /** IEEE 754 binary16: 5 exponent bits, 10 fraction bits. */
  F16(2);

  private final int bytes;

  DType(int bytes) {
    this.bytes = bytes;
  }

  /** Size of one element in bytes. */
  public int bytes() {
    return bytes;
  }

  /**
   * Converts {@code count} elements of {@code source}, from element {@code sourceIndex} on, into
   * floats.
   *
   * @throws IndexOutOfBoundsException if either range leaves its memory, or {@code count} is
   *     negative; nothing is written
   */
  public void decode(
      MemorySegment source, long sourceIndex, float[] target, int targetIndex, int count) {
    Objects.checkFromIndexSize(sourceIndex, count, source.byteSize() / bytes);
    Objects.checkFromIndexSize(targetIndex, count, target.length);
    long offset = sourceIndex * bytes;
    switch (this) {
      case F32 ->
          MemorySegment.copy(source, JAVA_FLOAT_UNALIGNED, offset, target, targetIndex, count);
      case BF16 -> {
        for (int i = 0; i < count; i++) {
          short bits = source.get(JAVA_SHORT_UNALIGNED, offset + 2L * i);
          target[targetIndex + i] = bfloat16ToFloat(bits);
        }
      }
      case F16 -> {
        for (int i = 0; i < count; i++) {
          short bits = source.get(JAVA_SHORT_UNALIGNED, offset + 2L * i);
          target[targetIndex + i] = Float.float16ToFloat(bits);
        }
      }
    }
  }

  /**
   * Rounds {@code count} floats into elements of {@code target}, from element {@code targetIndex}
   * on.
   *
   * @throws IndexOutOfBoundsException if either range leaves its memory, or {@code count} is
   *     negative; nothing is written
   */
  public void encode(
      float[] source, int sourceIndex, MemorySegment target, long targetIndex, int count) {
    Objects.checkFromIndexSize(sourceIndex, count, source.length);
    Objects.checkFromIndexSize(targetIndex, count, target.byteSize() / bytes);
    long offset = targetIndex * bytes;
    switch (this) {
      case F32 ->
          MemorySegment.copy(source, sourceIndex, target, JAVA_FLOAT_UNALIGNED, offset, count);
      case BF16 -> {
        for (int i = 0; i < count; i++) {
          short bits = floatToBfloat16(source[sourceIndex + i]);
          target.set(JAVA_SHORT_UNALIGNED, offset + 2L * i, bits);
        }
      }
      case F16 -> {
        for (int i = 0; i < count; i++) {
          short bits = Float.floatToFloat16(source[sourceIndex + i]);
          target.set(JAVA_SHORT_UNALIGNED, offset + 2L * i, bits);
        }
      }
    }
  }

  /** The nearest value that this type can hold. */
  public float round(float value) {
    return switch (this) {
      case F32 -> value;
      case BF16 -> bfloat16ToFloat(floatToBfloat16(value));
      case F16 -> Float.float16ToFloat(Float.floatToFloat16(value));
    };
  }

  private static float bfloat16ToFloat(short bits) {
    return Float.intBitsToFloat(bits << 16);
  }

  private static short floatToBfloat16(float value) {
    int bits = Float.floatToRawIntBits(value);
    if (Float.isNaN(value)) {
      return (short) ((bits >>> 16) | 0x0040); // quiet; rounding could turn a NaN into an infinity
    }
    int roundToEven = 0x7fff + ((bits >>> 16) & 1);
    return (short) ((bits + roundToEven) >>> 16);
  }
}
